"""Sequence packing: texts side by side in one sequence of tokens, a shared prefix only once. Pure; no model.

A packed sequence is a forest of prefix trees in depth-first order: continuations of token j lie in [j, last[j]), so
token i may attend to j if and only if j <= i < last[j]. Texts that share nothing are trees without branches.

All is linear in tokens, except for sorting and for the choice of cuts, which compares each text with those that would
fit into a sequence with it. Here B = texts, K = bundles, L = packed sequences, W = their width.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isqrt

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Tokens = tuple[int, ...]
Cost = Callable[[Ints], NDArray[np.float64]]
"""Widths of forests -> the cost of each, in tokens."""


@dataclass(frozen=True, slots=True)
class PackingLimits:
    """Size of micro-batches, and the cost that cuts between forests minimise."""

    tokens: int
    """Tokens of one micro-batch, padding included; a single larger bundle is let through."""
    cost: Cost
    long: bool = False
    """One sequence per micro-batch, for attention that skips masked blocks; else sequences as wide as the widest
    forest."""
    block: int = 1
    """Widths are multiples of it."""
    pairs: int | None = None
    """Pairs of tokens in the masks of one micro-batch, for attention that takes a mask of them; a single larger bundle
    is let through. None: there is no such mask."""

    @property
    def room(self) -> int:
        """Return the greatest width: `tokens`, or what `pairs` allow one sequence, rounded down to whole blocks."""
        width = self.tokens if self.pairs is None else min(self.tokens, isqrt(self.pairs))
        return max(1, width // self.block) * self.block

    def most(self, width: int) -> int:
        """Return how many sequences of that width may stand in a micro-batch."""
        many = self.tokens // width if self.pairs is None else min(self.tokens // width, self.pairs // width**2)
        return max(1, many)


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Tokens of one forward pass over packed sequences. A token of padding sees itself alone."""

    ids_LW: Ints
    depths_LW: Ints
    """Each token's position in its text."""
    last_LW: Ints
    """End of each token's continuations, in its sequence."""
    places: dict[int, Ints]
    """Text -> indices of its tokens in the flattened batch."""

    @property
    def pairs(self) -> int:
        """Return the number of pairs of tokens of which one sees the other."""
        return int((self.last_LW - np.arange(self.last_LW.shape[1])).sum())


@dataclass(frozen=True, slots=True)
class _Forest:
    ids: Ints
    depths: Ints
    last: Ints
    places: dict[int, Ints]


class _FlatTexts:
    """Texts as one flat array."""

    def __init__(self, texts: Sequence[Tokens], share: bool) -> None:
        self.lengths_B = np.fromiter(map(len, texts), np.int64, len(texts))
        self.starts_B = self.lengths_B.cumsum() - self.lengths_B
        self.flat = np.fromiter(chain.from_iterable(texts), np.int64, int(self.lengths_B.sum()))
        big_endian = self.flat.astype(">i8").tobytes()  # such bytes sort like the numbers
        ends_B = self.starts_B + self.lengths_B
        self.keys = [big_endian[8 * a : 8 * b] for a, b in zip(self.starts_B.tolist(), ends_B.tolist(), strict=True)]
        self._share = share

    def shared_prefix(self, texts: Ints, neighbours: Ints) -> Ints:
        """Return how many tokens each text may share with its neighbour (-1: none) at the beginning."""
        shorter = np.where(neighbours < 0, 0, np.minimum(self.lengths_B[texts], self.lengths_B[neighbours]))
        pair = np.repeat(np.arange(len(texts)), shorter)
        depth = np.arange(len(pair)) - np.repeat(shorter.cumsum() - shorter, shorter)
        same = self.flat[self.starts_B[texts][pair] + depth] == self.flat[self.starts_B[neighbours][pair] + depth]
        differ = np.flatnonzero(~same)[::-1]
        lengths = shorter.copy()
        lengths[pair[differ]] = depth[differ]  # the last one written stays: the first difference in the text
        if self._share:
            return lengths
        identical = (lengths == self.lengths_B[texts]) & (lengths == self.lengths_B[neighbours])
        return np.where(identical, lengths, 0)


def pack(
    texts: Sequence[Tokens], bundles: Sequence[Hashable], limits: PackingLimits, share: bool = True
) -> list[PackedBatch]:
    """Return all micro-batches; texts of a bundle are in the same one. Without `share` only identical texts overlap."""
    flat = _FlatTexts(texts, share)
    ordered = _order_bundles(bundles, flat.keys)
    runs = _cheapest_runs(*_bundle_sizes(ordered, flat), limits)
    orders = [np.array(sorted(chain(*ordered[a:b]), key=flat.keys.__getitem__)) for a, b in runs]
    before = np.concatenate([np.r_[-1, order[:-1]] for order in orders])
    lengths = flat.shared_prefix(np.concatenate(orders), before)
    shared = np.split(lengths, np.cumsum([len(order) for order in orders])[:-1])
    return _stack([_build_forest(order, prefix, flat) for order, prefix in zip(orders, shared, strict=True)], limits)


def _order_bundles(bundles: Sequence[Hashable], keys: Sequence[bytes]) -> list[list[int]]:
    """Return the texts of each bundle, ordered so that neighbours share most."""
    members: dict[Hashable, list[int]] = {}
    for text in sorted(range(len(keys)), key=keys.__getitem__):
        members.setdefault(bundles[text], []).append(text)
    return list(members.values())


