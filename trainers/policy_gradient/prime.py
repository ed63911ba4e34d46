"""Objective of PRIME (2502.01456): a policy gradient, and an implicit process reward model trained on outcomes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from marl.core.types import Sample
from marl.trainers.batching.aggregation import MinibatchTotals, masked_difference, masked_sum
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import BatchRow
from marl.trainers.distillation.teachers import Teachers
from marl.trainers.forward.token_outputs import TokenOutputs, token_outputs
from marl.trainers.objective import LossTerms
from marl.trainers.optim.anchors import copy_with_shared_frozen_weights
from marl.trainers.optim.optimizer import copy_tensors_with_equal_names, cpu_copy, named_trained_tensors
from marl.trainers.policy_gradient.objective import PolicyGradientObjective
from marl.trainers.policy_gradient.options import ImplicitRewardModel, PolicyGradientOptions
from marl.trainers.reward_model.losses import orm

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
policy/POLICY/prm_loss | nats a turn | cross-entropy of PRIME's implicit reward model
policy/POLICY/prm_accuracy | share of turns | it is on the right side of even odds
"""

CORRECT_SCALAR = "correct"


def implicit_rewards(logprobs_BT: Tensor, reference_logprobs_BT: Tensor, mask_BT: Tensor, beta: float) -> Tensor:
    """Return [B, T], the rewards β (log π - log reference) of tokens, implied by a reward model π (PRIME, 2502.01456).

    The reward model is trained with the loss `orm` of the sum of its rewards over a row.
    """
    return beta * masked_difference(logprobs_BT, reference_logprobs_BT, mask_BT)


class PrimeObjective(PolicyGradientObjective):
    """Policy's loss + mean over samples of BCE(sigmoid(β Σ_t q_t), correct), q_t = log φ(y_t) - log reference(y_t).

    The reward model φ shares no weights with the policy. Distributions of φ and of the reference are over the whole
    vocabulary at temperature 1.
    """

    ranks_by_reward = True

    def __init__(
        self,
        settings: PolicyGradientOptions,
        prm: ImplicitRewardModel,
        model: nn.Module,
        steps: int,
        teachers: Teachers | None = None,
    ) -> None:
        super().__init__(settings, model, steps, teachers=teachers)
        self._prm_settings = prm
        self.prm: nn.Module = copy_with_shared_frozen_weights(model).train()
        self._reference: nn.Module = copy_with_shared_frozen_weights(model).eval()
        self._reference_tensors = dict(named_trained_tensors(self._reference))
        self._reference.requires_grad_(False)
        self.loss_term_names = (*self.loss_term_names, "prm_loss", "prm_accuracy")
        self.lr_scale = {"prm": (prm.lr or settings.lr) / settings.lr}
        self.modules = {"prm": self.prm}

    def rows(self, samples: Sequence[Sample]) -> list[BatchRow]:
        """Return rows with the scalar `correct`: the share of a row's merged samples whose agent was correct."""
        rows: list[BatchRow] = []
        for row in super().rows(samples):
            share = fmean(sample.paid >= self._prm_settings.threshold for sample in row.samples)
            rows.append(replace(row, scalars={**row.scalars, CORRECT_SCALAR: share}))
        return rows

    def forward_loss(self, model: nn.Module, batch: Batch, totals: MinibatchTotals) -> LossTerms:
        """Return the sum of the policy's loss and the reward model's loss."""
        terms = super().forward_loss(model, batch, totals)
        logits_B = masked_sum(self.rewards(batch), batch.mask_BT)
        correct_B, scale_B = batch.scalars[CORRECT_SCALAR], batch.counts_B / totals.samples
        loss_B = scale_B * orm(logits_B, correct_B)
        right_B = scale_B * torch.where(logits_B > 0, correct_B, 1 - correct_B)
        figures = {**terms.loss_terms, "prm_loss": loss_B.sum(), "prm_accuracy": right_B.sum()}
        return replace(terms, loss_B=terms.loss_B + loss_B, loss_terms=figures)

    def rewards(self, batch: Batch) -> Tensor:
        """Return [B, T], the reward model's rewards of the batch's tokens."""
        untempered = replace(batch, sampling_N3=None)
        with torch.no_grad():
            reference_BT = token_outputs(self._reference, untempered).logprobs_BT
        logprobs_BT = token_outputs(self.prm, untempered).logprobs_BT
        return implicit_rewards(logprobs_BT, reference_BT, batch.mask_BT, self._prm_settings.beta)

    def read(self, outputs: TokenOutputs, batch: Batch, fields: frozenset[str]) -> dict[str, Tensor]:
        """Return the policy's readings and, if requested, the reward model's `rewards` of tokens, without dropout."""
        readings = super().read(outputs, batch, fields)
        if "rewards" in fields:
            self.prm.eval()
            readings["rewards"] = self.rewards(batch)
            self.prm.train()
        return readings

    def state_dict(self) -> dict[str, Any]:
        """Return the policy's state, and the frozen reference's weights, since a resumed run may start from others."""
        return {**super().state_dict(), "prm_reference": cpu_copy(self._reference_tensors)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        copy_tensors_with_equal_names(self._reference_tensors, state["prm_reference"])
