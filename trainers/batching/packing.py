"""Sequence packing: texts side by side in one sequence of tokens, with each shared prefix once. Pure; no model.

A packed sequence is a forest of prefix trees in depth-first order: continuations of token j lie in [j, last[j]), so
token i may attend to j if and only if j <= i < last[j]. Texts that share nothing are trees without branches.

The cost is linear in tokens, except for sorting and for the choice of cuts, which compares each text with the texts
that would fit into the same sequence. B = texts, K = bundles, L = packed sequences, W = their width.
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
"""Function from widths of forests to the cost of each (tokens)."""


@dataclass(frozen=True, slots=True)
class PackingLimits:
    """Size limits of micro-batches, and the cost that the choice of cuts minimises."""

    max_tokens: int
    """Tokens of one micro-batch, padding included. A single larger bundle still gets a micro-batch."""
    cost: Cost
    one_sequence_per_batch: bool = False
    """One sequence per micro-batch, for attention that skips masked blocks. False: sequences as wide as the widest
    forest."""
    block: int = 1
    """Divisor of all widths."""
    max_pairs: int | None = None
    """Pairs of tokens in the masks of one micro-batch, for attention with a mask over pairs. A single larger
    bundle still gets a micro-batch. None: there is no such mask."""

    @property
    def max_width(self) -> int:
        """Greatest width: `max_tokens`, or the width at which one sequence has `max_pairs`, in whole blocks."""
        width = self.max_tokens if self.max_pairs is None else min(self.max_tokens, isqrt(self.max_pairs))
        return max(1, width // self.block) * self.block

    def max_sequences(self, width: int) -> int:
        """Return the maximum number of sequences of `width` in a micro-batch."""
        count = self.max_tokens // width
        if self.max_pairs is not None:
            count = min(count, self.max_pairs // width**2)
        return max(1, count)


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Tokens of one forward pass over packed sequences. A padding token attends to itself alone."""

    ids_LW: Ints
    depths_LW: Ints
    """Each token's position in its text."""
    last_LW: Ints
    """End (exclusive) of each token's continuations, as an index in the sequence."""
    token_indices: dict[int, Ints]
    """Indices of each text's tokens in the flattened batch."""

    @property
    def attended_pairs(self) -> int:
        """Number of pairs of tokens in which one attends to the other."""
        return int((self.last_LW - np.arange(self.last_LW.shape[1])).sum())


@dataclass(frozen=True, slots=True)
class _Forest:
    ids: Ints
    depths: Ints
    last: Ints
    token_indices: dict[int, Ints]


class _FlatTexts:
    """Texts as one flat array."""

    def __init__(self, texts: Sequence[Tokens], share: bool) -> None:
        self.lengths_B = np.fromiter(map(len, texts), np.int64, len(texts))
        self.starts_B = self.lengths_B.cumsum() - self.lengths_B
        self.flat = np.fromiter(chain.from_iterable(texts), np.int64, int(self.lengths_B.sum()))
        # Big-endian bytes sort like the numbers, and comparing bytes is fast.
        big_endian = self.flat.astype(">i8").tobytes()
        ends_B = self.starts_B + self.lengths_B
        self.keys = [big_endian[8 * a : 8 * b] for a, b in zip(self.starts_B.tolist(), ends_B.tolist(), strict=True)]
        self._share = share

    def shared_prefix(self, texts: Ints, neighbours: Ints) -> Ints:
        """Return the number of leading tokens that each text can share with its neighbour (-1: no neighbour)."""
        shorter = np.where(neighbours < 0, 0, np.minimum(self.lengths_B[texts], self.lengths_B[neighbours]))
        pair = np.repeat(np.arange(len(texts)), shorter)
        depth = np.arange(len(pair)) - np.repeat(shorter.cumsum() - shorter, shorter)
        same = self.flat[self.starts_B[texts][pair] + depth] == self.flat[self.starts_B[neighbours][pair] + depth]
        differ = np.flatnonzero(~same)[::-1]
        lengths = shorter.copy()
        # Of several writes to an index the last stays: the first difference in the text.
        lengths[pair[differ]] = depth[differ]
        if self._share:
            return lengths
        identical = (lengths == self.lengths_B[texts]) & (lengths == self.lengths_B[neighbours])
        return np.where(identical, lengths, 0)


def pack(
    texts: Sequence[Tokens], bundles: Sequence[Hashable], limits: PackingLimits, share: bool = True
) -> list[PackedBatch]:
    """Return micro-batches; a bundle's texts are in the same one. Without `share` only identical texts overlap."""
    flat = _FlatTexts(texts, share)
    ordered = _order_bundles(bundles, flat.keys)
    runs = _cheapest_runs(*_bundle_sizes(ordered, flat), limits)
    orders = [np.array(sorted(chain(*ordered[a:b]), key=flat.keys.__getitem__)) for a, b in runs]
    before = np.concatenate([np.r_[-1, order[:-1]] for order in orders])
    lengths = flat.shared_prefix(np.concatenate(orders), before)
    shared = np.split(lengths, np.cumsum([len(order) for order in orders])[:-1])
    return _stack([_build_forest(order, prefix, flat) for order, prefix in zip(orders, shared, strict=True)], limits)


