"""Settings of reward models."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from marl.config import Sampling
from marl.protocols import Brief
from trainers.settings.pairing import Pairing, Worth

if TYPE_CHECKING:
    from trainers.objectives.reward_model import RewardLearner

_PAIRED = ("pairs", "margin", "most", "spread", "centre")
_LABELLED = ("threshold",)


class RewardModel(Pairing):
    """Learns to rate what its policy says; the policy itself stays as it is.

    A head of one number on the policy's last hidden states, all of which learn. Saved as a sequence classifier, to be
    used by the engine `reward_model` as a reward, or by `process` credit. What is read is the chat template's text.
    """

    kind: str = "reward_model"
    speaks: ClassVar[bool] = False
    reads: ClassVar[frozenset[str]] = frozenset()
    objective: Literal["bradley_terry", "orm", "prm"] = "bradley_terry"
    """`bradley_terry`: in a pair, the better side is to have the higher score (a side of several turns: their mean).
    `orm`: each turn's score is the log-odds that its episode was good. `prm`: that the turn itself was, by what credit
    assigned it."""
    spread: NonNegativeFloat = 0.0
    """By how much scores of a pair must differ for each unit that its sides' worth does (Llama 2's margin)."""
    centre: NonNegativeFloat = 0.0
    """Weight of a pair's squared sum of scores, which keeps them around 0 (2312.09244 suggests 0.01)."""
    threshold: float = 0.5
    """Worth from which on an outcome, or a turn, is good."""
    held_out: float = Field(default=0.1, ge=0, lt=1)
    """Share of prompts, chosen by a hash of their tokens, that are never learnt from but scored."""
    held_out_every: PositiveInt = 10
    """Updates after which `held_out_accuracy` is told, over all that was held out since the last time."""

    @property
    def judged(self) -> bool:
        """What was paid is known without a credit rule."""
        return self.label == "earned"

    @property
    def label(self) -> Worth:
        """What better, or good, means."""
        return "earned" if self.objective == "prm" else self.by

    @model_validator(mode="after")
    def _check_objective(self) -> Self:
        fields = type(self).model_fields
        idle = _LABELLED if self.objective == "bradley_terry" else _PAIRED
        changed = {name: value for name in idle if (value := getattr(self, name)) != fields[name].default}
        if changed:
            raise ValueError(f"{changed} has no effect with objective={self.objective!r}; remove it")
        return self

    def corrects(self, sampling: Sampling) -> bool:
        """A rating does not ask how a token was chosen."""
        return True

    def build(self, brief: Brief) -> RewardLearner:
        """A learner with its own copy of the policy's weights, and a head that says 0."""
        from trainers.batching.chat_text import Wording
        from trainers.objectives.reward_model import Rating, RewardLearner

        model, wording = brief.source.model(), Wording(brief.source.tokenizer())
        return RewardLearner(self, brief, model, Rating(self, model, wording))
