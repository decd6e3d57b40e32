"""Figures: what they show comes from the numbers given, and nothing global is touched."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mpsim import plots
from mpsim.experiments import digits, examples, names
from mpsim.experiments.examples import Run
from mpsim.experiments.training import Measured
from mpsim.experiments.underflow import Config, Result, arms
from mpsim.formats import FP16
from mpsim.matmul import explain_dot


def forged(config: Config = Config()) -> Result:  # noqa: B008 (frozen)
    """Return a complete result with made-up numbers, a different accuracy for each arm."""
    measured = [
        Measured(
            arm=arm,
            accuracy=0.5 + i / 100,
            tested=359,
            losses=(2.0, 1.0 + i / 10),
            steps=4,
            skipped=(1, 3),
            zero=0.9 - i / 100,
            underflow=0.1,
            subnormal=0.2,
            updates_lost=0.0,
            scales=(4.0, 8.0, 4.0, 8.0) if arm.loss_scale == np.inf else (),
            exponents=(-26, -25, -20, 0, 16),
            counts=(50, 20, 15, 10, 5),
        )
        for i, arm in enumerate(arms(config))
    ]
    return Result(config, tuple(measured))


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_the_bands_of_fp16_end_at_half_the_smallest_subnormal():
    ax = plots.gradient_histogram((-26, -25, -20, 0, 16), (50, 20, 15, 10, 5))
    assert "2^-25" in ax.get_title()
    # [2**-26, 2**-25) is lost whole; numbers from 2**-25 on are not, the tie itself apart.
    assert texts(ax) == ["lost\n50.0 %", "subnormal\n35.0 %", "normal\n10.0 %", "overflow\n5.0 %"]
    edges = {round(float(patch.get_x()), 4) for patch in ax.patches}
    threshold = np.log2(65520.0)
    assert {-25.0, float(FP16.emin), round(float(threshold), 4)} <= edges


def test_a_format_without_subnormals_has_no_such_band():
    assert [t.split("\n")[0] for t in texts(plots.gradient_histogram((0,), (1,), "dlfloat16"))] == [
        "lost",
        "normal",
        "overflow",
    ]


def test_an_empty_histogram_is_drawn():
    ax = plots.gradient_histogram((), ())
    assert texts(ax)[0] == "lost\n0.0 %"


def test_accuracy_is_drawn_against_the_constant_scales():
    result = forged()
    ax = plots.accuracy_by_scale(result)
    line = ax.lines[0]
    np.testing.assert_array_equal(line.get_xdata(), result.config.scales)
    np.testing.assert_allclose(line.get_ydata(), [51, 52, 53, 54, 55])
    zeros = ax.lines[1]
    np.testing.assert_allclose(zeros.get_ydata(), [89, 88, 87, 86, 85])


def test_skipped_steps_stand_at_their_scale():
    ax = plots.loss_scale_curve(forged())
    scale, marks = ax.lines
    np.testing.assert_array_equal(scale.get_ydata(), [4.0, 8.0, 4.0, 8.0])
    np.testing.assert_array_equal(marks.get_xdata(), [1, 3])
    np.testing.assert_array_equal(marks.get_ydata(), [8.0, 8.0])


def test_loss_curves_show_every_arm_of_the_part():
    result = forged()
    ax = plots.loss_curves(result)
    assert [line.get_label() for line in ax.lines] == [m.arm.name for m in result.part("master weights")]


@pytest.mark.parametrize("finished", range(len(arms(Config())) + 1))
def test_a_result_can_be_drawn_wherever_it_was_interrupted(tmp_path, finished):
    result = Result(Config(), forged().measured[:finished])
    names = {path.name for path in plots.save_underflow(result, tmp_path)}
    always = {"loss-curves.png", "loss-scale.png", "accuracy-by-scale.png"}
    assert names == always | ({"gradient-histogram.png"} if finished else set())


@pytest.mark.parametrize("only", range(len(arms(Config()))))
def test_a_result_of_any_single_arm_can_be_drawn(tmp_path, only):
    assert len(plots.save_underflow(Result(Config(), (forged().measured[only],)), tmp_path)) == 4 - (only != 0)


def test_figures_are_saved_and_nothing_global_changes(tmp_path):
    before, open_before = dict(mpl.rcParams), plt.get_fignums()
    paths = plots.save_underflow(forged(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths)
    assert len(paths) == 4
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert dict(mpl.rcParams) == before
    assert plt.get_fignums() == open_before


@pytest.mark.parametrize(
    "draw", [plots.accuracy_by_scale, plots.loss_curves, plots.loss_scale_curve], ids=lambda f: f.__name__
)
def test_an_axes_given_is_drawn_into_and_returned(draw):
    own = Figure().subplots()
    assert draw(forged(), ax=own) is own
    assert own.lines


@pytest.mark.parametrize("finished", [0, 1, 6])
def test_examples_are_drawn_wherever_they_were_interrupted(tmp_path, finished):
    example = digits.EXAMPLE
    curve = tuple(float(i) for i in range(130))
    runs = tuple(
        Run(task=task, arithmetic=arithmetic, score=0.5, curve=curve, skipped=0) for task, arithmetic in example.parts
    )
    result = examples.Result(example, digits.Config(), runs[:finished])
    ax = plots.training_curves(result, digits.MLP)
    assert len(ax.lines) == min(finished, 3)
    for line in ax.lines:  # means of two neighbours
        np.testing.assert_array_equal(line.get_xdata(), np.arange(0, 130, 2))
        np.testing.assert_array_equal(line.get_ydata(), np.arange(0, 130, 2) + 0.5)
    assert [path.name for path in plots.STUDIES["digits"](result, tmp_path)] == ["mlp.png", "cnn.png"]


def test_every_study_can_be_drawn():
    assert plots.STUDIES.keys() == set(names())


def test_alignment_shows_kept_and_cut_bits():
    told = explain_dot([-(2.0**13), -0.5, -0.75], [2.0**10, 1.0, 1.0], 2.0**23, unit="a100")
    ax = plots.alignment(told.steps[0])
    spans = sorted((patch.get_x(), patch.get_width()) for patch in ax.patches)
    # -0.75 keeps its half and loses its quarter; the cut lies at 2**-1.
    assert spans == [(-2, 1), (-1, 1), (-1, 1), (23, 1), (23, 1)]
    assert ax.lines[-1].get_xdata()[0] == -1
    with pytest.raises(ValueError, match="it aligns nothing to draw"):
        plots.alignment(explain_dot([1.0], [1.0], unit="ideal").steps[0])
