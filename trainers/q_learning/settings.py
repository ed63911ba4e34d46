"""The learner `q_learning`."""

from marl.protocols import Learner, LearnerBuildArguments
from marl.trainers.q_learning.options import QLearningOptions


class QLearning(QLearningOptions):
    """Values of actions by temporal differences: independent (IQL), or mixed into the values of a team (VDN, QMIX).

    Learns from rewards alone, so credit changes nothing. Every step's episodes enter a replay buffer, from which whole
    episodes are drawn with equal probability. The target of an episode's last turn is its reward. If the episode was
    cut off, its last turn is left out, because the next value is unknown. With a mixer, the n-th turns of all agents of
    this policy are one round. The mixer trains the values of a round jointly, and each agent acts by its own values
    (arXiv 1706.05296, 1803.11485). Checkpoints contain the replay buffer.
    """

    kind: str = "q_learning"

    def build(self, context: LearnerBuildArguments) -> Learner:
        from marl.trainers.q_learning.learner import QLearner

        return QLearner(self, context)
