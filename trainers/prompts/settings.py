"""The learner `prompt`."""

from marl.protocols import Learner, LearnerBuildArguments
from marl.trainers.prompts.options import PromptOptions


class PromptSearch(PromptOptions):
    """Instructions of the policy's roles, improved by a proposer; the weights, frozen or remote, do not change.

    In each update, the proposer reads the best and the worst turns with their scores, and writes `candidates` new
    instructions for one role. They play against the incumbent on the same starts by successive halving; the last one
    is adopted if the lower bound (95 %) of its gain is above 0. New instructions start from a version of the Pareto
    front over the starts, as in GEPA (arXiv 2507.19457). All versions stand in the policy's folder of a checkpoint
    (`marl show RUN --prompts`).
    """

    kind: str = "prompt"

    def build(self, context: LearnerBuildArguments) -> Learner:
        from marl.trainers.prompts.learner import PromptLearner

        return PromptLearner(self, context)
