"""Reports and figures of a record."""

import re

import numpy as np
import pytest

from mpsim import amp, nn, optim, plots
from mpsim.cli import main
from mpsim.observe import Record, compare, observe
from mpsim.report import write_report
from mpsim.tensor import Tensor


@pytest.fixture(scope="module")
def record() -> Record:
    model, scaler = nn.Sequential(nn.Linear(4, 8, rng=0), nn.ReLU(), nn.Linear(8, 3, rng=1)), amp.ConstantScaler(4.0)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    with observe(scaler=scaler, causes=True) as seen:
        for _ in range(3):
            optimizer.zero_grad()
            with amp.autocast("fp16"):
                loss = nn.functional.cross_entropy(model(x), [0, 1, 2, 0, 1, 2])
            scaler.scale(loss * 2.0**-26).backward()
            scaler.step(optimizer)
            scaler.update()
    return seen


def test_a_report_needs_nothing_from_outside(record: Record, tmp_path):
    record.save(tmp_path / "run.npz")
    assert main(["report", str(tmp_path / "run.npz"), "-o", str(tmp_path / "run.html")]) == 0
    page = (tmp_path / "run.html").read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!data:)|https?://|<script|@import""", page)
    assert page.count("<img ") == 4
    for text in ("The first failure", "became zero in fp16", "Why gradients are zero", "2.weight"):
        assert text in page
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.html", "run.npz"]


def test_a_step_that_nothing_followed_is_not_told(tmp_path, capsys):
    with observe() as seen:
        for _ in range(3):
            Tensor([1.0]) * 2.0
            seen.next_step()
    seen.save(tmp_path / "run.npz")
    assert main(["report", str(tmp_path / "run.npz"), "--json"]) == 0
    assert '"steps": 3' in capsys.readouterr().out
    assert main(["report", str(tmp_path / "run.npz")]) == 0
    assert "3 training steps" in (tmp_path / "run.html").read_text()


@pytest.mark.parametrize("fmt", ["fp64", "e2m1", "bf16"])
def test_a_report_may_be_about_any_format(record: Record, tmp_path, fmt: str):
    write_report(record, tmp_path / "run.html", fmt)
    assert (tmp_path / "run.html").read_text().count("<img ") == 4


def test_a_report_of_an_empty_record_is_written(tmp_path):
    Record().save(tmp_path / "run.npz")
    assert main(["report", str(tmp_path / "run.npz")]) == 0
    assert "Nothing overflowed" in (tmp_path / "run.html").read_text()


def test_numbers_are_printed_as_json(record: Record, tmp_path, capsys):
    import json

    record.save(tmp_path / "run.npz")
    assert main(["report", str(tmp_path / "run.npz"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["steps"] == 3
    assert {"0.weight", "2.bias"} <= {row["tensor"] for row in told["tensors"]}


def test_a_file_that_is_no_record_is_a_mistake(tmp_path, capsys):
    (tmp_path / "run.npz").write_bytes(b"nothing")
    assert main(["report", str(tmp_path / "run.npz")]) == 2
    assert "no record" in capsys.readouterr().err


def test_the_heat_map_has_a_row_for_each_layer_and_a_column_for_each_step(record: Record):
    ax = plots.heat_map(record, "zeros")
    assert ax.images[0].get_array().shape == (len(record.layers("activation gradient")), 3)
    share = ax.images[0].get_array()[[t.get_text() for t in ax.get_yticklabels()].index("0")]
    assert (share == 100).all()  # everything was lost on the way


def test_the_heat_map_adds_up_what_a_layer_did_in_a_step():
    model = nn.Sequential(nn.Linear(2, 2, rng=0), nn.Linear(2, 2, rng=1))
    with observe() as seen:
        for factor in (0.0, 1.0):
            x = model(np.ones((1, 2), np.float32))
            (x * factor).sum().backward()
            seen.next_step()
        model(np.ones((1, 2), np.float32))
    for kind, event in [("activation gradient", "zeros"), ("activation", "inexact"), ("weight", "elements")]:
        ax = plots.heat_map(seen, event, kind)
        shares = ax.images[0].get_array()
        for i, layer in enumerate(seen.layers(kind)):
            for step in range(shares.shape[1]):
                entries = [e.counters for e in seen.entries(kind) if (e.layer, e.step) == (layer, step)]
                made = sum(c.underflows for c in entries) if event == "zeros" else 0
                total = sum(c.elements for c in entries)
                want = 100 * (sum(getattr(c, event) for c in entries) + made) / total if total else np.nan
                np.testing.assert_allclose(np.ma.filled(shares[i, step], np.nan), want, rtol=1e-12)
    assert plots.heat_map(seen, "zeros", "activation gradient").images[0].get_array().shape[1] == 2


def test_a_window_beyond_the_numbers_of_fp64_is_drawn():
    for exponent in (-1060, 0, 1000):
        x = Tensor([1.0], requires_grad=True, format="fp64")
        with observe(scaler=amp.ConstantScaler(2.0**15)) as seen:
            (x * 1.0 * 1.0).backward([2.0**exponent])
        for fmt in ("fp16", "fp64"):
            assert plots.loss_scale_window(seen, fmt).get_title()
            assert plots.scale_profile(seen, fmt).get_title()


def test_the_loss_scale_is_drawn_below_its_window(record: Record):
    ax = plots.loss_scale_window(record)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [2.0] * 4)
    assert {t.get_text() for t in ax.get_legend().get_texts()} == {
        "more than 0.1% lost",
        "admissible",
        "something overflows",
        "loss scale",
    }


def test_the_profile_ends_its_losses_where_the_window_begins(record: Record):
    lost = plots.scale_profile(record, layer="2").lines[0]
    window = record.what_if("fp16", layer="2").window("fp16")
    factor, share = np.asarray(lost.get_xdata()), np.asarray(lost.get_ydata())
    assert (share[factor >= np.log2(window.smallest)] <= 0.1).all()
    assert share[factor == np.log2(window.smallest) - 1] > 0.1


def test_magnitudes_and_errors_are_drawn(record: Record):
    assert plots.magnitudes(record, layer="2").get_xlabel() == "log2 |activation gradient| before rounding"
    layer = nn.Linear(3, 2, rng=0)
    x = np.ones((1, 3), np.float32)

    def run(low: bool) -> None:
        with amp.autocast("bf16", enabled=low):
            layer(x)

    ax = plots.error_growth(compare(lambda: run(True), lambda: run(False)))
    assert [t.get_text() for t in ax.get_xticklabels()] == ["Linear linear"]


def test_empty_records_are_drawn():
    for draw in (plots.loss_scale_window, plots.scale_profile, plots.heat_map, plots.magnitudes):
        assert draw(Record()).get_title()
