"""Scalar floating-point formats as data: the catalogue, look-up by name, and ``finfo``."""

from __future__ import annotations

import contextlib
import enum
import functools
import math
import re
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mpsim.modes import nearest

__all__ = [
    "BF16",
    "CATALOGUE",
    "CB16",
    "DLFLOAT16",
    "E2M1",
    "E2M3",
    "E3M2",
    "E3M4",
    "E4M3",
    "E4M3B11FNUZ",
    "E4M3FNUZ",
    "E4M3IEEE",
    "E5M2",
    "E5M2FNUZ",
    "E8M0",
    "FP16",
    "FP16ALT",
    "FP24AMD",
    "FP32",
    "FP64",
    "PXR24",
    "TF32",
    "UE4M3",
    "UE5M3",
    "FInfo",
    "FloatFormat",
    "FormatLike",
    "Specials",
    "finfo",
    "get_format",
    "register",
]


class Specials(enum.StrEnum):
    """Which codes of a format are infinities and NaNs."""

    IEEE = "ieee"
    """The largest exponent field: fraction 0 is infinity, every other fraction a NaN (IEEE 754-2019, 3.4)."""
    FN = "fn"
    """No infinity; the code of all ones is NaN, one for each sign (OCP 8-bit floating point, E4M3)."""
    FNUZ = "fnuz"
    """No infinity and no negative zero; the code that would be negative zero is the only NaN."""
    EXTENDED = "extended"
    """As FNUZ, with the largest code of either sign an infinity (P3109). Unsigned: the last code is NaN."""
    NONE = "none"
    """Neither infinity nor NaN: every code is a number."""


