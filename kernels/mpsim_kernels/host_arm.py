"""Instructions of Arm that convert and multiply matrices in reduced precision. Not tried on a device yet."""

from mpsim_kernels.host_code import Instruction

__all__ = ["BFDOT", "DIRECTIONS", "FCVT_NARROW", "FCVT_WIDEN", "FLAGS", "control"]

DIRECTIONS = ("nearest-even", "up", "down", "toward-zero")
"""Rounding directions, by their number in FPCR (Arm ARM, FPCR.RMode)."""
FLAGS = {
    0x01: "invalid",
    0x02: "divide_by_zero",
    0x04: "overflow",
    0x08: "underflow",
    0x10: "inexact",
}
"""Bits of FPSR; that of flushed operands, 0x80, has no counterpart elsewhere."""


def control(direction: int, flush: bool = False) -> int:
    """Return FPCR with no trap enabled and a rounding direction; ``flush`` reaches operands and results."""
    return direction << 22 | (1 << 24 if flush else 0)


def _conversion(name: str, features: tuple[str, ...], source: tuple[int, str], target: tuple[int, str]) -> Instruction:
    (width, kind), (result, other) = source, target
    operation = "fptrunc" if result < width else "fpext"
    return Instruction(
        name=name,
        machine="arm",
        features=features,
        operands=(width,),
        result=result,
        body=(
            f"  %x = bitcast i{width} %a to {kind}\n  %y = {operation} {kind} %x to {other}\n"
            f"  %z = bitcast {other} %y to i{result}"
        ),
    )


FCVT_NARROW = _conversion("fcvt h, s", ("fp-armv8",), (32, "float"), (16, "half"))
FCVT_WIDEN = _conversion("fcvt s, h", ("fp-armv8",), (16, "half"), (32, "float"))

BFDOT = Instruction(
    name="bfdot",
    machine="arm",
    features=("bf16",),
    operands=(32, 32, 32),
    result=32,
    declarations=("declare <2 x float> @llvm.aarch64.neon.bfdot.v2f32.v4bf16(<2 x float>, <4 x bfloat>, <4 x bfloat>)"),
    body="".join(
        f"  %{v}.w = insertelement <2 x i32> zeroinitializer, i32 %{n}, i32 0\n"
        f"  %{v} = bitcast <2 x i32> %{v}.w to {kind}\n"
        for v, n, kind in (("x", "a", "<4 x bfloat>"), ("y", "b", "<4 x bfloat>"), ("s", "c", "<2 x float>"))
    )
    + "  %d = call <2 x float> "
    "@llvm.aarch64.neon.bfdot.v2f32.v4bf16(<2 x float> %s, <4 x bfloat> %x, <4 x bfloat> %y)\n"
    "  %e = bitcast <2 x float> %d to <2 x i32>\n"
    "  %z = extractelement <2 x i32> %e, i32 0",
)
"""Operands are pairs of BF16, the even element in the low half, and the accumulator."""
