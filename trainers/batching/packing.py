"""Sequence packing: several texts in one sequence of tokens, with each shared prefix stored once. Needs no model.

A packed sequence is a forest of prefix trees in depth-first order. The continuations of token j lie in [j, ends[j]), so
token i may attend to j if and only if j <= i < ends[j]. Texts without a common prefix are trees without branches.

Packing takes time linear in tokens, except for sorting texts and for choosing which bundles form a forest.
B = texts, K = bundles (texts that must be in one micro-batch), L = packed sequences, W = their width.
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
ForestCostFunction = Callable[[Ints], NDArray[np.float64]]
"""Function from the widths of forests (tokens) to the costs of their forward passes, in units of a token's cost."""


@dataclass(frozen=True, slots=True)
class PackingLimits:
    """Size limits of micro-batches of packed sequences, and the cost to minimise."""

    max_tokens: int
    """Maximum number of tokens of a micro-batch, padding included. A larger bundle gets a micro-batch of its own."""
    cost: ForestCostFunction
    one_sequence_per_batch: bool = False
    """True for attention that skips masked blocks: a micro-batch is a single sequence. False: it has several sequences,
    as wide as the widest forest."""
    block: int = 1
    """All widths of sequences are multiples of this number of tokens."""
    max_pairs: int | None = None
    """Maximum number of pairs of tokens in the attention masks of a micro-batch. None: attention has no mask over
    pairs."""

    @property
    def max_sequence_width(self) -> int:
        """Maximum width of a sequence, in tokens: limited by `max_tokens` and `max_pairs`, and a multiple of
        `block`."""
        width = self.max_tokens if self.max_pairs is None else min(self.max_tokens, isqrt(self.max_pairs))
        return max(1, width // self.block) * self.block


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Packed sequences of one forward pass. A padding token attends to itself alone."""

    ids_LW: Ints
    depths_LW: Ints
    """[L, W], each token's position in its text."""
    ends_LW: Ints
    """[L, W], exclusive end of each token's continuations, as an index in the sequence."""
    token_indices: dict[int, Ints]
    """Index of a text -> indices of its tokens in the flattened [L * W] sequences."""
    is_causal: bool
    """True if each sequence is one path, such as a dialogue and its beginnings: each of its tokens may attend to all
    earlier ones, so causal attention needs no mask. Padding stands behind the path."""

    @property
    def attended_pair_count(self) -> int:
        """Number of pairs of tokens in which one token attends to the other."""
        return int((self.ends_LW - np.arange(self.ends_LW.shape[1])).sum())


@dataclass(frozen=True, slots=True)
class _Forest:
    """Prefix trees of some texts, as part of a packed sequence; fields as in `PackedBatch`."""

    ids: Ints
    depths: Ints
    ends: Ints
    token_indices: dict[int, Ints]

    @property
    def is_path(self) -> bool:
        """True if there are no branches: all tokens belong to the longest text."""
        return bool((self.ends == len(self.ids)).all())


class _ConcatenatedTexts:
    """Token ids of all texts in one array, to compare their prefixes at once."""

    def __init__(self, texts: Sequence[Tokens], share_prefixes: bool) -> None:
        self.lengths_B = np.fromiter(map(len, texts), np.int64, len(texts))
        self.starts_B = self.lengths_B.cumsum() - self.lengths_B
        self.flat = np.fromiter(chain.from_iterable(texts), np.int64, int(self.lengths_B.sum()))
        # Big-endian bytes sort in the order of the token ids, and are fast to compare as sort keys.
        big_endian = self.flat.astype(">i8").tobytes()
        ends_B = self.starts_B + self.lengths_B
        self.keys = [big_endian[8 * a : 8 * b] for a, b in zip(self.starts_B.tolist(), ends_B.tolist(), strict=True)]
        self._share = share_prefixes

    def shared_prefix_lengths(self, text_indices: Ints, neighbour_indices: Ints) -> Ints:
        """Return, for each text index, the length of the prefix that the text can share with its neighbour (-1: no
        neighbour)."""
        shorter = np.where(
            neighbour_indices < 0, 0, np.minimum(self.lengths_B[text_indices], self.lengths_B[neighbour_indices])
        )
        pair = np.repeat(np.arange(len(text_indices)), shorter)
        depth = np.arange(len(pair)) - np.repeat(shorter.cumsum() - shorter, shorter)
        same = (
            self.flat[self.starts_B[text_indices][pair] + depth]
            == self.flat[self.starts_B[neighbour_indices][pair] + depth]
        )
        differ = np.flatnonzero(~same)[::-1]
        lengths = shorter.copy()
        # Differences are in reverse order, so that the first one is written last and remains.
        lengths[pair[differ]] = depth[differ]
        if self._share:
            return lengths
        identical = (lengths == self.lengths_B[text_indices]) & (lengths == self.lengths_B[neighbour_indices])
        return np.where(identical, lengths, 0)


def pack_texts_into_micro_batches(
    texts: Sequence[Tokens], bundle_keys: Sequence[Hashable], limits: PackingLimits, share_prefixes: bool = True
) -> list[PackedBatch]:
    """Return micro-batches of packed `texts`. Texts with equal `bundle_keys` are in the same micro-batch.

    With `share_prefixes` a common prefix is stored once; without it, only identical texts are.
    """
    flat = _ConcatenatedTexts(texts, share_prefixes)
    # Sorted texts share long prefixes with their neighbours, also across texts with different bundle keys.
    members: dict[Hashable, list[int]] = {}
    for text in sorted(range(len(texts)), key=flat.keys.__getitem__):
        members.setdefault(bundle_keys[text], []).append(text)
    orders: list[Ints] = []
    previous: list[Ints] = []
    for run in _divide_into_cheapest_forests(list(members.values()), flat, limits):
        order = np.array(sorted(chain(*run), key=flat.keys.__getitem__))
        orders.append(order)
        previous.append(np.r_[-1, order[:-1]])
    lengths = flat.shared_prefix_lengths(np.concatenate(orders), np.concatenate(previous))
    shared = np.split(lengths, np.cumsum(list(map(len, orders)))[:-1])
    forests = [_build_forest(order, prefixes, flat) for order, prefixes in zip(orders, shared, strict=True)]
    # Forests (packed texts with shared prefixes) are placed widest first, since the widest sets the sequences' width.
    forests.sort(key=lambda forest: -len(forest.ids))
    batches: list[PackedBatch] = []
    while forests:
        batch, forests = _pack_batch(forests, limits)
        batches.append(batch)
    return batches


def _divide_into_cheapest_forests(
    bundles_of_indices: list[list[int]], texts_array: _ConcatenatedTexts, limits: PackingLimits
) -> list[list[list[int]]]:
    """Return the division of `bundles_of_indices` into consecutive runs with the least total cost; each run is one
    forest."""
    texts = np.array(list(chain(*bundles_of_indices)))
    previous: list[int] = []
    twins: list[int] = []
    earlier: list[int] = []
    for bundle in bundles_of_indices:
        previous += (-1, *bundle[:-1])
        # `twins`: for each text, the text of the same rank in the previous bundle, such as another episode's same turn.
        twins += (*earlier[: len(bundle)], *[-1] * (len(bundle) - len(earlier)))
        earlier = bundle
    within = texts_array.shared_prefix_lengths(texts, np.array(previous))
    both = np.maximum(within, texts_array.shared_prefix_lengths(texts, np.array(twins)))
    starts, lengths = np.cumsum([0, *map(len, bundles_of_indices[:-1])]), texts_array.lengths_B[texts]
    # Tokens that each bundle adds to a forest as its first bundle (`first_K`), and as a later one (`later_K`).
    first_K, later_K = np.add.reduceat(lengths - within, starts), np.add.reduceat(lengths - both, starts)
    # Dynamic programming: `least[end]` is the minimum cost of the first `end` bundles.
    count = len(bundles_of_indices)
    until = np.r_[0, later_K.cumsum()]
    least, start_of = np.zeros(count + 1), np.zeros(count + 1, np.int64)
    for end in range(1, count + 1):
        lowest = min(int(np.searchsorted(until, until[end] - limits.max_sequence_width)), end - 1)
        widths = first_K[lowest:end] + until[end] - until[lowest + 1 : end + 1]
        costs = least[lowest:end] + limits.cost(widths)
        costs[:-1][widths[:-1] > limits.max_sequence_width] = np.inf
        # Among equally cheap divisions, the smallest last forest is preferred: small forests fill gaps better.
        best = len(costs) - 1 - int(costs[::-1].argmin())
        start_of[end], least[end] = lowest + best, costs[best]
    runs: list[list[list[int]]] = []
    end = count
    while end:
        start = int(start_of[end])
        runs.append(bundles_of_indices[start:end])
        end = start
    return runs[::-1]


def _build_forest(text_order: Ints, shared_prefix_lengths: Ints, texts_array: _ConcatenatedTexts) -> _Forest:
    """Return the prefix trees of the texts with indices `text_order`; `shared_prefix_lengths` is each text's common
    prefix length with the previous text."""
    lengths = texts_array.lengths_B[text_order]
    path = np.zeros(int(lengths.max()), np.int64)
    last = np.zeros(int((lengths - shared_prefix_lengths).sum()), np.int64)
    token_indices: dict[int, Ints] = {}
    new_depths = [np.zeros(0, np.int64)]
    size = path_length = 0
    for text, length, prefix in zip(text_order.tolist(), lengths.tolist(), shared_prefix_lengths.tolist(), strict=True):
        # Tokens of the previous text behind the shared prefix end here: no later text continues them.
        last[path[prefix:path_length]] = size
        path[prefix:length] = np.arange(size, size + length - prefix)
        size, path_length = size + length - prefix, length
        token_indices[text] = path[:length].copy()
        new_depths.append(np.arange(prefix, length))
    last[path[:path_length]] = size
    depths = np.concatenate(new_depths)
    starts = np.repeat(texts_array.starts_B[text_order], lengths - shared_prefix_lengths)
    return _Forest(texts_array.flat[starts + depths], depths, last, token_indices)


def _pack_batch(forests: list[_Forest], limits: PackingLimits) -> tuple[PackedBatch, list[_Forest]]:
    """Return one micro-batch filled with `forests`, which are in descending order of width, and the remaining
    forests."""
    widest = -(-len(forests[0].ids) // limits.block) * limits.block
    width = max(widest, limits.max_sequence_width) if limits.one_sequence_per_batch else widest
    max_sequences = limits.max_tokens // width
    if limits.max_pairs is not None:
        max_sequences = min(max_sequences, limits.max_pairs // width**2)
    sequences: list[list[_Forest]] = []
    # `rooms` lists (free tokens, sequence index) in ascending order, so that bisection finds the best fit.
    rooms: list[tuple[int, int]] = []
    remaining: list[_Forest] = []
    for forest in forests:
        size = len(forest.ids)
        fits = bisect_left(rooms, (size, 0))
        if fits < len(rooms):
            room, number = rooms.pop(fits)
            sequences[number].append(forest)
            insort(rooms, (room - size, number))
        elif len(sequences) < max(1, max_sequences):
            insort(rooms, (width - size, len(sequences)))
            sequences.append([forest])
        else:
            remaining.append(forest)
    # Each sequence joins its forests, and is padded to the width of the fullest sequence.
    filled = width - rooms[0][0]
    width = -(-filled // limits.block) * limits.block
    ids_LW, depths_LW = np.zeros((2, len(sequences), width), np.int64)
    ends_LW = np.tile(np.arange(1, width + 1), (len(sequences), 1))
    token_indices: dict[int, Ints] = {}
    for number, sequence in enumerate(sequences):
        start = 0
        for forest in sequence:
            here = np.s_[number, start : start + len(forest.ids)]
            ids_LW[here], depths_LW[here], ends_LW[here] = forest.ids, forest.depths, forest.ends + start
            offset = number * width + start
            for text, indices in forest.token_indices.items():
                token_indices[text] = indices + offset
            start += len(forest.ids)
    is_causal = all(len(sequence) == 1 and sequence[0].is_path for sequence in sequences)
    return PackedBatch(ids_LW, depths_LW, ends_LW, token_indices, is_causal), remaining
