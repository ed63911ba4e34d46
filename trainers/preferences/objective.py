"""Objective of direct preference optimisation (DPO, 2305.18290) and its variants, on pairs of turns or episodes."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from marl.core.types import Metrics, Sample
from marl.trainers.batching.aggregation import MinibatchTotals, masked_sum
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import BatchRow
from marl.trainers.forward.token_outputs import token_outputs
from marl.trainers.objective import LossTerms, Objective
from marl.trainers.optim.anchors import KlAnchors
from marl.trainers.optim.settings import KlAnchor
from marl.trainers.preferences.losses import dpo
from marl.trainers.preferences.options import DpoOptions
from marl.trainers.preferences.pairs import comparison_batch, comparison_groups, rows_of_paired_turns

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
policy/POLICY/pairs | pairs | compared in an optimizer step (`dpo`)
policy/POLICY/accuracy | share | pairs in the right order (`dpo`, `reward_modeling`); with labels, turns on the
    right side of even odds
policy/POLICY/margin | nats | implied reward of the better side minus the worse one's (`dpo`)
policy/POLICY/reward_better, reward_worse | nats | implied reward of either side (`dpo`)
policy/POLICY/nll | nats a token | minus the log-probability of the better side (`dpo`)
"""


class DpoObjective(Objective):
    """Mean over a minibatch's pairs of the loss `dpo` of h, the difference of log-ratios of a pair's two entries.

    An entry is a turn, or an agent's turns of an episode. Its log-ratio (nats) is of policy to reference, under their
    own distributions at temperature 1. Its implied reward is β times the log-ratio. A turn in several pairs is computed
    once, and all turns of a comparison group are in one pass.
    """

    ranks_by_reward = True
    loss_term_names = ("pairs", "accuracy", "margin", "reward_better", "reward_worse", "nll")

    def __init__(self, settings: DpoOptions, model: nn.Module, steps: int) -> None:
        self.settings = settings
        # DPO's loss contains the log-ratio to the reference, so there is no separate KL penalty (coefficient 0).
        reference = KlAnchor(coefficient=0.0, refresh=settings.refresh, estimator="k2")
        self.anchors = KlAnchors({"reference": reference}, model, steps)

    def indivisible_sample_groups(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """Return the samples of each comparison group as one unit."""
        return [group.samples for group in comparison_groups(samples, self.settings)]

    def rows(self, samples: Sequence[Sample]) -> list[BatchRow]:
        return rows_of_paired_turns(samples, self.settings)

    def forward_loss(self, model: nn.Module, batch: Batch, totals: MinibatchTotals) -> LossTerms:
        """Return the loss of all pairs of one forward pass."""
        settings, entries = self.settings, comparison_batch(batch)
        outputs = token_outputs(model, batch, anchor_models=self.anchors.models)
        assert outputs.anchors is not None
        tokens_S = entries.sum_of_row_values_per_entry(batch.lengths_B)
        logprobs_S = entries.sum_of_row_values_per_entry(masked_sum(outputs.logprobs_BT, batch.loss_mask_BT))
        gain_S = logprobs_S - entries.sum_of_row_values_per_entry(
            masked_sum(outputs.anchors["reference"], batch.loss_mask_BT)
        )
        if settings.over == "mean":
            gain_S = gain_S / tokens_S
        log_ratio_gap_U = gain_S[entries.better_U] - gain_S[entries.worse_U]
        loss_U = dpo(log_ratio_gap_U, settings.beta, settings.loss, settings.smoothing)
        nll_U = -(logprobs_S / tokens_S)[entries.better_U]
        if settings.nll:
            loss_U = loss_U + settings.nll * nll_U
        reward_S = settings.beta * gain_S.detach()
        better_U, worse_U, pairs = reward_S[entries.better_U], reward_S[entries.worse_U], totals.scalar_sums["pairs"]
        figures = {
            "pairs": log_ratio_gap_U.new_tensor(float(len(log_ratio_gap_U))),
            "accuracy": (better_U > worse_U).float().sum() / pairs,
            "margin": (better_U - worse_U).sum() / pairs,
            "reward_better": better_U.sum() / pairs,
            "reward_worse": worse_U.sum() / pairs,
            "nll": nll_U.sum() / pairs,
        }
        return LossTerms(entries.divide_pair_losses_among_rows(loss_U / pairs), figures)

    def finish_update(self, update_count: int, model: nn.Module, metrics: Metrics) -> Metrics:
        """Refresh the reference policy if due; return no further metrics."""
        self.anchors.refresh_due_anchor_models(update_count, model)
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"anchors": self.anchors.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.anchors.load_state_dict(state["anchors"])
