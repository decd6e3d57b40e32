import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpsim import experiments, plots
from mpsim.amp.controllers import Phases
from mpsim.cli import main
from mpsim.experiments.adaptive import ARMS, Arm, Config, Measured, Result, run


@pytest.fixture(scope="module")
def measured() -> dict[str, Measured]:
    """Return two epochs of every arm: a few seconds."""
    return {m.arm: m for m in run(Config(epochs=2)).measured}


def test_scales_bring_back_what_small_gradients_lose(measured: dict[str, Measured]):
    assert measured["fp16, small gradients"].accuracy < 0.2
    for name in ("dynamic loss scale", "layer scales"):
        # At most 7 of the 359 test images.
        assert abs(measured[name].accuracy - measured["fp32"].accuracy) < 0.02
        assert measured[name].skipped <= 2


def test_formats_change_over_time_as_the_controllers_say(measured: dict[str, Measured]):
    assert measured["phases"].formats == ((0, "e5m2"), (60, "fp16"))
    assert [fmt for _, fmt in measured["diversity"].formats][:2] == ["e5m2", "fp16"]
    assert measured["noise budget"].formats[0] == (0, "fp32")
    assert measured["e5m2"].narrow == 1
    for name in ("phases", "diversity", "noise budget"):
        assert 0 < measured[name].narrow < 1
        assert measured[name].loss < measured["e5m2"].loss


def test_every_format_of_8_bits_is_narrow(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ARMS, "e4m3", Arm(lambda: Phases([(0, "e4m3"), (1, "fp16")])))
    measured = run(Config(arms=("e4m3",), epochs=1, batch_size=512, hidden=4)).measured[0]
    assert measured.formats == ((0, "e4m3"), (1, "fp16"))
    assert measured.narrow == 1 / 3


def test_a_run_is_repeated_bit_for_bit(measured: dict[str, Measured]):
    again = run(Config(arms=("noise budget",), epochs=2))
    assert again.measured[0] == measured["noise budget"]
    assert json.loads(json.dumps(again.to_dict()))["measured"][0]["arm"] == "noise budget"
    assert len(again.tables[0].rows[0]) == len(again.tables[0].columns)


def test_claims_are_judged_when_all_arms_are_finished():
    parts: list[Result] = []
    shares: list[float] = []
    config = {"arms": ("e5m2", "fp32", "phases"), "epochs": 1, "hidden": 8, "batch_size": 256}
    result = experiments.run("adaptive", config, on_part=parts.append, progress=lambda share, _: shares.append(share))
    assert [(len(part.measured), part.complete, len(part.claims)) for part in parts] == [
        (1, False, 0),
        (2, False, 0),
        (3, True, 1),  # of the controllers, phases alone was run
    ]
    assert shares == [0, 1 / 3, 2 / 3, 1]
    assert result == parts[-1]
    assert result.find("fp32") is result.measured[1]
    assert result.find("diversity") is None


def forged(**changes: dict[str, Any]) -> Result:
    """Return a result in which every controller does what it should, but for some numbers."""
    good = {name: {"accuracy": 0.87, "loss": 0.8, "narrow": 0.3} for name in ARMS}
    good["fp16, small gradients"]["accuracy"] = 0.1
    good["e5m2"]["loss"] = 0.9
    for name, numbers in changes.items():
        good[name.replace("_", " ")] |= numbers
    rest = {"tested": 359, "losses": (2.0, math.nan), "skipped": 0, "formats": ((0, "fp16"),), "scales": ((0, 64.0),)}
    return Result(Config(), tuple(Measured(arm=name, **numbers, **rest) for name, numbers in good.items()))


def test_a_claim_for_each_controller():
    claims = forged().claims
    assert [claim.holds for claim in claims] == [True] * 5
    assert json.loads(json.dumps(forged().to_dict(), allow_nan=False))["measured"][0]["losses"] == [2.0, None]
    assert forged().tables[0].rows[0][-1] == "2^6"


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({"dynamic_loss_scale": {"accuracy": 0.83}}, [0]),
        ({"layer_scales": {"accuracy": 0.83}}, [1]),
        ({"fp16, small gradients": {"accuracy": 0.85}}, [0, 1]),  # nothing was lost to begin with
        ({"phases": {"accuracy": 0.83}}, [2]),
        ({"diversity": {"loss": 0.91}}, [3]),
        ({"noise_budget": {"narrow": 0.1}}, [4]),
        ({"phases": {"accuracy": math.nan}}, [2]),
    ],
    ids=str,
)
def test_a_claim_fails_where_its_controller_does(changes: dict[str, Any], fails: list[int]):
    assert [i for i, claim in enumerate(forged(**changes).claims) if not claim.holds] == fails


def test_scales_are_those_that_the_controllers_chose(measured: dict[str, Measured]):
    dynamic = measured["dynamic loss scale"]
    changes = [(b[0] - a[0], b[1] / a[1]) for a, b in itertools.pairwise(dynamic.scales)]
    assert dynamic.scales[0] == (0, 2.0**32)
    assert {factor for _, factor in changes} == {2.0, 0.5}
    assert all(steps == 10 for steps, factor in changes if factor == 2)
    assert sum(factor == 0.5 for _, factor in changes) == dynamic.skipped > 0
    assert measured["e5m2"].scales == ((0, 256.0),)
    (first, start), *later = measured["layer scales"].scales
    assert (first, start) == (0, 64.0)
    assert all(scale > 64 and math.frexp(scale)[0] == 0.5 for _, scale in later)
    assert len(measured["phases"].losses) == 2 * 45


def test_figures_are_drawn(tmp_path: Path):
    result = run(Config(arms=("dynamic loss scale", "layer scales"), epochs=1, hidden=8, batch_size=64))
    written = plots.STUDIES["adaptive"](result, tmp_path)
    assert [path.name for path in written] == ["losses.png", "scales.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    curves = plots.adaptive_losses(result).get_lines()
    assert [line.get_label() for line in curves] == ["dynamic loss scale", "layer scales"]
    np.testing.assert_array_equal(curves[0].get_ydata()[0], np.mean(result.measured[0].losses[:10]))
    scales = plots.adaptive_scales(result).get_lines()[1]
    assert list(scales.get_ydata())[:-1] == [scale for _, scale in result.measured[1].scales]


def test_the_command_runs_the_study(tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]):
    short = Config(arms=("fp32", "fp16, small gradients", "dynamic loss scale"), epochs=1)
    monkeypatch.setattr(experiments, "configure", lambda name, overrides: short)
    code = main(["reproduce", "adaptive", "--workers", "1", "--json", "-o", str(tmp_path / "out")])
    shown = json.loads(capsys.readouterr().out)
    assert shown == experiments.read_result(tmp_path / "out")
    assert [m["arm"] for m in shown["measured"]] == list(short.arms)
    assert code == (0 if all(claim["holds"] for claim in shown["claims"]) else 1)
    assert len(shown["claims"]) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"arms": ("fp61",)}, "'fp61'"),
        ({"seed": -1}, "seed is -1"),
        ({"arms": ()}, "arms is empty"),
        ({"lr": float("nan")}, "lr is nan"),
    ],
)
def test_a_wrong_setting_is_named(change: dict, message: str):
    with pytest.raises(ValueError, match=message):
        Config(**change)


def test_every_controller_has_an_arm():
    names = {type(arm.controller()).__name__ for arm in ARMS.values()}
    assert names == {"DynamicLossScale", "LayerScales", "Phases", "DiversitySwitch", "NoiseBudget"}
