"""Direct preference optimisation (2305.18290) and its relatives, on pairs taken from the trajectory graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from marl.types import Metrics, Sample
from trainers.batching.batches import Batch
from trainers.batching.contest_tensors import Sides, sides_of
from trainers.batching.pairs import contests, paired_rows
from trainers.batching.rows import Row
from trainers.forward.token_outputs import NOTHING, said
from trainers.losses.aggregation import Totals, masked_sum
from trainers.losses.preferences import dpo
from trainers.objectives.objective import Objective, Terms
from trainers.optim.anchors import Anchors
from trainers.settings.anchors import Anchor

if TYPE_CHECKING:
    from trainers.settings import Dpo


class Preference(Objective):
    """Loss of one pair: f(h), where h is how much more likely, in nats, the policy has made the better side than the
    worse one since the reference; the mean over all pairs of a minibatch.

    Log-probabilities are those of the model's own distribution at temperature 1. Every turn is computed once, however
    many pairs it is in; all turns that are compared with one another are in one pass.
    """

    parts = ("pairs", "accuracy", "margin", "reward_better", "reward_worse", "nll")

    def __init__(self, settings: Dpo, model: nn.Module, steps: int) -> None:
        self.settings = settings
        # Its distance is in the loss itself, not a penalty beside it.
        reference = Anchor(coefficient=0.0, refresh=settings.refresh, estimator="k2")
        self.anchors = Anchors({"reference": reference}, model, steps)

    def together(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """Samples that are compared with one another."""
        return [contest.samples for contest in contests(samples, self.settings)]

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """Turns in pairs, with whom they are compared."""
        return paired_rows(samples, self.settings)

    def terms(self, model: nn.Module, batch: Batch, totals: Totals) -> Terms:
        """The loss of every pair of one forward pass."""
        settings, sides = self.settings, sides_of(batch)
        spoken = said(model, batch, NOTHING, self.anchors.models)
        assert spoken.anchors is not None
        tokens_S = sides.sum(batch.lengths_B)
        said_S = sides.sum(masked_sum(spoken.logprobs_BT, batch.counted_BT))
        gained_S = said_S - sides.sum(masked_sum(spoken.anchors["reference"], batch.counted_BT))
        if settings.over == "mean":
            gained_S = gained_S / tokens_S
        h_U = gained_S[sides.better_U] - gained_S[sides.worse_U]
        loss_U = dpo(h_U, settings.beta, settings.loss, settings.smoothing)
        nll_U = -(said_S / tokens_S)[sides.better_U]
        if settings.nll:
            loss_U = loss_U + settings.nll * nll_U
        parts = {"nll": nll_U, **self._rewards(gained_S, sides)}
        many = totals.facts["pairs"]
        shares = {name: value_U.sum() / many for name, value_U in parts.items()}
        shares["pairs"] = h_U.new_tensor(float(len(h_U)))
        return Terms(sides.shares(loss_U / many), {name: shares[name] for name in self.parts})

    def _rewards(self, gained_S: Tensor, sides: Sides) -> Mapping[str, Tensor]:
        """[U] each: implied rewards β h of either side, and whether they agree with the pair."""
        reward_S = self.settings.beta * gained_S.detach()
        better_U, worse_U = reward_S[sides.better_U], reward_S[sides.worse_U]
        return {
            "accuracy": (better_U > worse_U).float(),
            "margin": better_U - worse_U,
            "reward_better": better_U,
            "reward_worse": worse_U,
        }

    def finish(self, done: int, model: nn.Module, metrics: Metrics) -> Metrics:
        """Refresh the reference if that is due."""
        self.anchors.refresh(done, model)
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The reference."""
        return {"anchors": self.anchors.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put the reference back."""
        self.anchors.load_state_dict(state["anchors"])
