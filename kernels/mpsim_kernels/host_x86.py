"""Instructions of x86 that convert, compute and multiply matrices in reduced precision."""

from mpsim_kernels.host_code import Instruction, Tile

__all__ = [
    "DIRECTIONS",
    "FLAGS",
    "FLOAT16",
    "FLOAT32",
    "TDPBF16PS",
    "TDPFP16PS",
    "VCVTNEPS2BF16",
    "VCVTPH2PS",
    "VCVTPS2PH",
    "VDPBF16PS",
    "control",
]

DIRECTIONS = ("nearest-even", "down", "up", "toward-zero")
"""Rounding directions, by their number in MXCSR and in immediate operands."""
FLAGS = {
    0x01: "invalid",
    0x02: "denormal",
    0x04: "divide_by_zero",
    0x08: "overflow",
    0x10: "underflow",
    0x20: "inexact",
}
"""Bits of MXCSR."""


def control(direction: int, subnormal_inputs_as_zero: bool = False, flush: bool = False) -> int:
    """Return MXCSR with all exceptions masked, no flag raised, and a rounding direction."""
    return 0x1F80 | direction << 13 | (0x40 if subnormal_inputs_as_zero else 0) | (0x8000 if flush else 0)


def _in_lane(word: str, name: str, kind: str) -> str:
    """Return code that puts a 32-bit word into the lowest lane of 128 bits of a type."""
    return (
        f"  %{name}.words = insertelement <4 x i32> zeroinitializer, i32 %{word}, i32 0\n"
        f"  %{name} = bitcast <4 x i32> %{name}.words to {kind}\n"
    )


def _to_fp16(immediate: int, name: str) -> Instruction:
    return Instruction(
        name=name,
        machine="x86",
        features=("f16c",),
        operands=(32,),
        result=16,
        declarations="declare <8 x i16> @llvm.x86.vcvtps2ph.128(<4 x float>, i32 immarg)",
        body=_in_lane("a", "x", "<4 x float>")
        + f"  %h = call <8 x i16> @llvm.x86.vcvtps2ph.128(<4 x float> %x, i32 {immediate})\n"
        "  %z = extractelement <8 x i16> %h, i32 0",
    )


VCVTPS2PH = (*(_to_fp16(i, f"vcvtps2ph imm {i}") for i in range(4)), _to_fp16(4, "vcvtps2ph"))
"""Float32 to FP16: four directions as an immediate operand, and the one of MXCSR."""

VCVTPH2PS = Instruction(
    name="vcvtph2ps",
    machine="x86",
    features=("f16c",),
    operands=(16,),
    result=32,
    # In assembly, because with AVX512-FP16 LLVM would take VCVTSH2SS, which has other flags.
    body="  %h = insertelement <8 x i16> zeroinitializer, i16 %a, i32 0\n"
    '  %f = call <4 x float> asm "vcvtph2ps $1, $0", "=x,x"(<8 x i16> %h)\n'
    "  %e = bitcast <4 x float> %f to <4 x i32>\n"
    "  %z = extractelement <4 x i32> %e, i32 0",
)

VCVTNEPS2BF16 = Instruction(
    name="vcvtneps2bf16",
    machine="x86",
    features=("avx512bf16", "avx512vl"),  # without them LLVM makes a conversion of its own, which keeps subnormals
    operands=(32,),
    result=16,
    body="  %f = bitcast i32 %a to float\n  %h = fptrunc float %f to bfloat\n  %z = bitcast bfloat %h to i16",
)

VDPBF16PS = Instruction(
    name="vdpbf16ps",
    machine="x86",
    features=("avx512bf16", "avx512vl"),
    operands=(32, 32, 32),
    result=32,
    declarations=("declare <4 x float> @llvm.x86.avx512bf16.dpbf16ps.128(<4 x float>, <8 x bfloat>, <8 x bfloat>)"),
    body=_in_lane("a", "x", "<8 x bfloat>")
    + _in_lane("b", "y", "<8 x bfloat>")
    + _in_lane("c", "s", "<4 x float>")
    + "  %d = call <4 x float> "
    "@llvm.x86.avx512bf16.dpbf16ps.128(<4 x float> %s, <8 x bfloat> %x, <8 x bfloat> %y)\n"
    "  %e = bitcast <4 x float> %d to <4 x i32>\n"
    "  %z = extractelement <4 x i32> %e, i32 0",
)
"""Operands are pairs of BF16, the even element in the low half, and the accumulator."""


def _scalar(bits: int, kind: str, suffix: str, features: tuple[str, ...]) -> dict[str, Instruction]:
    """Return addition, subtraction, multiplication, division, square root and fused multiply-add by name."""
    word = f"i{bits}"
    operations = {
        "add": (2, f"%r = fadd {kind} %x, %y"),
        "sub": (2, f"%r = fsub {kind} %x, %y"),
        "mul": (2, f"%r = fmul {kind} %x, %y"),
        "div": (2, f"%r = fdiv {kind} %x, %y"),
        "sqrt": (1, f"%r = call {kind} @llvm.sqrt.f{bits}({kind} %x)"),
        # In assembly, because LLVM swaps the factors as it likes, and the first NaN wins.
        "fma": (3, f'%r = call {kind} asm "vfmadd231{suffix} $2, $1, $0", "=v,v,v,0"({kind} %x, {kind} %y, {kind} %w)'),
    }
    casts = [f"  %{v} = bitcast {word} %{n} to {kind}\n" for v, n in zip("xyw", "abc", strict=True)]
    return {
        name: Instruction(
            name={"fma": "vfmadd231"}.get(name, name) + suffix,
            machine="x86",
            features=(*features, *(("fma",) if name == "fma" and bits == 32 else ())),
            operands=(bits,) * arguments,
            result=bits,
            declarations=f"declare {kind} @llvm.sqrt.f{bits}({kind})" if name == "sqrt" else "",
            body="".join(casts[:arguments]) + f"  {code}\n  %z = bitcast {kind} %r to {word}",
        )
        for name, (arguments, code) in operations.items()
    }


FLOAT32 = _scalar(32, "float", "ss", ("sse2",))
FLOAT16 = _scalar(16, "half", "sh", ("avx512fp16", "avx512vl"))

TDPBF16PS = Tile("tdpbf16ps", ("amx-tile", "amx-bf16"))
TDPFP16PS = Tile("tdpfp16ps", ("amx-tile", "amx-fp16"))
