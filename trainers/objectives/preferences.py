"""Objectives without advantages: DPO (2305.18290) and its relatives on pairs of turns, and imitation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from marl.types import Metrics, Sample
from trainers.batching.batches import Batch
from trainers.batching.pairs import contest_batch, contests, distinct, paired_rows, select_samples
from trainers.batching.rows import Row, plain_rows
from trainers.forward.token_outputs import OutputSpec, TokenOutputs, token_outputs
from trainers.losses.aggregation import Totals, masked_sum, row_scale
from trainers.losses.preferences import dpo
from trainers.objectives.objective import LossTerms, Objective
from trainers.objectives.values import ValueLoss
from trainers.optim.regularizers import Anchors
from trainers.settings.optimisation import Anchor

if TYPE_CHECKING:
    from trainers.settings.preferences import Dpo, Sft


class Preference(Objective):
    """Loss of one pair: f(h), where h is how much more likely, in nats, the policy has made the better entry than
    the worse one since the reference; the mean over all pairs of a minibatch.

    Log-probabilities are those of the model's own distribution at temperature 1. Every turn is computed once, however
    many pairs it is in; all turns that are compared with one another are in one pass. The implied reward of an entry is
    β times its gain.
    """

    parts = ("pairs", "accuracy", "margin", "reward_better", "reward_worse", "nll")

    def __init__(self, settings: Dpo, model: nn.Module, steps: int) -> None:
        self.settings = settings
        # The distance to it is in the loss itself, not a penalty beside it.
        reference = Anchor(coefficient=0.0, refresh=settings.refresh, estimator="k2")
        self.anchors = Anchors({"reference": reference}, model, steps)

    def sample_units(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """Return samples that are compared with one another."""
        return [contest.samples for contest in contests(samples, self.settings)]

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        return paired_rows(samples, self.settings)

    def terms(self, model: nn.Module, batch: Batch, totals: Totals) -> LossTerms:
        """Return the loss of every pair of one forward pass."""
        settings, entries = self.settings, contest_batch(batch)
        outputs = token_outputs(model, batch, anchors=self.anchors.models)
        assert outputs.anchors is not None
        tokens_S = entries.sum(batch.lengths_B)
        logprobs_S = entries.sum(masked_sum(outputs.logprobs_BT, batch.loss_mask_BT))
        gained_S = logprobs_S - entries.sum(masked_sum(outputs.anchors["reference"], batch.loss_mask_BT))
        if settings.over == "mean":
            gained_S = gained_S / tokens_S
        h_U = gained_S[entries.better_U] - gained_S[entries.worse_U]
        loss_U = dpo(h_U, settings.beta, settings.loss, settings.smoothing)
        nll_U = -(logprobs_S / tokens_S)[entries.better_U]
        if settings.nll:
            loss_U = loss_U + settings.nll * nll_U
        reward_S = settings.beta * gained_S.detach()
        better_U, worse_U, pairs = reward_S[entries.better_U], reward_S[entries.worse_U], totals.facts["pairs"]
        figures = ((better_U > worse_U).float(), better_U - worse_U, better_U, worse_U, nll_U)
        parts = [h_U.new_tensor(float(len(h_U))), *(figure_U.sum() / pairs for figure_U in figures)]
        return LossTerms(entries.shares(loss_U / pairs), dict(zip(self.parts, parts, strict=True)))

    def finish(self, done: int, model: nn.Module, metrics: Metrics) -> Metrics:
        """Refresh the reference if that is due; no metrics."""
        self.anchors.refresh(done, model)
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"anchors": self.anchors.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.anchors.load_state_dict(state["anchors"])


class Imitation(Objective):
    """Loss of one token: -log p, under the model's own distribution at temperature 1; with a critic, its loss as well.

    A sample with targets is imitated by all of them, each by its share: the cross entropy to their distribution.
    """

    stats = ("entropy",)

    def __init__(self, settings: Sft, values: ValueLoss | None = None) -> None:
        self.settings, self._values = settings, values
        self._selected = 0
        if values:
            self.parts, self.needs, self.lr_scale = values.parts, values.needs, values.lr_scale

    def modules(self) -> Mapping[str, nn.Module]:
        return self._values.modules() if self._values else {}

    def start(self, update: int) -> None:
        if self._values:
            self._values.start(update)

    def sample_units(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """Return the selected samples, each alone; selected from the whole step, before minibatches split groups."""
        selection = self.settings.keep
        chosen = select_samples(samples, selection) if selection else samples
        chosen = chosen if self.settings.duplicates else distinct(chosen)
        self._selected = len(chosen)
        return [(sample,) for sample in chosen]

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """Return rows of samples with equal tokens and, with a critic, equal value targets.

        Raises:
            ValueError: as `ValueLoss.with_targets`.
        """
        if self._values is None:
            return plain_rows(samples, self.settings.merge)
        return self._values.with_targets(plain_rows(samples, self.settings.merge, self._values.alike))

    def terms(self, model: nn.Module, batch: Batch, totals: Totals) -> LossTerms:
        with self._values.policy_gradient() if self._values else nullcontext():
            outputs = token_outputs(model, batch, OutputSpec(entropy=True))
        scale_B = row_scale(self.settings.aggregation, batch.lengths_B, totals, self.settings.norm)
        loss_B = scale_B * batch.counts_B * masked_sum(-outputs.logprobs_BT, batch.loss_mask_BT)
        assert outputs.entropy_BT is not None
        terms = LossTerms(loss_B, {}, (outputs.entropy_BT,))
        return self._values.added(terms, outputs, batch, totals) if self._values else terms

    def read(self, outputs: TokenOutputs, batch: Batch, wanted: frozenset[str]) -> dict[str, Tensor]:
        return self._values.read(outputs, batch, wanted) if self._values else {}

    def finish(self, done: int, model: nn.Module, metrics: Metrics) -> Metrics:
        return {"kept": float(self._selected)}
