"""What layouts of texts cost, predicted from a model's shape.

FLOPs are those of a forward pass: 2 per weight of a matrix and token, 4 per pair of tokens, head and dimension of a
head. Time is told in FLOPs of matrix products that take as long; a backward pass takes twice as much of everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainers.batching.packing import Ints, Lines

ATTENTION = 1.6
"""FLOPs of attention take so much longer than those of matrix products (measured on a CPU)."""
CAUSAL = 0.75
"""Time of causal attention in parts of that over all pairs (measured on a CPU)."""
MASK = 50.0
"""What a pair costs in a mask that is written out (measured on a CPU)."""
COPY = 4.0
"""What a token's keys and values cost to copy, in pairs of tokens (estimated)."""
PASS = {"cpu": 2e8, "cuda": 2e11}
"""What a further pass costs, however few tokens it has (measured on a CPU, estimated for accelerators)."""
ROW = {"cpu": 1e6, "cuda": 3e9}
"""What it costs to lay a row into a line: some 35 microseconds (measured on a CPU, estimated for accelerators)."""


class Costs:
    """Of one model. `sparse`: attention costs nothing where nothing is seen."""

    def __init__(self, model: Any, *, sparse: bool) -> None:
        settings = model.config.get_text_config(decoder=True)
        read, said = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        tables = {id(weight): weight.numel() for weight in (read, said)}
        heads = settings.num_attention_heads
        wide = settings.to_dict().get("head_dim") or settings.hidden_size // heads
        kind = next(model.parameters()).device.type
        self.sparse = sparse
        self._token = 2.0 * (sum(p.numel() for p in model.parameters()) - sum(tables.values()))
        self._pair = 4.0 * settings.num_hidden_layers * heads * wide
        self._head = 2.0 * said.numel()
        self._pass, self._row = PASS.get(kind, PASS["cuda"]), ROW.get(kind, ROW["cuda"])

    def handling(self, rows: int) -> float:
        """Time to lay rows into lines."""
        return self._row * rows

    def leaves_room(self, cost: float, rows: int) -> bool:
        """Whether lines could cost less at all: they take a pass, too, and are not had for nothing."""
        return cost > self._pass + 4 * self.handling(rows)

    def padded(self, shapes: Sequence[tuple[int, int]], said: int) -> tuple[float, float]:
        """FLOPs and time of texts as (lines, width) in each pass, with so many completion tokens in all."""
        tokens = sum(lines * width for lines, width in shapes)
        pairs = sum(lines * width**2 for lines, width in shapes)
        base = self._token * tokens + self._head * said
        causal = 0.5 if self.sparse else CAUSAL
        time = base + causal * ATTENTION * self._pair * pairs + self._pass * len(shapes)
        return base + self._pair * pairs / 2, time

    def prompted(self, shapes: Sequence[tuple[int, int, int, int]], said: int) -> tuple[float, float]:
        """The same of (prompts, width, texts after them, width): two passes each, the second with copied keys."""
        tokens = sum(prompts * wide + texts * later for prompts, wide, texts, later in shapes)
        pairs = sum(prompts * wide**2 + texts * later * (wide + later) for prompts, wide, texts, later in shapes)
        copied = sum(texts * wide for _, wide, texts, _ in shapes)
        base = self._token * tokens + self._head * said
        time = base + ATTENTION * self._pair * pairs + COPY * self._pair * copied + 2 * self._pass * len(shapes)
        return base + self._pair * pairs, time

    def lined(self, made: Sequence[Lines], said: int) -> tuple[float, float]:
        """The same of lines."""
        base = self._token * sum(lines.ids_LW.size for lines in made) + self._head * said
        pairs = sum(lines.pairs if self.sparse else lines.ids_LW.size * lines.ids_LW.shape[1] for lines in made)
        written = 0.0 if self.sparse else MASK
        time = base + (ATTENTION * self._pair + written) * pairs + self._pass * len(made)
        return base + self._pair * pairs, time

    def forests(self, widths: Ints) -> NDArray[np.float64]:
        """What forests of these widths cost, each in a line of its own, in tokens."""
        pairs = 0.0 if self.sparse else (ATTENTION * self._pair + MASK) / self._token
        return widths + pairs * widths.astype(np.float64) ** 2
