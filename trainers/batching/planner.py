"""Rows -> batches: which rows are computed together, and how they are laid out (`texts.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainers.batching.batches import Batch, Layout, collate
from trainers.batching.costs import Costs
from trainers.batching.packing import Frame, Lines, pack
from trainers.batching.rows import Row
from trainers.forward import flex_attention as flex
from trainers.forward.model_inputs import (
    Texts,
    drops_out,
    ended_texts,
    in_blocks,
    keeps_cache,
    lined_texts,
    obstacle,
    prompted_texts,
    whole_texts,
)
from trainers.optim.numerics import units_of

Batches = list[tuple[list[Row], Layout]]


@dataclass(frozen=True, slots=True)
class Plan:
    """All rows in micro-batches."""

    name: str
    batches: Batches
    flops: float
    """Of a forward pass over all of them, the head at completion tokens included."""
    cost: float
    """The time it is expected to take, as FLOPs of matrix products that would take as long."""


class Planner:
    """Splits rows into batches for one model. `packing` names a layout, or `auto` for the one that takes least time.

    `prompted` suits small models and short texts, where attention over a wide line would be most of the work.

    Raises:
        ValueError: if the model cannot read the layout that was asked for.
    """

    def __init__(self, model: Any, micro_tokens: int, packing: str) -> None:
        self._model, self._micro_tokens, self._packing = model, micro_tokens, packing
        self._device: torch.device = next(model.parameters()).device
        self._random, self._obstacle = drops_out(model), obstacle(model)
        if self._random and packing == "shared":
            self._obstacle = self._obstacle or "its dropout would fall on several samples at once"
        if self._obstacle and packing not in ("auto", "padded"):
            name = type(model).__name__
            raise ValueError(f"packing={packing!r} is not for {name}: {self._obstacle}; choose auto or padded")
        self._costs: Costs | None = None

    def batches(self, rows: Sequence[Row], *, ends: bool = False) -> Iterator[tuple[list[Row], Batch]]:
        """Every row once; with `ends`, laid out so that its ends can be read."""
        return self.collated(self.laid(rows, ends=ends))

    def laid(self, rows: Sequence[Row], name: str | None = None, *, ends: bool = False) -> Plan:
        """The layout of that name; None: the one that was asked for."""
        name = name or self._packing
        if name == "padded" or self._obstacle:
            return Plan("padded", self._apart(rows, ends), 0.0, 0.0)
        if name == "prompted":
            return self.prompted(rows)
        return self.fastest(rows, ends=ends) if name == "auto" else self.lined(rows, name, ends=ends)

    def collated(self, plan: Plan) -> Iterator[tuple[list[Row], Batch]]:
        """The batches of a plan, one after the other."""
        for chunk, layout in plan.batches:
            yield chunk, collate(chunk, self._device, layout)

    def fastest(self, rows: Sequence[Row], *, ends: bool = False) -> Plan:
        """The layout that `rows` are expected to take least time in. For models that can read all of them."""
        padded = self.padded(rows, ends=ends)
        if not self._known.leaves_room(padded.cost, len(rows)):
            return padded
        if self._random and self._model.training:
            return min(padded, self.lined(rows, "packed", ends=ends), key=_cost)
        # Where it saves nothing to share, the tree is all bare stems: what packed texts are.
        plans = [padded, self.lined(rows, "shared", ends=ends)]
        if not ends and keeps_cache(self._model) and all(row.unit is None for row in rows):
            plans.append(self.prompted(rows))
        return min(plans, key=_cost)

    def prompted(self, rows: Sequence[Row]) -> Plan:
        """Every distinct prompt in one pass, then what follows it in another. For rows without units."""
        chunks = by_prompt(rows, self._micro_tokens)
        flops, cost = self._known.prompted([_prompted(chunk) for chunk in chunks], _said(rows))
        return Plan("prompted", [(chunk, prompted_texts) for chunk in chunks], flops, cost)

    def padded(self, rows: Sequence[Row], *, ends: bool = False) -> Plan:
        """One text a line."""
        batches = self._apart(rows, ends)
        flops, cost = self._known.padded([_shape(chunk, ends) for chunk, _ in batches], _said(rows))
        return Plan("padded", batches, flops, cost)

    def lined(self, rows: Sequence[Row], name: str, *, ends: bool = False) -> Plan:
        """Several texts a line; of `shared` ones, what they have in common at the beginning is read once."""
        texts = [row.prompt_ids + (row.token_ids if ends else row.token_ids[:-1]) for row in rows]
        bundles = [(index,) if row.unit is None else row.unit for index, row in enumerate(rows)]
        made = pack(texts, bundles, self._frame(), share=name == "shared")
        flops, cost = self._known.lined(made, _said(rows))
        return Plan(name, [_lined(rows, lines) for lines in made], flops, cost + self._known.handling(len(rows)))

    def _apart(self, rows: Sequence[Row], ends: bool) -> Batches:
        return [(chunk, ended_texts if ends else whole_texts) for chunk in by_length(rows, self._micro_tokens)]

    @property
    def _known(self) -> Costs:
        if self._costs is None:
            self._costs = Costs(self._model, sparse=in_blocks(self._model))
        return self._costs

    def _frame(self) -> Frame:
        if self._known.sparse:
            return Frame(self._micro_tokens, self._known.forests, long=True, block=flex.BLOCK)
        return Frame(self._micro_tokens, self._known.forests)


def _lined(rows: Sequence[Row], lines: Lines) -> tuple[list[Row], Layout]:
    def layout(chunk: Sequence[Row], _: Tensor, __: Tensor, device: torch.device) -> Texts:
        return lined_texts(lines, chunk, device)

    return [rows[text] for text in lines.places], layout


def _cost(plan: Plan) -> float:
    return plan.cost


def _prompted(rows: Sequence[Row]) -> tuple[int, int, int, int]:
    """Distinct prompts and their width, distinct texts after them and theirs."""
    later = {(row.prompt_ids, row.token_ids[:-1]) for row in rows if len(row.token_ids) > 1}
    prompts = {row.prompt_ids for row in rows}
    widest = max(len(row.token_ids) for row in rows) - 1
    return len(prompts), max(map(len, prompts)), len(later), widest


def by_prompt(rows: Sequence[Row], micro_tokens: int) -> list[list[Row]]:
    """Rows with equal prompts together if they fit. Prompts count as often as rows have them: so do their keys and
    values, which attention reads."""
    chunks: list[list[Row]] = []
    widest = (0, 0)
    for row in sorted(rows, key=lambda row: (len(row.prompt_ids), row.prompt_ids, len(row.token_ids))):
        wider = max(widest[0], len(row.prompt_ids)), max(widest[1], len(row.token_ids))
        if not chunks or (len(chunks[-1]) + 1) * sum(wider) > micro_tokens:
            chunks.append([])
            wider = len(row.prompt_ids), len(row.token_ids)
        chunks[-1].append(row)
        widest = wider
    return chunks


def by_length(rows: Sequence[Row], micro_tokens: int) -> list[list[Row]]:
    """Rows of similar length, at most `micro_tokens` after padding (but at least one unit)."""
    units = sorted(units_of(rows), key=_width)
    chunks: list[list[Row]] = []
    many = widest = 0
    for unit in units:
        many, widest = many + len(unit), max(widest, _width(unit))
        if not chunks or many * widest > micro_tokens:
            chunks.append([])
            many, widest = len(unit), _width(unit)
        chunks[-1] += sorted(unit, key=lambda row: row.length)
    return chunks


def _width(rows: Sequence[Row]) -> int:
    return max(row.length for row in rows)


def _shape(rows: Sequence[Row], ends: bool) -> tuple[int, int]:
    """Lines and their width, padded."""
    if ends:
        return len(rows), _width(rows)
    return len({(row.prompt_ids, row.token_ids[:-1]) for row in rows}), _width(rows) - 1


def _said(rows: Sequence[Row]) -> int:
    return sum(len(row.token_ids) for row in rows)
