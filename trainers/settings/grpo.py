"""Settings of policy gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import PositiveFloat, model_validator

from marl.config import Sampling
from marl.protocols import Brief
from trainers.settings.optimisation import Anchor, Optimisation

if TYPE_CHECKING:
    from trainers.learner import Learner


class Grpo(Optimisation):
    """Clipped policy gradient on advantages that credit has already made relative, with KL anchors."""

    kind: str = "grpo"
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = 0.2
    entropy: float = 0.0
    """Coefficient of the entropy bonus (nats, over the whole vocabulary)."""
    old: Literal["sampler", "read"] = "sampler"
    """Whose log-probabilities the ratio is taken to: the sampler's, or the learner's own before the update."""
    truncated: Literal["refuse", "recompute"] = "refuse"
    """What to do about top-p and top-k: nothing, or truncate the learner's own distribution likewise."""
    reference: Anchor | None = None
    """Usually frozen: the KL penalty of GRPO (2402.03300) and RLHF."""
    magnet: Anchor | None = None
    """Usually frozen and annealed: that of magnetic mirror descent (2206.05825)."""
    proximal: Anchor | None = None
    """Usually refreshed: the policy a few updates ago, which keeps self-play from cycling."""

    @property
    def anchors(self) -> dict[str, Anchor]:
        """Those that are set, by name."""
        named = {"reference": self.reference, "magnet": self.magnet, "proximal": self.proximal}
        return {name: anchor for name, anchor in named.items() if anchor is not None}

    @model_validator(mode="after")
    def _check_estimators(self) -> Self:
        sampled = {name: a.estimator for name, a in self.anchors.items() if a.estimator != "exact"}
        if self.truncated == "recompute" and sampled:
            raise ValueError(
                f"truncated='recompute' needs estimator='exact': {sampled} would be biased, "
                "because the tokens were not drawn from the whole distribution"
            )
        return self

    def corrects(self, sampling: Sampling) -> bool:
        """Greedy tokens carry no gradient; truncated ones take `truncated: recompute`."""
        return sampling.temperature > 0 and (not sampling.truncated or self.truncated == "recompute")

    def build(self, brief: Brief) -> Learner:
        """A learner with its own copy of the weights."""
        from trainers.grpo import Surrogate
        from trainers.learner import Learner

        model = brief.source.model()
        return Learner(self, brief, model, Surrogate(self, model, brief.steps))
