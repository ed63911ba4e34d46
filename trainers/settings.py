"""Settings of the learners. Light: torch is imported in `build`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from marl.config import Config, Sampling
from marl.protocols import Brief, LearnerConfig

if TYPE_CHECKING:
    from trainers.learner import Learner

Aggregation = Literal["token_mean", "token_sum", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm"]


class Optimisation(LearnerConfig):
    """What every learner needs to know to turn a loss into steps of AdamW."""

    reads: ClassVar[frozenset[str]] = frozenset({"logprobs", "hidden"})
    lr: PositiveFloat = 1e-6
    lr_end: NonNegativeFloat | None = None
    """Of the run's last update; None ends at 0. Not with a constant schedule."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warm_up: NonNegativeInt = 0
    """Updates over which the learning rate rises to `lr`."""
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: NonNegativeFloat = 0.0
    max_norm: PositiveFloat = 1.0
    """Of the gradient; longer ones are shortened to it."""
    aggregation: Aggregation = "token_mean"
    norm: PositiveInt | None = None
    """The constant (tokens) that `seq_mean_token_sum_norm` divides by."""
    epochs: PositiveInt = 1
    minibatches: PositiveInt = 1
    """Optimizer steps that an epoch's samples are split into."""
    micro_tokens: PositiveInt = 32768
    """Padded tokens in one forward pass. Changes memory and speed only: gradients are summed."""
    merge: bool = True
    """Compute identical samples once, with their summed weight."""
    share_prompts: bool = True
    """Compute a prompt once for all its completions, where that saves time and the model allows it (an ordinary cache
    of keys and values, no dropout). Changes speed and memory only."""

    @model_validator(mode="after")
    def _check_norm(self) -> Self:
        if (self.aggregation == "seq_mean_token_sum_norm") != (self.norm is not None):
            raise ValueError(
                "norm must be given for aggregation 'seq_mean_token_sum_norm' and for no other, "
                f"got norm={self.norm} with aggregation={self.aggregation!r}"
            )
        return self

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.schedule == "constant" and self.lr_end is not None:
            raise ValueError(f"lr_end={self.lr_end} has no effect with schedule='constant'; choose linear or cosine")
        return self


class Anchor(Config):
    """A penalty on the KL divergence from the policy to a fixed or slowly moving copy of it."""

    coefficient: NonNegativeFloat
    final: NonNegativeFloat | None = None
    """The coefficient of the run's last update, reached linearly. None: it stays."""
    refresh: PositiveInt | None = None
    """Updates between copies of the current policy. None: the initial weights, for ever."""
    estimator: Literal["exact", "k2", "k3"] = "exact"
    """Over the whole vocabulary, or from the sampled token; k3 is corrected by the ratio. k1's gradient is noise."""


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


class Sft(Optimisation):
    """Imitation: raises the probability of every completion it is given, whoever said it and however it was sampled."""

    kind: str = "sft"
    judged: ClassVar[bool] = False

    def corrects(self, sampling: Sampling) -> bool:
        """Imitation does not ask how a token was chosen."""
        return True

    def build(self, brief: Brief) -> Learner:
        """A learner with its own copy of the weights."""
        from trainers.learner import Learner
        from trainers.sft import Imitation

        return Learner(self, brief, brief.source.model(), Imitation(merge=self.merge))
