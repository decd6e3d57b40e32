"""Turn codes of any format into float32 or float64 words, on integers alone."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mpsim_kernels._jit import kernel
from mpsim_kernels.bits import shl

__all__ = ["LAYOUT", "make_decoder", "make_plain_decoder"]


LAYOUT = np.dtype(
    [
        ("m", np.uint64),  # fraction bits
        ("bias", np.int64),
        ("has_subnormals", np.bool_),
        ("has_zero", np.bool_),
        ("nan_has_sign", np.bool_),
        ("sign", np.uint64),  # the sign bit; 0 in an unsigned format
        ("sign_bit", np.int64),  # which bit that is
        ("inf", np.uint64),  # code of +infinity; larger than any code if there is none
        ("nan_from", np.uint64),  # codes whose magnitude is at least this are NaN
        ("payload_mask", np.uint64),  # which bits of a NaN's fraction are kept; 0 for none
        ("nan_code", np.uint64),  # one more code that is NaN; larger than any code if there is none
    ]
)
"""Where a code keeps its fields, and which codes are special; kernels take an array of one such record."""


@functools.cache
def make_plain_decoder(width: int) -> Callable[..., None]:
    """Return ``decoder(codes, out, layout)`` for formats whose numbers are normal in the float.

    As `make_decoder`, several times faster. The format must have zero and subnormals; and either all its numbers are
    normal in the float, or it has the float's own exponents.
    """
    U: Any = np.uint32 if width == 32 else np.uint64
    S: Any = np.int32 if width == 32 else np.int64
    FLOAT: Any = np.float32 if width == 32 else np.float64
    F = 23 if width == 32 else 52
    BIAS = 127 if width == 32 else 1023
    INF = U((2 ** (width - 1 - F) - 1) << F)
    NAN = U(int(INF) | (1 << (F - 1)))
    ZERO = U(0)

    @kernel
    def decoder(codes: Any, out: Any, layout: Any) -> None:
        fields = layout[0]
        m, bias = np.int64(fields["m"]), fields["bias"]
        sign, inf, nan_from = U(fields["sign"]), U(fields["inf"]), U(fields["nan_from"])
        nan_code, nan_has_sign, sign_up = (
            U(fields["nan_code"]),
            fields["nan_has_sign"],
            U(width - 1 - fields["sign_bit"]),
        )
        payload_mask = U(fields["payload_mask"])
        up = U(F - m)
        rebias = shl(U(BIAS - bias), U(F))
        # A subnormal is an integer times the quantum; a conversion of a small integer is exact.
        quantum_shift = shl(U(bias + m - 1), U(F))
        aligned = bias == BIAS
        hidden = ZERO if aligned else shl(U(1), U(m))
        for i in range(codes.size):
            code = U(codes[i])
            magnitude = U(code & U(~sign))
            word = U(shl(magnitude, up) + rebias)
            integer = FLOAT(S(magnitude)).view(U)
            if magnitude < hidden:
                word = U(integer - quantum_shift) if magnitude != ZERO else ZERO
            if magnitude == inf:
                word = INF
            if magnitude >= nan_from:
                word = U(NAN | shl(U(magnitude & payload_mask), up))
            word = U(word | shl(U(code & sign), sign_up))
            out[i] = NAN if code == nan_code and not nan_has_sign else word

    return decoder


@functools.cache
def make_decoder(width: int) -> Callable[..., None]:
    """Return ``decoder(codes, out, layout)``, which writes float words of 32 or 64 bits.

    ``codes`` and ``out`` are contiguous unsigned integers [n]. Every finite value must be exact in the
    float; NaNs come out quiet, with their sign where the format's NaNs have one.
    """
    U: Any = np.uint32 if width == 32 else np.uint64
    F = 23 if width == 32 else 52
    BIAS = np.int64(127 if width == 32 else 1023)
    HIDDEN = np.uint64(1 << F)
    INF = np.uint64((2 ** (width - 1 - F) - 1) << F)
    QUIET = np.uint64(1 << (F - 1))
    TOP = np.uint64(width - 1)
    ZERO, ONE = np.uint64(0), np.uint64(1)

    @kernel
    def decoder(codes: Any, out: Any, layout: Any) -> None:
        fields = layout[0]
        m, bias = fields["m"], fields["bias"]
        has_subnormals, has_zero, nan_has_sign = fields["has_subnormals"], fields["has_zero"], fields["nan_has_sign"]
        sign, inf, nan_from, nan_code = fields["sign"], fields["inf"], fields["nan_from"], fields["nan_code"]
        payload_mask = fields["payload_mask"]
        up = np.uint64(F) - m
        for i in range(codes.size):
            code = np.uint64(codes[i])
            magnitude = code & ~sign
            negative = ONE if (code & sign) != ZERO else ZERO
            field = np.int64(magnitude >> m)
            fraction = np.uint64((magnitude & np.uint64((ONE << m) - ONE)) << up)
            e = np.int64(field - bias)
            if field == 0 and has_subnormals:
                # Slide the fraction up to the hidden bit; at most m steps.
                e = np.int64(1 - bias)
                while fraction != ZERO and fraction < HIDDEN:
                    fraction = np.uint64(fraction << ONE)
                    e = np.int64(e - 1)
                fraction = fraction & np.uint64(~HIDDEN) if fraction != ZERO else ZERO
            word = np.uint64(np.uint64(max(e + BIAS, np.int64(1))) << np.uint64(F)) | fraction
            if e + BIAS < 1:  # subnormal in the float as well: exact, for the float holds every value
                word = np.uint64((fraction | HIDDEN) >> np.uint64(np.int64(1) - (e + BIAS)))
            if magnitude == ZERO and has_zero:
                word = ZERO
            if magnitude == inf:
                word = INF
            if magnitude >= nan_from or code == nan_code:
                word = np.uint64(INF | QUIET | np.uint64((magnitude & payload_mask) << up))
                negative = negative if nan_has_sign else ZERO
            out[i] = U(word | np.uint64(negative << TOP))

    return decoder
