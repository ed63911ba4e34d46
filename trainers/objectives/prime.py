"""PRIME (2502.01456): a policy gradient, and an implicit process reward model that outcomes teach online.

Shape suffixes: B = rows, T = completion tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from marl.types import Sample
from trainers.batching.batches import Batch
from trainers.batching.rows import Row
from trainers.forward.token_outputs import Said, said
from trainers.losses.aggregation import Totals, masked_sum
from trainers.losses.preferences import implicit_rewards, orm
from trainers.objectives.objective import Terms
from trainers.objectives.policy_gradient import Surrogate
from trainers.optim.weights import named_tensors, restore, snapshot

if TYPE_CHECKING:
    from trainers.settings import Prime

CORRECT = "correct"


class ImplicitRewards(Surrogate):
    """The policy's loss + the mean over samples of BCE(s(β Σ_t q_t), correct), q_t = log φ(y_t) - log reference(y_t).

    The policy and φ share nothing: each has its own gradient. Both q's are of the whole distribution at temperature 1.
    """

    def __init__(self, settings: Prime, model: nn.Module, steps: int) -> None:
        super().__init__(settings, model, steps)
        self._settings = settings.prm
        fixed = {id(p): p for p in model.parameters() if not p.requires_grad}
        self.prm: nn.Module = copy.deepcopy(model, dict(fixed)).train()
        self._reference: nn.Module = copy.deepcopy(model, dict(fixed)).eval().requires_grad_(False)
        self._learnt = [name for name, _ in named_tensors(self.prm)]
        self.parts = (*self.parts, "prm_loss", "prm_accuracy")
        self.lr_scale = {"prm": (self._settings.lr or settings.lr) / settings.lr}

    def modules(self) -> Mapping[str, nn.Module]:
        """φ."""
        return {"prm": self.prm}

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """With the fact `correct`: of merged samples, the share of those whose episodes were."""
        return [replace(row, facts={**row.facts, CORRECT: self._correct(row)}) for row in super().rows(samples)]

    def judged(self, spoken: Said, batch: Batch, totals: Totals) -> Terms:
        """The policy's loss and φ's."""
        terms = super().judged(spoken, batch, totals)
        logits_B = masked_sum(self.rewards(batch), batch.mask_BT)
        correct_B, scale_B = batch.facts[CORRECT], batch.counts_B / totals.samples
        loss_B = scale_B * orm(logits_B, correct_B)
        right_B = scale_B * torch.where(logits_B > 0, correct_B, 1 - correct_B)
        parts = {**terms.parts, "prm_loss": loss_B.sum(), "prm_accuracy": right_B.sum()}
        return replace(terms, loss_B=terms.loss_B + loss_B, parts=parts)

    def rewards(self, batch: Batch) -> Tensor:
        """[B, T] β q_t."""
        plain = replace(batch, sampling_N3=None)
        with torch.no_grad():
            reference_BT = said(self._reference, plain).logprobs_BT
        return implicit_rewards(said(self.prm, plain).logprobs_BT, reference_BT, batch.mask_BT, self._settings.beta)

    def read(self, spoken: Said, batch: Batch, wanted: frozenset[str]) -> dict[str, Tensor]:
        """`rewards`, if they are wanted: without dropout."""
        found = super().read(spoken, batch, wanted)
        if "rewards" in wanted:
            self.prm.eval()
            found["rewards"] = self.rewards(batch)
            self.prm.train()
        return found

    def state_dict(self) -> dict[str, Any]:
        """The policy's part, and the reference: what it was copied from may be another one by now."""
        return {**super().state_dict(), "prm_reference": snapshot(self._initial())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put them back."""
        super().load_state_dict(state)
        restore(self._initial(), state["prm_reference"])

    def _initial(self) -> dict[str, Tensor]:
        """What of the reference learns in φ."""
        tensors = {**dict(self._reference.named_parameters()), **dict(self._reference.named_buffers())}
        return {name: tensors[name].detach() for name in self._learnt}

    def _correct(self, row: Row) -> float:
        return fmean(sample.paid >= self._settings.threshold for sample in row.samples)