def _order_bundles(bundles: Sequence[Hashable], keys: Sequence[bytes]) -> list[list[int]]:
    """Return the texts of each bundle, sorted so that neighbours share long prefixes."""
    members: dict[Hashable, list[int]] = {}
    for text in sorted(range(len(keys)), key=keys.__getitem__):
        members.setdefault(bundles[text], []).append(text)
    return list(members.values())


def _bundle_sizes(ordered: list[list[int]], flat: _FlatTexts) -> tuple[Ints, Ints]:
    """Return two [K]: tokens that a bundle adds at the start of a forest, and at most after the previous bundle."""
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
    """Return runs (start, end) of bundles, each a forest, with the least sum of costs, by dynamic programming."""
    count = len(first_K)
    until = np.r_[0, later_K.cumsum()]
    least, start_of = np.zeros(count + 1), np.zeros(count + 1, np.int64)
    for end in range(1, count + 1):
        lowest = min(int(np.searchsorted(until, until[end] - limits.max_width)), end - 1)
        widths = first_K[lowest:end] + until[end] - until[lowest + 1 : end + 1]
        costs = least[lowest:end] + limits.cost(widths)
        costs[:-1][widths[:-1] > limits.max_width] = np.inf
        # Of equal costs the shortest run: small forests fill gaps better.
        best = len(costs) - 1 - int(costs[::-1].argmin())
        start_of[end], least[end] = lowest + best, costs[best]
    runs: list[tuple[int, int]] = []
    end = count
    while end:
        runs.append((int(start_of[end]), end))
        end = runs[-1][0]
    return runs[::-1]


def _build_forest(order: Ints, shared: Ints, flat: _FlatTexts) -> _Forest:
    """Return the forest of sorted texts; `shared` is the length of each prefix shared with the previous text."""
    lengths = flat.lengths_B[order]
    path = np.zeros(int(lengths.max()), np.int64)
    last = np.zeros(int((lengths - shared).sum()), np.int64)
    token_indices: dict[int, Ints] = {}
    new_depths = [np.zeros(0, np.int64)]
    size = open_ = 0
    for text, length, prefix in zip(order.tolist(), lengths.tolist(), shared.tolist(), strict=True):
        last[path[prefix:open_]] = size
        path[prefix:length] = np.arange(size, size + length - prefix)
        size, open_ = size + length - prefix, length
        token_indices[text] = path[:length].copy()
        new_depths.append(np.arange(prefix, length))
    last[path[:open_]] = size
    depths = np.concatenate(new_depths)
    starts = np.repeat(flat.starts_B[order], lengths - shared)
    return _Forest(flat.flat[starts + depths], depths, last, token_indices)


def _stack(forests: list[_Forest], limits: PackingLimits) -> list[PackedBatch]:
    """Return micro-batches of sequences of one width by best fit: widest forests first."""
    batches: list[PackedBatch] = []
    forests = sorted(forests, key=lambda forest: -len(forest.ids))
    while forests:
        widest = -(-len(forests[0].ids) // limits.block) * limits.block
        width = max(widest, limits.max_width) if limits.one_sequence_per_batch else widest
        sequences, forests = _fill(forests, width, limits.max_sequences(width))
        batches.append(_lay_out(sequences, limits.block))
    return batches


def _fill(forests: list[_Forest], width: int, max_sequences: int) -> tuple[list[list[_Forest]], list[_Forest]]:
    """Return at most `max_sequences` sequences of `width`, and the forests that fit in none of them."""
    sequences: list[list[_Forest]] = []
    rooms: list[tuple[int, int]] = []
    remaining: list[_Forest] = []
    for forest in forests:
        size = len(forest.ids)
        fits = bisect_left(rooms, (size, 0))
        if fits < len(rooms):
            room, number = rooms.pop(fits)
            sequences[number].append(forest)
            insort(rooms, (room - size, number))
        elif len(sequences) < max_sequences:
            insort(rooms, (width - size, len(sequences)))
            sequences.append([forest])
        else:
            remaining.append(forest)
    return sequences, remaining


def _lay_out(sequences: list[list[_Forest]], block: int) -> PackedBatch:
    width = max(sum(len(forest.ids) for forest in sequence) for sequence in sequences)
    width = -(-width // block) * block
    ids_LW, depths_LW = np.zeros((2, len(sequences), width), np.int64)
    last_LW = np.tile(np.arange(1, width + 1), (len(sequences), 1))
    token_indices: dict[int, Ints] = {}
    for number, sequence in enumerate(sequences):
        start = 0
        for forest in sequence:
            here = np.s_[number, start : start + len(forest.ids)]
            ids_LW[here], depths_LW[here], last_LW[here] = forest.ids, forest.depths, forest.last + start
            offset = number * width + start
            token_indices |= {text: indices + offset for text, indices in forest.token_indices.items()}
            start += len(forest.ids)
    return PackedBatch(ids_LW, depths_LW, last_LW, token_indices)
