"""The learner `distillation`."""

from marl.protocols import Learner, LearnerBuildArguments
from marl.trainers.distillation.options import DistillationOptions


class Distillation(DistillationOptions):
    """On-policy distillation: the student becomes like a teacher on the turns that the student itself sampled.

    The loss of a token is the divergence of the student's next-token distribution from the teacher's, at temperature 1
    (GKD, 2306.13649; MiniLLM, 2306.08543, without its long-term part). Rewards are only measured. With `experience:
    recorded`, the texts are those of the recorded play instead.
    """

    kind: str = "distillation"

    def build(self, context: LearnerBuildArguments) -> Learner:
        from marl.trainers.distillation.objective import DistillationObjective
        from marl.trainers.distillation.teachers import Teachers
        from marl.trainers.learner import GradientLearner

        model = context.source.model()
        objective = DistillationObjective(self, Teachers(self, context.teachers, model))
        return GradientLearner(self, context, model, objective)
