"""Settings of policy gradients that train a second model: PPO's critic, PRIME's process reward model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal, Self

from pydantic import NonNegativeInt, PositiveFloat, model_validator

from marl.config import Config
from marl.models.pretrained import Pretrained
from marl.protocols import Learner, LearnerContext
from trainers.settings.optimisation import Anchor
from trainers.settings.policy_gradient import Grpo, Loss


class CriticSettings(Config):
    """Critic of PPO: where it reads states from, and how it learns.

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


class Ppo(Grpo):
    """PPO (arXiv 1707.06347): the clipped policy gradient of `grpo`, and a critic whose values credit can read.

    Meant for `credit: {assign: {kind: gae}, baseline: {kind: whiten}}`, or for the baseline `value`.
    """

    kind: str = "ppo"
    reads: ClassVar[frozenset[str]] = Grpo.reads | {"values"}
    credit_needs: ClassVar[frozenset[str]] = frozenset({"values"})
    critic: CriticSettings = CriticSettings()

    def missing(self) -> Iterable[str]:
        """Yield a message if the critic's folder of weights is not there."""
        if self.critic.model is not None:
            yield from (f"critic.model.{problem}" for problem in self.critic.model.missing())

    def build(self, context: LearnerContext) -> Learner:
        from trainers.learner import GradientLearner
        from trainers.objectives.actor_critic import ActorCritic, build_critic

        model = context.source.model()
        critic = build_critic(self, context, model)
        settings = self if critic.packs() else self.model_copy(update={"packing": "padded"})
        return GradientLearner(settings, context, model, ActorCritic(self, model, critic, context.steps))


class Pspo(Ppo):
    """PSPO (PaperScout, arXiv 2601.10029): a turn is one action, with one ratio (GSPO's) and one value.

    Meant for `credit: {assign: {kind: gae, level: turn}, baseline: {kind: whiten, unit: sequence, guard: std}}`.
    """

    kind: str = "pspo"
    loss: Loss = "gspo"
    reference: Anchor | None = Anchor(coefficient=0.001, estimator="k3")


class ImplicitRewardModel(Config):
    """Process reward model that outcomes teach: a second copy of the initial policy, beside a frozen one."""

    beta: PositiveFloat = 0.05
    """Factor of log-ratios to the frozen copy, which makes them rewards."""
    lr: PositiveFloat | None = None
    """Of it, at the height of the schedule, which is the policy's. None: the policy's (PRIME's script: twice that)."""
    threshold: float = 0.5
    """Reward of an agent in an episode from which its turns are correct."""


class Prime(Grpo):
    """PRIME (2502.01456): a policy gradient, and an implicit process reward model that learns from outcomes beside it.

    Each turn is a response: the model's rewards for its tokens add up to the log-odds that its episode was correct.
    They are read before the update in which the model learns from the same turns: PRIME's `update: after`. Meant for
    `credit: {assign: {kind: process, learner: true, combine: prime_paper}, baseline: none}`, and to leave out prompts
    that are too easy or too hard for `experience: {kind: dynamic}`.
    """

    kind: str = "prime"
    reads: ClassVar[frozenset[str]] = Grpo.reads | {"rewards"}
    prm: ImplicitRewardModel = ImplicitRewardModel()

    def build(self, context: LearnerContext) -> Learner:
        from trainers.learner import GradientLearner
        from trainers.objectives.prime import ImplicitRewards

        model = context.source.model()
        return GradientLearner(self, context, model, ImplicitRewards(self, model, context.steps))
