"""Integers as rows of bits: their length, and shifting right without forgetting what fell off."""

from typing import Any, TypeAlias

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from mpsim_kernels._jit import inner_kernel

__all__ = ["Int", "bit_length", "shift_right_jam"]

Int: TypeAlias = Any
"""An int64: a machine integer in compiled code, `numpy.int64` or int in plain Python."""

_config: Any = numba.config  # its attributes are made at run time

if _config.DISABLE_JIT:

    def bit_length(x: Any) -> Any:
        """Return how many bits a non-negative int64 has: 0 for 0."""
        return int(x).bit_length()

else:

    @intrinsic
    def bit_length(_: Any, x: Any) -> Any:
        """Return how many bits a non-negative int64 has: 0 for 0."""

        def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            width = ir.Constant(ir.IntType(64), 64)
            return builder.sub(width, builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0)))

        return types.int64(types.int64), codegen


@inner_kernel
def shift_right_jam(sig: Int, k: Int) -> Int:
    """Return ``sig >> k`` with its last bit set if a one was shifted out; 0 <= k, 0 <= sig.

    Rounding the result at least two bits above the last gives what rounding ``sig / 2**k`` itself would.
    """
    if k > 62:
        return np.int64(sig != 0)
    q = sig >> k
    return q | np.int64((q << k) != sig)
