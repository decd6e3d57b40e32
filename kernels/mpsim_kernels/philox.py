"""Philox4x32-10: random words as a function of a key and a counter (Salmon et al. 2011, "Parallel random numbers")."""

from typing import Any

import numpy as np

from mpsim_kernels._jit import kernel

__all__ = ["philox_fill"]

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


@kernel
def philox_fill(seed: Any, stream: Any, first: Any, out: Any) -> None:
    """Fill ``out`` with random words number ``first``, ``first + 1``, ... of a stream.

    Parameters
    ----------
    seed, stream, first
        uint64. ``seed`` is the key. The counter's low half is the index of a block of four words, its high half
        the stream; so streams never share a block.
    out
        uint32 words [n], n and ``first`` multiples of 4.
    """
    block = first >> np.uint64(2)
    for i in range(out.size // 4):
        c0, c1 = block & _LOW, block >> _HALF
        c2, c3 = stream & _LOW, stream >> _HALF
        k0, k1 = seed & _LOW, seed >> _HALF
        for _ in range(10):
            p0, p1 = _M0 * c0, _M1 * c2
            c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _LOW, (p0 >> _HALF) ^ c3 ^ k1, p0 & _LOW
            k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
        out[4 * i] = np.uint32(c0)
        out[4 * i + 1] = np.uint32(c1)
        out[4 * i + 2] = np.uint32(c2)
        out[4 * i + 3] = np.uint32(c3)
        block += np.uint64(1)
