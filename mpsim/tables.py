"""Formats given by a list of their values, for what has no sign, exponent and fraction fields."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim.counters import Counters
from mpsim.modes import Rounding

__all__ = ["INT4", "NF4", "POSIT8", "TableFormat"]

_MODES = (Rounding.NEAREST_EVEN, Rounding.NEAREST_AWAY, Rounding.TOWARD_ZERO, Rounding.UP, Rounding.DOWN)


@dataclass(frozen=True, kw_only=True)
class TableFormat:
    """A format that is a list of values: code ``i`` stands for ``values[i]``.

    Parameters
    ----------
    name : str
    values : tuple of float
        One for each code, in any order, all different; NaN at ``nan_code`` and nowhere else.
    nan_code : int, optional
        Code of NaN. Without one a NaN cannot be encoded.
    nan_of_infinity : bool
        Whether infinite inputs are NaN rather than the extreme value.
    keeps_nonzero : bool
        Whether a nonzero number never becomes zero but its neighbour instead, as posits want.
    source : str
        Where the values come from.

    Raises
    ------
    ValueError
        Values are missing, equal, infinite or NaN, or there are more than 2**16.

    Examples
    --------
    >>> NF4.round_to([0.1, -0.9, 3.0])
    array([ 0.0795803, -1.       ,  1.       ])
    >>> NF4.encode([0.1, -0.9, 3.0])
    array([ 8,  0, 15], dtype=uint8)
    """

    name: str
    values: tuple[float, ...]
    nan_code: int | None = None
    nan_of_infinity: bool = False
    keeps_nonzero: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(map(float, self.values)))
        numbers = [v for code, v in enumerate(self.values) if code != self.nan_code]
        if not 2 <= len(self.values) <= 1 << 16 or not numbers:
            raise ValueError(f"{self.name}: {len(self.values)} values; 2 to 65536, one of them a number, are needed")
        if self.nan_code is not None and not 0 <= self.nan_code < len(self.values):
            raise ValueError(f"{self.name}: nan_code is {self.nan_code}; codes are 0 to {len(self.values) - 1}")
        if not all(map(math.isfinite, numbers)):
            raise ValueError(f"{self.name}: values must be finite; name the code of a NaN as nan_code")
        if len(set(numbers)) < len(numbers):
            twice = next(v for i, v in enumerate(numbers) if v in numbers[:i])
            raise ValueError(f"{self.name}: {twice} stands there twice; every code needs a value of its own")
        if self.nan_of_infinity and self.nan_code is None:
            raise ValueError(f"{self.name}: nan_of_infinity needs a nan_code")

    @property
    def bits(self) -> int:
        """Width of a code, in bits."""
        return (len(self.values) - 1).bit_length()

    @property
    def code_dtype(self) -> np.dtype[Any]:
        """Smallest NumPy unsigned integer that holds a code."""
        return np.dtype(np.min_scalar_type(len(self.values) - 1))

    @functools.cached_property
    def _sorted(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Values in increasing order, and their codes."""
        codes = np.array([code for code in range(len(self.values)) if code != self.nan_code])
        numbers = np.array(self.values)[codes]
        order = np.argsort(numbers)
        return numbers[order], codes[order]

    @functools.cached_property
    def _middles(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Midpoints of neighbours rounded down to float64, and which of them are exact."""
        exact = [v.as_integer_ratio() for v in self._sorted[0].tolist()]
        middles, sharp = [], []
        for (a, b), (c, d) in itertools.pairwise(exact):
            numerator, denominator = a * d + c * b, 2 * b * d
            near = numerator / denominator  # correctly rounded, as Python divides integers
            p, q = near.as_integer_ratio()
            above = p * denominator - numerator * q
            middles.append(math.nextafter(near, -math.inf) if above > 0 else near)
            sharp.append(above == 0)
        return np.array(middles), np.array(sharp, dtype=np.bool_)

    def _places(self, x: NDArray[np.float64], mode: Rounding) -> NDArray[np.int64]:
        """Return which of the sorted values each number, no NaN, becomes."""
        numbers, codes = self._sorted
        last = numbers.size - 1
        below = np.clip(np.searchsorted(numbers, x, side="right") - 1, 0, last)
        between = (x > numbers[below]) & (x < numbers[-1])
        if last == 0:
            return below
        pair = np.minimum(below, last - 1)
        match mode:
            case Rounding.UP:
                up = between
            case Rounding.DOWN:
                up = np.zeros_like(between)
            case Rounding.TOWARD_ZERO:
                up = between & (x < 0)
            case _:
                middles, sharp = self._middles
                # The float64 below an inexact midpoint is nearer to the lower value, the next one to the upper.
                tie = sharp[pair] & (x == middles[pair])
                lower_even = (codes[pair] % 2 == 0) & (codes[pair + 1] % 2 == 1)
                same = (codes[pair] - codes[pair + 1]) % 2 == 0
                to_upper = np.where(same, x < 0, ~lower_even)
                to_upper = x >= 0 if mode is Rounding.NEAREST_AWAY else to_upper
                up = between & np.where(tie, to_upper, x > middles[pair])
        place = below + up
        if self.keeps_nonzero:
            # In place of zero, the smallest number of the sign.
            place = np.where((numbers[place] == 0) & (x != 0), place + np.sign(x).astype(np.int64), place)
        inside: NDArray[np.int64] = np.clip(place, 0, last)
        return inside

    def encode(
        self, x: ArrayLike, rounding: Rounding | str = Rounding.NEAREST_EVEN, *, counters: Counters | None = None
    ) -> NDArray[Any]:
        """Return the codes of the values that numbers round to.

        Parameters
        ----------
        x : array_like of real numbers
            Compared as float64, exactly. NaN needs a ``nan_code``.
        rounding : {"nearest-even", "nearest-away", "toward-zero", "up", "down"}
            A tie goes to the even code; where both codes or neither are even, toward zero. Numbers beyond
            the extreme values become these, in every mode. ``"toward-zero"`` takes the neighbour on zero's side, the
            lower one for zero itself, also in a table without zero.
        counters : Counters, optional
            Counts all events but subnormals, which tables do not have; accumulates.

        Returns
        -------
        codes : array of ``code_dtype``, shape of ``x``
        """
        mode = Rounding.of(rounding, "rounding")
        if mode not in _MODES:
            raise ValueError(f"rounding is {str(mode)!r}; for a table it must be one of {', '.join(_MODES)}")
        array = np.asarray(x)
        small_float = array.dtype.kind == "V" and array.dtype.fields is None and np.can_cast(array.dtype, np.float32)
        if not small_float and (array.dtype.kind not in "biuf" or array.dtype.itemsize > 8):
            raise TypeError(f"x has dtype {array.dtype}; real numbers that fit float64 are needed")
        if array.dtype.kind in "iu" and array.size and max(-int(array.min()), int(array.max())) > 1 << 53:
            raise ValueError("x has integers beyond 2**53: convert them to float64 first")
        wide = array.astype(np.float64)
        is_nan = np.isnan(wide)
        made = np.isinf(wide) if self.nan_of_infinity else np.zeros_like(is_nan)
        if self.nan_code is None and is_nan.any():
            raise ValueError(f"x has a NaN, which {self.name} has no code for; choose a nan_code")
        numbers, codes = self._sorted
        place = self._places(np.where(is_nan, 0.0, wide), mode)
        out = np.where(is_nan | made, self.nan_code or 0, codes[place]).astype(self.code_dtype)
        if counters is not None:
            rounded, real = numbers[place], np.isfinite(wide)
            beyond = ((wide > numbers[-1]) | (wide < numbers[0])) & ~made
            counters += Counters(
                elements=wide.size,
                zeros=int((wide == 0).sum()),
                underflows=int((real & (wide != 0) & (rounded == 0)).sum()),
                overflows=int((beyond & real).sum()),
                saturations=int(beyond.sum()),
                inexact=int((real & (wide != rounded)).sum()),
                nans=int(is_nan.sum()),
                nans_made=int(made.sum()),
                infinities=int(np.isinf(wide).sum()),
            )
        return out

    def decode(self, codes: ArrayLike) -> NDArray[np.float64]:
        """Return the values of codes, as float64 in their shape."""
        array = np.asarray(codes)
        if array.dtype.kind not in "iu":
            raise TypeError(f"codes have dtype {array.dtype}; integers are needed")
        if array.size and not 0 <= int(array.min()) <= int(array.max()) < len(self.values):
            last = len(self.values) - 1
            raise ValueError(f"codes reach from {array.min()} to {array.max()}; {self.name} has codes 0 to {last}")
        table = np.array(self.values)
        if self.nan_code is not None:
            table[self.nan_code] = np.nan
        values: NDArray[np.float64] = table[array]
        return values

    def round_to(
        self, x: ArrayLike, rounding: Rounding | str = Rounding.NEAREST_EVEN, *, counters: Counters | None = None
    ) -> NDArray[np.float64]:
        """Return the values, as float64, that numbers round to; parameters as for `encode`."""
        return self.decode(self.encode(x, rounding, counters=counters))


def _posit(bits: int, code: int, es: int = 2) -> float:
    """Return the value of a posit's code (Posit Standard 2022, section 4)."""
    if code == 0:
        return 0.0
    if code == 1 << (bits - 1):
        return math.nan
    if code >> (bits - 1):
        return -_posit(bits, (1 << bits) - code, es)
    digits = f"{code:0{bits}b}"[1:]
    run = len(digits) - len(digits.lstrip(digits[0]))
    regime = run - 1 if digits[0] == "1" else -run
    rest = digits[run + 1 :]
    exponent = int(rest[:es].ljust(es, "0"), 2)  # bits beyond the end are 0
    fraction = rest[es:]
    sig = int("1" + fraction, 2)
    return math.ldexp(sig, (regime << es) + exponent - len(fraction))


NF4 = TableFormat(
    name="nf4",
    values=(
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ),
    source="Dettmers et al. 2023 (QLoRA), appendix E",
)  # fmt: skip
"""Quantiles of a normal distribution, in float32, with an exact zero."""

INT4 = TableFormat(
    name="int4", values=tuple(float(c - 16 if c > 7 else c) for c in range(16)), source="two's complement"
)
"""Integers from -8 to 7."""

POSIT8 = TableFormat(
    name="posit8",
    values=tuple(_posit(8, code) for code in range(256)),
    nan_code=0x80,
    nan_of_infinity=True,
    keeps_nonzero=True,
    source="Posit Standard (2022), es = 2",
)
"""Eight-bit posits; NaR is the NaN. A tie is the midpoint of two values here. The standard rounds the bit string:
far from 1, where exponent bits are cut, its ties are geometric means instead."""
