"""Settings of every gradient learner, of the fidelity check, and of KL anchors."""

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from marl.core.config import Config
from marl.protocols import DataParallel, LearnerConfig
from marl.protocols.memory_estimates import (
    MemorySavingSetting,
    MemoryUse,
    ModelSize,
    Workload,
    adapter_base_memory_uses,
)
from marl.trainers.optim.memory_estimate import (
    FORWARD_LOGIT_TABLES,
    activation_bytes,
    largest_micro_batch_size,
    temporary_tensor_bytes,
    trained_weights_memory,
)

Aggregation = Literal["token_mean", "token_sum", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm"]
DecayRate = Annotated[float, Field(ge=0, lt=1)]
"""Share of a running average that an optimizer step keeps. At 1, the average would never change."""
Estimator = Literal["exact", "k2", "k3", "k3_is", "k1+", "k3+"]
ScheduleShape = Literal["linear", "cosine", "inverse_sqrt"]
"""Shape of a schedule from a first to a last value, as a function of the share of completed updates."""
LrSchedule = Literal["constant", "linear", "cosine", "inverse_sqrt"]
DEFAULT_HORIZON = 10_000
MIN_MICRO_TOKENS = 1024
"""Least `micro_tokens` that is proposed to save memory: forward passes of fewer tokens would leave a GPU idle."""


class FidelityCheck(Config):
    """Comparison of the learner's log-probabilities (nats) with the sampler's, on tokens of the newest weights.

    Default limits follow the precision of the learner's weights. In float32, `max` is 1e-4. In bfloat16 and float16,
    the limits are 5 times the rounding error that is estimated on the same tokens (trainers/README.md).
    """

    every: PositiveInt = 50
    """Number of updates from one fidelity check to the next; the first check precedes the first update."""
    max: PositiveFloat | None = None
    """Greatest allowed difference of one token's log-probabilities (nats). None: follows the weights' precision."""
    mean: PositiveFloat | None = None
    """Greatest allowed mean absolute difference (nats). None: follows the weights' precision."""


class KlAnchor(Config):
    """Penalty on the KL divergence (nats a token) of the policy from an anchor: a fixed or slowly updated copy of
    it."""

    example = "coefficient: 0.01"
    coefficient: NonNegativeFloat
    """Coefficient of the KL term in the loss. 0 without `final`: the loss has no KL term, and credit can read the
    anchor's log-probabilities."""
    final: NonNegativeFloat | None = None
    """Coefficient at the run's last update (default: `coefficient`)."""
    schedule: ScheduleShape = "linear"
    """Schedule from `coefficient` to `final`; `inverse_sqrt` falls as 1/sqrt(t), as in magnetic mirror descent
    (2206.05825)."""
    target: PositiveFloat | None = None
    """Target KL (nats a token), towards which each update adapts the coefficient (1909.08593). None: no adaptation."""
    horizon: PositiveInt = DEFAULT_HORIZON
    """Horizon of the adaptation to `target`, in samples: a larger one changes the coefficient more slowly."""
    refresh: PositiveInt | None = None
    """Number of updates after which the anchor is replaced by the current policy. None: the anchor keeps the initial
    weights."""
    estimator: Estimator = "exact"
    """Estimator of the KL. `exact` sums over the vocabulary; the others use the sampled token. `k1+` and `k3+` have the
    values of k1 and k3, and the gradient of `k2`. `k3_is` is k3 times the ratio to the policy that sampled. On fresh
    samples (`k3_is`: also on stale ones) all have the KL's expected gradient, except `k3`: that of KL(anchor ‖
    policy)."""
    clamp: PositiveFloat | None = None
    """Bound of the absolute KL estimate of one token (nats); no gradient flows beyond it. 10 in verl and OpenRLHF."""

    @field_validator("estimator", mode="before")
    @classmethod
    def _check_estimator_has_gradient(cls, estimator: Any) -> Any:
        if estimator in ("k1", "abs"):
            raise ValueError(
                f"estimator={estimator!r} is refused in a loss: k1 has no gradient in expectation, only noise, and abs "
                "is biased; choose exact, k2, k3_is or k1+, or put k1 into the reward (credit)"
            )
        return estimator

    @model_validator(mode="after")
    def _check_settings_have_effect(self) -> Self:
        if self.final is None and self.schedule != "linear":
            raise ValueError(f"schedule={self.schedule!r} has no effect without final; give one, or remove it")
        if self.schedule == "inverse_sqrt" and not 0 < (self.final or 0.0) <= self.coefficient:
            raise ValueError(
                f"schedule='inverse_sqrt' falls from coefficient to a final above 0, got "
                f"coefficient={self.coefficient} with final={self.final}"
            )
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
    def adds_kl_loss_term(self) -> bool:
        """True if the loss ever has the anchor's KL term."""
        return self.coefficient > 0 or bool(self.final)


class ScheduledLearnerConfig(LearnerConfig):
    """Learning rate of a learner, and how it changes during the run."""

    lr: PositiveFloat = 1e-6
    """Learning rate at the end of `warm_up`, from which `schedule` starts."""
    lr_end: NonNegativeFloat | None = None
    """Learning rate of the run's last update (default: 0). Must be above 0 with `inverse_sqrt`; refused with
    `constant`."""
    schedule: LrSchedule = "constant"
    """Schedule of the learning rate from `lr` to `lr_end`; `inverse_sqrt` falls as 1/sqrt(t) (2206.05825)."""
    warm_up: NonNegativeInt = 0
    """Number of updates over which the learning rate rises linearly to `lr`."""

    @model_validator(mode="after")
    def _check_lr_end_fits_schedule(self) -> Self:
        if self.schedule == "constant" and self.lr_end is not None:
            raise ValueError(f"lr_end={self.lr_end} has no effect with schedule='constant'; choose another")
        if self.schedule == "inverse_sqrt" and not 0 < (self.lr_end or 0.0) <= self.lr:
            raise ValueError(
                f"schedule='inverse_sqrt' falls from lr={self.lr} to an lr_end above 0, got lr_end={self.lr_end}"
            )
        return self


class GradientLearnerConfig(ScheduledLearnerConfig):
    """Settings of every gradient learner: how losses of tokens become steps of AdamW."""

    example = "lr: 1.0e-5"
    readable_fields: ClassVar[frozenset[str]] = frozenset({"logprobs", "hidden"})
    betas: tuple[DecayRate, DecayRate] = (0.9, 0.999)
    """AdamW's decay rates (from 0 to below 1) of the running averages of gradients and of squared gradients."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's weight decay: each step shrinks every weight by this factor times the learning rate."""
    max_norm: PositiveFloat = 1.0
    """Maximum gradient norm; larger gradients are scaled down to it."""
    optimizer: Literal["adamw", "adamw_8bit", "paged_adamw", "paged_adamw_8bit"] = "adamw"
    """Torch's fused AdamW, or AdamW of bitsandbytes with 8-bit moments (2110.02861) or with moments paged between GPU
    and host memory. With each of them, half-precision weights have float32 masters."""
    gradient_checkpointing: bool = False
    """Save only each layer's input and recompute the layer in the backward pass: less memory, about a third slower."""
    compile: bool = False
    """Compile each layer with torch.compile for all lengths: the first update is slow, later ones are faster."""
    aggregation: Aggregation = "token_mean"
    """Aggregation of token losses: their mean or sum over all tokens (`token_…`), or the mean over rows (`seq_mean_…`)
    of each row's sum, mean, or sum divided by `norm`."""
    norm: PositiveInt | None = None
    """Constant (tokens) by which `seq_mean_token_sum_norm` divides each row's sum."""
    epochs: PositiveInt = 1
    """Number of passes over each step's samples."""
    minibatches: PositiveInt = 1
    """Number of optimizer steps in an epoch, each on an equal share of the samples."""
    micro_tokens: PositiveInt = 32768
    """Maximum number of tokens in one forward pass, padding included. Affects memory and speed, not results."""
    merge: bool = True
    """Compute samples with identical tokens once, with their summed weight."""
    packing: Literal["auto", "padded", "packed", "shared"] = "auto"
    """Layout of rows in a forward pass, which affects speed and memory only. `padded`: one padded sequence per row.
    `packed`: several rows in one sequence. `shared`: shared prefixes, such as a group's prompt, are computed once.
    `auto`: the layout with the least predicted time, which may be distinct prompts in one pass, completions in another.
    """
    fidelity: FidelityCheck | None = None
    """Comparison of the learner's log-probabilities of sampled tokens with the sampler's. None: no comparison."""

    def unmet_requirements(self) -> Iterable[str]:
        """Yield an error if the optimizer needs bitsandbytes, but the package is not installed."""
        if self.optimizer != "adamw" and find_spec("bitsandbytes") is None:
            yield (
                f"optimizer: {self.optimizer!r} is one of the package bitsandbytes, which is not installed; "
                "pip install 'marl-llm[bitsandbytes]', or choose adamw"
            )

    def data_parallel_error(self, strategy: DataParallel) -> str | None:
        if strategy == "fsdp" and self.optimizer != "adamw":
            return f"optimizer {self.optimizer!r} steps whole weights, not shards; choose optimizer adamw, or ddp"
        return None

    def memory_uses(self, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        yield from adapter_base_memory_uses(size)
        yield from trained_weights_memory(size, self.optimizer)
        yield from self.activation_memory(size, work)

    def activation_memory(self, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        """Yield the memory of one forward and backward pass: activations and temporary tensors."""
        micro, packing = largest_micro_batch_size(work, self.micro_tokens, self.packing, self.minibatches), self.packing
        saved = activation_bytes(size, micro.tokens, checkpointing=self.gradient_checkpointing, packing=packing)
        yield MemoryUse("activations", saved, "learn")
        yield MemoryUse(
            "distributions or their gradients", temporary_tensor_bytes(size, micro, self.logit_table_count), "learn"
        )

    @property
    def logit_table_count(self) -> float:
        """Number of float32 tables of logits (tokens times vocabulary) held at once."""
        return FORWARD_LOGIT_TABLES

    def memory_saving_settings(self) -> Iterator[MemorySavingSetting]:
        if self.micro_tokens > MIN_MICRO_TOKENS:
            yield MemorySavingSetting("micro_tokens", max(MIN_MICRO_TOKENS, self.micro_tokens // 2))
        if not self.gradient_checkpointing:
            yield MemorySavingSetting("gradient_checkpointing", True)
        if self.optimizer == "adamw":
            yield MemorySavingSetting("optimizer", "adamw_8bit", keeps_results=False)

    @model_validator(mode="after")
    def _check_settings_have_effect(self) -> Self:
        if (self.aggregation == "seq_mean_token_sum_norm") != (self.norm is not None):
            raise ValueError(
                "norm must be given for aggregation 'seq_mean_token_sum_norm' and for no other, "
                f"got norm={self.norm} with aggregation={self.aggregation!r}"
            )
        return self
