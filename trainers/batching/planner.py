"""Plans of batches: which rows are computed together, in which layout, at which predicted cost.

Costs are predicted for a forward pass from the model's shape; a backward pass costs twice as much. FLOPs are 2 per
matrix weight and token, and 4 per pair of tokens, head and head dimension. Times are given in FLOPs of matrix products
of equal duration.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from marl.trainers.batching.batches import Batch, InputBuilder, collate
from marl.trainers.batching.packing import Ints, PackedBatch, PackingLimits, pack_texts_into_micro_batches
from marl.trainers.batching.rows import BatchRow, group_by_unit
from marl.trainers.forward import attention
from marl.trainers.forward.model_inputs import (
    inputs_with_end_states,
    packed_inputs,
    padded_inputs,
    prompt_and_completion_pass_inputs,
)

ATTENTION_FLOP_TIME = 1.6
"""Time of one FLOP of attention, relative to one FLOP of a matrix product (measured on a CPU)."""
MAX_CAUSAL_SHARE = 0.75
"""Maximum time of causal attention, relative to attention over all pairs of tokens (measured on a CPU)."""
MASK_PAIR_TIME = 50.0
"""Time of one pair of tokens in an explicit attention mask, in FLOPs of matrix products (measured on a CPU)."""
KEY_COPY_TIME = 4.0
"""Time to copy one token's keys and values, relative to attention over one pair of tokens (estimated)."""
PASS_TIME = {"cpu": 2e8, "cuda": 2e11}
"""Fixed time of a forward pass, in FLOPs of matrix products (measured on a CPU, estimated for GPUs)."""
ROW_TIME = {"cpu": 1e6, "cuda": 3e9}
"""Time to pack one row, in FLOPs of matrix products: about 35 µs (measured on a CPU, estimated for GPUs)."""

SAVED_STATES_PER_LAYER = 16
"""Size of the activations that a layer saves per token, in hidden states (estimated)."""
MASK_BYTES = 1 << 28
"""Memory that attention masks over pairs of tokens may always take, in bytes."""

Batches = list[tuple[list[BatchRow], InputBuilder]]


class ForwardFlopsAndTime(NamedTuple):
    """Predicted cost of forward passes."""

    flops: float
    time: float
    """Predicted time, in FLOPs of matrix products of equal duration."""