@dataclass(frozen=True, kw_only=True)
class FloatFormat:
    """A binary floating-point format: sign, ``w``-bit exponent field, ``p``-bit significand.

    The fields are independent facts; all else is derived from them. A finite value is
    ``(-1)**s * sig * 2**(e - p + 1)`` with an integer ``sig < 2**p`` and ``emin <= e <= emax``.
    """

    name: str
    p: int
    """Precision: bits of the significand, the hidden bit included."""
    w: int
    """Width of the exponent field, in bits."""
    bias: int
    """What is subtracted from the exponent field."""
    specials: Specials = Specials.IEEE
    signed: bool = True
    """Whether the highest bit of a code is a sign."""
    has_subnormals: bool = True
    """Whether exponent field 0 holds subnormals; if not, it is one more binade of normal numbers."""
    has_zero: bool = True
    """Whether code 0 is zero."""
    saturates: bool = False
    """Whether the format's own standard turns overflow into the largest finite number."""
    nan_to: int | None = None
    """Code that a NaN is converted to where the format has no NaN."""
    aliases: tuple[str, ...] = ()
    source: str = ""
    """Where the numbers come from."""

    def __post_init__(self) -> None:
        if not 1 <= self.p <= 53 or not 1 <= self.w <= 11:
            raise ValueError(
                f"{self.name}: p = {self.p}, w = {self.w}; values must fit float64: p in 1..53 and w in 1..11"
            )
        if self.specials is Specials.IEEE and (self.m < 1 or self.w < 2):
            raise ValueError(
                f"{self.name}: infinities and NaNs in the IEEE way need w >= 2 and a fraction; got w = {self.w}, "
                f"m = {self.m}. Choose another Specials"
            )
        if self.emin < -1022 or self.quantum_exponent < -1074 or self.emax > 1023:
            raise ValueError(
                f"{self.name}: emin = {self.emin}, emax = {self.emax}; float64 must hold every number, the normal ones "
                "as normal: emin >= -1022 and emax <= 1023"
            )
        if not self.signed and self.specials is Specials.FNUZ:
            raise ValueError(f"{self.name}: without a sign there is no negative zero to be NaN; choose Specials.FN")
        if not self.has_zero and self.has_subnormals:
            raise ValueError(f"{self.name}: subnormals begin with zero; has_zero = False needs has_subnormals = False")
        if self.specials is Specials.NONE and not 0 <= (-1 if self.nan_to is None else self.nan_to) < 1 << self.bits:
            raise ValueError(
                f"{self.name} has no NaN: nan_to is {self.nan_to}; it must be the code, below 2**{self.bits}, "
                "that a NaN is converted to"
            )

    def __reduce__(self) -> Any:
        """Copy and unpickle a format of the catalogue as the one object that it is."""
        if _BY_NAME.get(self.name) == self:
            return get_format, (self.name,)
        return super().__reduce__()

    # Widths of the fields of a code.

    @property
    def m(self) -> int:
        """Fraction bits: the significand without its hidden bit."""
        return self.p - 1

    @property
    def bits(self) -> int:
        """Width of a code, in bits."""
        return int(self.signed) + self.w + self.m

    @functools.cached_property
    def code_dtype(self) -> np.dtype[Any]:
        """Smallest NumPy unsigned integer that holds a code."""
        return np.dtype(np.min_scalar_type((1 << self.bits) - 1))

    @property
    def sign_code(self) -> int:
        """The sign bit of a code; 0 in an unsigned format."""
        return 1 << (self.bits - 1) if self.signed else 0

    # Special codes, without sign.

    @property
    def last_code(self) -> int:
        """Largest code without sign bit."""
        return (1 << (self.w + self.m)) - 1

    @functools.cached_property
    def max_code(self) -> int:
        """Code of the largest finite number."""
        match self.specials:
            case Specials.IEEE:
                return (((1 << self.w) - 1) << self.m) - 1
            case Specials.FN:
                return self.last_code - 1
            case Specials.EXTENDED:
                return self.last_code - (1 if self.signed else 2)
            case _:
                return self.last_code

    @property
    def min_code(self) -> int:
        """Code of the smallest positive number."""
        return int(self.has_zero)

    @property
    def inf_code(self) -> int | None:
        """Code of +infinity, or None."""
        return self.max_code + 1 if self.specials in (Specials.IEEE, Specials.EXTENDED) else None

    @property
    def nan_code(self) -> int | None:
        """Code of the default quiet NaN (sign bit clear where there is a choice), or None."""
        match self.specials:
            case Specials.IEEE:
                return self.max_code + 1 + (1 << (self.m - 1))
            case Specials.FN:
                return self.last_code
            case Specials.FNUZ | Specials.EXTENDED:
                return self.sign_code if self.signed else self.last_code
            case _:
                return None

    @property
    def has_negative_zero(self) -> bool:
        """Whether zero has a sign."""
        return self.signed and self.has_zero and self.specials in (Specials.IEEE, Specials.FN, Specials.NONE)

    @property
    def nan_has_sign(self) -> bool:
        """Whether NaNs come with either sign."""
        return self.signed and self.specials in (Specials.IEEE, Specials.FN)

    # Exponents and values.

    @property
    def emin(self) -> int:
        """Exponent of the smallest binade of normal numbers."""
        return int(self.has_subnormals) - self.bias

    @functools.cached_property
    def emax(self) -> int:
        """Exponent of the largest finite number."""
        return max(self.max_code >> self.m, int(self.has_subnormals)) - self.bias

    @functools.cached_property
    def quantum_exponent(self) -> int:
        """Exponent of the smallest quantum: subnormals are multiples of ``2**quantum_exponent``."""
        return self.emin - self.p + 1

    @property
    def eps(self) -> float:
        """Distance from 1 to the next larger number, 2**(1-p); where 1 is not a number, what it would be."""
        return math.ldexp(1.0, 1 - self.p)

    @property
    def u(self) -> float:
        """Unit roundoff, 2**-p: largest relative error of one rounding to nearest."""
        return math.ldexp(1.0, -self.p)

    @functools.cached_property
    def max_finite(self) -> float:
        """Largest finite number."""
        return self.magnitude(self.max_code)

    @functools.cached_property
    def min_normal(self) -> float:
        """Smallest positive normal number."""
        return self.magnitude(1 << self.m if self.has_subnormals else self.min_code)

    @property
    def min_subnormal(self) -> float:
        """Smallest positive number; equals ``min_normal`` in a format without subnormals."""
        return self.magnitude(self.min_code)

    @functools.cached_property
    def fits_float32(self) -> bool:
        """Whether every value is exact in float32."""
        return self.p <= 24 and self.emax <= 127 and self.quantum_exponent >= -149

    @functools.cached_property
    def value_dtype(self) -> np.dtype[Any]:
        """Type of decoded values: float32, or float64 where float32 cannot hold the format."""
        return np.dtype(np.float32 if self.fits_float32 else np.float64)

    def parts(self, code: int) -> tuple[int, int]:
        """Return ``sig`` and ``exponent`` of a finite code without sign: its value is ``sig * 2**exponent``."""
        field, fraction = code >> self.m, code & ((1 << self.m) - 1)
        if self.has_zero and code == 0:
            return 0, self.quantum_exponent
        hidden = (1 << self.m) if field or not self.has_subnormals else 0
        return hidden + fraction, max(field, int(self.has_subnormals)) - self.bias - self.m

    def magnitude(self, code: int) -> float:
        """Return the exact value of a finite code without sign."""
        return math.ldexp(*self.parts(code))

    def __str__(self) -> str:
        return self.name


