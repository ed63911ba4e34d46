"""What every learner needs to know."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import ClassVar, Literal, Self

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from marl.protocols import LearnerConfig
from trainers.settings.fidelity import Fidelity

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
    optimizer: Literal["adamw", "adamw_8bit", "paged_adamw", "paged_adamw_8bit"] = "adamw"
    """AdamW (fused), or one of those of bitsandbytes: moments in 8 bits (2110.02861), or in pages that the GPU's memory
    spills to the host's. Weights in half precision have float32 masters with all of them."""
    gradient_checkpointing: bool = False
    """Keep each layer's input alone and recompute the layer in the backward pass: less memory, about a third slower."""
    compile: bool = False
    """Run each layer through torch.compile (any lengths): a slow first update, then faster ones."""
    aggregation: Aggregation = "token_mean"
    norm: PositiveInt | None = None
    """The constant (tokens) that `seq_mean_token_sum_norm` divides by."""
    epochs: PositiveInt = 1
    minibatches: PositiveInt = 1
    """Optimizer steps that an epoch's samples are split into."""
    micro_tokens: PositiveInt = 32768
    """Tokens in one forward pass, padding included. Changes memory and speed only: gradients are summed."""
    merge: bool = True
    """Compute identical samples once, with their summed weight."""
    packing: Literal["auto", "padded", "packed", "shared"] = "auto"
    """How texts lie in a forward pass: each in a padded line of its own; several in a line; or so that what texts begin
    with alike (a group's prompt, earlier turns of a dialogue) is computed once. `auto` takes what it expects to be
    fastest with this model and these texts; also, distinct prompts first and what follows them in a second pass.
    Changes speed and memory only."""

    fidelity: Fidelity | None = None
    """When to compare what this learner's model says of the sampled tokens with what the sampler said. None: never."""

    def missing(self) -> Iterable[str]:
        """The package that the optimizer comes from."""
        if self.optimizer != "adamw" and find_spec("bitsandbytes") is None:
            yield (
                f"optimizer: {self.optimizer!r} is one of the package bitsandbytes, which is not installed; "
                "pip install 'marl[bitsandbytes]', or choose adamw"
            )

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
