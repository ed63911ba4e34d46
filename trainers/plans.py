"""Rows -> batches: which rows are computed together, and whether each distinct prompt is computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from trainers.batches import Batch, collate
from trainers.numerics import units_of
from trainers.rows import Row
from trainers.texts import can_share, drops_out, ended_texts, shared_texts, whole_texts

Chunks = list[list[Row]]
GAIN = 1.5
"""How many times fewer tokens there must be to compute, to make up for masks and copies of keys and values."""
PASS = {"cpu": 1e8, "cuda": 1e11}
"""What a further forward and backward pass costs, in tokens times parameters, however few tokens it has: some ten
milliseconds (measured on a CPU, estimated for accelerators)."""


class Planner:
    """Splits rows into batches for one model."""

    def __init__(self, model: Any, micro_tokens: int, share: bool) -> None:
        self._model, self._micro_tokens = model, micro_tokens
        self._share, self._random = share and can_share(model), drops_out(model)
        self._device: torch.device = next(model.parameters()).device
        self._pass = PASS.get(self._device.type, PASS["cuda"]) / sum(p.numel() for p in model.parameters())

    def batches(self, rows: Sequence[Row]) -> Iterator[tuple[list[Row], Batch]]:
        """Every row once."""
        chunks, share = self._plan(rows)
        for chunk in chunks:
            yield chunk, collate(chunk, self._device, shared_texts if share else whole_texts)

    def whole(self, rows: Sequence[Row]) -> Iterator[tuple[list[Row], Batch]]:
        """Every row once, laid out so that its ends can be read."""
        for chunk in by_length(rows, self._micro_tokens):
            yield chunk, collate(chunk, self._device, ended_texts)

    def _plan(self, rows: Sequence[Row]) -> tuple[Chunks, bool]:
        plain = by_length(rows, self._micro_tokens)
        if not self._share or (self._random and self._model.training) or repeated(rows) < self._pass:
            return plain, False
        shared = by_prompt(rows, self._micro_tokens)
        before, after = sum(map(plain_tokens, plain)), sum(map(shared_tokens, shared))
        passes = 2 * len(shared) - len(plain)
        pays = before >= GAIN * after and before - after >= passes * self._pass
        return (shared, True) if pays else (plain, False)


def by_length(rows: Sequence[Row], micro_tokens: int) -> Chunks:
    """Rows of similar length, at most `micro_tokens` after padding (but at least one unit)."""
    units = [sorted(unit, key=lambda row: row.length) for unit in units_of(rows)]
    return _packed(sorted(units, key=_whole), micro_tokens, _whole)


def by_prompt(rows: Sequence[Row], micro_tokens: int) -> Chunks:
    """The same, but rows with equal prompts stay together if they fit.

    Prompts count as often as rows have them: so do their keys and values, which attention reads.
    """
    groups: dict[tuple[int, ...], list[Row]] = {}
    for unit in units_of(rows):
        for row in unit:
            groups.setdefault(unit[0].prompt_ids, []).append(row)
    pieces = [piece for group in groups.values() for piece in by_length(group, micro_tokens)]
    return _packed(sorted(pieces, key=_whole), micro_tokens, _parts)


def _packed(pieces: Chunks, micro_tokens: int, widths: Callable[[Sequence[Row]], tuple[int, ...]]) -> Chunks:
    chunks: Chunks = []
    many, widest = 0, (0, 0)
    for piece in pieces:
        many, widest = many + len(piece), tuple(map(max, widest, widths(piece)))
        if not chunks or many * sum(widest) > micro_tokens:
            chunks.append([])
            many, widest = len(piece), widths(piece)
        chunks[-1] += piece
    return chunks


def _whole(rows: Sequence[Row]) -> tuple[int]:
    return (max(row.length for row in rows),)


def _parts(rows: Sequence[Row]) -> tuple[int, int]:
    return max(len(row.prompt_ids) for row in rows), max(len(row.token_ids) for row in rows)


def repeated(rows: Sequence[Row]) -> int:
    """Tokens of prompts that another row has, too."""
    return sum(len(row.prompt_ids) for row in rows) - sum(map(len, {row.prompt_ids for row in rows}))


def plain_tokens(rows: Sequence[Row]) -> int:
    """What one pass over whole texts computes."""
    (width,) = _whole(rows)
    return len({(row.prompt_ids, row.token_ids[:-1]) for row in rows}) * (width - 1)


def shared_tokens(rows: Sequence[Row]) -> int:
    """What a pass over the prompts and one over what follows them compute."""
    prompt, answer = _parts(rows)
    later = {(row.prompt_ids, row.token_ids[:-1]) for row in rows if len(row.token_ids) > 1}
    return len({row.prompt_ids for row in rows}) * prompt + len(later) * (answer - 1)