FormatLike: TypeAlias = "FloatFormat | str | np.dtype[Any] | type[Any]"

_IEEE = "IEEE 754-2019, table 3.5"
_OCP8 = "OCP 8-bit Floating Point (OFP8) 1.0"
_OCPMX = "OCP Microscaling Formats (MX) 1.0"
_AMD8 = "Noune et al. 2022, arXiv 2206.02915; AMD CDNA3 ISA"

FP64 = FloatFormat(name="fp64", p=53, w=11, bias=1023, aliases=("float64", "double", "binary64", "f64"), source=_IEEE)
FP32 = FloatFormat(name="fp32", p=24, w=8, bias=127, aliases=("float32", "single", "binary32", "f32"), source=_IEEE)
TF32 = FloatFormat(
    name="tf32", p=11, w=8, bias=127, aliases=("tensorfloat32",), source="NVIDIA A100 architecture paper (2020)"
)
FP16 = FloatFormat(name="fp16", p=11, w=5, bias=15, aliases=("float16", "half", "binary16", "f16"), source=_IEEE)
BF16 = FloatFormat(
    name="bf16", p=8, w=8, bias=127, aliases=("bfloat16",), source="Intel BFLOAT16 numerics definition (2018)"
)
FP24AMD = FloatFormat(
    name="fp24amd", p=17, w=7, bias=63, aliases=("fp24_amd",), source="ATI R300 pixel shaders; IEEE specials assumed"
)
PXR24 = FloatFormat(name="pxr24", p=16, w=8, bias=127, source="OpenEXR PXR24: float32 without its last 8 bits")
FP16ALT = FloatFormat(
    name="fp16alt",
    p=11,
    w=5,
    bias=15,
    specials=Specials.NONE,
    nan_to=0,
    aliases=("ahp",),
    source="Arm alternative half precision (FPCR.AHP)",
)
E5M2 = FloatFormat(name="e5m2", p=3, w=5, bias=15, aliases=("float8_e5m2", "fp8_e5m2"), source=_OCP8)
E4M3 = FloatFormat(
    name="e4m3",
    p=4,
    w=4,
    bias=7,
    specials=Specials.FN,
    aliases=("float8_e4m3fn", "e4m3fn", "fp8_e4m3fn"),
    source=_OCP8,
)
E4M3IEEE = FloatFormat(
    name="e4m3ieee", p=4, w=4, bias=7, aliases=("float8_e4m3",), source="IEEE 754 rules; AWS Trainium 1 and 2"
)
E3M4 = FloatFormat(name="e3m4", p=5, w=3, bias=3, aliases=("float8_e3m4", "fp8_e3m4"), source="IEEE 754 rules; LLVM")
E4M3FNUZ = FloatFormat(
    name="e4m3fnuz",
    p=4,
    w=4,
    bias=8,
    specials=Specials.FNUZ,
    aliases=("float8_e4m3fnuz", "fp8_e4m3fnuz"),
    source=_AMD8,
)
E5M2FNUZ = FloatFormat(
    name="e5m2fnuz",
    p=3,
    w=5,
    bias=16,
    specials=Specials.FNUZ,
    aliases=("float8_e5m2fnuz", "fp8_e5m2fnuz"),
    source=_AMD8,
)
E4M3B11FNUZ = FloatFormat(
    name="e4m3b11fnuz",
    p=4,
    w=4,
    bias=11,
    specials=Specials.FNUZ,
    aliases=("float8_e4m3b11fnuz", "fp8_e4m3b11fnuz", "e4m3b11"),
    source="Sun et al. 2019 (HFP8); ml_dtypes",
)
E8M0 = FloatFormat(
    name="e8m0",
    p=1,
    w=8,
    bias=127,
    specials=Specials.FN,
    signed=False,
    has_subnormals=False,
    has_zero=False,
    aliases=("float8_e8m0fnu", "ue8m0", "fp8_e8m0fnu"),
    source=_OCPMX,
)
UE4M3 = FloatFormat(
    name="ue4m3", p=4, w=4, bias=7, specials=Specials.FN, signed=False, source="scale of NVFP4 blocks, NVIDIA PTX ISA"
)
UE5M3 = FloatFormat(
    name="ue5m3", p=4, w=5, bias=15, specials=Specials.FN, signed=False, aliases=("float8_ue5m3fn",), source="ml_dtypes"
)
E3M2 = FloatFormat(
    name="e3m2",
    p=3,
    w=3,
    bias=3,
    specials=Specials.NONE,
    nan_to=0x1F,
    aliases=("float6_e3m2fn", "fp6_e3m2"),
    source=_OCPMX,
)
E2M3 = FloatFormat(
    name="e2m3",
    p=4,
    w=2,
    bias=1,
    specials=Specials.NONE,
    nan_to=0x1F,
    aliases=("float6_e2m3fn", "fp6_e2m3"),
    source=_OCPMX,
)
E2M1 = FloatFormat(
    name="e2m1",
    p=2,
    w=2,
    bias=1,
    specials=Specials.NONE,
    nan_to=0x7,
    aliases=("float4_e2m1fn", "fp4_e2m1", "fp4"),
    source=_OCPMX,
)
CB16 = FloatFormat(name="cb16", p=10, w=6, bias=31, source="Cerebras: 6 exponent, 9 fraction bits; IEEE rules assumed")
DLFLOAT16 = FloatFormat(
    name="dlfloat16",
    p=10,
    w=6,
    bias=31,
    specials=Specials.FN,
    has_subnormals=False,
    aliases=("dlfloat",),
    source="Agrawal et al. 2019 (DLFloat); its merged NaN-infinity is read as NaN",
)