class LayoutCostModel:
    """Predicted cost of each layout for one model. `skips_masked_blocks`: attention skips masked blocks."""

    def __init__(self, model: Any, *, skips_masked_blocks: bool) -> None:
        settings = model.config.get_text_config(decoder=True)
        inner, outer = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        # Tied embeddings are one tensor with one id, so they are counted once.
        table_sizes = {id(inner): inner.numel(), id(outer): outer.numel()}
        heads = settings.num_attention_heads
        head_size = settings.to_dict().get("head_dim") or settings.hidden_size // heads
        kind = next(model.parameters()).device.type
        self.skips_masked_blocks = skips_masked_blocks
        layers = [p for p in model.parameters() if id(p) not in table_sizes]
        self._token_flops = 2.0 * sum(p.numel() for p in layers)
        self._trained_token_flops = 2.0 * sum(p.numel() for p in layers if p.requires_grad)
        self._trains_head = outer.requires_grad
        self._pair_flops = 4.0 * settings.num_hidden_layers * heads * head_size
        self._head_flops = 2.0 * outer.numel()
        hidden_bytes = settings.hidden_size * model.dtype.itemsize
        self._saved_bytes = SAVED_STATES_PER_LAYER * settings.num_hidden_layers * hidden_bytes
        self._mask_bytes = attention.mask_bytes_per_pair(model)
        self.pass_time = PASS_TIME.get(kind, PASS_TIME["cuda"])
        self.row_time = ROW_TIME.get(kind, ROW_TIME["cuda"])

    def padded_pass_cost(self, chunks: Sequence[Sequence[BatchRow]], with_end_states: bool) -> ForwardFlopsAndTime:
        """Return the cost of one padded pass for each chunk. `with_end_states`: completions' last tokens are inputs."""
        tokens, pairs, timed_pairs = 0, 0, 0.0
        for chunk in chunks:
            texts = len(chunk) if with_end_states else len({(row.prompt_ids, row.token_ids[:-1]) for row in chunk})
            width = _max_row_length(chunk) - (not with_end_states)
            tokens, pairs = tokens + texts * width, pairs + texts * width**2
            timed_pairs += texts * width**2 * self._causal_time_share(width)
        matrix_flops = self._matrix_product_flops(tokens, chunks)
        time = matrix_flops + ATTENTION_FLOP_TIME * self._pair_flops * timed_pairs + self.pass_time * len(chunks)
        return ForwardFlopsAndTime(matrix_flops + self._pair_flops * pairs / 2, time)

    def update_flops(self, rows: Sequence[BatchRow]) -> float:
        """Return the FLOPs of a forward and a backward pass over the text of each row alone.

        Neither padding nor recomputation counts, and a shared prefix counts in each text. The backward pass takes twice
        the forward's FLOPs, of which the half for the weights' own gradients counts for trained weights only.
        """
        token_flops = 2 * self._token_flops + self._trained_token_flops
        head_flops = (2 + self._trains_head) * self._head_flops
        flops = 0.0
        for row in rows:
            tokens = row.length - 1
            flops += token_flops * tokens + 3 * self._pair_flops * tokens**2 / 2 + head_flops * len(row.token_ids)
        return flops

    def two_pass_cost(self, chunks: Sequence[Sequence[BatchRow]]) -> ForwardFlopsAndTime:
        """Return the cost of two passes for each chunk of rows: prompts, then completions with copied keys."""
        tokens = pairs = copied = 0
        for chunk in chunks:
            prompts: set[tuple[int, ...]] = set()
            texts: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
            prompt_width = later_width = 0
            for row in chunk:
                prompts.add(row.prompt_ids)
                if len(row.token_ids) > 1:
                    texts.add((row.prompt_ids, row.token_ids[:-1]))
                prompt_width = max(prompt_width, len(row.prompt_ids))
                later_width = max(later_width, len(row.token_ids) - 1)
            tokens += len(prompts) * prompt_width + len(texts) * later_width
            pairs += len(prompts) * prompt_width**2 + len(texts) * later_width * (prompt_width + later_width)
            copied += len(texts) * prompt_width
        matrix_flops = self._matrix_product_flops(tokens, chunks)
        attention_time, copy_time = ATTENTION_FLOP_TIME * self._pair_flops, KEY_COPY_TIME * self._pair_flops
        time = matrix_flops + attention_time * pairs + copy_time * copied + 2 * self.pass_time * len(chunks)
        return ForwardFlopsAndTime(matrix_flops + self._pair_flops * pairs, time)

    def packed_pass_cost(self, batches: Sequence[PackedBatch], rows: Sequence[BatchRow]) -> ForwardFlopsAndTime:
        """Return the cost of a pass for each packed batch, with the time to pack `rows`."""
        tokens, pairs, timed_pairs, mask_time = 0, 0.0, 0.0, 0.0
        for batch in batches:
            size, width = batch.ids_LW.size, batch.ids_LW.shape[1]
            tokens += size
            computed = batch.attended_pair_count if self.skips_masked_blocks else size * width
            if batch.is_causal:
                pairs, timed_pairs = (
                    pairs + size * width / 2,
                    timed_pairs + size * width * self._causal_time_share(width),
                )
            else:
                pairs, timed_pairs = pairs + computed, timed_pairs + computed
                mask_time += 0.0 if self.skips_masked_blocks else MASK_PAIR_TIME * computed
        matrix_flops = self._matrix_product_flops(tokens, [rows])
        attention_time = ATTENTION_FLOP_TIME * self._pair_flops * timed_pairs + mask_time
        time = matrix_flops + attention_time + self.pass_time * len(batches)
        return ForwardFlopsAndTime(matrix_flops + self._pair_flops * pairs, time + self.row_time * len(rows))

    def _causal_time_share(self, width: int) -> float:
        """Return the time of causal attention over sequences of `width` tokens, relative to that of all pairs."""
        # Causal attention kernels skip key blocks above the diagonal (measured on a CPU).
        return 0.5 if self.skips_masked_blocks else min(MAX_CAUSAL_SHARE, 0.45 + 150 / max(width, 1))

    def _matrix_product_flops(self, token_count: int, chunks: Sequence[Sequence[BatchRow]]) -> float:
        """Return the FLOPs of all matrix products: of the layers for all tokens, of the head for completion tokens."""
        completion_tokens = sum(len(row.token_ids) for row in chain.from_iterable(chunks))
        return self._token_flops * token_count + self._head_flops * completion_tokens

    def max_token_pairs_in_masks(self, token_count: int) -> int | None:
        """Return the maximum number of pairs of tokens in a micro-batch's masks; None if masks are not over pairs.

        The masks may take as much memory as the activations saved for `token_count` tokens.
        """
        if self.skips_masked_blocks:
            return None
        return int(max(MASK_BYTES, self._saved_bytes * token_count) / self._mask_bytes)

    def relative_attention_time_per_forest(self, forest_widths: Ints) -> NDArray[np.float64]:
        """Return the time of forests of these widths, each in its own sequence, relative to the time of one token."""
        pair_time = 0.0 if self.skips_masked_blocks else ATTENTION_FLOP_TIME * self._pair_flops + MASK_PAIR_TIME
        return forest_widths + pair_time / self._token_flops * forest_widths.astype(np.float64) ** 2


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Division of rows into micro-batches of one layout, with its predicted cost."""

    layout: str
    batches: Batches
    flops: float = 0.0
    """Predicted FLOPs of a forward pass over all rows."""
    cost: float = 0.0
    """Predicted time of a forward pass over all rows, in FLOPs of matrix products of equal duration."""
    fits_memory: bool = True
    """False if attention masks exceed their memory limit."""


class BatchPlanner:
    """Splits rows into batches for one model. `packing` names a layout, or `auto` for the fastest.

    Raises:
        ValueError: if the model cannot read the layout `packing`.
    """

    def __init__(self, model: Any, micro_tokens: int, packing: str) -> None:
        self._model, self._micro_tokens, self._packing = model, micro_tokens, packing
        self._device: torch.device = next(model.parameters()).device
        self._random, self._obstacle = attention.has_dropout(model), attention.reason_packing_is_unsupported(model)
        if self._random and packing == "shared":
            self._obstacle = self._obstacle or "its dropout would fall on several samples at once"
        if self._obstacle and packing not in ("auto", "padded"):
            name = type(model).__name__
            raise ValueError(f"packing={packing!r} is not for {name}: {self._obstacle}; choose auto or padded")

    def update_flops(self, rows: Sequence[BatchRow]) -> float:
        """Return the FLOPs of a forward and a backward pass over the text of each row alone."""
        return self._layout_cost_model.update_flops(rows)

    def collated_batches(
        self, rows: Sequence[BatchRow], *, with_end_states: bool = False
    ) -> Iterator[tuple[list[BatchRow], Batch]]:
        """Yield batches of `rows`, each with its rows. `with_end_states`: hidden states at the last tokens of prompts
        and completions are computed, too."""
        return self.collate_plan(self.plan_micro_batches(rows, with_end_states=with_end_states))

    def plan_micro_batches(
        self, rows: Sequence[BatchRow], layout: str | None = None, *, with_end_states: bool = False
    ) -> BatchPlan:
        """Return a plan of `rows` in the given `layout` (default: the planner's `packing`), or a padded plan if the
        model cannot read that layout or its attention masks exceed the memory limit."""
        layout = layout or self._packing
        if not rows:
            return BatchPlan(layout, [])
        if layout == "padded" or self._obstacle:
            return BatchPlan("padded", self._padded_batches(rows, with_end_states))
        if layout == "prompted":
            return self.two_pass_plan(rows)
        if layout == "auto":
            return self.fastest_plan(rows, with_end_states=with_end_states)
        plan = self.packed_plan(rows, layout, with_end_states=with_end_states)
        return plan if plan.fits_memory else self.padded_plan(rows, with_end_states=with_end_states)

    def collate_plan(self, plan: BatchPlan) -> Iterator[tuple[list[BatchRow], Batch]]:
        """Yield the batches of `plan`, each with its rows."""
        for chunk, layout in plan.batches:
            yield chunk, collate(chunk, self._device, layout)

    def fastest_plan(self, rows: Sequence[BatchRow], *, with_end_states: bool = False) -> BatchPlan:
        """Return the plan of least predicted time that fits into memory, for a model that can read every layout."""
        padded = self.padded_plan(rows, with_end_states=with_end_states)
        # Packing costs at least one pass plus a time per row, so a padded plan that is cheaper needs no comparison.
        if not padded.cost > self._layout_cost_model.pass_time + 4 * (self._layout_cost_model.row_time * len(rows)):
            return padded
        if self._random and self._model.training:
            plans = [padded, self.packed_plan(rows, "packed", with_end_states=with_end_states)]
        else:
            # The layout `shared` includes `packed`, which is the special case without common prefixes.
            plans = [padded, self.packed_plan(rows, "shared", with_end_states=with_end_states)]
            has_units = any(row.unit is not None for row in rows)
            if not (with_end_states or has_units) and attention.supports_kv_cache(self._model):
                plans.append(self.two_pass_plan(rows))
        return min((plan for plan in plans if plan.fits_memory), key=lambda plan: plan.cost)

    def two_pass_plan(self, rows: Sequence[BatchRow]) -> BatchPlan:
        """Return a plan of two passes: distinct prompts, then completions with the prompts' keys and values.

        The layout suits small models and short texts, where attention over wide sequences would be most of the work.
        """
        chunks: list[list[BatchRow]] = []
        widest = (0, 0)
        for row in sorted(rows, key=lambda row: (len(row.prompt_ids), row.prompt_ids, len(row.token_ids))):
            wider = max(widest[0], len(row.prompt_ids)), max(widest[1], len(row.token_ids))
            # A shared prompt counts once per row, since attention reads its keys and values for each row.
            if not chunks or (len(chunks[-1]) + 1) * sum(wider) > self._micro_tokens:
                chunks.append([])
                wider = len(row.prompt_ids), len(row.token_ids)
            chunks[-1].append(row)
            widest = wider
        return BatchPlan(
            "prompted",
            [(chunk, prompt_and_completion_pass_inputs) for chunk in chunks],
            *self._layout_cost_model.two_pass_cost(chunks),
        )

    def padded_plan(self, rows: Sequence[BatchRow], *, with_end_states: bool = False) -> BatchPlan:
        """Return a plan of padded rows, one in each sequence."""
        batches = self._padded_batches(rows, with_end_states)
        cost = self._layout_cost_model.padded_pass_cost([chunk for chunk, _ in batches], with_end_states)
        return BatchPlan("padded", batches, *cost)

    def packed_plan(self, rows: Sequence[BatchRow], layout: str, *, with_end_states: bool = False) -> BatchPlan:
        """Return a plan of several rows in each sequence: whole (`packed`), or with common prefixes once (`shared`)."""
        texts: list[tuple[int, ...]] = []
        bundles: list[Hashable] = []
        for index, row in enumerate(rows):
            texts.append(row.prompt_ids + (row.token_ids if with_end_states else row.token_ids[:-1]))
            bundles.append((index,) if row.unit is None else row.unit)
        skips_masked_blocks = self._layout_cost_model.skips_masked_blocks
        block = attention.BLOCK_SIZE if skips_masked_blocks else 1
        # Mask memory is limited only with `packing: auto`; a layout that the user names is used in any case.
        pairs = None
        if self._packing == "auto":
            pairs = self._layout_cost_model.max_token_pairs_in_masks(min(self._micro_tokens, sum(map(len, texts))))
        limits = PackingLimits(
            self._micro_tokens,
            self._layout_cost_model.relative_attention_time_per_forest,
            one_sequence_per_batch=skips_masked_blocks,
            block=block,
            max_pairs=pairs,
        )
        packs = pack_texts_into_micro_batches(texts, bundles, limits, share_prefixes=layout == "shared")
        batches: Batches = []
        fits = True
        for packed in packs:
            batches.append((list(map(rows.__getitem__, packed.token_indices)), partial(packed_inputs, packed)))
            # A bundle is never split, so one bundle alone may exceed the limits.
            fits &= pairs is None or packed.is_causal or packed.ids_LW.size * packed.ids_LW.shape[1] <= pairs
        return BatchPlan(layout, batches, *self._layout_cost_model.packed_pass_cost(packs, rows), fits)

    def _padded_batches(self, rows: Sequence[BatchRow], with_end_states: bool) -> Batches:
        """Return batches of rows of similar length: at most `micro_tokens` after padding, but at least one unit."""
        batches: Batches = []
        count = widest = 0
        for unit in sorted(group_by_unit(rows), key=_max_row_length):
            count, widest = count + len(unit), max(widest, _max_row_length(unit))
            if not batches or count * widest > self._micro_tokens:
                batches.append(([], inputs_with_end_states if with_end_states else padded_inputs))
                count, widest = len(unit), _max_row_length(unit)
            batches[-1][0].extend(sorted(unit, key=lambda row: row.length))
        return batches

    @cached_property
    def _layout_cost_model(self) -> LayoutCostModel:
        return LayoutCostModel(self._model, skips_masked_blocks=attention.can_skip_masked_blocks(self._model))


def _max_row_length(rows: Sequence[BatchRow]) -> int:
    return max(row.length for row in rows)
