"""Settings of learners that compare or select samples: preferences, reward models, imitation."""

from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from marl.config import Config, Sampling
from marl.protocols import DataParallel, Learner, LearnerContext
from marl.protocols.memory import MemorySaver, MemoryUse, ModelSize, Workload
from trainers.settings.critics import CriticSettings
from trainers.settings.memory import anchor_uses
from trainers.settings.optimisation import Optimisation

Worth = Literal["paid", "earned"]
"""`paid`: the agent's reward in the whole episode. `earned`: what credit assigned the turn, without baseline."""
IDLE = ("aggregation", "norm", "merge")
"""Settings without effect where a loss is a mean over pairs and every row has rivals of its own."""


def _changed(settings: Config, names: tuple[str, ...]) -> dict[str, object]:
    """Return the settings among `names` that differ from their defaults."""
    fields = type(settings).model_fields
    return {name: value for name in names if (value := getattr(settings, name)) != fields[name].default}


class Pairing(Optimisation):
    """Learns from pairs of a step of which one side went better. Pairs have the same start, so luck is the same."""

    compares: ClassVar[bool] = True
    off_policy: ClassVar[bool] = True
    pairs: Literal["siblings", "best_worst", "episodes"] = "siblings"
    """`siblings`: turns with the same prompt, every better one with every worse one. `best_worst`: of those, the
    best with the worst. `episodes`: all turns of an agent in a better episode with all of them in a worse one."""
    by: Worth = "paid"
    """Measure by which an entry is better."""
    margin: PositiveFloat = 1e-6
    """The least difference that makes a pair."""
    most: PositiveInt | None = None
    """The most pairs of turns with the same prompt, or of episodes with the same start: the clearest first."""

    def parallel_obstacle(self, way: DataParallel) -> str | None:
        return "a reward model is saved by a process that has all of it; choose ddp" if way == "fsdp" else None

    @property
    def label(self) -> Worth:
        """Return what better, or good, means."""
        return self.by

    @property
    def uses_credit(self) -> bool:
        """Return whether it needs credit; rewards are known without."""
        return self.label == "earned"

    def supports(self, sampling: Sampling) -> bool:
        """Return True: a comparison does not depend on how tokens were sampled."""
        return True

    @model_validator(mode="after")
    def _check_idle(self) -> Self:
        if changed := _changed(self, IDLE):
            raise ValueError(f"{changed} has no effect on pairs, whose loss is a mean over them; remove it")
        return self


