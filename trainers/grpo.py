"""GRPO (2402.03300) and its relatives: a clipped surrogate, KL anchors and an entropy bonus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from marl.types import Sample
from trainers.anchors import Anchors
from trainers.batches import Batch, chosen_logprobs, vocabulary_logprobs
from trainers.losses import clipped_surrogate, entropy, exact_kl, sampled_kl, sampler_kl
from trainers.objective import Terms
from trainers.rows import Row, judged_rows

if TYPE_CHECKING:
    from trainers.settings import Grpo


class Surrogate:
    """Loss of one token: -min(r A, clip(r) A) + Σ_k β_k KL(π ‖ anchor_k) - c H.

    Anchors and entropy look at the whole vocabulary at the sampling temperature, top-p and top-k aside.
    """

    def __init__(self, settings: Grpo, model: nn.Module, steps: int) -> None:
        self.settings = settings
        self.anchors = Anchors(settings.anchors, model, steps)
        self.needs = frozenset({"logprobs"} if settings.old == "read" else ())
        self.stats = (
            "clip_fraction",
            "ratio_mean",
            "entropy",
            "kl_sampler",
            *(f"kl_{name}" for name in settings.anchors),
        )

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """Samples with equal tokens and equal signs become one row."""
        return judged_rows(samples, self.settings.old, self.settings.merge)

    def terms(self, model: nn.Module, batch: Batch, update: int) -> Terms:
        """The loss of every token of one forward pass."""
        clip = (self.settings.clip_low, self.settings.clip_high)
        logprobs_NV = vocabulary_logprobs(model, batch)
        said_BT = chosen_logprobs(logprobs_NV, batch)
        policy_BT, clipped_BT = clipped_surrogate(said_BT, batch.old_BT, batch.advantages_BT, batch.mask_BT, clip)
        kl = self._kl(logprobs_NV, said_BT, batch)
        entropy_BT = batch.spread(self._entropy(logprobs_NV))
        penalties = [self.anchors.coefficient(name, update) * kl_BT for name, kl_BT in kl.items()]
        if self.settings.entropy:
            penalties.append(-self.settings.entropy * entropy_BT)
        ratio_BT = (said_BT.detach() - batch.old_BT).exp()
        off_BT = sampler_kl(batch.sampled_BT, said_BT, batch.mask_BT)
        stats = (clipped_BT.float(), ratio_BT, entropy_BT, off_BT, *kl.values())
        return Terms(policy_BT, sum(penalties[1:], penalties[0]) if penalties else None, stats)

    def finish(self, done: int, model: nn.Module) -> None:
        """Refresh the anchors that are due."""
        self.anchors.refresh(done, model)

    def state_dict(self) -> dict[str, Any]:
        """The anchors."""
        return {"anchors": self.anchors.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put the anchors back."""
        self.anchors.load_state_dict(state["anchors"])

    def _kl(self, logprobs_NV: Tensor, said_BT: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {
            name: self._estimate(name, logprobs_NV, anchor_NV, said_BT, batch)
            for name, anchor_NV in self.anchors.logprobs(batch).items()
        }

    def _estimate(self, name: str, logprobs_NV: Tensor, anchor_NV: Tensor, said_BT: Tensor, batch: Batch) -> Tensor:
        estimator = self.settings.anchors[name].estimator
        if estimator == "exact":
            return batch.spread(exact_kl(logprobs_NV, anchor_NV))
        anchor_BT = batch.spread(anchor_NV.gather(1, batch.tokens_N[:, None]).squeeze(1))
        return sampled_kl(said_BT, anchor_BT, batch.old_BT, batch.mask_BT, estimator)

    def _entropy(self, logprobs_NV: Tensor) -> Tensor:
        # Without a bonus it is only a metric, whose [N, V] intermediates need not be kept for a backward pass.
        with torch.set_grad_enabled(bool(self.settings.entropy) and torch.is_grad_enabled()):
            return entropy(logprobs_NV)
