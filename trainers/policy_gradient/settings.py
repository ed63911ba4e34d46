"""Learners by policy gradient: GRPO, PPO with a critic, AWR from recorded play, PRIME. Their presets: `presets.py`."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, ClassVar

from marl.core.config import Sampling
from marl.core.plugins import PluginField
from marl.protocols import Learner, LearnerContext, LossConfig
from marl.protocols.memory_estimates import MemorySaver, MemoryUse, ModelSize, Workload
from marl.trainers.optim.memory_estimate import second_model_memory
from marl.trainers.policy_gradient.critic_settings import CriticConfig
from marl.trainers.policy_gradient.loss_settings import AwrLoss
from marl.trainers.policy_gradient.options import ImplicitRewardModel, PolicyGradientOptions


class Grpo(PolicyGradientOptions):
    """Policy gradient on advantages that credit has already made relative, with KL anchors. Other kinds are presets."""

    kind: str = "grpo"

    def build(self, context: LearnerContext) -> Learner:
        from marl.trainers.learner import GradientLearner
        from marl.trainers.policy_gradient.objective import PolicyGradientObjective

        model = context.source.model()
        values = self.value_loss(context, model)
        return GradientLearner(self, context, model, PolicyGradientObjective(self, model, context.steps, values))

    def value_loss(self, context: LearnerContext, model: Any) -> Any:
        """Return the critic's `ValueLoss`, or None without a critic."""
        return None


class Ppo(Grpo):
    """PPO (arXiv 1707.06347): the clipped policy gradient of `grpo`, and a critic whose values credit can read.

    Meant for `credit: {assign: {kind: gae}, baseline: {kind: whiten}}`, or for the baseline `value`.
    """

    kind: str = "ppo"
    readable_fields: ClassVar[frozenset[str]] = Grpo.readable_fields | {"values"}
    critic: CriticConfig = CriticConfig()
    """The model that estimates values, and how it learns."""

    @property
    def credit_needs(self) -> frozenset[str]:
        return frozenset({"values"})

    def unmet_requirements(self) -> Iterable[str]:
        yield from super().unmet_requirements()
        yield from self.critic.unmet_requirements()

    def memory(self, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        yield from super().memory(size, work)
        yield from self.critic.memory(self, size, work)

    def memory_savers(self) -> Iterator[MemorySaver]:
        yield from super().memory_savers()
        yield from self.critic.memory_savers()

    def value_loss(self, context: LearnerContext, model: Any) -> Any:
        from marl.trainers.policy_gradient.critic import ValueLoss

        return ValueLoss.from_config(self.critic, self, context, model)


class Awr(Ppo):
    """Advantage-weighted regression (1910.00177): imitates turns the more, the better they went than expected.

    Expectations are the values that a head on the policy's own states learns from the same play: offline learning with
    the policy's own values, as in MARL-GPT (2604.05943). Neither log-probabilities of the policy that played nor a
    ratio is needed. Meant for `experience: recorded` and
    `credit: {assign: {kind: gae, lam: 0.95}, baseline: none}`.
    """

    kind: str = "awr"
    off_policy: ClassVar[bool] = True
    loss: Annotated[LossConfig, PluginField("losses", LossConfig)] = AwrLoss()
    critic: CriticConfig = CriticConfig(where="trunk", coefficient=0.5, clip=None)

    def supports(self, sampling: Sampling) -> bool:
        """Return True: imitation does not depend on how tokens were sampled."""
        return True


class Prime(Grpo):
    """PRIME (2502.01456): a policy gradient, and an implicit process reward model trained on outcomes beside it.

    Each turn is a response: the model's rewards for its tokens add up to the log-odds that its episode was correct.
    Rewards are read before the update in which the model learns from the same turns: PRIME's `update: after`. Meant for
    `credit: {assign: {kind: process, learner: true, combine: prime_paper}, baseline: none}`, and to leave out prompts
    that are too easy or too hard for `experience: {kind: dynamic}`.
    """

    kind: str = "prime"
    readable_fields: ClassVar[frozenset[str]] = Grpo.readable_fields | {"rewards"}
    prm: ImplicitRewardModel = ImplicitRewardModel()
    """The implicit process reward model, and how it learns."""

    def memory(self, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        yield from super().memory(size, work)
        yield from second_model_memory(self.activation_memory(size, work), size, self.optimizer, "reward model's ")
        yield MemoryUse("reward model's reference", size.trained_bytes * size.trained)

    def build(self, context: LearnerContext) -> Learner:
        from marl.trainers.learner import GradientLearner
        from marl.trainers.policy_gradient.prime import PrimeObjective

        model = context.source.model()
        return GradientLearner(self, context, model, PrimeObjective(self, self.prm, model, context.steps))
