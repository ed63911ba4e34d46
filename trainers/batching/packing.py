"""Texts -> lines: texts side by side in one line of tokens, a shared beginning laid down once. Pure; no model.

A line is a forest in depth-first order: what goes on from token j lies in [j, last[j]), so token i may attend to j if
and only if j <= i < last[j]. Texts that share nothing are a forest of bare stems.

All is linear in tokens, but for sorting and for the choice of cuts, which compares each text with those that would fit
in a line with it. Shape suffixes: B = texts, K = bundles, L = lines, W = width of a line.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Tokens = tuple[int, ...]
Cost = Callable[[Ints], NDArray[np.float64]]
"""Widths of forests -> what each costs, in tokens."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What lines have to fit in."""

    tokens: int
    """In the lines of one micro-batch, padding included; one bundle that is larger is let through."""
    cost: Cost
    """Where a forest is cut, is where this is least in sum."""
    long: bool = False
    """One line per micro-batch, as where attention skips what is hidden; else lines as short as the longest forest."""
    block: int = 1
    """Widths are multiples of it."""

    @property
    def room(self) -> int:
        """What of `tokens` there are whole blocks for."""
        return max(1, self.tokens // self.block) * self.block


@dataclass(frozen=True, slots=True)
class Lines:
    """What one forward pass reads. A token of padding sees itself alone."""

    ids_LW: Ints
    depths_LW: Ints
    """Each token's position in its text."""
    last_LW: Ints
    """The end of what goes on from each token, in its line."""
    places: dict[int, Ints]
    """Text -> where its tokens lie, counted through all lines."""

    @property
    def pairs(self) -> int:
        """How often a token sees one."""
        return int((self.last_LW - np.arange(self.last_LW.shape[1])).sum())


@dataclass(frozen=True, slots=True)
class _Forest:
    ids: Ints
    depths: Ints
    last: Ints
    places: dict[int, Ints]


class _Texts:
    """Texts as one flat array."""

    def __init__(self, texts: Sequence[Tokens], share: bool) -> None:
        self.lengths_B = np.fromiter(map(len, texts), np.int64, len(texts))
        self.starts_B = self.lengths_B.cumsum() - self.lengths_B
        self.flat = np.fromiter(chain.from_iterable(texts), np.int64, int(self.lengths_B.sum()))
        big_endian = self.flat.astype(">i8").tobytes()  # Such bytes are in the order of the numbers.
        ends_B = self.starts_B + self.lengths_B
        self.keys = [big_endian[8 * a : 8 * b] for a, b in zip(self.starts_B.tolist(), ends_B.tolist(), strict=True)]
        self._share = share

    def common(self, ones: Ints, others: Ints) -> Ints:
        """How many tokens each pair of texts may share at its beginning; 0 with a text that is not there (-1)."""
        shorter = np.where(others < 0, 0, np.minimum(self.lengths_B[ones], self.lengths_B[others]))
        pair = np.repeat(np.arange(len(ones)), shorter)
        depth = np.arange(len(pair)) - np.repeat(shorter.cumsum() - shorter, shorter)
        same = self.flat[self.starts_B[ones][pair] + depth] == self.flat[self.starts_B[others][pair] + depth]
        differ = np.flatnonzero(~same)[::-1]
        found = shorter.copy()
        found[pair[differ]] = depth[differ]  # Of several, the one written last stays: the first in the text.
        if self._share:
            return found
        alike = (found == self.lengths_B[ones]) & (found == self.lengths_B[others])
        return np.where(alike, found, 0)


def pack(texts: Sequence[Tokens], bundles: Sequence[Hashable], frame: Frame, share: bool = True) -> list[Lines]:
    """Lines of all micro-batches. Texts of one bundle come into the same one.

    Without `share` only identical texts lie on each other.
    """
    flat = _Texts(texts, share)
    ordered = _ordered(bundles, flat.keys)
    runs = _cuts(*_sizes(ordered, flat), frame)
    orders = [np.array(sorted(chain(*ordered[a:b]), key=flat.keys.__getitem__)) for a, b in runs]
    everything = np.concatenate(orders)
    before = np.concatenate([np.r_[-1, order[:-1]] for order in orders])
    shared = np.split(flat.common(everything, before), np.cumsum([len(order) for order in orders])[:-1])
    return _stacked([_grown(order, found, flat) for order, found in zip(orders, shared, strict=True)], frame)


def _ordered(bundles: Sequence[Hashable], keys: Sequence[bytes]) -> list[list[int]]:
    """The texts of each bundle, all in such an order that neighbours share most."""
    members: dict[Hashable, list[int]] = {}
    for text in sorted(range(len(keys)), key=keys.__getitem__):
        members.setdefault(bundles[text], []).append(text)
    return list(members.values())


def _sizes(ordered: list[list[int]], flat: _Texts) -> tuple[Ints, Ints]:
    """[K] tokens that a bundle adds at the start of a forest, and after its neighbour, at most."""
    texts = np.array(list(chain(*ordered)))
    own = flat.common(texts, np.array([before for bundle in ordered for before in (-1, *bundle[:-1])]))
    twins = [
        earlier[nth] if nth < len(earlier) else -1
        for earlier, bundle in zip([[], *ordered], ordered, strict=False)
        for nth in range(len(bundle))
    ]
    both = np.maximum(own, flat.common(texts, np.array(twins)))
    starts = np.cumsum([0, *map(len, ordered[:-1])])
    lengths = flat.lengths_B[texts]
    return np.add.reduceat(lengths - own, starts), np.add.reduceat(lengths - both, starts)


def _cuts(first_K: Ints, later_K: Ints, frame: Frame) -> list[tuple[int, int]]:
    """The runs of bundles, each a forest, that together cost least."""
    many = len(first_K)
    until = np.r_[0, later_K.cumsum()]
    least, came = np.zeros(many + 1), np.zeros(many + 1, np.int64)
    for end in range(1, many + 1):
        lowest = min(int(np.searchsorted(until, until[end] - frame.room)), end - 1)
        widths = first_K[lowest:end] + until[end] - until[lowest + 1 : end + 1]
        costs = least[lowest:end] + frame.cost(widths)
        costs[:-1][widths[:-1] > frame.room] = np.inf
        best = len(costs) - 1 - int(costs[::-1].argmin())  # Of equals the shortest run: small forests fit in better.
        came[end], least[end] = lowest + best, costs[best]
    runs = []
    while many:
        runs.append((int(came[many]), many))
        many = runs[-1][0]
    return runs[::-1]


def _grown(order: Ints, shared: Ints, flat: _Texts) -> _Forest:
    """Texts in sorted order; `shared` says how much of each lies there already."""
    lengths = flat.lengths_B[order]
    path = np.zeros(int(lengths.max()), np.int64)
    last = np.zeros(int((lengths - shared).sum()), np.int64)
    places: dict[int, Ints] = {}
    fresh = [np.zeros(0, np.int64)]
    size = open_ = 0
    for text, length, kept in zip(order.tolist(), lengths.tolist(), shared.tolist(), strict=True):
        last[path[kept:open_]] = size
        path[kept:length] = np.arange(size, size + length - kept)
        size, open_ = size + length - kept, length
        places[text] = path[:length].copy()
        fresh.append(np.arange(kept, length))
    last[path[:open_]] = size
    depths = np.concatenate(fresh)
    starts = np.repeat(flat.starts_B[order], lengths - shared)
    return _Forest(flat.flat[starts + depths], depths, last, places)


def _stacked(forests: list[_Forest], frame: Frame) -> list[Lines]:
    """Micro-batches of lines of one width: the largest forests first, each in the line where it leaves least room."""
    made: list[Lines] = []
    forests = sorted(forests, key=lambda forest: -len(forest.ids))
    while forests:
        widest = -(-len(forests[0].ids) // frame.block) * frame.block
        width = max(widest, frame.room) if frame.long else widest
        lines, forests = _filled(forests, width, max(1, frame.room // width))
        made.append(_laid(lines, frame.block))
    return made


def _filled(forests: list[_Forest], width: int, most: int) -> tuple[list[list[_Forest]], list[_Forest]]:
    """At most so many lines of that width, and the forests that found no room."""
    lines: list[list[_Forest]] = []
    rooms: list[tuple[int, int]] = []
    left: list[_Forest] = []
    for forest in forests:
        size = len(forest.ids)
        fits = bisect_left(rooms, (size, 0))
        if fits < len(rooms):
            room, line = rooms.pop(fits)
            lines[line].append(forest)
            insort(rooms, (room - size, line))
        elif len(lines) < most:
            insort(rooms, (width - size, len(lines)))
            lines.append([forest])
        else:
            left.append(forest)
    return lines, left


def _laid(lines: list[list[_Forest]], block: int) -> Lines:
    width = max(sum(len(forest.ids) for forest in line) for line in lines)
    width = -(-width // block) * block
    ids_LW, depths_LW = np.zeros((2, len(lines), width), np.int64)
    last_LW = np.tile(np.arange(1, width + 1), (len(lines), 1))
    places: dict[int, Ints] = {}
    for number, line in enumerate(lines):
        start = 0
        for forest in line:
            here = np.s_[number, start : start + len(forest.ids)]
            ids_LW[here], depths_LW[here], last_LW[here] = forest.ids, forest.depths, forest.last + start
            places |= {text: place + (number * width + start) for text, place in forest.places.items()}
            start += len(forest.ids)
    return Lines(ids_LW, depths_LW, last_LW, places)
