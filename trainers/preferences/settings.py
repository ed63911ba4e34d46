"""The learner `dpo`."""

from marl.protocols import Learner, LearnerContext
from marl.trainers.preferences.options import DpoOptions


class Dpo(DpoOptions):
    """Makes the better side of a pair likelier than the worse one: DPO, cDPO, robust DPO, IPO, SLiC's hinge.

    With `refresh`, on fresh play: iterative DPO. Without: online DPO. With `experience: preferences`: offline DPO.
    """

    kind: str = "dpo"

    def build(self, context: LearnerContext) -> Learner:
        from marl.trainers.learner import GradientLearner
        from marl.trainers.preferences.objective import DpoObjective

        model = context.source.model()
        return GradientLearner(self, context, model, DpoObjective(self, model, context.steps))