class Dpo(Pairing):
    """Makes the better side of a pair likelier than the worse one: DPO, cDPO, robust DPO, IPO, SLiC's hinge.

    With `refresh`, on fresh play: iterative DPO. Without: online DPO. With `experience: preferences`: offline DPO.
    """

    kind: str = "dpo"
    loss: Literal["sigmoid", "ipo", "hinge", "robust"] = "sigmoid"
    """Loss of a pair. `sigmoid`: DPO (2305.18290), with `smoothing` cDPO. `robust`: 2403.00409. `ipo`: 2310.12036.
    `hinge`: SLiC."""
    beta: PositiveFloat = 0.1
    """Strength of the tie to the reference; IPO's tau."""
    smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Share of pairs that are taken to be the wrong way round; of `sigmoid` and `robust`."""
    over: Literal["sum", "mean"] = "sum"
    """Sum or mean of the log-probabilities of a side's tokens. `mean` makes `sigmoid` TRL's `sigmoid_norm`, and `ipo`
    that of TRL 1.16 and its authors."""
    nll: NonNegativeFloat = 0.0
    """Weight of imitating the better side: the mean -log p of its tokens (Iterative RPO, 2404.19733)."""
    refresh: PositiveInt | None = None
    """Updates between copies of the policy into the reference. None: the initial weights, for ever."""

    @model_validator(mode="after")
    def _check_smoothing(self) -> Self:
        if self.smoothing and self.loss not in ("sigmoid", "robust"):
            raise ValueError(f"smoothing={self.smoothing} has no effect with loss={self.loss!r}; use sigmoid or robust")
        return self

    def memory(self, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        yield from super().memory(size, work)
        yield from anchor_uses(size, {"reference": self.refresh is None})

    def build(self, context: LearnerContext) -> Learner:
        from trainers.learner import GradientLearner
        from trainers.objectives.preferences import Preference

        model = context.source.model()
        return GradientLearner(self, context, model, Preference(self, model, context.steps))


class RewardModeling(Pairing):
    """Learns to rate what its policy says; the policy itself stays as it is.

    A head of one number on the policy's last hidden states, all of which learn. Saved as a sequence classifier, to be
    used by the engine `reward_model` at a seat, whose scores may be rewards or `process` credit. What is read is the
    chat template's text.
    """

    kind: str = "reward_modeling"
    publishes: ClassVar[bool] = False
    reads: ClassVar[frozenset[str]] = frozenset()
    objective: Literal["bradley_terry", "orm", "prm"] = "bradley_terry"
    """`bradley_terry`: in a pair, the better side is to have the higher score (a side of several turns: their mean).
    `orm`: each turn's score is the log-odds that its episode was good. `prm`: that the turn itself was, by what credit
    assigned it."""
    spread: NonNegativeFloat = 0.0
    """Difference of a pair's scores for each unit that its sides' worth differs (Llama 2's margin)."""
    centre: NonNegativeFloat = 0.0
    """Weight of a pair's squared sum of scores, which keeps them around 0 (2312.09244 suggests 0.01)."""
    threshold: float = 0.5
    """Worth from which on an outcome, or a turn, is good."""
    held_out: float = Field(default=0.1, ge=0, lt=1)
    """Share of prompts, chosen by a hash of their tokens, that are scored and never learned from."""
    held_out_every: PositiveInt = 10
    """Updates between reports of `held_out_accuracy`, over all that was held out since the last one."""

    def parallel_obstacle(self, way: DataParallel) -> str | None:
        return "a reward model is saved by a process that has all of it; choose ddp" if way == "fsdp" else None

    @property
    def label(self) -> Worth:
        return "earned" if self.objective == "prm" else self.by

    @model_validator(mode="after")
    def _check_objective(self) -> Self:
        paired = "pairs", "margin", "most", "spread", "centre"
        if changed := _changed(self, ("threshold",) if self.objective == "bradley_terry" else paired):
            raise ValueError(f"{changed} has no effect with objective={self.objective!r}; remove it")
        return self

    def build(self, context: LearnerContext) -> Learner:
        from trainers.objectives.reward_model import ChatText, Rating, RewardLearner

        model, chat_text = context.source.model(), ChatText(context.source.tokenizer())
        return RewardLearner(self, context, model, Rating(self, model, chat_text))


class SampleSelection(Config):
    """Turns that are imitated (rejection sampling)."""

    at_least: float | None = None
    """Least worth of a selected turn."""
    best: PositiveInt | None = None
    """Of each agent and start, those of so many episodes that went best; by `earned`, the best turns with the same
    prompt."""
    by: Worth = "paid"
    """Measure of worth."""

    @model_validator(mode="after")
    def _check_selects(self) -> Self:
        if self.at_least is None and self.best is None:
            raise ValueError("at_least and best are both missing, so all would be kept; give one, or no `keep`")
        return self


class Sft(Optimisation):
    """Imitation of all it is given, or of the best (`keep`: rejection sampling, RAFT 2304.06767).

    It raises the probability of every completion, whoever said it and however it was sampled. A turn that was searched
    for is imitated by all that the search's policy might have said (`experience: search`).
    """

    kind: str = "sft"
    off_policy: ClassVar[bool] = True
    keep: SampleSelection | None = None
    """Samples to imitate. None: all."""
    duplicates: bool = True
    """Count a completion that was sampled twice, twice."""
    critic: CriticSettings | None = None
    """A model that learns what turns earned, for searches that value positions by it; with
    `credit: {baseline: {kind: value}}`. None: there is none."""

    @property
    def readable(self) -> frozenset[str]:
        return self.reads | self.credit_needs

    @property
    def credit_needs(self) -> frozenset[str]:
        return frozenset({"values"} if self.critic else ())

    @property
    def uses_credit(self) -> bool:
        """Return whether it needs credit, to select by it or for its critic."""
        return self.critic is not None or (self.keep is not None and self.keep.by == "earned")

    def missing(self) -> Iterator[str]:
        yield from super().missing()
        yield from self.critic.missing() if self.critic else ()

    def memory(self, size: ModelSize, work: Workload) -> Iterator[MemoryUse]:
        yield from super().memory(size, work)
        yield from self.critic.memory(self, size, work) if self.critic else ()

    def thrift(self) -> Iterator[MemorySaver]:
        yield from super().thrift()
        yield from self.critic.thrift() if self.critic else ()

    def supports(self, sampling: Sampling) -> bool:
        """Return True: imitation does not depend on how tokens were sampled."""
        return True

    def build(self, context: LearnerContext) -> Learner:
        from trainers.learner import GradientLearner
        from trainers.objectives.preferences import Imitation
        from trainers.objectives.values import ValueLoss

        model = context.source.model()
        values = ValueLoss.of(self.critic, self, context, model) if self.critic else None
        settings = self if values is None or values.critic.packs() else self.model_copy(update={"packing": "padded"})
        return GradientLearner(settings, context, model, Imitation(self, values))
