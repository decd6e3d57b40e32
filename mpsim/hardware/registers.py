"""Flags of processors' status registers, as recordings have them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mpsim.arithmetic.flags import EXCEPTIONS

__all__ = ["DENORMAL", "FLAGS", "flags_of"]

FLAGS = (*EXCEPTIONS, "denormal")
"""Names of a recording's flags in the order of their bits."""
DENORMAL = 1 << FLAGS.index("denormal")
"""Bit of x86's "denormal operand" beside those of `mpsim.Flags`."""


def flags_of(register: NDArray[np.uint8], names: Mapping[int, str]) -> NDArray[np.uint8]:
    """Return the flags of a register, whose bits have names, as a recording has them."""
    flags = np.zeros_like(register)
    for bit, name in names.items():
        flags |= ((register & bit) != 0).astype(np.uint8) << np.uint8(FLAGS.index(name))
    return flags
