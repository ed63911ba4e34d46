"""Plans of batches: rows that are computed together, their layout, and its predicted cost.

Costs are predicted from a model's shape, for a forward pass; a backward pass takes twice as much. FLOPs: 2 per weight
of a matrix and token, 4 per pair of tokens, head and dimension of a head. Time: FLOPs of matrix products that take as
long.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from marl.trainers.batching.batches import Batch, InputLayout, collate
from marl.trainers.batching.packing import Ints, PackedBatch, PackingLimits, pack
from marl.trainers.batching.rows import Row, group_by_unit
from marl.trainers.forward import attention
from marl.trainers.forward.model_inputs import inputs_with_ends, packed_inputs, padded_inputs, prompted_inputs

ATTENTION_FLOP_TIME = 1.6
"""Time of a FLOP of attention, in FLOPs of matrix products (measured on a CPU)."""
CAUSAL = 0.75
"""Time of causal attention, as a share of attention over all pairs (measured on a CPU); of wide texts it is less."""
MASK = 50.0
"""Time of a pair of tokens in an explicit mask (measured on a CPU)."""
COPY = 4.0
"""Time to copy a token's keys and values, in pairs of tokens (estimated)."""
PASS_TIME = {"cpu": 2e8, "cuda": 2e11}
"""Time of a further pass, however few tokens it has (measured on a CPU, estimated for accelerators)."""
ROW_TIME = {"cpu": 1e6, "cuda": 3e9}
"""Time to pack a row: some 35 microseconds (measured on a CPU, estimated for accelerators)."""

SAVED_PER_LAYER = 16
"""Numbers that a layer keeps for its backward pass, in units of a token's hidden state (estimated)."""
MASK_BYTES = 1 << 28
"""Memory that masks over pairs of tokens may take where the rest of a micro-batch takes less."""

Batches = list[tuple[list[Row], InputLayout]]


class CostModel:
    """Predicted costs of layouts for one model. `sparse` is True if attention skips masked blocks."""

    def __init__(self, model: Any, *, sparse: bool) -> None:
        settings = model.config.get_text_config(decoder=True)
        inner, outer = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        tables = {id(weight): weight.numel() for weight in (inner, outer)}
        heads = settings.num_attention_heads
        head_size = settings.to_dict().get("head_dim") or settings.hidden_size // heads
        kind = next(model.parameters()).device.type
        self.sparse = sparse
        self._token = 2.0 * (sum(p.numel() for p in model.parameters()) - sum(tables.values()))
        self._pair = 4.0 * settings.num_hidden_layers * heads * head_size
        self._head = 2.0 * outer.numel()
        self._saved = SAVED_PER_LAYER * settings.num_hidden_layers * settings.hidden_size * model.dtype.itemsize
        self._pair_bytes = attention.mask_bytes_per_pair(model)
        self._pass, self._row = PASS_TIME.get(kind, PASS_TIME["cuda"]), ROW_TIME.get(kind, ROW_TIME["cuda"])

    def worth_packing(self, cost: float, rows: int) -> bool:
        """Return True if packing could save any of `cost`: packing takes at least a pass and time for each row."""
        return cost > self._pass + 4 * (self._row * rows)

    def padded_cost(self, chunks: Sequence[Sequence[Row]], ends: bool) -> tuple[float, float]:
        """Return FLOPs and time of a pass for each chunk, padded; with `ends`, identical texts are not merged."""
        tokens, pairs, timed = 0, 0, 0.0
        for chunk in chunks:
            texts = len(chunk) if ends else len({(row.prompt_ids, row.token_ids[:-1]) for row in chunk})
            width = _width(chunk) - (not ends)
            tokens, pairs = tokens + texts * width, pairs + texts * width**2
            timed += texts * width**2 * (0.5 if self.sparse else _causal_share(width))
        base = self._base(tokens, chunks)
        time = base + ATTENTION_FLOP_TIME * self._pair * timed + self._pass * len(chunks)
        return base + self._pair * pairs / 2, time

    def prompted_cost(self, chunks: Sequence[Sequence[Row]]) -> tuple[float, float]:
        """Return FLOPs and time of two passes for each chunk: prompts, then continuations with copied keys."""
        tokens = pairs = copied = 0
        for chunk in chunks:
            prompts = {row.prompt_ids for row in chunk}
            texts = len({(row.prompt_ids, row.token_ids[:-1]) for row in chunk if len(row.token_ids) > 1})
            wide, later = max(map(len, prompts)), max(len(row.token_ids) for row in chunk) - 1
            tokens += len(prompts) * wide + texts * later
            pairs += len(prompts) * wide**2 + texts * later * (wide + later)
            copied += texts * wide
        base = self._base(tokens, chunks)
        time = (
            base + ATTENTION_FLOP_TIME * self._pair * pairs + COPY * self._pair * copied + 2 * self._pass * len(chunks)
        )
        return base + self._pair * pairs, time

    def packed_cost(self, batches: Sequence[PackedBatch], rows: Sequence[Row]) -> tuple[float, float]:
        """Return FLOPs and time of packed sequences, packing included."""
        base = self._base(sum(batch.ids_LW.size for batch in batches), [rows])
        pairs = sum(
            batch.attended_pairs if self.sparse else batch.ids_LW.size * batch.ids_LW.shape[1] for batch in batches
        )
        mask = 0.0 if self.sparse else MASK
        time = base + (ATTENTION_FLOP_TIME * self._pair + mask) * pairs + self._pass * len(batches)
        return base + self._pair * pairs, time + self._row * len(rows)

    def _base(self, tokens: int, chunks: Sequence[Sequence[Row]]) -> float:
        return self._token * tokens + self._head * sum(len(row.token_ids) for chunk in chunks for row in chunk)

    def max_mask_pairs(self, tokens: int) -> int | None:
        """Return the maximum number of pairs in the masks of a micro-batch; None where masks are not over pairs.

        Masks take at most as much memory as the activations of `tokens` that are kept for the backward pass.
        """
        return None if self.sparse else int(max(MASK_BYTES, self._saved * tokens) / self._pair_bytes)

    def forest_costs(self, widths: Ints) -> NDArray[np.float64]:
        """Return the costs, in tokens, of forests of these widths, each in a sequence of its own."""
        pairs = 0.0 if self.sparse else (ATTENTION_FLOP_TIME * self._pair + MASK) / self._token
        return widths + pairs * widths.astype(np.float64) ** 2


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """All rows in micro-batches of one layout."""

    layout: str
    batches: Batches
    flops: float = 0.0
    """FLOPs of a forward pass over all rows, the head at completion tokens included."""
    cost: float = 0.0
    """Expected time, in FLOPs of matrix products of equal duration."""
    fits_memory: bool = True
    """False if the masks exceed their memory limit."""


