"""Settings of critics, which learn the values of states beside a policy."""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import NonNegativeInt, PositiveFloat, model_validator

from marl.core.config import Config
from marl.models.pretrained import Pretrained
from marl.protocols.memory_estimates import MemorySavingSetting, MemoryUse, ModelSize, Workload
from marl.trainers.optim.memory_estimate import second_model_memory
from marl.trainers.optim.settings import GradientLearnerConfig


class CriticConfig(Config):
    """Critic of a learner: the model whose hidden states have the value head, and how it learns.

    The loss of one value is 1/2 (v - target)², clipped. The critic's loss is the mean over all tokens with a target,
    independent of the policy's aggregation. Credit gives the targets (`Advantage.returns`): one per token, or one per
    turn. A turn's single target is for the state before its first token.
    """

    where: Literal["separate", "trunk"] = "separate"
    """`separate`: a second model with the policy's initial weights (verl, OpenRLHF, TRL), or a second adapter on the
    same base model if the policy is an adapter. `trunk`: a value head on the policy's own last hidden states."""
    model: Pretrained | None = None
    """Initial weights of a separate critic, with the policy's tokenizer (default: the policy's own weights)."""
    detach: bool = False
    """With `where: trunk`, keep the value loss from changing the policy: no gradient passes the value head."""
    lr: PositiveFloat | None = None
    """Learning rate of the critic (default: the policy's). The critic has the policy's warm-up and schedule."""
    coefficient: PositiveFloat = 0.1
    """Factor of the value loss in the sum with the policy's loss. The factor hardly affects a separate critic, because
    AdamW normalises gradients."""
    clip: PositiveFloat | None = 0.5
    """Value clipping: maximum change from the value read before the update that lowers the loss (OpenAI's `baselines`;
    verl and OpenRLHF: 0.5). None: no clipping."""
    warm_up: NonNegativeInt = 0
    """Number of first updates that train the critic alone: the policy's weights do not change."""

    @model_validator(mode="after")
    def _check_settings_have_effect(self) -> Self:
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
        """Yield an error if the folder of `model` is missing."""
        if self.model is not None:
            yield from (f"critic.model.{problem}" for problem in self.model.unmet_requirements())

    def memory_uses(self, settings: GradientLearnerConfig, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        """Yield the memory of the critic. `settings` and `size` are of the policy's learner and model."""
        if self.where == "separate":
            yield from second_model_memory(
                settings.activation_memory(size, work), size, settings.optimizer, "critic's "
            )

    def memory_saving_settings(self) -> Iterator[MemorySavingSetting]:
        """Yield changes of the critic's settings that save memory."""
        if self.where == "separate" and self.model is None:
            yield MemorySavingSetting("critic.where", "trunk", keeps_results=False)