def _bundle_sizes(ordered: list[list[int]], flat: _FlatTexts) -> tuple[Ints, Ints]:
    """Return two [K]: tokens that a bundle adds at the start of a forest, and at most after the bundle before it."""
    texts = np.array(list(chain(*ordered)))
    within = flat.shared_prefix(texts, np.array([before for bundle in ordered for before in (-1, *bundle[:-1])]))
    twins = [
        earlier[nth] if nth < len(earlier) else -1
        for earlier, bundle in zip([[], *ordered], ordered, strict=False)
        for nth in range(len(bundle))
    ]
    both = np.maximum(within, flat.shared_prefix(texts, np.array(twins)))
    starts = np.cumsum([0, *map(len, ordered[:-1])])
    lengths = flat.lengths_B[texts]
    return np.add.reduceat(lengths - within, starts), np.add.reduceat(lengths - both, starts)


def _cheapest_runs(first_K: Ints, later_K: Ints, limits: PackingLimits) -> list[tuple[int, int]]:
    """Return the runs of bundles, each a forest, whose costs have the least sum."""
    many = len(first_K)
    until = np.r_[0, later_K.cumsum()]
    least, start_of = np.zeros(many + 1), np.zeros(many + 1, np.int64)
    for end in range(1, many + 1):
        lowest = min(int(np.searchsorted(until, until[end] - limits.room)), end - 1)
        widths = first_K[lowest:end] + until[end] - until[lowest + 1 : end + 1]
        costs = least[lowest:end] + limits.cost(widths)
        costs[:-1][widths[:-1] > limits.room] = np.inf
        best = len(costs) - 1 - int(costs[::-1].argmin())  # of equals the shortest run: small forests fit in better
        start_of[end], least[end] = lowest + best, costs[best]
    runs = []
    while many:
        runs.append((int(start_of[many]), many))
        many = runs[-1][0]
    return runs[::-1]


def _build_forest(order: Ints, shared: Ints, flat: _FlatTexts) -> _Forest:
    """Return the forest of texts in sorted order, of which `shared` tokens each are in the text before it."""
    lengths = flat.lengths_B[order]
    path = np.zeros(int(lengths.max()), np.int64)
    last = np.zeros(int((lengths - shared).sum()), np.int64)
    places: dict[int, Ints] = {}
    fresh = [np.zeros(0, np.int64)]
    size = open_ = 0
    for text, length, prefix in zip(order.tolist(), lengths.tolist(), shared.tolist(), strict=True):
        last[path[prefix:open_]] = size
        path[prefix:length] = np.arange(size, size + length - prefix)
        size, open_ = size + length - prefix, length
        places[text] = path[:length].copy()
        fresh.append(np.arange(prefix, length))
    last[path[:open_]] = size
    depths = np.concatenate(fresh)
    starts = np.repeat(flat.starts_B[order], lengths - shared)
    return _Forest(flat.flat[starts + depths], depths, last, places)


def _stack(forests: list[_Forest], limits: PackingLimits) -> list[PackedBatch]:
    """Return micro-batches of sequences of one width: widest forests first, each where it leaves least room."""
    batches: list[PackedBatch] = []
    forests = sorted(forests, key=lambda forest: -len(forest.ids))
    while forests:
        widest = -(-len(forests[0].ids) // limits.block) * limits.block
        width = max(widest, limits.room) if limits.long else widest
        sequences, forests = _fill(forests, width, limits.most(width))
        batches.append(_lay_out(sequences, limits.block))
    return batches


def _fill(forests: list[_Forest], width: int, most: int) -> tuple[list[list[_Forest]], list[_Forest]]:
    """Return at most so many sequences of that width, and the forests that found no room."""
    sequences: list[list[_Forest]] = []
    rooms: list[tuple[int, int]] = []
    left: list[_Forest] = []
    for forest in forests:
        size = len(forest.ids)
        fits = bisect_left(rooms, (size, 0))
        if fits < len(rooms):
            room, number = rooms.pop(fits)
            sequences[number].append(forest)
            insort(rooms, (room - size, number))
        elif len(sequences) < most:
            insort(rooms, (width - size, len(sequences)))
            sequences.append([forest])
        else:
            left.append(forest)
    return sequences, left


def _lay_out(sequences: list[list[_Forest]], block: int) -> PackedBatch:
    width = max(sum(len(forest.ids) for forest in sequence) for sequence in sequences)
    width = -(-width // block) * block
    ids_LW, depths_LW = np.zeros((2, len(sequences), width), np.int64)
    last_LW = np.tile(np.arange(1, width + 1), (len(sequences), 1))
    places: dict[int, Ints] = {}
    for number, sequence in enumerate(sequences):
        start = 0
        for forest in sequence:
            here = np.s_[number, start : start + len(forest.ids)]
            ids_LW[here], depths_LW[here], last_LW[here] = forest.ids, forest.depths, forest.last + start
            places |= {text: place + (number * width + start) for text, place in forest.places.items()}
            start += len(forest.ids)
    return PackedBatch(ids_LW, depths_LW, last_LW, places)
