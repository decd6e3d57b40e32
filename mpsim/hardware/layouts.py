"""How K may be cut into chains, read off what a cancelled large term has hidden.

A large product at k = 0 and its negative in another chain hide everything that is added up until the two chains meet,
whatever the unit (see `mpsim.hardware.structure`); so the chain of k = 0 and its meetings with all others are seen,
and with them how K is cut.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim.matmul.schedules import SCHEDULES, Reduction, Schedule, Split, Sums, follow

__all__ = ["first_chain", "is_usual", "plain", "proposals", "schedule_text", "signature", "variants"]

_Ks: TypeAlias = NDArray[np.intp]
_TILES = (64, 128, 32, 16, 256, 512)
"""Usual tiles, the likeliest first."""
_STRIPES = (1, 2, 4)
_ONE_CHAIN = Schedule()
_SPARED = 16
"""Splits beside which there may be others that own nothing."""


def first_chain(schedule: Schedule, k: int) -> _Ks:
    """Return the places that are summed by the chain of k = 0.

    Examples
    --------
    >>> first_chain(Schedule(split_k=2, tile=4), 8).tolist(), first_chain(Schedule(promotion=3), 8).tolist()
    ([0, 1, 2, 3], [0, 1, 2])
    """
    own = _first_accumulator(schedule, k)
    return own[: schedule.promotion] if schedule.promotion else own


def _first_accumulator(schedule: Schedule, k: int) -> _Ks:
    """Return the places of the first split's first stripe."""
    every = np.arange(k)
    tile = every // schedule.tile
    if schedule.split == Split.INTERLEAVED:
        owned = tile % schedule.split_k == 0
    else:
        owned = tile < max(math.ceil(math.ceil(k / schedule.tile) / schedule.split_k), 1)
    return np.flatnonzero(owned & (every % schedule.tile < schedule.tile // schedule.stripes))


def meetings(schedule: Schedule, k: int) -> _Ks:
    """Return, for every place outside the chain of k = 0, how many summands there are once its chain has met that one.

    Inside that chain it is 0. This is what `Structure.hidden` is there.

    Examples
    --------
    >>> meetings(Schedule(split_k=3, tile=2), 6).tolist()
    [0, 0, 4, 4, 6, 6]
    >>> meetings(Schedule(split_k=3, tile=2, reduction="pairwise"), 6).tolist()
    [0, 0, 6, 6, 4, 4]
    """
    met = np.zeros(k, np.intp)

    def add(x: _Ks, y: _Ks) -> _Ks:
        for own, other in ((x, y), (y, x)):
            if own.size and own[0] == 0:
                met[other] = x.size + y.size
        return np.concatenate([x, y] if y.size == 0 or (x.size and x[0] == 0) else [y, x])

    follow(
        schedule,
        k,
        None,
        Sums(
            chain=lambda own, start: own,
            promoted=lambda total, part, first: add(total, part),
            add=add,
            store=lambda total: total,
            zero=lambda: np.empty(0, np.intp),
        ),
    )
    return met


def signature(schedule: Schedule, k: int, takes_c: bool, narrow: bool) -> Any:
    """Return what stands for all additions that a schedule makes of K products; equal ones give equal bits.

    ``narrow`` says whether the result's format is narrower than fp32, so that storing it rounds.
    """

    def node(kind: str, *parts: Any) -> Any:
        return kind, hashlib.blake2b(repr((kind, parts)).encode(), digest_size=16).digest()

    def add(x: Any, y: Any) -> Any:
        if x == "zero" or y == "zero":
            other = y if x == "zero" else x
            return ("+0", other) if other[0] == "chain" else other
        # Sums do not depend on the order of two summands.
        return node("+", *sorted(part[1] if part[0] == "+0" else part for part in (x, y)))

    def chain(own: _Ks, start: Any) -> Any:
        return "zero" if own.size == 0 and start is None else node("chain", own.tobytes(), start)

    return follow(
        schedule,
        k,
        ("c", b"") if takes_c else None,
        Sums(
            chain=chain,
            promoted=lambda total, part, first: add(total, part),
            add=add,
            store=lambda total: node("stored", total) if narrow and total != "zero" else total,
            zero=lambda: "zero",
        ),
    )


def proposals(hidden: Sequence[int | None]) -> Iterator[Schedule]:
    """Yield the schedules whose chains meet as `Structure.hidden` says, one chain first.

    Examples
    --------
    >>> chains = [1, 4, 4, 4, 8, 8, 8, 8]
    >>> [(s.split_k, s.tile, s.promotion) for s in proposals(chains) if s.reduction == "serial" and s.stripes == 1]
    [(1, 64, 0), (1, 64, 4), (1, 64, 8), (2, 4, 0), (2, 4, 4)]
    """
    k = len(hidden)
    seen = np.array([-1 if count is None else count for count in hidden], np.intp)
    for own in _accumulators(seen):
        outside = ~np.isin(np.arange(k), own)
        intervals = (0, *_promotions(seen[own]), own.size)
        for layout in _layouts(own, seen):
            if not np.array_equal(_first_accumulator(layout, k), own):
                continue
            for alike in _reductions(layout, k):
                if np.array_equal(meetings(alike[0], k)[outside], seen[outside]):
                    for reduced, promotion in itertools.product(alike, intervals):
                        yield dataclasses.replace(reduced, promotion=promotion)


def _accumulators(seen: _Ks) -> Iterator[_Ks]:
    """Yield sets of places that may be all of one accumulator, that of k = 0: all of K, then the smallest first."""
    k = seen.size
    yield np.arange(k)
    for count in np.unique(seen[1:]):
        own = np.flatnonzero(seen < count)
        if own.size in (0, k) or own[0] != 0 or seen[own].max() > own.size:
            continue
        next_one = int(np.count_nonzero(seen == count))
        contiguous = own[-1] == own.size - 1
        if count == own.size + next_one and (not contiguous or next_one in (own.size, k - own.size, k % own.size)):
            yield own


def _layouts(own: _Ks, seen: _Ks) -> Iterator[Schedule]:
    """Yield splits and stripes of K whose first accumulator may have some places."""
    n, k = own.size, seen.size
    if n == k:
        yield _ONE_CHAIN
        return
    gaps = np.flatnonzero(np.diff(own) > 1)
    if not gaps.size:
        splits = math.ceil(k / n)
        tile = next((t for t in _TILES if n % t == 0 and math.ceil(math.ceil(k / t) / splits) * t == n), n)
        yield Schedule(split_k=splits, tile=tile)
        counts = np.unique(seen[n:])  # stripes are met one by one, then whole splits
        one_by_one = counts == np.minimum(n * np.arange(2, counts.size + 2), k)
        run = 1 + int(np.count_nonzero(np.logical_and.accumulate(one_by_one)))
        for stripes in sorted({run - 1, run} - {0, 1}):
            yield Schedule(split_k=math.ceil(k / (n * stripes)), tile=n * stripes, stripes=stripes)
        return
    width, period = int(gaps[0]) + 1, int(own[gaps[0] + 1])
    groups, rest = divmod(period, width)
    for stripes in range(1, groups + 1 if not rest else 1):
        if groups % stripes:
            continue
        splits, tile = groups // stripes, width * stripes
        if splits > 1:
            yield Schedule(split_k=splits, split=Split.INTERLEAVED, tile=tile, stripes=stripes)
        else:
            tiles = int(own[-1]) // tile + 1
            yield Schedule(split_k=math.ceil(math.ceil(k / tile) / tiles), tile=tile, stripes=stripes)


def _promotions(seen: _Ks) -> list[int]:
    """Return the intervals of restarts that what is hidden inside one accumulator allows."""
    n = seen.size
    places = np.arange(n)
    found = []
    for interval in sorted(np.unique(seen, return_index=True)[1].tolist()):
        later = places[interval:]
        if interval and np.array_equal(seen[interval:], np.minimum(interval * (later // interval + 1), n)):
            found.append(interval)
    return found


def _reductions(layout: Schedule, k: int) -> Iterator[list[Schedule]]:
    """Yield a layout with every reduction, those together that join in one order.

    Pairwise sums also depend on splits at the end that own nothing.
    """
    if layout.split_k == 1:
        yield [layout]
        return
    in_order = (Reduction.SERIAL, Reduction.IN_PLACE, Reduction.WORKSPACE)
    yield [dataclasses.replace(layout, reduction=reduction) for reduction in in_order]
    yield [dataclasses.replace(layout, reduction=Reduction.PAIRWISE)]
    if layout.split is Split.CONTIGUOUS and layout.split_k <= _SPARED:
        tile = layout.tile if layout.stripes > 1 else _first_accumulator(layout, k).size
        for splits in range(layout.split_k + 1, 2 * layout.split_k + 1):
            yield [dataclasses.replace(layout, split_k=splits, tile=tile, reduction=Reduction.PAIRWISE)]


def is_usual(schedule: Schedule) -> bool:
    """Whether tiles, stripes and intervals are such as libraries have."""
    tiled = schedule.stripes in _STRIPES and (schedule.tile in _TILES or plain(schedule).tile in _TILES)
    return tiled and schedule.promotion & (schedule.promotion - 1) == 0  # 0, or a power of two


def variants(schedule: Schedule) -> list[Schedule]:
    """Return schedules near to one: the presets cut as often, and each with one field changed."""
    near = [dataclasses.replace(preset, split_k=schedule.split_k) for preset in SCHEDULES.values()]
    changes: list[dict[str, Any]] = [{"promotion": n} for n in (0, 32, 64, 128, 256, 512)]
    changes += [{"tile": tile} for tile in _TILES if tile % schedule.stripes == 0]
    changes += [{"split": split} for split in Split]
    changes += [{"reduction": reduction} for reduction in Reduction]
    changes += [{"stripes": n} for n in _STRIPES if schedule.tile % n == 0]
    return [*near, *(dataclasses.replace(schedule, **change) for change in changes)]


def plain(schedule: Schedule) -> Schedule:
    """Return a schedule without numbers that change nothing.

    Examples
    --------
    >>> plain(Schedule(tile=128, reduction="pairwise")) == Schedule()
    True
    """
    if schedule.split_k == 1:
        schedule = dataclasses.replace(schedule, split=Split.CONTIGUOUS, reduction=Reduction.SERIAL)
        if schedule.stripes == 1:
            schedule = dataclasses.replace(schedule, tile=_ONE_CHAIN.tile)
    return schedule


def schedule_text(schedule: Schedule) -> str:
    """Return a schedule as keywords of `mpsim.matmul`.

    Examples
    --------
    >>> schedule_text(Schedule()), schedule_text(Schedule(split_k=2, reduction="in-place"))
    ('one chain', "split_k=2, split='contiguous', tile=64, reduction='in-place'")
    """
    schedule = plain(schedule)
    split = schedule.split_k > 1
    shown = {"split_k": split, "split": split, "tile": split or schedule.stripes > 1}
    shown |= {"stripes": schedule.stripes > 1, "promotion": schedule.promotion > 0, "reduction": split}
    values = {name: getattr(schedule, name) for name, said in shown.items() if said}
    return ", ".join(f"{k}={x}" if isinstance(x, int) else f"{k}='{x}'" for k, x in values.items()) or "one chain"
