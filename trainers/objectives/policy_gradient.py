"""Policy gradients: GRPO (2402.03300) and its relatives, with KL anchors and an entropy bonus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from marl.types import Metrics, Sample
from trainers.batching.batches import Batch
from trainers.batching.rows import Row, judged_rows
from trainers.forward.token_outputs import Asked, Said, said
from trainers.losses.aggregation import Totals, masked_sum, row_scale
from trainers.losses.penalties import sampled_kl, sampler_kl
from trainers.objectives.objective import Objective, Terms
from trainers.objectives.policy_losses import WHOLE, policy_loss, weighted, weights
from trainers.optim.anchors import Anchors
from trainers.optim.entropy_bonus import Bonus

if TYPE_CHECKING:
    from trainers.settings import Grpo


class Surrogate(Objective):
    """Loss of one token: w L(r, A) + Σ_k β_k KL(π ‖ anchor_k) - c H: L is the settings' `loss`, w corrects a mismatch.

    Anchors and entropy look at the whole vocabulary at the sampling temperature, top-p and top-k aside. A learner with
    more to minimise calls `spoken`, then adds to the terms of `judged`.
    """

    parts = ("policy_loss",)

    def __init__(self, settings: Grpo, model: nn.Module, steps: int) -> None:
        self.settings = settings
        self.anchors = Anchors(settings.anchors, model, steps)
        self.bonus = Bonus(settings.entropy, settings.entropy_control)
        self.needs = frozenset({"logprobs"} if settings.old == "read" else ())
        penalties = self.anchors.penalties
        exact = frozenset(name for name in penalties if settings.anchors[name].estimator == "exact")
        self._asked = Asked(entropy=True, differentiable=self.bonus.ever, kl=exact)
        self._corrects = settings.mismatch is not None or settings.opsm is not None
        self._leaves_out = settings.filter_cut or (settings.mismatch and settings.mismatch.denominator == "kept")
        self._update, self._given, self._kept = 0, 0, 0
        told = ("weight", "rejected") if self._corrects else ()
        self.stats = ("clip_fraction", "ratio_mean", "entropy", "kl_sampler", *told, *(f"kl_{n}" for n in penalties))

    def start(self, update: int) -> None:
        """Anchors' coefficients follow the update."""
        self._update, self._given, self._kept = update, 0, 0

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """Samples with equal tokens and equal signs become one row. What is filtered is in no denominator either."""
        settings = self.settings
        judged = [s for s in samples if s.finish != "length"] if settings.filter_cut else samples
        rows = judged_rows(judged, settings.old, settings.merge, settings.loss in WHOLE or settings.opsm is not None)
        if settings.mismatch and settings.old == "read":
            rows = weighted(rows, settings.mismatch)
        self._given += sum(len(sample.token_ids) for sample in samples)
        self._kept += sum(row.count * row.counts for row in rows)
        return rows

    def terms(self, model: nn.Module, batch: Batch, totals: Totals) -> Terms:
        """The loss of every token of one forward pass."""
        return self.judged(self.spoken(model, batch), batch, totals)

    def spoken(self, model: nn.Module, batch: Batch) -> Said:
        """The forward pass: all that the loss asks of the model, and its states for who learns beside it (a critic)."""
        return said(model, batch, self._asked, self.anchors.penalties)

    def judged(self, spoken: Said, batch: Batch, totals: Totals) -> Terms:
        """The loss of what was said."""
        said_BT, counted_BT, old_BT = spoken.logprobs_BT, batch.counted_BT, batch.columns["old"]
        policy_BT, clipped_BT = policy_loss(self.settings, said_BT, batch)
        told: tuple[Tensor, ...] = ()
        if (weights_BT := weights(self.settings, said_BT, batch)) is not None:
            policy_BT, told = policy_BT * weights_BT, (weights_BT, (weights_BT == 0).float())
        scale_B = row_scale(self.settings.aggregation, batch.lengths_B, totals, self.settings.norm)
        policy_B = scale_B * masked_sum(policy_BT, counted_BT)
        kl = {name: self._estimate(name, told_BT, said_BT, batch) for name, told_BT in (spoken.anchors or {}).items()}
        loss_B = policy_B + scale_B * batch.counts_B * self._penalty(spoken, kl, counted_BT)
        assert spoken.entropy_BT is not None
        off_BT = sampler_kl(batch.columns["sampled"], said_BT, counted_BT)
        ratio_BT = (said_BT.detach() - old_BT).exp()
        stats = (clipped_BT.float(), ratio_BT, spoken.entropy_BT, off_BT, *told, *kl.values())
        return Terms(loss_B, {"policy_loss": policy_B.sum()}, stats)

    def read(self, spoken: Said, batch: Batch, wanted: frozenset[str]) -> dict[str, Tensor]:
        """`reference`: its log-probabilities of the tokens under the sampling distribution, for KL in the reward."""
        if "reference" not in wanted:
            return {}
        return {"reference": said(self.anchors.models["reference"], batch).logprobs_BT}

    def finish(self, done: int, model: nn.Module, metrics: Metrics) -> Metrics:
        """Steer coefficients by what was measured, and refresh the anchors that are due."""
        found = {"left_out": 1 - self._kept / self._given if self._given else 0.0} if self._leaves_out else {}
        if metrics["rows"]:
            found |= self.anchors.steer(metrics) | self.bonus.steer(metrics["entropy"])
        self.anchors.refresh(done, model)
        return found

    def state_dict(self) -> dict[str, Any]:
        """The anchors, and where steered coefficients stand."""
        steered = {"anchors": self.anchors.steered, "entropy": self.bonus.state_dict()}
        return {"anchors": self.anchors.state_dict(), "steered": steered}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put them back."""
        self.anchors.load_state_dict(state["anchors"])
        self.anchors.restore_steered(state["steered"]["anchors"])
        self.bonus.load_state_dict(state["steered"]["entropy"])

    def _penalty(self, spoken: Said, kl: Mapping[str, Tensor], counted_BT: Tensor) -> Tensor:
        """[B] of one sample: weighted KL divergences less the entropy bonus, summed over tokens."""
        penalty_B = counted_BT.new_zeros(len(counted_BT), dtype=spoken.logprobs_BT.dtype)
        for name, kl_BT in kl.items():
            penalty_B = penalty_B + self.anchors.coefficient(name, self._update) * masked_sum(kl_BT, counted_BT)
        if self.bonus.coefficient and spoken.entropy_BT is not None:
            penalty_B = penalty_B - self.bonus.coefficient * masked_sum(spoken.entropy_BT, counted_BT)
        return penalty_B

    def _estimate(self, name: str, told_BT: Tensor, said_BT: Tensor, batch: Batch) -> Tensor:
        anchor, old_BT = self.settings.anchors[name], batch.columns["old"]
        if anchor.estimator == "exact":
            return told_BT
        return sampled_kl(said_BT, told_BT, old_BT, batch.counted_BT, anchor.estimator, anchor.clamp)
