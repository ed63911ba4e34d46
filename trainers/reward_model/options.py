"""Options of reward models, without the code that they set."""

from typing import ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from marl.trainers.preferences.options import PairwiseLearnerConfig, RankingMeasure, changed_settings


class RewardModelOptions(PairwiseLearnerConfig):
    """Fields of `reward_modeling`: the loss, and the prompts that are held out."""

    publishes: ClassVar[bool] = False
    readable_fields: ClassVar[frozenset[str]] = frozenset()
    objective: Literal["bradley_terry", "orm", "prm"] = "bradley_terry"
    """`bradley_terry`: in a pair, the better side is to have the higher score (a side of several turns: their mean).
    `orm`: each turn's score is the log-odds that its episode was good. `prm`: that the turn itself was, by what credit
    assigned it."""
    spread: NonNegativeFloat = 0.0
    """Required difference of a pair's scores for each unit of difference between the measures of its sides (Llama 2's
    margin)."""
    centre: NonNegativeFloat = 0.0
    """Weight of a pair's squared sum of scores, which keeps them around 0 (2312.09244 suggests 0.01)."""
    threshold: float = 0.5
    """Least measure of a good outcome or turn."""
    held_out: float = Field(default=0.1, ge=0, lt=1)
    """Share of prompts, chosen by a hash of their tokens, that are scored and never learned from."""
    held_out_every: PositiveInt = 10
    """Updates between reports of `held_out_accuracy`, each over the held-out samples since the last report."""

    @property
    def measure(self) -> RankingMeasure:
        return "earned" if self.objective == "prm" else self.by

    @model_validator(mode="after")
    def _check_objective(self) -> Self:
        pair_settings = "pairs", "margin", "most", "spread", "centre"
        unused = ("threshold",) if self.objective == "bradley_terry" else pair_settings
        if changed := changed_settings(self, unused):
            raise ValueError(f"{changed} has no effect with objective={self.objective!r}; remove it")
        return self
