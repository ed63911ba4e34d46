"""What experience, credit and learners must do."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from marl.config import Component, Sampling
from marl.protocols.speech import Source
from marl.types import Completion, Credit, Deal, Failure, Metrics, Reading, Request, Sample, Turn, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory
    from marl.protocols.speech import Weights


class Stateful(Protocol):
    """Survives a restart. State is a nest of dicts with string keys, numbers, strings, lists and tensors."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Simulator(Protocol):
    """More play, for experience and credit: reads weights, never writes them; meters tokens by caller."""

    def play(self, deals: Sequence[Deal]) -> list[Trajectory]: ...
    def fork(self, turn_id: TurnId, n: int, action: str | None = None) -> list[Trajectory]: ...
    def score(self, requests: Sequence[Request]) -> list[Completion | Failure]:
        """Log-probabilities of each request's `forced` text, in order."""
        ...

    def address(self, turn: Turn) -> Request:
        """The request of a recorded turn, put to the policy that speaks for its role here."""
        ...


class Experience(Stateful, Protocol):
    """What supplies a step's trajectories."""

    def gather(self, deals: Sequence[Deal], simulator: Simulator) -> list[Trajectory]: ...
    def metrics(self) -> Metrics:
        """What it says of itself after a step."""
        ...


class ExperienceConfig(Component):
    """Settings of an experience."""

    group: ClassVar[str] = "experience"

    @abstractmethod
    def build(self) -> Experience: ...


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that credit may look at: one step, in deal order."""

    trajectories: Sequence[Trajectory]
    game: str
    readings: Mapping[TurnId, Reading] = field(default_factory=dict)
    simulator: Simulator | None = None


class Assign(Stateful, Protocol):
    """Who earned it: what each turn is worth, on its own graph."""

    needs: frozenset[str]

    def __call__(self, evidence: Evidence) -> Credit: ...


class Baseline(Stateful, Protocol):
    """Against what: what a turn is worth compared with its peers, across the step."""

    needs: frozenset[str]

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]: ...


class CreditPart(Component):
    """Half of a credit rule. One without state is its own working part."""

    group: ClassVar[str] = "credit"
    needs: ClassVar[frozenset[str]] = frozenset()
    """What it wants read of a turn: `logprobs`, `values`, `hidden`."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""


class AssignConfig(CreditPart):
    """Settings of an `assign`."""

    def build(self) -> Assign:
        return self  # type: ignore[return-value]


class BaselineConfig(CreditPart):
    """Settings of a `baseline`."""

    compares: ClassVar[bool] = False
    """Whether a turn is compared with peers in the same step, which takes groups of two or more."""

    def build(self) -> Baseline:
        return self  # type: ignore[return-value]


class Learner(Stateful, Protocol):
    """Turns judged samples into new weights. Does not know what a game is."""

    needs: frozenset[str]

    def read(self, turns: Sequence[Turn]) -> list[Reading]: ...
    def update(self, samples: Sequence[Sample]) -> Metrics: ...
    def publish(self) -> Weights: ...
    def save(self, folder: Path) -> None:
        """Write the weights as a Hugging Face folder, tokenizer included."""


@dataclass(frozen=True, slots=True)
class Brief:
    """What a learner is told when it is built."""

    policy: str
    source: Source
    steps: int
    """Updates in the whole run, for schedules."""
    seed: int


class LearnerConfig(Component):
    """Settings of a learner."""

    group: ClassVar[str] = "trainers"
    judged: ClassVar[bool] = True
    """Whether it learns from credit; imitation does not."""

    def corrects(self, sampling: Sampling) -> bool:
        """Whether it can learn from tokens sampled like this (truncated sampling needs care)."""
        return not sampling.truncated

    @abstractmethod
    def build(self, brief: Brief) -> Learner: ...
