import json
import signal
import subprocess
import sys
from typing import Any

import numba
import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import _text
from mpsim.cli import main
from mpsim.encoding import decode
from mpsim.formats import get_format
from mpsim.hardware import Outcome, Plan, diagnose, host_check, validate_host
from mpsim.hardware.host import GROUPS, unavailable
from mpsim.hardware.operands import boundaries, operands, specials, tininess_edges
from mpsim_kernels import host_arm, host_x86
from mpsim_kernels.host_code import Instruction, Tile, assembly, control_word, execute, host_machine, missing

Array = np.ndarray[Any, Any]
QUICK = Plan(count=60, dense=False)

x86 = pytest.mark.skipif(bool(missing(host_x86.VCVTPS2PH[0])), reason="F16C is a part of x86")
compiled = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="plain Python takes minutes")

# Without the processors, their machine code can be read at least.

X86 = [
    *host_x86.VCVTPS2PH, host_x86.VCVTPH2PS, host_x86.VCVTNEPS2BF16, host_x86.VDPBF16PS, host_x86.TDPBF16PS,
    host_x86.TDPFP16PS, *host_x86.FLOAT32.values(), *host_x86.FLOAT16.values(),
]  # fmt: skip
ARM = [host_arm.FCVT_NARROW, host_arm.FCVT_WIDEN, host_arm.BFDOT]


@pytest.mark.parametrize("instruction", X86, ids=lambda x: x.name)
def test_machine_code_of_x86_has_the_instruction(instruction: Instruction | Tile) -> None:
    if isinstance(instruction, Instruction) and " asm " in instruction.body and host_machine() != "x86":
        pytest.skip("inline assembly of another machine")
    text = assembly(instruction, "x86_64-unknown-linux-gnu", "graniterapids")
    name, _, immediate = instruction.name.partition(" imm ")
    found = [line.split() for line in text.splitlines() if line.split()[:1] in ([name], [f"v{name}"])]
    assert len(found) == 1
    if name == "vcvtps2ph":
        assert found[0][1] == f"${immediate or 4},"


@pytest.mark.parametrize("instruction", ARM, ids=lambda x: x.name)
def test_machine_code_of_arm_has_the_instruction(instruction: Instruction) -> None:
    text = assembly(instruction, "aarch64-unknown-linux-gnu", "neoverse-v1")
    name, *registers = instruction.name.replace(",", "").split()
    found = [line.split() for line in text.splitlines() if line.split()[:1] == [name]]
    assert len(found) == 1
    assert [word[0] for word in found[0][1:]][: len(registers)] == registers


def test_zen4_has_the_bf16_instructions() -> None:
    for instruction in (host_x86.VCVTNEPS2BF16, host_x86.VDPBF16PS):
        assert instruction.name in assembly(instruction, "x86_64-unknown-linux-gnu", "znver4")


# This processor.


@x86
def test_an_instruction_is_executed_on_each_element() -> None:
    x = np.array([0x3F800000, 0x387FF002, 0x00000001, 0x7F800001], np.uint32)
    z, flags = execute(host_x86.VCVTPS2PH[0], [x], host_x86.control(0))
    assert_same_bits(z, np.array([0x3C00, 0x0400, 0x0000, 0x7E00], np.uint16))
    assert flags.tolist() == [0, 0x20, 0x32, 0x01]  # inexact; denormal operand, underflow, inexact; invalid
    z, flags = execute(host_x86.VCVTPS2PH[4], [x], host_x86.control(2, subnormal_inputs_as_zero=True))
    assert_same_bits(z, np.array([0x3C00, 0x0400, 0x0000, 0x7E00], np.uint16))
    assert flags.tolist() == [0, 0x20, 0, 0x01]


@x86
def test_the_control_register_is_as_it_was() -> None:
    before = control_word()
    execute(host_x86.FLOAT32["add"], [np.ones(3, np.uint32)] * 2, host_x86.control(3, True, True))
    assert control_word() & ~0x3F == before & ~0x3F


@x86
@compiled
def test_the_emulator_agrees_with_this_processor() -> None:
    titles = []
    outcomes = validate_host(QUICK, progress=titles.append)
    assert titles == [group.title for group in GROUPS.values()]
    assert [o.first for o in outcomes if o.different] == []
    compared = {o.row for o in outcomes if o.results}
    assert {"vcvtps2ph", "vcvtph2ps", "addss", "divss"} <= compared
    skipped = {o.row: o.skipped for o in outcomes if o.skipped}
    assert skipped == {group.title: unavailable(group) for group in GROUPS.values() if unavailable(group)}


@x86
@pytest.mark.long
def test_the_emulator_agrees_with_this_processor_on_dense_inputs() -> None:
    assert not any(o.different for o in validate_host(Plan(seed=1, count=1 << 18)))


@x86
@pytest.mark.long
def test_the_emulator_agrees_with_this_processor_on_all_inputs() -> None:
    assert not any(o.different for o in validate_host(Plan(exhaustive=True), ["vcvtps2ph", "vcvtneps2bf16"]))


def test_instructions_of_another_machine_are_missing() -> None:
    other = host_arm.BFDOT if host_machine() == "x86" else host_x86.VCVTPH2PS
    assert missing(other) == f"an instruction of {other.machine}, and this is {host_machine()}"
    never = Instruction("never", host_machine(), ("warp-drive",), (32,), 32, "")
    assert missing(never) == "the processor has no warp-drive"


# The process that may end.


