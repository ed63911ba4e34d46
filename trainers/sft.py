"""Supervised fine-tuning: imitation of completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from marl.types import Sample
from trainers.batches import Batch, chosen_logprobs, vocabulary_logprobs
from trainers.losses import entropy
from trainers.objective import Terms
from trainers.rows import Row, imitated_rows


class Imitation:
    """Loss of one token: -log p, under the model's own distribution at temperature 1."""

    needs: frozenset[str] = frozenset()
    stats: tuple[str, ...] = ("entropy",)

    def __init__(self, merge: bool) -> None:
        self.merge = merge

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """Samples with equal tokens become one row."""
        return imitated_rows(samples, self.merge)

    def terms(self, model: nn.Module, batch: Batch, update: int) -> Terms:
        """The loss of every token of one forward pass."""
        logprobs_NV = vocabulary_logprobs(model, batch)
        with torch.no_grad():
            entropy_BT = batch.spread(entropy(logprobs_NV))
        return Terms(-chosen_logprobs(logprobs_NV, batch) * batch.counts_B[:, None], None, (entropy_BT,))

    def finish(self, done: int, model: nn.Module) -> None:
        """Nothing to do."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""
