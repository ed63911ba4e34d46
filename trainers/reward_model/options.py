"""Settings of reward models; the code that uses them is not imported here."""

from typing import ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from marl.trainers.preferences.options import PairwiseLearnerConfig, RankingMeasure, settings_unlike_their_defaults


class RewardModelOptions(PairwiseLearnerConfig):
    """Settings of `reward_modeling`: the loss, and the prompts that are held out."""

    publishes: ClassVar[bool] = False
    readable_fields: ClassVar[frozenset[str]] = frozenset()
    objective: Literal["bradley_terry", "orm", "prm"] = "bradley_terry"
    """`bradley_terry`: the better side of a pair gets the higher score (the mean over a side's turns). `orm`: a turn's
    score is the log-odds that its episode was good. `prm`: the log-odds that the turn was good, by its credit."""
    level: Literal["turn", "segment"] = "turn"
    """Scored steps of `objective: prm`: turns, or the segments of answers, which need `segments` of the role and credit
    with `level: segment`. The measure of a segment is its value target if credit has one, else its credit. After
    `replay` it is the mean reward of answers that go on from the segment (Math-Shepherd, 2312.08935)."""
    labels: Literal["hard", "soft"] = "hard"
    """Labels of segments. `hard`: 1 if the measure reaches `threshold`, else 0. `soft`: the measure, cut to [0, 1]."""
    spread: NonNegativeFloat = 0.0
    """Margin between a pair's scores, per unit of difference between the measures of its sides (Llama 2)."""
    centre: NonNegativeFloat = 0.0
    """Weight of the squared sum of a pair's scores, which centres scores at 0 (2312.09244 suggests 0.01)."""
    threshold: float = 0.5
    """Minimum measure at which an outcome or turn counts as good."""
    held_out: float = Field(default=0.1, ge=0, lt=1)
    """Share of held-out prompts, chosen by a hash of their tokens: they are scored, and never learned from."""
    held_out_every: PositiveInt = 10
    """Number of updates from one report of `held_out_accuracy` to the next, over the held-out samples in between."""

    @property
    def ranking_measure(self) -> RankingMeasure:
        return "earned" if self.objective == "prm" else self.by

    @property
    def needs_segments(self) -> bool:
        return self.level == "segment"

    @model_validator(mode="after")
    def _check_settings_fit_objective(self) -> Self:
        if self.level == "segment" and self.objective != "prm":
            raise ValueError(f"level: 'segment' scores steps, but objective: {self.objective!r} does not; choices: prm")
        if self.labels == "soft" and self.level != "segment":
            raise ValueError("labels: 'soft' has no effect at level 'turn'; choices: hard, or level: segment")
        pair_settings = "pairs", "margin", "most", "spread", "centre"
        unused = ("threshold",) if self.objective == "bradley_terry" else pair_settings
        if changed := settings_unlike_their_defaults(self, unused):
            raise ValueError(f"{changed} has no effect with objective={self.objective!r}; remove it")
        return self
