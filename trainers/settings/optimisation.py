"""What every learner needs to know, and what a policy can be kept close to."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from marl.config import Config
from marl.protocols import LearnerConfig

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
