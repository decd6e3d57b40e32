"""Shifts of unsigned words that keep their width."""

from typing import Any

import numba
from numba.extending import intrinsic

__all__ = ["shl", "shr"]

_config: Any = numba.config  # its attributes are made at run time

if _config.DISABLE_JIT:

    def shl(x: Any, k: Any) -> Any:
        """Return ``x << k``."""
        return type(x)(x << k)

    def shr(x: Any, k: Any) -> Any:
        """Return ``x >> k``."""
        return type(x)(x >> k)

else:
    # Numba widens uint32 operands to uint64 first, and LLVM cannot always narrow a shift by a variable amount again:
    # the loop then runs in 64-bit lanes, at half the speed.

    @intrinsic
    def shl(_: Any, x: Any, k: Any) -> Any:
        """Return ``x << k`` in the unsigned type of both; ``k`` must be less than its width."""
        return x(x, k), lambda context, builder, signature, args: builder.shl(*args)

    @intrinsic
    def shr(_: Any, x: Any, k: Any) -> Any:
        """Return ``x >> k`` in the unsigned type of both; ``k`` must be less than its width."""
        return x(x, k), lambda context, builder, signature, args: builder.lshr(*args)
