import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mpsim
from mpsim import _text, units
from mpsim.cli import main
from mpsim.formats import CATALOGUE

ELLIPSIS = "…"


class Call:
    """What one command printed, and its exit code."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
        self.code = main(arguments)
        self.out, self.err = capsys.readouterr()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``python -m mpsim`` in a process of its own."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | options.pop("env", {})
    command = [sys.executable, "-m", "mpsim", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, **options)


# Help and version.


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    call = Call(capsys, *arguments)
    assert call.code == 0
    for command in ("formats", "units", "inspect", "bench", "reproduce", "validate", "record", "doctor"):
        assert re.search(rf"\b{command} ", call.out)


@pytest.mark.parametrize(
    "command", ["formats", "units", "inspect", "bench", "bench matmul", "reproduce", "validate", "record", "doctor"]
)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    call = Call(capsys, *command.split(), "--help")
    assert call.code == 0
    assert f"mpsim {command} " in call.out


def test_help_imports_nothing_heavy() -> None:
    program = "import sys\nfrom mpsim.cli import main\ncode = main(['inspect', '--help'])\nprint(code, *sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    code, *loaded = done.stdout.splitlines()[-1].split()
    assert code == "0"
    assert not {"numba", "matplotlib", "numpy"} & set(loaded)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    call = Call(capsys, "--version")
    assert (call.code, call.out) == (0, f"mpsim {mpsim.__version__}\n")


# Tables and JSON.


def test_formats_are_all_listed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Call(capsys, "formats").out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == [f.name for f in CATALOGUE]
    assert lines[2 + 3].split() == ["fp16", "1-5-10", "15", "65504", "2^-14", "2^-24", "yes", "yes", "yes"]
    data = Call(capsys, "formats", "--json").json
    assert [row["name"] for row in data] == [f.name for f in CATALOGUE]


def test_one_format_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    out = Call(capsys, "formats", "float8_e4m3fn").out
    assert "8 bits: 1 sign, 4 exponent, 3 fraction" in out
    assert "448  (code 0x7e)" in out
    data = Call(capsys, "formats", "e4m3", "--json").json
    assert (data["max_finite"], data["inf_code"], data["nan_code"]) == (448.0, None, 0x7F)
    assert "0.5, 1, 1.5, 2, 3, 4, 6" in Call(capsys, "formats", "fp4").out
    assert Call(capsys, "formats", "e6m9").code == 0


def test_units_are_all_listed_with_their_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*units.UNITS, units.NATIVE]
    call = Call(capsys, "units")
    lines = [line.split() for line in call.out.split("\n\n")[0].splitlines()[2:]]
    shown = {(cells[0], cells[1], cells[-1]) for cells in lines}
    ideal = ("rounded", "exact", "native")
    assert shown == {(u.architecture, u.instruction, "-" if u.family in ideal else u.evidence) for u in rows}
    assert len(lines) < len(rows) / 2  # inputs that are treated alike share a line
    assert [line for line in lines if line[0] == "ada" and "RTZ" in line and "e4m3," in line]
    assert "recordings of the device replayed" in call.out
    data = Call(capsys, "units", "--json").json
    assert [row["evidence"] for row in data] == [unit.evidence for unit in rows]
    assert {row["architecture"] for row in Call(capsys, "units", "v100", "--json").json} == {"volta"}


def test_every_family_of_units_is_explained() -> None:
    assert set(_text.units._ARITHMETIC) == set(units.Family)


@pytest.mark.parametrize("arguments", [["formats"], ["units"], ["inspect", "0.1", "--all"]])
def test_pipes_get_plain_lines_that_are_not_cut(arguments: list[str]) -> None:
    done = process(*arguments, env={"COLUMNS": "40", "TERM": "xterm-256color"})
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert ELLIPSIS not in done.stdout
    assert all(line == line.rstrip() for line in done.stdout.splitlines())
    # One line for each row, below the header and its rule.
    first_column = [line.split()[0] for line in done.stdout.split("\n\n")[0].splitlines()[2:]]
    assert set(first_column) <= {f.name for f in CATALOGUE} | {u.architecture for u in (*units.UNITS, units.NATIVE)}


def test_no_color_means_no_colour_even_on_a_terminal() -> None:
    program = (
        "import sys\nfrom rich.console import Console\nfrom mpsim import _text\nfrom mpsim.inspect import inspect\n"
        "sys.stdout.isatty = lambda: True\n_text.show(_text.inspection_panel(inspect('0.1', 'fp16')))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm-256color", "COLUMNS": "100"}
    for extra, colours in (({}, True), ({"NO_COLOR": "1"}, False)):
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment | extra, capture_output=True, text=True, check=True
        )
        assert "0.0999755859375" in run.stdout
        assert bool(re.search(r"\x1b\[[0-9;]*3[0-7]m", run.stdout)) == colours


def test_output_that_only_takes_ascii_does_not_crash() -> None:
    done = process("inspect", "0.1", "--all", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.returncode == 0
    assert "0.0999755859375" in done.stdout
    assert done.stdout.isascii()


def test_bench_reports_what_was_asked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    monkeypatch.delenv("OPENBLAS_L2_SIZE", raising=False)
    few = ["bench", "matmul", "--size", "8", "--size", "5x3x2", "--unit", "v100", "--out", "fp32", "--repeats", "1"]
    rows = Call(capsys, *few, "--json").json
    assert [(row["unit"], row["out"], row["m"], row["k"], row["n"]) for row in rows] == [
        ("v100", "fp32", 8, 8, 8),
        ("v100", "fp32", 5, 3, 2),
    ]
    assert all(row["ratio"] == row["seconds"] / row["numpy_seconds"] > 0 for row in rows)
    call = Call(capsys, *few)
    assert call.err == ""
    assert [line.split()[:8] for line in call.out.splitlines()[2:]] == [
        ["v100", "fp16", "fp32", "8", "x", "8", "x", "8"],
        ["v100", "fp16", "fp32", "5", "x", "3", "x", "2"],
    ]
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert "OPENBLAS_CORETYPE may slow NumPy" in Call(capsys, *few).err


def test_bench_rounding_takes_formats_and_block_formats(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["bench", "rounding", "--elements", "64", "-f", "e5m2", "-f", "mxfp8_e4m3", "-f", "nvfp4", "--repeats", "1"]
    rows = Call(capsys, *few, "--json").json
    assert [row["fmt"] for row in rows if row["what"] in ("encode", "quantize")] == ["e5m2", "mxfp8_e4m3", "nvfp4"]
    assert all(row["of_copy"] == row["copy_seconds"] / row["seconds"] > 0 for row in rows)
    lines = [line.split() for line in Call(capsys, *few).out.splitlines()[2:]]
    assert [line[0] for line in lines if line[1] == "quantize"] == ["mxfp8_e4m3", "nvfp4"]


def test_bench_train_reports_each_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["bench", "train", "--model", "mlp", "--steps", "1", "--warmup", "0", "--no-memory"]
    rows = [row for row in Call(capsys, *few, "--json").json if row["library"] == "mpsim"]
    assert [(row["arithmetic"], row["unit"]) for row in rows] == [
        ("fp32", "native"),
        ("fp16", "a100"),
        ("bf16", "h100"),
    ]
    assert all(row["fastest"] == row["seconds"] == row["slowest"] > 0 for row in rows)
    assert all(row["process_bytes"] is row["simulated_bytes"] is None for row in rows)
    lines = Call(capsys, *few).out.splitlines()[2:5]
    assert [line.split()[:4] for line in lines] == [
        ["mlp", "mpsim", *arithmetic] for arithmetic in (("fp32", "native"), ("fp16", "a100"), ("bf16", "h100"))
    ]


def test_bench_train_reports_what_observing_costs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mpsim import nn
    from mpsim.bench import train

    monkeypatch.setattr(train, "_mlp", lambda rng: nn.Sequential(nn.Linear(784, 10, rng=rng)))
    few = ["bench", "train", "--observe", "--model", "mlp", "--steps", "2", "--warmup", "0"]
    rows = Call(capsys, *few, "--json").json
    kinds = ["nothing", "counts", "histograms"]
    assert [row["observing"] for row in rows] == 3 * kinds
    assert all(row["ratio_low"] <= row["ratio"] <= row["ratio_high"] for row in rows)
    lines = [line.split() for line in Call(capsys, *few).out.splitlines()[2:]]
    assert [line[:4] for line in lines[:3]] == [["mlp", "fp32", "native", kind] for kind in kinds]
    assert lines[0][-4:] == ["1.000", "1.000", "to", "1.000"]


def test_an_example_is_run_drawn_and_judged(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mpsim.experiments import copying
    from mpsim.experiments.examples import Arithmetic, Run

    def train(task: str, arithmetic: Arithmetic, config: copying.Config) -> Run:
        assert config == copying.Config(seed=5)
        return Run(task=task, arithmetic=arithmetic, score=score, curve=(2.0, 1.0), skipped=0)

    monkeypatch.setattr(copying, "run", dataclasses.replace(copying.EXAMPLE, train=train).run)
    monkeypatch.chdir(tmp_path)
    command = ["reproduce", "copying", "--seed", "5", "--workers", "1", "--force"]
    score = 1.0
    call = Call(capsys, *command)
    assert call.code == 0
    assert "100.0% in FP32, 100.0% in FP16, loss scaling, 100.0% in BF16" in call.out
    assert {path.name for path in (tmp_path / "copying-seed5").iterdir()} == {"result.json", "copy.png"}
    score = 0.5
    assert Call(capsys, *command).code == 1


# inspect.


def test_inspect_shows_the_common_formats_and_with_all_every_one(capsys: pytest.CaptureFixture[str]) -> None:
    few = Call(capsys, "inspect", "0.1").out.splitlines()[2:]
    assert {"fp32", "fp16", "bf16", "e4m3"} <= {line.split()[0] for line in few}
    everything = Call(capsys, "inspect", "0.1", "--all").out.splitlines()[2:]
    assert [line.split()[0] for line in everything] == [f.name for f in CATALOGUE]
    row = next(line for line in everything if line.startswith("fp16 "))
    assert row.split() == ["fp16", "0", "01011", "1001100110", "0.0999755859375", "-2.44e-05", "-0.4"]


def test_inspect_of_one_format_says_everything(capsys: pytest.CaptureFixture[str]) -> None:
    out = Call(capsys, "inspect", "0.1", "--format", "fp16").out
    for fact in (
        "0x2e66",
        "0 01011 1001100110",
        "field 11 - bias 15 = -4",
        "1.1001100110 in binary = 1638 / 2^10",
        "0.0999755859375 = 1638 * 2^-14",
        "0.10003662109375  (code 0x2e67)",
        "0.09991455078125  (code 0x2e65)",
        "2^-14 = 0.00006103515625",
        "-0.0000244140625 = -0.4 ulp, -2.44e-04 relative",
        "the first is nearer",
    ):
        assert fact in out
    data = Call(capsys, "inspect", "0.1", "-f", "fp16", "--json").json
    assert (data["code"], data["value"], data["error_ulps"]) == ("0x2e66", "0.0999755859375", "-0.4")


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["-0.1"], "-0.0999755859375"),
        (["--", "-0.1"], "-0.0999755859375"),
        (["-1e-3", "--format", "fp16"], "-0.0010004043579101562"),
        (["-.5"], "-0.5"),
        (["-1/4"], "-0.25"),
        (["-2^-3"], "-0.125"),
        (["-0x1.8p1"], "-3"),
        (["-inf"], "-inf"),
        (["-nan"], "-nan"),
        (["-0"], "-0"),
        (["0x7bff", "--format", "fp16"], "65504"),
        (["0b0111101111111111"], "65504"),
        (["0x1.8p3"], "12"),
        ([" 7 "], "7"),
    ],
)
def test_inspect_takes_negative_numbers_and_codes(
    capsys: pytest.CaptureFixture[str], arguments: list[str], value: str
) -> None:
    call = Call(capsys, "inspect", "--json", "-f", "fp16", *arguments)
    assert call.code == 0, call.err
    data = call.json
    assert (data[0] if isinstance(data, list) else data)["value"].startswith(value)


@pytest.mark.parametrize("fmt", [f.name for f in CATALOGUE])
@pytest.mark.parametrize("number", ["0", "-0", "inf", "-inf", "nan", "1e-400", "-1e400", "1/3", "-0.3", "1"])
def test_every_number_in_every_format_can_be_shown(capsys: pytest.CaptureFixture[str], fmt: str, number: str) -> None:
    call = Call(capsys, "inspect", number, "-f", fmt)
    assert call.code == 0
    assert call.out.startswith(f"{number} in {fmt}\n")


# Mistakes.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspct"], "inspect"),
        (["formats", "fp17"], "fp16"),
        (["formats", "--jsn"], "--json"),
        (["formats", "fp16", "bf16"], "unexpected extra argument"),
        (["units", "v10"], "v100"),
        (["inspect"], "Missing argument"),
        (["inspect", "abc"], "write it like 0.1"),
        (["inspect", "1e99999"], "exponent"),
        (["inspect", "0.1", "--format", "fb16"], "bf16"),
        (["inspect", "0.1", "--fromat", "fp16"], "--format"),
        (["inspect", "0x3c00"], "--format fp16"),
        (["inspect", "0x3c00", "--all"], "--format fp16"),
        (["inspect", "0x3c000", "--format", "fp16"], "16 bits"),
        (["inspect", "-0x3c00", "--format", "fp16"], "looks like a code"),
        (["bench", "matmul", "--size", "0"], "64x128x32"),
        (["bench", "matmul", "--size", "3x4"], "64x128x32"),
        (["bench", "matmul", "--unit", "v10"], "v100"),
        (["bench", "matmul", "--unit", "v100", "--out", "bf16"], "it has"),
        (["bench", "matmul", "--repeats", "0"], "--repeats"),
        (["reproduce"], "Missing argument"),
        (["reproduce", "undrflow"], "underflow"),
        (["reproduce", "underflow", "--unit", "v10"], "v100"),
        (["reproduce", "underflow", "--format", "fp17"], "fp16"),
        (["reproduce", "underflow", "--seed", "x"], "--seed"),
        (["reproduce", "digits", "--unit", "v100"], "digits: setting is 'unit': it must be one of seed"),
        (["bench", "rounding", "--format", "mxfp9"], "mxfp8_e4m3"),
        (["bench", "train", "--model", "cnn"], "mlp, transformer"),
        (["reproduce", "underflow", "--seed", "-1"], "seed is -1; it must be at least 0"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_would_work(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    call = Call(capsys, *arguments)
    assert call.code == 2
    assert call.out == ""
    assert call.err.startswith("mpsim: ")
    assert call.err.count("\n") == 1
    assert message in call.err
    assert list(tmp_path.iterdir()) == []


def test_results_are_never_overwritten_unasked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    call = Call(capsys, "reproduce", "underflow", "-o", str(tmp_path))
    assert call.code == 2
    assert "--force" in call.err
    assert (tmp_path / "mine").read_text() == "precious"
    call = Call(capsys, "reproduce", "underflow", "-o", str(tmp_path / "mine"))
    assert call.code == 2
    assert "is a file" in call.err


def test_a_bug_is_not_dressed_up_as_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a bug in the table")

    monkeypatch.setattr("mpsim._text.formats_table", broken)
    with pytest.raises(ValueError, match="a bug in the table"):
        main(["formats"])


def test_python_m_mpsim_returns_the_exit_code() -> None:
    assert process("inspect", "1", "--format", "fp16").returncode == 0
    done = process("inspect", "one")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_a_reader_that_stops_early_is_no_error() -> None:
    command = f'"{sys.executable}" -m mpsim units --json | head -c 1'
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "["
    assert done.stderr == ""


def test_ctrl_c_is_quiet_and_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mpsim._text.formats_table", interrupted)
    call = Call(capsys, "formats")
    assert call.code == 130
    assert call.out + call.err.strip() == ""


def test_an_interrupted_study_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mpsim.experiments import underflow

    def interrupted(config: Any, *, on_part: Any, **_: Any) -> None:
        on_part(underflow.Result(config, ()))
        raise KeyboardInterrupt

    monkeypatch.setattr(underflow, "run", interrupted)
    assert main(["reproduce", "underflow", "-o", str(tmp_path / "out")]) == 130
    assert "interrupted; what was done by then is in" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "result.json").read_text())["complete"] is False
    assert (tmp_path / "out" / "loss-curves.png").stat().st_size > 0
