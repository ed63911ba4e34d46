"""Settings of policy gradients with a critic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import NonNegativeInt, PositiveFloat, model_validator

from marl.config import Config
from marl.models.pretrained import Pretrained
from marl.protocols import Brief
from trainers.settings.anchors import Anchor
from trainers.settings.grpo import Grpo, Loss

if TYPE_CHECKING:
    from trainers.learner import Learner


class Critic(Config):
    """Who says what a state is worth, and how that is learned.

    The loss of one value is 1/2 (v - target)^2, clipped; its mean over all tokens that have a target is taken, whatever
    the policy's aggregation. Targets are credit's (`Advantage.returns`): one a token, or one a turn, for the state
    before its first token; no other is then learned from.
    """

    where: Literal["separate", "trunk"] = "separate"
    """`separate`: a model of its own, which starts as a copy of the policy (verl, OpenRLHF, TRL); if the policy is an
    adapter, a second adapter on the same base, which is held once. `trunk`: only a head on the policy's own last hidden
    states, which are computed anyway."""
    model: Pretrained | None = None
    """Of a separate critic: other weights to start from, with the policy's tokenizer. None: the policy's own."""
    detach: bool = False
    """Of a trunk: whether the values' gradient stops at the head, so that it never moves the policy."""
    lr: PositiveFloat | None = None
    """Of the head and of a separate model, at the height of the schedule, which is the policy's. None: the policy's."""
    coefficient: PositiveFloat = 0.1
    """Of the value loss beside the policy's. A separate critic barely notices: AdamW undoes constant factors."""
    clip: PositiveFloat | None = 0.5
    """How far a value can go from what was read before the update, until its loss is held against it (OpenAI's
    `baselines`; verl and OpenRLHF: 0.5). None: no such limit, and no values need to be read for the loss."""
    warm_up: NonNegativeInt = 0
    """Updates in which the critic alone learns; not a bit of the policy changes, nor of its trunk."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
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


class Ppo(Grpo):
    """PPO (arXiv 1707.06347): the clipped policy gradient of `grpo`, and a critic whose values credit can read.

    Meant for `credit: {assign: {kind: gae}, baseline: {kind: whiten}}`, or for the baseline `value`.
    """

    kind: str = "ppo"
    reads: ClassVar[frozenset[str]] = Grpo.reads | {"values"}
    asks: ClassVar[frozenset[str]] = frozenset({"values"})
    critic: Critic = Critic()

    def missing(self) -> Iterable[str]:
        """A folder of weights for the critic."""
        if self.critic.model is not None:
            yield from (f"critic.model.{problem}" for problem in self.critic.model.missing())

    def build(self, brief: Brief) -> Learner:
        """A learner with its own copy of the weights, and a critic."""
        from trainers.forward.critic import critic_of, reads_lines
        from trainers.learner import Learner
        from trainers.objectives.actor_critic import ActorCritic

        model = brief.source.model()
        critic = critic_of(self, brief, model)
        settings = self if reads_lines(critic) else self.model_copy(update={"packing": "padded"})
        return Learner(settings, brief, model, ActorCritic(self, model, critic, brief.steps))


class Pspo(Ppo):
    """PSPO (PaperScout, arXiv 2601.10029): a turn is one action, with one ratio (GSPO's) and one value.

    Meant for `credit: {assign: {kind: gae, level: turn}, baseline: {kind: whiten, unit: sequence, guard: std}}`.
    """

    kind: str = "pspo"
    loss: Loss = "gspo"
    reference: Anchor | None = Anchor(coefficient=0.001, estimator="k3")
