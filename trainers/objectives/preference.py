"""Direct preference optimisation (2305.18290) and its relatives, on pairs taken from the trajectory graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from marl.types import Metrics, Sample
from trainers.batching.batches import Batch
from trainers.batching.pairs import ContestBatch, contest_batch, contests, paired_rows
from trainers.batching.rows import Row
from trainers.forward.token_outputs import token_outputs
from trainers.losses.aggregation import Totals, masked_sum
from trainers.losses.preferences import dpo
from trainers.objectives.objective import LossTerms, Objective
from trainers.optim.regularizers import Anchors
from trainers.settings.optimisation import Anchor

if TYPE_CHECKING:
    from trainers.settings.preferences import Dpo


class Preference(Objective):
    """Loss of one pair: f(h), where h is how much more likely, in nats, the policy has made the better entry than
    the worse one since the reference; the mean over all pairs of a minibatch.

    Log-probabilities are those of the model's own distribution at temperature 1. Every turn is computed once, however
    many pairs it is in; all turns that are compared with one another are in one pass.
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
        figures = {"nll": nll_U, **self._implied_rewards(gained_S, entries)}
        pairs = totals.facts["pairs"]
        parts = {name: value_U.sum() / pairs for name, value_U in figures.items()}
        parts["pairs"] = h_U.new_tensor(float(len(h_U)))
        return LossTerms(entries.shares(loss_U / pairs), {name: parts[name] for name in self.parts})

    def _implied_rewards(self, gained_S: Tensor, entries: ContestBatch) -> Mapping[str, Tensor]:
        """Return [U] each: implied rewards β h of either entry, and whether they agree with the pair."""
        reward_S = self.settings.beta * gained_S.detach()
        better_U, worse_U = reward_S[entries.better_U], reward_S[entries.worse_U]
        return {
            "accuracy": (better_U > worse_U).float(),
            "margin": better_U - worse_U,
            "reward_better": better_U,
            "reward_worse": worse_U,
        }

    def finish(self, done: int, model: nn.Module, metrics: Metrics) -> Metrics:
        """Refresh the reference if that is due; no metrics."""
        self.anchors.refresh(done, model)
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"anchors": self.anchors.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.anchors.load_state_dict(state["anchors"])
