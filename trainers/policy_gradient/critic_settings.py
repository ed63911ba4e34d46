"""Settings of critics, which estimate values beside a policy that learns."""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import NonNegativeInt, PositiveFloat, model_validator

from marl.core.config import Config
from marl.models.pretrained import Pretrained
from marl.protocols.memory_estimates import MemorySaver, MemoryUse, ModelSize, Workload
from marl.trainers.optim.memory_estimate import second_model_memory
from marl.trainers.optim.settings import GradientLearnerConfig


class CriticConfig(Config):
    """Critic of a learner: where it reads states from, and how it learns.

    The loss of one value is 1/2 (v - target)^2, clipped. The critic's loss is the mean over all tokens with a target,
    whatever the policy's aggregation. Targets come from credit (`Advantage.returns`): one a token, or one a turn; a
    turn's target is for the state before its first token, and the critic then learns from no other token.
    """

    where: Literal["separate", "trunk"] = "separate"
    """`separate`: a model of its own, which starts as a copy of the policy (verl, OpenRLHF, TRL); if the policy is an
    adapter, a second adapter on the same base, which is loaded once. `trunk`: only a head on the policy's own last
    hidden states, which are computed anyway."""
    model: Pretrained | None = None
    """Other weights for a separate critic to start from, with the policy's tokenizer. None: the policy's own."""
    detach: bool = False
    """Stop the values' gradient at a trunk's head, so that it never moves the policy."""
    lr: PositiveFloat | None = None
    """Learning rate of the head and of a separate model, at the height of the schedule, which is the policy's. None:
    the policy's."""
    coefficient: PositiveFloat = 0.1
    """Factor of the value loss, added to the policy's. A separate critic barely notices: AdamW undoes constant
    factors."""
    clip: PositiveFloat | None = 0.5
    """Distance from the value read before the update beyond which the loss no longer falls (OpenAI's `baselines`; verl
    and OpenRLHF: 0.5). None: no such limit, and no values need to be read for the loss."""
    warm_up: NonNegativeInt = 0
    """Updates in which the critic alone learns; neither the policy nor its trunk changes at all."""

    @model_validator(mode="after")
    def _check_effects(self) -> Self:
        if self.where == "trunk" and self.model is not None:
            raise ValueError(
                f"model: {self.model.path!r} has no effect with where: 'trunk', whose states are the policy's; "
                "choices: where: separate, or no model"
            )
        if self.where == "separate" and self.detach:
            raise ValueError(
                "detach: True has no effect with where: 'separate'; choices: where: trunk, or detach: false"
            )
        return self

    def unmet_requirements(self) -> Iterator[str]:
        """Yield a message if the folder of `model` is missing."""
        if self.model is not None:
            yield from (f"critic.model.{problem}" for problem in self.model.unmet_requirements())

    def memory(self, settings: GradientLearnerConfig, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        """Yield the memory of the critic beside a policy that learns with `settings`."""
        if self.where == "separate":
            yield from second_model_memory(
                settings.activation_memory(size, work), size, settings.optimizer, "critic's "
            )

    def memory_savers(self) -> Iterator[MemorySaver]:
        """Yield other values of settings that take less memory."""
        if self.where == "separate" and self.model is None:
            yield MemorySaver("critic.where", "trunk", keeps_results=False)
