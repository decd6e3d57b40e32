"""Comparison of arrays bit for bit."""

from typing import Any

import numpy as np

__all__ = ["assert_same_bits", "bit_patterns"]


def bit_patterns(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the elements' bit patterns as unsigned integers of the same width and byte order."""
    x = np.asarray(x)
    return x.astype(x.dtype.newbyteorder("="), order="C").view(f"u{x.dtype.itemsize}")


def assert_same_bits(got: Any, want: Any, inputs: Any = None) -> None:
    """Fail unless both arrays have one shape, dtype and bit pattern; name the first difference.

    ``inputs``, where given, is an array of the same shape whose element is printed beside the difference.
    """
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype, f"dtype {got.dtype}, should be {want.dtype}"
    assert got.shape == want.shape, f"shape {got.shape}, should be {want.shape}"
    a, b = bit_patterns(got), bit_patterns(want)
    different = np.flatnonzero((a != b).reshape(-1))
    if different.size == 0:
        return
    index = np.unravel_index(different[0], got.shape)
    digits = 2 * got.dtype.itemsize
    place = f"[{', '.join(map(str, index))}]"
    text = f"{different.size} of {got.size} differ; first at {place}: "
    text += f"0x{int(a[index]):0{digits}x} ({got[index]!r}), should be 0x{int(b[index]):0{digits}x} ({want[index]!r})"
    if inputs is not None:
        x = np.asarray(inputs)[index]
        text += f"; input {x!r} = 0x{int(bit_patterns(x)):x}" if x.dtype.kind == "f" else f"; input {x!r}"
    raise AssertionError(text)