def fake(program: str) -> Any:
    """Return a stand-in for subprocess.Popen whose process runs a program."""

    def popen(command: list[str], **options: Any) -> Any:
        return real([sys.executable, "-c", program, *command[3:]], **options)

    real = subprocess.Popen
    return popen


def test_a_sudden_end_is_reported_and_the_rest_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
import json, os, sys
for name in json.loads(sys.argv[1])["groups"]:
    print(json.dumps({"began": name}), flush=True)
    if name == "vcvtph2ps":
        os.kill(os.getpid(), 4)
    print(json.dumps({"outcome": {"row": name, "results": 5}}), flush=True)
"""
    monkeypatch.setattr(host_check.subprocess, "Popen", fake(program))
    outcomes = validate_host(groups=["vcvtps2ph", "vcvtph2ps", "float32"])
    assert [o.results for o in outcomes] == [5, 0, 5]
    assert outcomes[1].ended
    assert outcomes[1].skipped == f"the process was ended by {signal.Signals(4).name}"


def test_a_process_that_never_begins_is_reported_for_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_check.subprocess, "Popen", fake("import sys; sys.exit('no numba')"))
    outcomes = validate_host(groups=["vcvtps2ph", "bfdot"])
    assert [o.skipped for o in outcomes] == ["the process ended with code 1: no numba"] * 2


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one of groups is 'vmul': .* vcvtps2ph, vcvtph2ps"):
        validate_host(groups=["vmul"])


# The command.


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        ({"results": 3}, 0),
        ({"results": 3, "different": 1, "first": "x = 0x1"}, 1),
        ({"skipped": "none here"}, 1),
        ({"skipped": "the process was ended by SIGILL", "ended": True}, 1),
    ],
)
def test_exit_codes_of_the_host_check(
    outcome: dict[str, Any], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mpsim.hardware.validate_host", lambda *_, **__: [Outcome(row="r", **outcome)])
    assert main(["validate", "--host", "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert told["compared"] == outcome.get("results", 0)
    assert main(["validate", "--host"]) == code
    out = capsys.readouterr().out
    assert "(seed 0)" in out
    assert outcome.get("first", "") in out
    assert outcome.get("skipped", "") in out


def test_mistakes_of_validate_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--host", "x.npz"], ["--host", "--unit", "v100"], ["x.npz", "--exhaustive"]):
        assert main(["validate", *arguments]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_doctor_tells_what_can_be_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["validations"]) == {group.title for group in GROUPS.values()}
    assert {"mpsim", "python", "numpy", "numba", "llvmlite", "torch"} <= set(told["versions"])
    assert told["threads"] == numba.get_num_threads()
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "mpsim validate --host" in out
    assert "kernel cache" in out


@x86
def test_doctor_sees_flushing() -> None:
    import mxcsr as fpu

    assert "subnormal numbers are kept" in diagnose().floating_point
    if not numba.config.DISABLE_JIT:
        with fpu.mxcsr(fpu.DEFAULT | fpu.FTZ | fpu.DAZ | fpu.ROUND_UP):
            assert diagnose().floating_point == "rounding up, FTZ and DAZ set: subnormal numbers are zeros"
    assert _text.diagnosis_lines(diagnose())


# Operands.


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16", "e5m2"])
def test_some_products_are_tiny_before_rounding_and_not_after(name: str) -> None:
    fmt = get_format(name)
    a, b, c = (decode(x, fmt).astype(np.float64) for x in operands(np.random.default_rng(0), fmt, 700, 3))
    with np.errstate(all="ignore"):
        sizes = np.abs(a * b)
    # Below the smallest normal number, and no farther than half a unit of the last place that it would have there.
    edge = (c == 0) & (sizes < fmt.min_normal) & (sizes >= fmt.min_normal * (1 - 0.5 ** (fmt.p + 1)))
    assert np.count_nonzero(edge) >= 100


def test_tininess_edges_are_the_smallest_normal_number_and_what_rounds_to_it() -> None:
    """Of float32 the last that rounds to 2**-14 in FP16's 11 bits is 2**-14 - 2**-26, 0x387ff000."""
    found = tininess_edges(get_format("fp32"), get_format("fp16")).tolist()
    positive = {0x387FEFFF, 0x387FF000, 0x387FF001, 0x387FFFFF, 0x38800000, 0x38800001}
    assert set(found) == positive | {word | 0x80000000 for word in positive}


def test_boundaries_are_every_number_and_midpoint_and_their_neighbours() -> None:
    fp32, e4m3 = get_format("fp32"), get_format("e4m3")
    found = set(boundaries(fp32, e4m3).tolist())
    for value in (1.0, 1.0625, 448.0, 2.0**-9, 2.0**-10, 3 * 2.0**-10):  # numbers, and ties between two
        word = int(np.array(value, np.float32).view(np.uint32))
        assert {word - 1, word, word + 1, word | 0x80000000} <= found


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16", "e4m3", "e5m2"])
def test_operands_have_all_kinds(name: str) -> None:
    fmt = get_format(name)
    a, b, c = operands(np.random.default_rng(0), fmt, 6000, 3)
    assert {x.dtype for x in (a, b, c)} == {fmt.code_dtype}
    assert a.shape == b.shape == c.shape == (6000,)
    chosen = set(specials(fmt).tolist())
    assert chosen <= set(a.tolist())
    again = operands(np.random.default_rng(0), fmt, 6000, 3)
    assert_same_bits(again[2], c)
