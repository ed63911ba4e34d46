"""The learner `dpo`."""

from marl.protocols import Learner, LearnerBuildArguments
from marl.trainers.preferences.options import DpoOptions


class Dpo(DpoOptions):
    """Preference optimisation on pairs of turns or episodes: DPO, cDPO, robust DPO, IPO, SLiC's hinge loss.

    On fresh play it is online DPO, and with `refresh` iterative DPO. With `experience: preferences` it is offline DPO.
    """

    kind: str = "dpo"

    def build(self, context: LearnerBuildArguments) -> Learner:
        from marl.trainers.learner import GradientLearner
        from marl.trainers.preferences.objective import DpoObjective

        model = context.source.model()
        return GradientLearner(self, context, model, DpoObjective(self, model, context.steps))
