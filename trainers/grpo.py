"""GRPO (2402.03300) and its relatives: a clipped surrogate, KL anchors and an entropy bonus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from marl.types import Metrics, Sample
from trainers.aggregation import Totals, masked_sum, row_scale
from trainers.anchors import Anchors
from trainers.batches import Batch
from trainers.losses import clipped_surrogate, sampled_kl, sampler_kl
from trainers.objective import Objective, Terms
from trainers.rows import Row, judged_rows
from trainers.vocabulary import Asked, said

if TYPE_CHECKING:
    from trainers.settings import Grpo


class Surrogate(Objective):
    """Loss of one token: -min(r A, clip(r) A) + Σ_k β_k KL(π ‖ anchor_k) - c H.

    Anchors and entropy look at the whole vocabulary at the sampling temperature, top-p and top-k aside.
    """

    parts = ("policy_loss",)

    def __init__(self, settings: Grpo, model: nn.Module, steps: int) -> None:
        self.settings = settings
        self.anchors = Anchors(settings.anchors, model, steps)
        self.needs = frozenset({"logprobs"} if settings.old == "read" else ())
        exact = frozenset(name for name, anchor in settings.anchors.items() if anchor.estimator == "exact")
        self._asked = Asked(entropy=True, differentiable=bool(settings.entropy), kl=exact)
        self._update = 0
        self.stats = (
            "clip_fraction",
            "ratio_mean",
            "entropy",
            "kl_sampler",
            *(f"kl_{name}" for name in settings.anchors),
        )

    def start(self, update: int) -> None:
        """Anchors' coefficients follow the update."""
        self._update = update

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """Samples with equal tokens and equal signs become one row."""
        return judged_rows(samples, self.settings.old, self.settings.merge)

    def terms(self, model: nn.Module, batch: Batch, totals: Totals) -> Terms:
        """The loss of every token of one forward pass."""
        clip = (self.settings.clip_low, self.settings.clip_high)
        spoken, old_BT = said(model, batch, self._asked, self.anchors.models), batch.columns["old"]
        said_BT, counted_BT = spoken.logprobs_BT, batch.counted_BT
        policy_BT, clipped_BT = clipped_surrogate(said_BT, old_BT, batch.columns["advantages"], counted_BT, clip)
        scale_B = row_scale(self.settings.aggregation, batch.lengths_B, totals, self.settings.norm)
        loss_B = policy_B = scale_B * masked_sum(policy_BT, counted_BT)
        kl = {name: self._estimate(name, told_BT, said_BT, batch) for name, told_BT in (spoken.anchors or {}).items()}
        assert spoken.entropy_BT is not None
        penalties = [self.anchors.coefficient(name, self._update) * kl_BT for name, kl_BT in kl.items()]
        if self.settings.entropy:
            penalties.append(-self.settings.entropy * spoken.entropy_BT)
        for penalty_BT in penalties:
            loss_B = loss_B + scale_B * batch.counts_B * masked_sum(penalty_BT, counted_BT)
        off_BT = sampler_kl(batch.columns["sampled"], said_BT, counted_BT)
        stats = (clipped_BT.float(), (said_BT.detach() - old_BT).exp(), spoken.entropy_BT, off_BT, *kl.values())
        return Terms(loss_B, {"policy_loss": policy_B.sum()}, stats)

    def finish(self, done: int, model: nn.Module, metrics: Metrics) -> Metrics:
        """Refresh the anchors that are due."""
        self.anchors.refresh(done, model)
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The anchors."""
        return {"anchors": self.anchors.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put the anchors back."""
        self.anchors.load_state_dict(state["anchors"])

    def _estimate(self, name: str, told_BT: Tensor, said_BT: Tensor, batch: Batch) -> Tensor:
        estimator = self.settings.anchors[name].estimator
        if estimator == "exact":
            return told_BT
        return sampled_kl(said_BT, told_BT, batch.columns["old"], batch.counted_BT, estimator)
