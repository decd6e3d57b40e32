"""Codes to float words: which loop, and what it needs to know of the format."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim._arrays import WORDS
from mpsim.formats import FloatFormat, Specials
from mpsim_kernels._threads import AT_LEAST, in_ranges
from mpsim_kernels.decoding import LAYOUT, make_decoder, make_plain_decoder

__all__ = ["code_layout", "decode_words"]


def decode_words(words: NDArray[Any], fmt: FloatFormat, out: NDArray[Any], keep_payload: bool = False) -> NDArray[Any]:
    """Write the values of codes into ``out``, a float array of their shape, and return it."""
    lowest, bias = (-126, 127) if out.itemsize == 4 else (-1022, 1023)
    plain = fmt.has_subnormals and (fmt.quantum_exponent >= lowest or fmt.bias == bias)
    decoder = (make_plain_decoder if plain else make_decoder)(8 * out.itemsize)
    codes, layout = words.reshape(-1), code_layout(fmt, keep_payload)
    target: NDArray[Any] = out.reshape(-1).view(WORDS[out.itemsize])
    in_ranges(lambda start, stop: decoder(codes[start:stop], target[start:stop], layout), codes.size, AT_LEAST)
    return out


@functools.cache
def code_layout(fmt: FloatFormat, keep_payload: bool = False) -> NDArray[Any]:
    """Return the `LAYOUT` record of a format."""
    never = 2**64 - 1  # as a code a NaN of binary64, so it is never mistaken for anything else
    nan_from, nan_code = never, never
    if fmt.specials is Specials.IEEE:
        nan_from = fmt.max_code + 2
    elif fmt.nan_code is not None and fmt.nan_code == fmt.last_code:
        nan_from = fmt.nan_code
    elif fmt.nan_code is not None:
        nan_code = fmt.nan_code
    layout = np.zeros(1, LAYOUT)
    layout["m"] = fmt.m
    layout["bias"] = fmt.bias
    layout["has_subnormals"] = fmt.has_subnormals
    layout["has_zero"] = fmt.has_zero
    layout["nan_has_sign"] = fmt.nan_has_sign
    layout["sign"] = fmt.sign_code
    layout["sign_bit"] = max(fmt.sign_code.bit_length() - 1, 0)
    layout["inf"] = never if fmt.inf_code is None else fmt.inf_code
    layout["payload_mask"] = (1 << fmt.m) - 1 if keep_payload else 0
    layout["nan_from"] = nan_from
    layout["nan_code"] = nan_code
    return layout
