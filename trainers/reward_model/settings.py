"""The learner `reward_modeling`."""

from marl.protocols import Learner, LearnerBuildArguments
from marl.trainers.reward_model.options import RewardModelOptions


class RewardModeling(RewardModelOptions):
    """Reward model that learns to score its policy's answers, from pairs or labels; the policy does not change.

    The model is a copy of the policy with a linear head. It is saved as a sequence classifier, which the engine
    `reward_model` loads; its scores can be rewards or `process` credit. Its input is the chat template's text.
    """

    kind: str = "reward_modeling"

    def build(self, context: LearnerBuildArguments) -> Learner:
        from marl.trainers.reward_model.chat_text import ChatAnswerEncoder
        from marl.trainers.reward_model.learner import RewardModelLearner
        from marl.trainers.reward_model.objective import RewardModelObjective

        model, chat_text = context.source.model(), ChatAnswerEncoder(context.source.tokenizer())
        return RewardModelLearner(self, context, model, RewardModelObjective(self, model, chat_text))
