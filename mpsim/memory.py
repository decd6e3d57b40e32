"""How many bytes the tensors of a run take, each in its own format: now, and at the peak."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpsim.settings import using

__all__ = ["Memory", "track"]


@dataclass(frozen=True, slots=True)
class _Holding:
    reference: weakref.ref[NDArray[Any]]
    kind: str
    nbytes: int


class Memory:
    """Bytes by kind of tensor.

    Attributes
    ----------
    current, peak : int
        Bytes now, and at most so far.
    by_kind, peak_by_kind : dict of str to int
        The same by kind: ``"weight"``, ``"weight gradient"``, ``"activation"``, ``"activation gradient"``, and what
        others hold, such as ``"optimizer state"``.

    Notes
    -----
    An array counts from its first appearance until nothing refers to it, so that what is measured is when arrays are
    let go of, as on a device. Views count with the array that they look at. Elements count in the bits of their
    format, packed, and intermediate results kept in the inner arithmetic with 32. Inside an operation nothing counts:
    it is taken for one kernel.
    """

    def __init__(self) -> None:
        self.peak = 0
        self.peak_by_kind: dict[str, int] = {}
        self._bytes: Counter[str] = Counter()
        self._held: dict[int, _Holding] = {}

    @property
    def current(self) -> int:
        """Bytes now."""
        return self._bytes.total()

    @property
    def by_kind(self) -> dict[str, int]:
        """Bytes now, by kind."""
        return {kind: n for kind, n in self._bytes.items() if n}

    def hold(self, kind: str, array: NDArray[Any], bits: int) -> None:
        """Count an array, of elements of so many bits, from now until nothing refers to it any more."""
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        key = id(owner)
        if key in self._held:
            return
        nbytes = -(-owner.size * bits // 8)
        self._held[key] = _Holding(weakref.ref(owner, lambda _: self._let_go(key)), kind, nbytes)
        self._bytes[kind] += nbytes
        if self.current > self.peak:
            self.peak, self.peak_by_kind = self.current, self.by_kind

    def _let_go(self, key: int) -> None:
        holding = self._held.pop(key)
        self._bytes[holding.kind] -= holding.nbytes


@contextlib.contextmanager
def track() -> Iterator[Memory]:
    """Count the bytes of all tensors that operations see or make inside a ``with`` block.

    Examples
    --------
    >>> from mpsim.tensor import Tensor
    >>> x = Tensor([[1.0] * 8] * 8, requires_grad=True)
    >>> with track() as memory:
    ...     y = (x.to("fp16") * 2.0).sum()
    >>> memory.peak_by_kind["weight"]  # in fp32, and as fp16
    384
    """
    memory = Memory()
    with using(meter=memory):
        yield memory
