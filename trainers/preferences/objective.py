"""Direct preference optimisation (DPO, 2305.18290) and its relatives, on pairs of turns or episodes."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from marl.core.types import Metrics, Sample
from marl.trainers.batching.aggregation import MinibatchTotals, masked_sum
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import Row
from marl.trainers.forward.token_outputs import token_outputs
from marl.trainers.objective import LossTerms, Objective
from marl.trainers.optim.anchors import KlAnchors
from marl.trainers.optim.settings import KlAnchor
from marl.trainers.preferences.losses import dpo
from marl.trainers.preferences.options import DpoOptions
from marl.trainers.preferences.pairs import comparison_batch, comparison_groups, paired_rows


class DpoObjective(Objective):
    """Loss of one pair: f(h), the mean over all pairs of a minibatch.

    h (nats) is the gain of the better entry less the gain of the worse one; a gain is the log-ratio of policy to
    reference. Log-probabilities are those of the model's own distribution at temperature 1. A turn in several
    pairs is computed once, and the turns of a comparison group are in one pass. The implied reward of an entry is β
    times its gain.
    """

    loss_term_names = ("pairs", "accuracy", "margin", "reward_better", "reward_worse", "nll")

    def __init__(self, settings: DpoOptions, model: nn.Module, steps: int) -> None:
        self.settings = settings
        # The distance to the reference is in the loss itself, not a penalty beside it, so the coefficient is 0.
        reference = KlAnchor(coefficient=0.0, refresh=settings.refresh, estimator="k2")
        self.anchors = KlAnchors({"reference": reference}, model, steps)

    def sample_units(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """Return the samples of each comparison group."""
        return [group.samples for group in comparison_groups(samples, self.settings)]

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        return paired_rows(samples, self.settings)

    def terms(self, model: nn.Module, batch: Batch, totals: MinibatchTotals) -> LossTerms:
        """Return the loss of every pair of one forward pass."""
        settings, entries = self.settings, comparison_batch(batch)
        outputs = token_outputs(model, batch, anchors=self.anchors.models)
        assert outputs.anchors is not None
        tokens_S = entries.sum(batch.lengths_B)
        logprobs_S = entries.sum(masked_sum(outputs.logprobs_BT, batch.loss_mask_BT))
        gain_S = logprobs_S - entries.sum(masked_sum(outputs.anchors["reference"], batch.loss_mask_BT))
        if settings.over == "mean":
            gain_S = gain_S / tokens_S
        h_U = gain_S[entries.better_U] - gain_S[entries.worse_U]
        loss_U = dpo(h_U, settings.beta, settings.loss, settings.smoothing)
        nll_U = -(logprobs_S / tokens_S)[entries.better_U]
        if settings.nll:
            loss_U = loss_U + settings.nll * nll_U
        reward_S = settings.beta * gain_S.detach()
        better_U, worse_U, pairs = reward_S[entries.better_U], reward_S[entries.worse_U], totals.scalar_sums["pairs"]
        figures = {
            "pairs": h_U.new_tensor(float(len(h_U))),
            "accuracy": (better_U > worse_U).float().sum() / pairs,
            "margin": (better_U - worse_U).sum() / pairs,
            "reward_better": better_U.sum() / pairs,
            "reward_worse": worse_U.sum() / pairs,
            "nll": nll_U.sum() / pairs,
        }
        return LossTerms(entries.spread_over_rows(loss_U / pairs), figures)

    def after_update(self, updates: int, model: nn.Module, metrics: Metrics) -> Metrics:
        """Refresh the reference if due; there are no further metrics."""
        self.anchors.refresh(updates, model)
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"anchors": self.anchors.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.anchors.load_state_dict(state["anchors"])