class BatchPlanner:
    """Splits rows into batches for one model. `packing` names a layout, or `auto` for the fastest one.

    The layout `prompted` suits small models and short texts, where attention over a wide sequence would be most of the
    work.

    Raises:
        ValueError: if the model cannot read that layout.
    """

    def __init__(self, model: Any, micro_tokens: int, packing: str) -> None:
        self._model, self._micro_tokens, self._packing = model, micro_tokens, packing
        self._device: torch.device = next(model.parameters()).device
        self._random, self._obstacle = attention.has_dropout(model), attention.packing_obstacle(model)
        if self._random and packing == "shared":
            self._obstacle = self._obstacle or "its dropout would fall on several samples at once"
        if self._obstacle and packing not in ("auto", "padded"):
            name = type(model).__name__
            raise ValueError(f"packing={packing!r} is not for {name}: {self._obstacle}; choose auto or padded")

    def batches(self, rows: Sequence[Row], *, ends: bool = False) -> Iterator[tuple[list[Row], Batch]]:
        """Yield every row once; with `ends`, laid out so that the states at its ends are computed."""
        return self.collate_plan(self.plan(rows, ends=ends))

    def plan(self, rows: Sequence[Row], name: str | None = None, *, ends: bool = False) -> BatchPlan:
        """Return the rows in the layout `name`, or in the layout of `packing` if `name` is None."""
        name = name or self._packing
        if not rows:
            return BatchPlan(name, [])
        if name == "padded" or self._obstacle:
            return BatchPlan("padded", self._padded_batches(rows, ends))
        if name == "prompted":
            return self.prompted_plan(rows)
        if name == "auto":
            return self.fastest_plan(rows, ends=ends)
        plan = self.packed_plan(rows, name, ends=ends)
        return plan if plan.fits_memory else self.padded_plan(rows, ends=ends)

    def collate_plan(self, plan: BatchPlan) -> Iterator[tuple[list[Row], Batch]]:
        """Yield the batches of a plan."""
        for chunk, layout in plan.batches:
            yield chunk, collate(chunk, self._device, layout)

    def fastest_plan(self, rows: Sequence[Row], *, ends: bool = False) -> BatchPlan:
        """Return the fastest layout that fits into memory, for models that can read every layout."""
        padded = self.padded_plan(rows, ends=ends)
        if not self._costs.worth_packing(padded.cost, len(rows)):
            return padded
        if self._random and self._model.training:
            plans = [padded, self.packed_plan(rows, "packed", ends=ends)]
        else:
            # Where nothing is shared, prefix trees have no branches: `shared` is then the same as `packed`.
            plans = [padded, self.packed_plan(rows, "shared", ends=ends)]
            if not ends and attention.supports_kv_cache(self._model) and all(row.unit is None for row in rows):
                plans.append(self.prompted_plan(rows))
        return min((plan for plan in plans if plan.fits_memory), key=lambda plan: plan.cost)

    def prompted_plan(self, rows: Sequence[Row]) -> BatchPlan:
        """Return a layout of distinct prompts in one pass, then completions in another; for rows without units."""
        chunks = chunk_by_prompt(rows, self._micro_tokens)
        return BatchPlan("prompted", [(chunk, prompted_inputs) for chunk in chunks], *self._costs.prompted_cost(chunks))

    def padded_plan(self, rows: Sequence[Row], *, ends: bool = False) -> BatchPlan:
        """Return a layout of one text a sequence."""
        batches = self._padded_batches(rows, ends)
        return BatchPlan("padded", batches, *self._costs.padded_cost([chunk for chunk, _ in batches], ends))

    def packed_plan(self, rows: Sequence[Row], name: str, *, ends: bool = False) -> BatchPlan:
        """Return a layout of several texts a sequence: whole (`packed`), or with their prefixes `shared`."""
        texts = [row.prompt_ids + (row.token_ids if ends else row.token_ids[:-1]) for row in rows]
        bundles = [(index,) if row.unit is None else row.unit for index, row in enumerate(rows)]
        sparse = self._costs.sparse
        block = attention.BLOCK_SIZE if sparse else 1
        bounded = self._packing == "auto"
        pairs = self._costs.max_mask_pairs(min(self._micro_tokens, sum(map(len, texts)))) if bounded else None
        limits = PackingLimits(
            self._micro_tokens, self._costs.forest_costs, one_sequence_per_batch=sparse, block=block, max_pairs=pairs
        )
        packs = pack(texts, bundles, limits, share=name == "shared")
        batches: Batches = []
        fits = True
        for packed in packs:
            batches.append(([rows[text] for text in packed.token_indices], partial(packed_inputs, packed)))
            # A single bundle may be larger than the limits.
            fits &= pairs is None or packed.ids_LW.size * packed.ids_LW.shape[1] <= pairs
        return BatchPlan(name, batches, *self._costs.packed_cost(packs, rows), fits)

    def _padded_batches(self, rows: Sequence[Row], ends: bool) -> Batches:
        return [
            (chunk, inputs_with_ends if ends else padded_inputs) for chunk in chunk_by_length(rows, self._micro_tokens)
        ]

    @cached_property
    def _costs(self) -> CostModel:
        return CostModel(self._model, sparse=attention.skips_blocks(self._model))


def chunk_by_prompt(rows: Sequence[Row], micro_tokens: int) -> list[list[Row]]:
    """Return chunks of rows, with equal prompts together if they fit. Prompts count once for each row, because so do
    their keys and values, which attention reads."""
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


def chunk_by_length(rows: Sequence[Row], micro_tokens: int) -> list[list[Row]]:
    """Return chunks of rows of similar length, at most `micro_tokens` after padding (but at least one unit)."""
    chunks: list[list[Row]] = []
    count = widest = 0
    for unit in sorted(group_by_unit(rows), key=_width):
        count, widest = count + len(unit), max(widest, _width(unit))
        if not chunks or count * widest > micro_tokens:
            chunks.append([])
            count, widest = len(unit), _width(unit)
        chunks[-1] += sorted(unit, key=lambda row: row.length)
    return chunks


def _causal_share(width: int) -> float:
    """Return the time of causal attention over texts of `width` tokens, as a share of attention over all pairs.

    Blocks above the diagonal are left out, which saves most where texts are many blocks wide (measured on a CPU).
    """
    return min(CAUSAL, 0.45 + 150 / max(width, 1))


def _width(rows: Sequence[Row]) -> int:
    return max(row.length for row in rows)
