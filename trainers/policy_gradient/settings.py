"""Learners by policy gradient: GRPO, PPO with a critic, AWR from recorded play, PRIME. Their presets: `presets.py`."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, ClassVar

from marl.core.config import Sampling
from marl.core.plugins import PluginField
from marl.protocols import Learner, LearnerBuildArguments, LossConfig
from marl.protocols.memory_estimates import MemorySavingSetting, MemoryUse, ModelSize, Workload
from marl.trainers.optim.memory_estimate import second_model_memory
from marl.trainers.policy_gradient.critic_settings import CriticConfig
from marl.trainers.policy_gradient.loss_settings import AwrLoss
from marl.trainers.policy_gradient.options import ImplicitRewardModel, PolicyGradientOptions


class Grpo(PolicyGradientOptions):
    """GRPO (2402.03300): clipped policy gradient on advantages that credit computes, with KL anchors."""

    kind: str = "grpo"

    def build(self, context: LearnerBuildArguments) -> Learner:
        from marl.trainers.learner import GradientLearner
        from marl.trainers.policy_gradient.objective import PolicyGradientObjective

        model = context.source.model()
        values, teachers = self.build_value_loss(context, model), self.build_teachers(context, model)
        objective = PolicyGradientObjective(self, model, context.steps, values, teachers)
        return GradientLearner(self, context, model, objective)

    def build_teachers(self, context: LearnerBuildArguments, model: Any) -> Any:
        """Return the teachers of the term `distill`, or None without this term."""
        from marl.trainers.distillation.teachers import Teachers

        return Teachers(self.distill, context.teachers, model, context.steps) if self.distill else None

    def build_value_loss(self, context: LearnerBuildArguments, model: Any) -> Any:
        """Return the value loss of the learner's critic, or None if the learner has no critic."""
        return None


class Ppo(Grpo):
    """PPO (arXiv 1707.06347): the clipped policy gradient of `grpo`, and a critic whose values credit can read.

    Meant for `credit: {assign: {kind: gae}, baseline: {kind: whiten}}`, or for the baseline `value`.
    """

    kind: str = "ppo"
    readable_fields: ClassVar[frozenset[str]] = Grpo.readable_fields | {"values"}
    critic: CriticConfig = CriticConfig()
    """Settings of the critic: the model that estimates values, and how it learns."""

    @property
    def required_credit_fields(self) -> frozenset[str]:
        return frozenset({"values"})

    @property
    def learns_from_zero_advantages_by(self) -> tuple[str, ...]:
        return *super().learns_from_zero_advantages_by, "critic"

    def update_count_warnings(self, updates: int) -> Iterator[str]:
        if self.critic.warm_up >= updates:
            yield (
                f"critic.warm_up: {self.critic.warm_up} updates train the critic alone, and the run has {updates}, so "
                "that the policy never changes; give fewer, or more schedule.steps"
            )

    def unmet_requirements(self) -> Iterable[str]:
        yield from super().unmet_requirements()
        yield from self.critic.unmet_requirements()

    def memory_uses(self, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        yield from super().memory_uses(size, work)
        yield from self.critic.memory_uses(self, size, work)

    def memory_saving_settings(self) -> Iterator[MemorySavingSetting]:
        yield from super().memory_saving_settings()
        yield from self.critic.memory_saving_settings()

    def build_value_loss(self, context: LearnerBuildArguments, model: Any) -> Any:
        from marl.trainers.policy_gradient.critic import ValueLoss

        return ValueLoss.from_config(self.critic, self, context, model)


class Awr(Ppo):
    """Advantage-weighted regression (1910.00177): imitates turns with a weight that grows with their advantage.

    Values are learned by a head on the policy's own hidden states from the same play, as in MARL-GPT (2604.05943).
    Neither a ratio nor the log-probabilities of the policy that played are needed. Meant for `experience: recorded` and
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
    """PRIME (2502.01456): a policy gradient, and an implicit process reward model that is trained on outcomes.

    The reward model's rewards of a turn's tokens add up to the log-odds that the turn's episode was correct. They are
    read before the update that trains the model on the same turns (PRIME's `update: after`). Meant for
    `credit: {assign: {kind: process, learner: true, combine: prime_paper}, baseline: none}`, and to leave out prompts
    that are too easy or too hard for `experience: {kind: dynamic}`.
    """

    kind: str = "prime"
    readable_fields: ClassVar[frozenset[str]] = Grpo.readable_fields | {"rewards"}
    prm: ImplicitRewardModel = ImplicitRewardModel()
    """Settings of the implicit process reward model."""

    def memory_uses(self, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        yield from super().memory_uses(size, work)
        yield from second_model_memory(self.activation_memory(size, work), size, self.optimizer, "reward model's ")
        yield MemoryUse("reward model's reference", size.bytes_per_trained_parameter * size.trained_parameter_count)

    def build(self, context: LearnerBuildArguments) -> Learner:
        from marl.trainers.learner import GradientLearner
        from marl.trainers.policy_gradient.prime import PrimeObjective

        model = context.source.model()
        objective = PrimeObjective(self, self.prm, model, context.steps, self.build_teachers(context, model))
        return GradientLearner(self, context, model, objective)
