"""PRIME (2502.01456): a policy gradient, and an implicit process reward model that outcomes teach online."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from marl.types import Sample
from trainers.batching.batches import Batch
from trainers.batching.rows import Row
from trainers.forward.token_outputs import TokenOutputs, token_outputs
from trainers.losses.aggregation import Totals, masked_sum
from trainers.losses.preferences import implicit_rewards, orm
from trainers.objectives.objective import LossTerms
from trainers.objectives.policy_gradient import Surrogate
from trainers.optim.optimizer import named_tensors, restore, snapshot
from trainers.optim.regularizers import learnable_copy

if TYPE_CHECKING:
    from trainers.settings.policy_gradient import Prime

CORRECT = "correct"


class ImplicitRewards(Surrogate):
    """The policy's loss + the mean over samples of BCE(s(β Σ_t q_t), correct), q_t = log φ(y_t) - log reference(y_t).

    The policy and φ share nothing: each has its own gradient. Both are whole distributions at temperature 1.
    """

    def __init__(self, settings: Prime, model: nn.Module, steps: int) -> None:
        super().__init__(settings, model, steps)
        self._settings = settings.prm
        self.prm: nn.Module = learnable_copy(model).train()
        self._reference: nn.Module = learnable_copy(model).eval()
        self._reference_tensors = dict(named_tensors(self._reference))
        self._reference.requires_grad_(False)
        self.parts = (*self.parts, "prm_loss", "prm_accuracy")
        self.lr_scale = {"prm": (self._settings.lr or settings.lr) / settings.lr}

    def modules(self) -> Mapping[str, nn.Module]:
        return {"prm": self.prm}

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """Return rows with the fact `correct`: the share of merged samples whose episodes were."""
        least, rows = self._settings.threshold, super().rows(samples)
        correct = [fmean(sample.paid >= least for sample in row.samples) for row in rows]
        return [replace(row, facts={**row.facts, CORRECT: share}) for row, share in zip(rows, correct, strict=True)]

    def policy_terms(self, outputs: TokenOutputs, batch: Batch, totals: Totals) -> LossTerms:
        """Return the policy's loss and φ's."""
        terms = super().policy_terms(outputs, batch, totals)
        logits_B = masked_sum(self.rewards(batch), batch.mask_BT)
        correct_B, scale_B = batch.facts[CORRECT], batch.counts_B / totals.samples
        loss_B = scale_B * orm(logits_B, correct_B)
        right_B = scale_B * torch.where(logits_B > 0, correct_B, 1 - correct_B)
        parts = {**terms.parts, "prm_loss": loss_B.sum(), "prm_accuracy": right_B.sum()}
        return replace(terms, loss_B=terms.loss_B + loss_B, parts=parts)

    def rewards(self, batch: Batch) -> Tensor:
        """Return [B, T], β q_t."""
        plain = replace(batch, sampling_N3=None)
        with torch.no_grad():
            reference_BT = token_outputs(self._reference, plain).logprobs_BT
        logprobs_BT = token_outputs(self.prm, plain).logprobs_BT
        return implicit_rewards(logprobs_BT, reference_BT, batch.mask_BT, self._settings.beta)

    def read(self, outputs: TokenOutputs, batch: Batch, wanted: frozenset[str]) -> dict[str, Tensor]:
        """Return `rewards`, if they are wanted: without dropout."""
        fields = super().read(outputs, batch, wanted)
        if "rewards" in wanted:
            self.prm.eval()
            fields["rewards"] = self.rewards(batch)
            self.prm.train()
        return fields

    def state_dict(self) -> dict[str, Any]:
        """Return the policy's state, and the reference: its source may have other weights by now."""
        return {**super().state_dict(), "prm_reference": snapshot(self._reference_tensors)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        restore(self._reference_tensors, state["prm_reference"])
