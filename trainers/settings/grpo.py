"""Settings of policy gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from marl.config import Config, Sampling
from marl.protocols import Brief
from trainers.settings.anchors import Anchor
from trainers.settings.fidelity import Fidelity
from trainers.settings.mismatch import Mismatch
from trainers.settings.optimisation import Optimisation

if TYPE_CHECKING:
    from trainers.learner import Learner

Loss = Literal["clip", "gspo", "gspo_token", "sequence", "cispo", "sapo", "gmpo", "reinforce"]

CLIPS = {
    "clip": (0.2, 0.2),
    "gspo": (3e-4, 4e-4),
    "gspo_token": (3e-4, 4e-4),
    "sequence": (0.2, 0.2),
    "gmpo": (0.4, 0.4),
}
"""Loss -> how far below and above 1 its ratio may be (`gmpo`: how far from 0 its log, in nats), as in its paper."""
OPTIONS = {
    **dict.fromkeys(CLIPS, frozenset({"clip_low", "clip_high"})),
    "clip": frozenset({"clip_low", "clip_high", "dual_clip", "max_log_ratio"}),
    "cispo": frozenset({"ratio_low", "ratio_high"}),
    "sapo": frozenset({"tau_positive", "tau_negative", "max_log_ratio"}),
    "reinforce": frozenset(),
}
"""Loss -> the options that it has."""


class EntropyControl(Config):
    """Steers the coefficient of the entropy bonus from update to update (Skywork-OR1, 2505.22312; TRL)."""

    target: PositiveFloat
    """Entropy (nats a token). The bonus is given while the last one measured was at or under it."""
    step: PositiveFloat = 0.005
    """Up while the entropy is at or under the target, else down."""
    low: NonNegativeFloat = 0.0
    high: PositiveFloat = 1.0


class Grpo(Optimisation):
    """Policy gradient on advantages that credit has already made relative, with KL anchors. Other kinds are presets."""

    kind: str = "grpo"
    loss: Loss = "clip"
    """Of a token: PPO's `clip`; of a row: `gspo` (or `gspo_token`, for advantages that differ within a row), `sequence`
    (RLOO's unnormalised ratio), `gmpo`; without losing gradients: `cispo`, `sapo`; without a ratio: `reinforce`."""
    clip_low: PositiveFloat | None = None
    clip_high: PositiveFloat | None = None
    """Distances of the ratio from 1: .2 and .2, for `gspo` 3e-4 and 4e-4; of its log from 0 for `gmpo`: .4 and .4."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Greatest ratio of tokens with a negative advantage (verl: 3). None: there is none."""
    ratio_low: NonNegativeFloat | None = None
    ratio_high: PositiveFloat | None = None
    """Least and greatest ratio of `cispo`, absolute: 0 and 5."""
    tau_positive: PositiveFloat | None = None
    tau_negative: PositiveFloat | None = None
    """Temperatures of `sapo` for advantages above 0 and for others: 1 and 1.05."""
    max_log_ratio: PositiveFloat | None = None
    """Log-ratios (nats) are brought within it, without gradient beyond: 20 in verl and OpenRLHF. None: they are not."""
    filter_cut: bool = False
    """Leave completions that were cut off for their length out of the loss and its denominators (DAPO, 2503.14476)."""
    entropy: float = 0.0
    """Coefficient of the entropy bonus (nats, over the whole vocabulary), aggregated like the loss."""
    entropy_control: EntropyControl | None = None
    """Steers the coefficient, from `entropy` on."""
    old: Literal["sampler", "read"] = "sampler"
    """Whose log-probabilities the ratio is taken to: the sampler's, or the learner's own before the update."""
    mismatch: Mismatch | None = None
    """Corrects for the sampler's own numbers. With `old: read` weights come from the readings (decoupled PPO); with
    `old: sampler`, whose ratio holds the mismatch already, from the update's own pass: rejection, or `reinforce`."""
    opsm: PositiveFloat | None = None
    """Rows of negative advantage whose mean of log μ - log π (nats) is greater are left out of the policy's loss
    (off-policy sequence masking, 2512.02556; 1e-4 in slime). None: they are not."""
    truncated: Literal["refuse", "recompute"] = "refuse"
    """What to do about top-p and top-k: nothing, or truncate the learner's own distribution likewise."""
    reference: Anchor | None = None
    """Usually frozen: the KL penalty of GRPO (2402.03300) and RLHF. Credit can read its log-probabilities."""
    magnet: Anchor | None = None
    """Usually frozen and annealed: that of magnetic mirror descent (2206.05825)."""
    proximal: Anchor | None = None
    """Usually refreshed: the policy a few updates ago, which keeps self-play from cycling."""
    fidelity: Fidelity | None = Fidelity()

    @property
    def anchors(self) -> dict[str, Anchor]:
        """Those that are set, by name."""
        named = {"reference": self.reference, "magnet": self.magnet, "proximal": self.proximal}
        return {name: anchor for name, anchor in named.items() if anchor is not None}

    @property
    def readable(self) -> frozenset[str]:
        """With a reference, its log-probabilities, too."""
        return super().readable | (frozenset({"reference"}) if self.reference else frozenset())

    @property
    def clip(self) -> tuple[float, float]:
        """`clip_low` and `clip_high`, or the loss's own."""
        low, high = CLIPS[self.loss]
        return self.clip_low or low, self.clip_high or high

    @property
    def bounds(self) -> tuple[float, float]:
        """`ratio_low` and `ratio_high`, or what CISPO (2506.13585) and ScaleRL use."""
        return self.ratio_low or 0.0, self.ratio_high or 5.0

    @property
    def temperatures(self) -> tuple[float, float]:
        """`tau_positive` and `tau_negative`, or SAPO's own (2511.20347)."""
        return self.tau_positive or 1.0, self.tau_negative or 1.05

    @model_validator(mode="after")
    def _check_loss(self) -> Self:
        options = frozenset().union(*OPTIONS.values())
        for name, value in self:
            if name in options - OPTIONS[self.loss] and value is not None:
                users = ", ".join(loss for loss, own in OPTIONS.items() if name in own)
                raise ValueError(f"{name}={value} has no effect with loss={self.loss!r}; it is an option of {users}")
        if self.loss == "cispo" and self.bounds[0] >= self.bounds[1]:
            raise ValueError(f"ratio_low must be below ratio_high, got {self.bounds[0]} and {self.bounds[1]}")
        return self

    @model_validator(mode="after")
    def _check_mismatch(self) -> Self:
        if self.mismatch is None or self.old == "read":
            return self
        if self.mismatch.weighs and self.loss != "reinforce":
            raise ValueError(
                f"mismatch.kind={self.mismatch.kind!r} would count the mismatch twice: with old='sampler' the ratio of "
                f"loss={self.loss!r} holds it already; choose old='read', kind='reject' or loss='reinforce'"
            )
        if self.mismatch.denominator == "kept":
            raise ValueError(
                "mismatch.denominator='kept' needs old='read': with old='sampler' it is known only when the loss is "
                "computed which tokens are kept"
            )
        return self

    @model_validator(mode="after")
    def _check_estimators(self) -> Self:
        sampled = {n: a.estimator for n, a in self.anchors.items() if a.estimator != "exact" and a.penalises}
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
        from trainers.learner import Learner
        from trainers.objectives.policy_gradient import Surrogate

        model = brief.source.model()
        return Learner(self, brief, model, Surrogate(self, model, brief.steps))