CATALOGUE: tuple[FloatFormat, ...] = (
    FP64, FP32, TF32, FP16, BF16, FP24AMD, PXR24, CB16, DLFLOAT16, FP16ALT,
    E5M2, E4M3, E4M3IEEE, E3M4, E4M3FNUZ, E5M2FNUZ, E4M3B11FNUZ, E8M0, UE4M3, UE5M3, E3M2, E2M3, E2M1,
)  # fmt: skip
"""Every named format, widest first."""

_BY_NAME = {name: fmt for fmt in CATALOGUE for name in (fmt.name, *fmt.aliases)}
# IEEE-style names of formats that the catalogue knows under another name.
_BY_NAME |= {"e11m52": FP64, "e8m23": FP32, "e8m10": TF32, "e5m10": FP16, "e8m7": BF16}


def get_format(fmt: FormatLike) -> FloatFormat:
    """Return the format that a name means.

    Parameters
    ----------
    fmt : FloatFormat, str or NumPy dtype
        A catalogue name or alias in any case (``"fp16"``, ``"float8_e4m3fn"``), ``"e<w>m<m>"`` for a format with
        IEEE 754's rules (names in the catalogue win: ``"e4m3"`` is OCP's), or a P3109 name such as
        ``"binary8p4se"``. A FloatFormat is returned as it is.

    Raises
    ------
    ValueError
        No format has that name; the message lists the nearest ones.
    TypeError
        ``fmt`` is neither a format, a string nor a dtype.

    Examples
    --------
    >>> get_format("half").max_finite
    65504.0
    >>> get_format("e6m9").emin
    -30
    """
    if isinstance(fmt, FloatFormat):
        return fmt
    if isinstance(fmt, str):
        return _parse(fmt.strip().lower().removeprefix("torch."))
    if fmt is not None:  # which NumPy would take for float64
        with contextlib.suppress(TypeError):
            return _parse(np.dtype(fmt).name)
    raise TypeError(f"fmt is {fmt!r}; a FloatFormat, a name such as 'fp16' or a NumPy dtype is needed")


