"""The words of float32 matrices, as the kernels of products take them."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim_kernels._jit import kernel
from mpsim_kernels._threads import in_ranges

__all__ = ["Words", "words"]

Words: TypeAlias = NDArray[np.int32]

_TILE = 16  # rows and columns whose cache lines stay while both sides of a transposition are walked
_LARGE = 1 << 17  # elements from which on that matters, and which are worth a thread


def words(x: NDArray[np.float32]) -> Words:
    """Return the words of float32 matrices, contiguous and writeable, so that kernels are compiled once."""
    if x.size >= _LARGE and x.ndim == 2 and x.dtype == np.float32 and x.flags.f_contiguous and x.flags.writeable:
        return _transposed(x.T.view(np.int32))
    x = np.ascontiguousarray(x, dtype=np.float32)
    return (x if x.flags.writeable else x.copy()).view(np.int32)


def _transposed(x: Words) -> Words:
    """Return the transpose, contiguous; NumPy would walk the columns of one side without regard to caches."""
    out = np.empty((x.shape[1], x.shape[0]), np.int32)
    in_ranges(lambda start, stop: _transpose(x, out, start, stop), len(out), _LARGE // x.shape[0] + 1)
    return out


@kernel
def _transpose(x: Any, out: Any, start: Any, stop: Any) -> None:
    """Write the columns ``start`` to ``stop`` of ``x`` in rows of ``out``."""
    for top in range(start, stop, _TILE):
        for left in range(0, x.shape[0], _TILE):
            for i in range(top, min(top + _TILE, stop)):
                for j in range(left, min(left + _TILE, x.shape[0])):
                    out[i, j] = x[j, i]
