"""Settings that every learner has, and those of the fidelity check and of KL anchors."""

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import Any, ClassVar, Literal, Self

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from marl.core.config import Config
from marl.protocols import DataParallel, LearnerConfig
from marl.protocols.memory_estimates import MemorySaver, MemoryUse, ModelSize, Workload, base_uses
from marl.trainers.optim.memory_estimate import (
    FORWARD_LOGIT_TABLES,
    activation_bytes,
    micro_batch,
    trained_weights_memory,
    transient_bytes,
)

Aggregation = Literal["token_mean", "token_sum", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm"]
Estimator = Literal["exact", "k2", "k3", "k3_is", "k1+", "k3+"]
ScheduleShape = Literal["linear", "cosine", "inverse_sqrt"]
"""Schedule from a first value to a last one, as a function of the share of updates that are over."""
LrSchedule = Literal["constant", "linear", "cosine", "inverse_sqrt"]
DEFAULT_HORIZON = 10_000
MIN_MICRO_TOKENS = 1024
"""Fewer tokens in a pass would leave a GPU idle; a longer text is computed whatever the setting says."""


class FidelityCheck(Config):
    """Comparison of the learner's log-probabilities (nats) with the sampler's, on tokens of the newest weights.

    Thresholds that are not given follow the precision of the learner's weights: `max` 1e-4 in float32; in bfloat16 and
    float16 2.5 times what other roundings alone change on the same tokens, which is measured (trainers/README.md).
    """

    every: PositiveInt = 50
    """Updates between two comparisons; the first is before the first update."""
    max: PositiveFloat | None = None
    """Greatest difference of one token."""
    mean: PositiveFloat | None = None
    """Greatest mean of the differences' sizes."""


class KlAnchor(Config):
    """Penalty on the KL divergence (nats a token) from the policy to a fixed or slowly moving copy of it."""

    example = "coefficient: 0.01"
    coefficient: NonNegativeFloat
    """Factor of the KL in the loss. With 0, and nothing that would change it, it is no part of the loss and only read
    by credit."""
    final: NonNegativeFloat | None = None
    """Coefficient of the run's last update. None: it stays."""
    schedule: ScheduleShape = "linear"
    """Schedule from `coefficient` to `final`; `inverse_sqrt` falls as 1/sqrt(t), as in magnetic mirror descent
    (2206.05825)."""
    target: PositiveFloat | None = None
    """KL (nats a token) that the coefficient is steered to from update to update (1909.08593). None: it is not."""
    horizon: PositiveInt = DEFAULT_HORIZON
    """Samples over which a steered coefficient changes by as much as it may."""
    refresh: PositiveInt | None = None
    """Updates between copies of the current policy. None: the initial weights, for ever."""
    estimator: Estimator = "exact"
    """Estimate of the KL: over the whole vocabulary, or from the sampled token: `k2`; `k3_is`, corrected by the ratio
    to the policy that sampled; `k1+` and `k3+`, values of k1 and k3 with k2's gradient. All have the KL's gradient in
    expectation on fresh samples (`k3_is` on older ones, too) but plain `k3`, whose gradient is that of KL(anchor ‖
    policy)."""
    clamp: PositiveFloat | None = None
    """Greatest estimate (nats) of one token, either sign, with no gradient beyond: 10 in verl and OpenRLHF."""

    @field_validator("estimator", mode="before")
    @classmethod
    def _check_gradient(cls, estimator: Any) -> Any:
        if estimator in ("k1", "abs"):
            raise ValueError(
                f"estimator={estimator!r} is refused in a loss: k1 has no gradient in expectation, only noise, and abs "
                "is biased; choose exact, k2, k3_is or k1+, or put k1 into the reward (credit)"
            )
        return estimator

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.final is None and self.schedule != "linear":
            raise ValueError(f"schedule={self.schedule!r} has no effect without final; give one, or remove it")
        if self.schedule == "inverse_sqrt" and not 0 < (self.final or 0.0) <= self.coefficient:
            raise ValueError(
                f"schedule='inverse_sqrt' falls from coefficient to a final above 0, got "
                f"coefficient={self.coefficient} with final={self.final}"
            )
        return self

    @model_validator(mode="after")
    def _check_steering(self) -> Self:
        if self.target is None:
            if self.horizon != DEFAULT_HORIZON:
                raise ValueError(f"horizon={self.horizon} has no effect without a target; give one, or remove it")
        elif self.final is not None or self.coefficient == 0:
            raise ValueError(
                f"target={self.target} steers the coefficient from a start above 0, got coefficient={self.coefficient} "
                f"with final={self.final}; give a coefficient above 0 and no final"
            )
        if self.clamp is not None and self.estimator == "exact":
            raise ValueError(f"clamp={self.clamp} has no effect with estimator='exact'; choose a sampled one")
        return self

    @property
    def is_in_loss(self) -> bool:
        """Return True if the term is ever part of the loss."""
        return self.coefficient > 0 or bool(self.final)


class GradientLearnerConfig(LearnerConfig):
    """Settings of every learner: how a loss becomes steps of AdamW."""

    example = "lr: 1.0e-5"
    readable_fields: ClassVar[frozenset[str]] = frozenset({"logprobs", "hidden"})
    lr: PositiveFloat = 1e-6
    """Learning rate, at its height."""
    lr_end: NonNegativeFloat | None = None
    """Learning rate of the run's last update. None: 0. Not with a constant schedule; must be given, above 0, with
    `inverse_sqrt`."""
    schedule: LrSchedule = "constant"
    """Schedule of the learning rate after `warm_up`; `inverse_sqrt` falls as 1/sqrt(t) (2206.05825)."""
    warm_up: NonNegativeInt = 0
    """Updates over which the learning rate rises to `lr`."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of AdamW's averages of gradients and of their squares."""
    weight_decay: NonNegativeFloat = 0.0
    """Share of each weight, times the learning rate, that is taken off it at every step."""
    max_norm: PositiveFloat = 1.0
    """Norm that longer gradients are clipped to."""
    optimizer: Literal["adamw", "adamw_8bit", "paged_adamw", "paged_adamw_8bit"] = "adamw"
    """AdamW (fused), or one of bitsandbytes': moments in 8 bits (2110.02861), or in pages that spill from the GPU's
    memory to the host's. Weights in half precision have float32 masters with all of them."""
    gradient_checkpointing: bool = False
    """Keep each layer's input alone and recompute the layer in the backward pass: less memory, about a third slower."""
    compile: bool = False
    """Run each layer through torch.compile (any lengths): a slow first update, then faster ones."""
    aggregation: Aggregation = "token_mean"
    """Way in which losses of tokens become one: `token_mean`, `token_sum` over all tokens; or over the rows
    (`seq_mean`) of each row's sum, mean, or sum divided by `norm`."""
    norm: PositiveInt | None = None
    """The constant (tokens) that `seq_mean_token_sum_norm` divides by."""
    epochs: PositiveInt = 1
    """Times that each step's samples are learnt from."""
    minibatches: PositiveInt = 1
    """Optimizer steps that an epoch's samples are split into."""
    micro_tokens: PositiveInt = 32768
    """Tokens in one forward pass, padding included. Changes memory and speed only: gradients are summed."""
    merge: bool = True
    """Compute identical samples once, with their summed weight."""
    packing: Literal["auto", "padded", "packed", "shared"] = "auto"
    """Layout of texts in a forward pass: each in a padded sequence of its own; several in a sequence; or with shared
    prefixes (a group's prompt, earlier turns of a dialogue) computed once. `auto` takes what it expects to be fastest
    with this model and these texts; also, distinct prompts first and their completions in a second pass. Changes speed
    and memory only."""

    fidelity: FidelityCheck | None = None
    """Comparison of this learner's log-probabilities of the sampled tokens with the sampler's. None: never."""

    def unmet_requirements(self) -> Iterable[str]:
        """Yield a message if the optimizer's package is not installed."""
        if self.optimizer != "adamw" and find_spec("bitsandbytes") is None:
            yield (
                f"optimizer: {self.optimizer!r} is one of the package bitsandbytes, which is not installed; "
                "pip install 'marl-llm[bitsandbytes]', or choose adamw"
            )

    def parallel_obstacle(self, way: DataParallel) -> str | None:
        if way == "fsdp" and self.optimizer != "adamw":
            return f"optimizer {self.optimizer!r} steps whole weights, not shards; choose optimizer adamw, or ddp"
        return None

    def memory(self, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        yield from base_uses(size)
        yield from trained_weights_memory(size, self.optimizer)
        yield from self.activation_memory(size, work)

    def activation_memory(self, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        """Yield the memory in use during one forward and backward pass."""
        micro, packing = micro_batch(work, self.micro_tokens, self.packing, self.minibatches), self.packing
        saved = activation_bytes(size, micro.tokens, checkpointing=self.gradient_checkpointing, packing=packing)
        yield MemoryUse("activations", saved, "learn")
        yield MemoryUse("distributions or their gradients", transient_bytes(size, micro, self.logit_tables), "learn")

    @property
    def logit_tables(self) -> float:
        """Return the number of (tokens, vocabulary) tensors held at once."""
        return FORWARD_LOGIT_TABLES

    def memory_savers(self) -> Iterator[MemorySaver]:
        if self.micro_tokens > MIN_MICRO_TOKENS:
            yield MemorySaver("micro_tokens", max(MIN_MICRO_TOKENS, self.micro_tokens // 2))
        if not self.gradient_checkpointing:
            yield MemorySaver("gradient_checkpointing", True)
        if self.optimizer == "adamw":
            yield MemorySaver("optimizer", "adamw_8bit", keeps_results=False)

    @model_validator(mode="after")
    def _check_effects(self) -> Self:
        if (self.aggregation == "seq_mean_token_sum_norm") != (self.norm is not None):
            raise ValueError(
                "norm must be given for aggregation 'seq_mean_token_sum_norm' and for no other, "
                f"got norm={self.norm} with aggregation={self.aggregation!r}"
            )
        if self.schedule == "constant" and self.lr_end is not None:
            raise ValueError(f"lr_end={self.lr_end} has no effect with schedule='constant'; choose another")
        if self.schedule == "inverse_sqrt" and not 0 < (self.lr_end or 0.0) <= self.lr:
            raise ValueError(
                f"schedule='inverse_sqrt' falls from lr={self.lr} to an lr_end above 0, got lr_end={self.lr_end}"
            )
        return self
