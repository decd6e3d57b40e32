"""Numbers in tables for people."""

import io

import pytest
from rich.console import Console

from mpsim import _text
from mpsim.bench import TrainTiming


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [(1.234, "1,234"), (12.3456, "12,346"), (0.9996, "1,000"), (0.9994, "999"), (0.0123456, "12.3"), (5e-6, "0.005")],
)
def test_times_have_three_digits_and_no_exponent(seconds: float, milliseconds: str):
    timing = TrainTiming(
        model="mlp",
        library="mpsim",
        arithmetic="fp32",
        unit="native",
        parameters=1,
        threads=1,
        steps=1,
        seconds=seconds,
        fastest=seconds,
        slowest=seconds,
        loss=1.0,
    )
    console = Console(file=io.StringIO(), width=200)
    console.print(_text.train_table([timing]))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.split().count(milliseconds) == 3
    assert "e+" not in shown
