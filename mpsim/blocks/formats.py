"""Block-scaled formats as data: elements, scales and block lengths; the catalogue, and look-up by name."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from mpsim.blocks.rules import RECIPES, ScaleRule
from mpsim.exact import floor_log2, power_of_two
from mpsim.formats import E2M1, E2M3, E3M2, E4M3, E5M2, E8M0, UE4M3, UE5M3, FloatFormat, Specials
from mpsim.modes import nearest

__all__ = [
    "BLOCK_CATALOGUE",
    "MXFP4",
    "MXFP6_E2M3",
    "MXFP6_E3M2",
    "MXFP8_E4M3",
    "MXFP8_E5M2",
    "MXINT8",
    "NVFP4",
    "NVFP4_UE5M3",
    "BlockFormat",
    "BlockFormatLike",
    "Element",
    "IntElement",
    "get_block_format",
]


@dataclass(frozen=True, kw_only=True)
class IntElement:
    """An element that is an integer of ``bits`` bits, in two's complement, times ``2**-fraction_bits``."""

    name: str
    bits: int
    fraction_bits: int
    symmetric: bool = True
    """Whether the most negative integer is left out, as MX 1.0 (5.3.4) allows, so that both signs reach equally far."""

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 15 or not 0 <= self.fraction_bits <= 30:
            raise ValueError(
                f"{self.name}: bits = {self.bits}, fraction_bits = {self.fraction_bits}; "
                "bits must be in 2..15 and fraction_bits in 0..30"
            )

    @property
    def largest(self) -> int:
        """Largest integer."""
        return (1 << (self.bits - 1)) - 1

    @functools.cached_property
    def code_dtype(self) -> np.dtype[Any]:
        """Smallest NumPy unsigned integer that holds a code."""
        return np.dtype(np.min_scalar_type((1 << self.bits) - 1))

    @functools.cached_property
    def magnitudes(self) -> FloatFormat:
        """A float format whose subnormals are the magnitudes of the integers."""
        return FloatFormat(
            name=self.name,
            p=self.bits,
            w=1,
            bias=self.fraction_bits + 2 - self.bits,
            specials=Specials.NONE,
            nan_to=0,
        )

    def __str__(self) -> str:
        return self.name


Element: TypeAlias = "FloatFormat | IntElement"


@dataclass(frozen=True, kw_only=True)
class BlockFormat:
    """Blocks of ``length`` elements along an axis that share a scale: a value is element times scale.

    The fields are independent facts; `dataclasses.replace` makes what-if formats.

    Examples
    --------
    >>> from dataclasses import replace
    >>> replace(MXFP4, name="mxfp4-16", length=16).bits_per_element
    4.5
    """

    name: str
    element: Element
    scale: FloatFormat
    """Format of the scales; one of precision p = 1 and without zero makes them powers of two."""
    length: int
    """Elements in a block."""
    tensor_scale: bool = False
    """Whether one more scale, a float32, belongs to the whole tensor."""
    aliases: tuple[str, ...] = ()
    source: str = ""
    """Where the numbers come from."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"{self.name}: length is {self.length}; a block has one element or more")
        if isinstance(self.element, FloatFormat) and not (self.element.bits <= 16 and self.element.signed):
            raise ValueError(f"{self.name}: element is {self.element}; a signed format of 16 bits or fewer is needed")
        s = self.scale
        if s.bits > 8 or s.nan_code is None or not (self.has_power_scales or (s.has_zero and s.has_subnormals)):
            raise ValueError(
                f"{self.name}: scale is {s}; a format of at most 8 bits with NaN is needed, either of precision 1 and "
                "without zero, as e8m0, or with zero and subnormals, as ue4m3"
            )
        if self.has_power_scales and self.tensor_scale:
            raise ValueError(f"{self.name}: tensor_scale is True, but a scale of powers of two such as {s} needs none")

    @property
    def has_power_scales(self) -> bool:
        """Whether scales are powers of two."""
        return self.scale.p == 1 and not self.scale.has_zero

    @property
    def bits_per_element(self) -> float:
        """Bits that an element takes, its share of the byte of the block's scale included."""
        return self.element.bits + 8 / self.length

    @functools.cached_property
    def max_element(self) -> Fraction:
        """Value of the largest element."""
        if isinstance(self.element, IntElement):
            return self.element.largest * power_of_two(-self.element.fraction_bits)
        return Fraction(self.element.max_finite)

    @functools.cached_property
    def emax_element(self) -> int:
        """Exponent of the largest element."""
        return floor_log2(self.max_element)

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the scale rules that go with the format; the first is the default."""
        return tuple(ScaleRule) if self.has_power_scales else tuple(RECIPES)

    def __str__(self) -> str:
        return self.name


_MX = "OCP Microscaling Formats (MX) 1.0"
_INT8 = IntElement(name="int8", bits=8, fraction_bits=6)


def _mx(name: str, element: Element, *aliases: str) -> BlockFormat:
    return BlockFormat(name=name, element=element, scale=E8M0, length=32, aliases=aliases, source=_MX)


MXFP8_E4M3 = _mx("mxfp8_e4m3", E4M3, "mxfp8", "mxfp8_e4m3fn")
MXFP8_E5M2 = _mx("mxfp8_e5m2", E5M2)
MXFP6_E3M2 = _mx("mxfp6_e3m2", E3M2)
MXFP6_E2M3 = _mx("mxfp6_e2m3", E2M3)
MXFP4 = _mx("mxfp4", E2M1, "mxfp4_e2m1")
MXINT8 = _mx("mxint8", _INT8)
NVFP4 = BlockFormat(
    name="nvfp4",
    element=E2M1,
    scale=UE4M3,
    length=16,
    tensor_scale=True,
    aliases=("nvfp4_e2m1", "nvfp4_ue4m3"),
    source="NVIDIA Blackwell; PTX ISA, scale vectors of ue4m3",
)
NVFP4_UE5M3 = BlockFormat(
    name="nvfp4_ue5m3", element=E2M1, scale=UE5M3, length=16, source="proposals for NVFP4 without a tensor scale"
)

BLOCK_CATALOGUE: tuple[BlockFormat, ...] = (
    MXFP8_E4M3, MXFP8_E5M2, MXFP6_E3M2, MXFP6_E2M3, MXFP4, MXINT8, NVFP4, NVFP4_UE5M3,
)  # fmt: skip
"""Every named block format."""

_BY_NAME = {name: fmt for fmt in BLOCK_CATALOGUE for name in (fmt.name, *fmt.aliases)}

BlockFormatLike: TypeAlias = "BlockFormat | str"


def get_block_format(fmt: BlockFormatLike) -> BlockFormat:
    """Return the block format that a name means; a BlockFormat is returned as it is.

    Raises
    ------
    ValueError
        No block format has that name; the message lists the nearest ones.

    Examples
    --------
    >>> get_block_format("MXFP4").length, get_block_format("nvfp4").length
    (32, 16)
    """
    if isinstance(fmt, BlockFormat):
        return fmt
    if not isinstance(fmt, str):
        raise TypeError(f"fmt is {fmt!r}; a BlockFormat or a name such as 'mxfp8_e4m3' is needed")
    name = fmt.strip().lower().replace("-", "_")
    if name not in _BY_NAME:
        near = nearest(name, _BY_NAME) or [f.name for f in BLOCK_CATALOGUE]
        raise ValueError(f"unknown block format {fmt!r}; nearest: {', '.join(near)}")
    return _BY_NAME[name]
