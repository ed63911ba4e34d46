"""The learner `reward_modeling`."""

from marl.protocols import Learner, LearnerContext
from marl.trainers.reward_model.options import RewardModelOptions


class RewardModeling(RewardModelOptions):
    """Learns to score its policy's answers; the policy itself does not change.

    A head with a single output on the policy's last hidden states; head and body learn. Saved as a sequence classifier,
    to be used by the engine `reward_model` at a seat, whose scores may be rewards or `process` credit. The model reads
    the chat template's text.
    """

    kind: str = "reward_modeling"

    def build(self, context: LearnerContext) -> Learner:
        from marl.trainers.reward_model.chat_text import ChatTextEncoder
        from marl.trainers.reward_model.learner import RewardModelLearner
        from marl.trainers.reward_model.objective import RewardModelObjective

        model, chat_text = context.source.model(), ChatTextEncoder(context.source.tokenizer())
        return RewardModelLearner(self, context, model, RewardModelObjective(self, model, chat_text))
