"""The order of a sum, read off what a cancelled large term has hidden."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim.formats import FP32
from mpsim.hardware.boxes import Box
from mpsim.hardware.designs import HIDING, Range, cancellations, pairs_on_a_large_accumulator

__all__ = ["Structure", "Tree", "find_structure", "hidden_summands", "summation_tree", "sums_along", "tree_text"]

_FP32_ROOM = FP32.p + 1
"""Bits by which a sum lies below one in fp32 that does not notice it."""

Tree: TypeAlias = "int | tuple[Tree, ...]"
"""A place k, or the subtrees that are summed at once."""


@dataclass(frozen=True)
class Structure:
    """Which products are summed together, and where the accumulator comes in."""

    hidden: tuple[int | None, ...]
    """For each j the summands, j and 0 included, lost between a large product at 0 and its negative at j.

    None where the result is no number of small products."""
    accumulator_hidden: tuple[bool, ...]
    """For each j whether such a pair hides the accumulator; empty where none can be given."""
    paired: tuple[bool, ...]
    """For each k whether its product and that of k = 0 reach a large accumulator as one sum."""
    reach: int
    """Bits between the large and the small products."""

    @property
    def narrow(self) -> bool:
        """Whether nothing is ever hidden, or some in part, for all sums are exact or the formats have no range."""
        return all(count == 2 for count in self.hidden[1:]) or (None in self.hidden and self.reach < HIDING)

    @property
    def distorted(self) -> bool:
        """Whether a hidden term leaves a trace, as with rounding to odd or away from zero."""
        return None in self.hidden[1:] and not self.narrow

    @property
    def exact_inside(self) -> bool:
        """Whether blocks hide nothing that is inside them, for their sums are exact or the formats have no range."""
        return not self.narrow and self.hidden.count(2) > 1

    @property
    def block(self) -> tuple[int, ...]:
        """Places that are summed at once with k = 0, in increasing order."""
        if self.narrow or self.distorted:
            return tuple(k for k, joined in enumerate(self.paired) if joined) or (0,)
        counts = [count for count in self.hidden[1:] if count is not None]
        least = min(counts, default=1)
        same = (0, *(k for k, count in enumerate(self.hidden) if k and count == least))
        if self.exact_inside:
            return same
        return same if len(same) == least and all(count % least == 0 for count in counts) else (0,)


def find_structure(box: Box) -> Structure:
    """Return what cancellations show about the order of summation of all K products."""
    setting = box.setting
    r = Range(*setting[:3])
    others = range(1, setting.k)
    hidden = hidden_summands(box)
    if not box.takes_c:
        return Structure(hidden, (), (), r.large - r.small)
    lost = (box.ask(cancellations(setting, 0, others, accumulator=True)) != 2.0**r.small).tolist()
    pairs = box.ask(pairs_on_a_large_accumulator(setting))
    return Structure(hidden, (False, *lost), (True, *(pairs[1:] != pairs[0]).tolist()), r.large - r.small)


def hidden_summands(box: Box) -> tuple[int | None, ...]:
    """Return `Structure.hidden` of a box."""
    return (1, *_hidden(box, 0, range(1, box.setting.k)))


def _hidden(box: Box, i: int, js: Sequence[int]) -> list[int | None]:
    """Return how many summands are lost between a large product at i and its negative at each j, both included.

    At most as many small products at a time as the result counts without rounding, and as no fp32 sum of theirs shows
    beside the large one; None where the sum is not theirs.
    """
    setting, columns = box.setting, np.asarray(js, np.intp)
    r = Range(*setting[:3])
    (x, y), small = r.power(r.large), r.power(r.small)
    room = r.large - r.small - _FP32_ROOM
    step = 1 << min(setting.out.p, 20, room if room > 0 else 20)
    kept = np.zeros(len(js))
    for start in range(0, setting.k, step):
        stop = min(start + step, setting.k)

        def rows(chosen: slice, start: int = start, stop: int = stop) -> tuple[NDArray[Any], NDArray[Any]]:
            own = columns[chosen]
            a, b = (np.zeros((own.size, setting.k), setting.dtype) for _ in range(2))
            a[:, start:stop], b[:, start:stop] = small
            a[:, i], b[:, i] = x, y
            a[np.arange(own.size), own], b[np.arange(own.size), own] = -x, y
            return a, b

        part = box.ask_rows(len(js), rows) / 2.0**r.small
        kept += np.where((part == np.rint(part)) & (part >= 0) & (part <= stop - start), part, np.nan)
    return [int(setting.k - x) if x <= setting.k - 2 else None for x in kept.tolist()]


def summation_tree(box: Box) -> Tree | None:
    """Return the tree by which K products are summed; None where the results are those of no tree.

    Places that are added in one rounding, or aligned together, are children of one node (FPRev, for chains of
    ordinary additions and for fused sums that cut). Takes about K cancellations for a chain, and at most K^2 / 2.
    """

    def size(i: int, js: Sequence[int]) -> list[int]:
        counts = _hidden(box, i, js)
        if None in counts:
            raise _NoTreeError
        return [count for count in counts if count is not None]

    try:
        return _tree(list(range(box.setting.k)), size)
    except _NoTreeError:
        return None


class _NoTreeError(Exception):
    """The answers are those of no tree."""


def _tree(leaves: list[int], size: Callable[[int, Sequence[int]], list[int]]) -> Tree:
    """Return the tree over some leaves: from the first leaf up, what joins it at every node on the way to the root."""
    first, rest = leaves[0], leaves[1:]
    if not rest:
        return first
    sizes = dict(zip(rest, size(first, rest), strict=True))
    tree: Tree = first
    below = 1
    for count in sorted(set(sizes.values())):
        joined = [k for k in rest if sizes[k] == count]
        if below + len(joined) != count:
            raise _NoTreeError
        tree = (tree, *_siblings(joined, count, size))
        below = count
    return tree


def _siblings(leaves: list[int], parent: int, size: Callable[[int, Sequence[int]], list[int]]) -> list[Tree]:
    """Return the subtrees that leaves make below a node with ``parent`` leaves in all."""
    trees = []
    while leaves:
        first, rest = leaves[0], leaves[1:]
        inner = [k for k, count in zip(rest, size(first, rest) if rest else [], strict=True) if count < parent]
        trees.append(_tree([first, *inner], size))
        leaves = [k for k in rest if k not in inner]
    return trees


def sums_along(tree: Tree, products: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """Return the sums of products [E, K] by float32 additions along a tree; None where a node adds more than two.

    Only as good as the products: exact ones make it what the tree's owner computes, fused multiply-adds or not.
    """
    spine: list[Tree] = []
    while isinstance(tree, tuple):
        if len(tree) != 2:
            return None
        spine.append(tree[1])
        tree = tree[0]
    total: NDArray[np.float32] = products[:, tree]
    for other in reversed(spine):
        part = sums_along(other, products)
        if part is None:
            return None
        total = total + part
    return total


def tree_text(tree: Tree) -> str:
    """Return a tree in words where it is a chain of blocks or of chains, else with its parentheses.

    Examples
    --------
    >>> tree_text((((0, 1), 2), 3)), tree_text(((0, 1, 2, 3), 4, 5, 6, 7))
    ('0 to 3 in order', 'blocks of 4: 0 to 7 in order')
    >>> tree_text(((0, 1), (2, 3))), tree_text((((0, 4), 8), ((1, 5), 9)))
    ('(0, 1) + (2, 3)', '(0, 4, 8) + (1, 5, 9)')
    """
    chain = _chain(tree)
    if chain is None:
        assert isinstance(tree, tuple)
        return " + ".join(f"({_run(part)})" if (part := _chain(child)) else f"({tree_text(child)})" for child in tree)
    lengths = {len(part) for part in chain}
    places = [k for part in chain for k in part]
    steps = places == list(range(places[0], places[0] + len(places)))
    shown = f"{places[0]} to {places[-1]} in order" if steps and len(places) > 2 else ", ".join(map(str, places))
    widest = max(lengths)
    return f"blocks of {widest}: {shown}" if widest > 2 else shown


def _run(chain: list[list[int]]) -> str:
    places = [k for part in chain for k in part]
    if len(places) < 4:
        return ", ".join(map(str, places))
    step = places[1] - places[0]
    if places == list(range(places[0], places[-1] + (1 if step > 0 else -1), step or 1)):
        return f"{places[0]} to {places[-1]}" + (f" in steps of {step}" if step != 1 else "")
    return ", ".join(map(str, places))


def _chain(tree: Tree) -> list[list[int]] | None:
    """Return the blocks of leaves that join one accumulator in turn; None for another tree."""
    if isinstance(tree, int):
        return [[tree]]
    blocks: list[list[int]] = []
    while isinstance(tree, tuple):
        rest = [k for k in tree[1:] if isinstance(k, int)]
        if len(rest) != len(tree) - 1:
            return None
        if not isinstance(tree[0], tuple):
            blocks.append([tree[0], *rest])
            break
        blocks.append(rest)
        tree = tree[0]
    return blocks[::-1]
