"""The learner `sft`."""

from marl.protocols import Learner, LearnerBuildArguments
from marl.trainers.imitation.options import ImitationOptions


class Sft(ImitationOptions):
    """Imitation (supervised fine-tuning) of all samples, or of the best (`keep`: rejection sampling, RAFT 2304.06767).

    Raises the probability of every completion, whichever policy wrote it and however it was sampled. With
    `experience: search`, a turn imitates all completions of the search's policy, weighted by their probabilities.
    """

    kind: str = "sft"

    def build(self, context: LearnerBuildArguments) -> Learner:
        from marl.trainers.distillation.teachers import Teachers
        from marl.trainers.imitation.objective import ImitationObjective
        from marl.trainers.learner import GradientLearner
        from marl.trainers.policy_gradient.critic import ValueLoss

        model = context.source.model()
        values = ValueLoss.from_config(self.critic, self, context, model) if self.critic else None
        teachers = Teachers(self.distill, context.teachers, model, context.steps) if self.distill else None
        return GradientLearner(self, context, model, ImitationObjective(self, values, teachers))