@functools.cache
def _parse(name: str) -> FloatFormat:
    if name in _BY_NAME:
        return _BY_NAME[name]
    if match := re.fullmatch(r"e(\d{1,2})m(\d{1,2})", name):
        w, m = map(int, match.groups())
        return FloatFormat(name=name, p=m + 1, w=w, bias=(1 << w >> 1) - 1, source="IEEE 754 rules")
    if match := re.fullmatch(r"binary(\d{1,2})p(\d{1,2})([su])([ef])", name):
        return _p3109(name, int(match[1]), int(match[2]), match[3] == "s", match[4] == "e")
    near = nearest(name, _BY_NAME) or ["fp16", "bf16", "e4m3", "e5m2"]
    raise ValueError(f"unknown format {name!r}; nearest: {', '.join(near)} (or 'e<w>m<m>', 'binary<K>p<P>se')")


def register(fmt: FloatFormat) -> FloatFormat:
    """Make a format of one's own known by its name and aliases, everywhere a name is accepted.

    Parameters
    ----------
    fmt : FloatFormat
        For instance ``FloatFormat(name="e6m1", p=2, w=6, bias=31, specials=Specials.FN)``.

    Returns
    -------
    FloatFormat
        ``fmt``; registering it again changes nothing.

    Raises
    ------
    ValueError
        A name belongs to another format already; names do not change their meaning.
    """
    names = [name.strip().lower() for name in (fmt.name, *fmt.aliases)]
    for name in names:
        try:
            known = _parse(name)
        except ValueError:
            continue
        if known != fmt:
            raise ValueError(f"register: {name!r} is the name of {known!r} already; choose another")
    _BY_NAME.update(dict.fromkeys(names, fmt))
    return fmt


def _p3109(name: str, k: int, p: int, signed: bool, extended: bool) -> FloatFormat:
    """Return Binary{K}p{P}{s,u}{e,f} of the IEEE P3109 draft (version 4.0, 2026)."""
    w = k - p + (not signed)
    if not 1 <= w <= 11:
        raise ValueError(f"{name}: K = {k} and P = {p} give an exponent field of {w} bits; 1 to 11 are supported")
    finite = Specials.FNUZ if signed else Specials.FN
    return FloatFormat(
        name=name,
        p=p,
        w=w,
        bias=1 << w >> 1,
        specials=Specials.EXTENDED if extended else finite,
        signed=signed,
        saturates=not extended,
        source="IEEE P3109 draft 4.0",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FInfo:
    """Machine limits of a format, under the attribute names of ``numpy.finfo``; numbers are Python floats."""

    dtype: FloatFormat
    bits: int
    eps: float
    epsneg: float
    iexp: int
    machep: int
    max: float
    maxexp: int
    min: float
    minexp: int
    negep: int
    nexp: int
    nmant: int
    precision: int
    resolution: float
    smallest_normal: float
    smallest_subnormal: float
    tiny: float


def finfo(fmt: FormatLike) -> FInfo:
    """Return the limits of a format under NumPy's names.

    Parameters
    ----------
    fmt : FloatFormat, name or dtype

    Examples
    --------
    >>> finfo("e4m3").max, finfo("e4m3").smallest_subnormal
    (448.0, 0.001953125)
    """
    f = get_format(fmt)
    precision = int(f.m * math.log10(2))
    negep = max(-f.p, f.quantum_exponent)  # the gap below 1 is no smaller than the quantum of subnormals
    return FInfo(
        dtype=f,
        bits=f.bits,
        eps=f.eps,
        epsneg=math.ldexp(1.0, negep),
        iexp=f.w,
        machep=-f.m,
        max=f.max_finite,
        maxexp=f.emax + 1,
        min=-f.max_finite if f.signed else 0.0 if f.has_zero else f.min_normal,
        minexp=f.emin,
        negep=negep,
        nexp=f.w,
        nmant=f.m,
        precision=precision,
        resolution=10.0**-precision,
        smallest_normal=f.min_normal,
        smallest_subnormal=f.min_subnormal,
        tiny=f.min_normal,
    )
