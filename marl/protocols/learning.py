"""What experience, credit and learners must do."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from marl.config import Component, Sampling
from marl.protocols.speech import Source
from marl.types import Completion, Credit, Deal, Failure, Fork, Metrics, Purpose, Reading, Request, Sample, Turn, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory
    from marl.protocols.speech import Weights


class Stateful(Protocol):
    """Survives a restart. State is a nest of dicts with string keys, numbers, strings, lists and tensors."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Simulator(Protocol):
    """More play, for experience and credit: reads weights, never writes them; meters tokens by purpose."""

    def play(self, deals: Sequence[Deal]) -> list[Trajectory]: ...
    def fork(self, turn_id: TurnId, n: int, action: str | None = None) -> list[Trajectory]: ...
    def branch(self, forks: Sequence[Fork]) -> list[list[Trajectory]]:
        """The `n` courses of each fork, in order; all are played at once."""
        ...

    def score(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Completion | Failure]:
        """Log-probabilities of each request's `forced` text, in order; one without such a text is answered."""
        ...

    def greedy(self) -> Simulator:
        """The same, but everybody says what is most likely."""
        ...

    def address(self, turn: Turn) -> Request:
        """The request of a recorded turn, put to the policy that speaks for its role here."""
        ...

    def question(self, role: str, agent: str, text: str) -> Request:
        """What `role` asks its policy in the seat of `agent` if `text` is all that it has seen.

        Raises:
            ValueError: if there is no such role.
        """
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
    siblings: ClassVar[bool] = False
    """Whether it plays several courses of each deal itself, so that there are peers in groups of one, too."""

    @abstractmethod
    def build(self) -> Experience: ...

    def unfit(self, seats: Mapping[str, str], group_size: int) -> Iterable[str]:
        """What of it does not go with these seats (agent -> role) and groups of this size; a message each."""
        return ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that credit may look at: one step, in deal order."""

    trajectories: Sequence[Trajectory]
    game: str
    readings: Mapping[TurnId, Reading] = field(default_factory=dict)
    """Of turns whose policies learn; what of each, the parts' `needs` say."""
    simulator: Simulator | None = None
    rules: frozenset[str] = frozenset()
    """Roles whose answers follow from the question alone, such as verifiers: they earn nothing."""
    seed: int = 0
    """Of the random numbers that credit draws; to be mixed with what they are drawn for (`marl.seeds.seed_of`)."""
    named: Mapping[str, Credit] = field(default_factory=dict)
    """Name of a reward -> what turns earned if that were the only one. Only for a baseline that is `by_name`."""
    token_rewards: Mapping[TurnId, tuple[float, ...]] = field(default_factory=dict)
    """What tokens are paid beside the episodes' rewards: charges are negative. Only for an assign that is `by_token`.
    """


Likeness = Literal["start", "prompt", "problem"]
"""What peers have in common: the state in which their episodes began, the tokens they were asked, or the problem."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Turns by what they are compared with."""

    like: Likeness | None
    """What those of one group are declared to have in common; None: nothing is."""
    groups: Sequence[Sequence[TurnId]]


class Assign(Stateful, Protocol):
    """Who earned it: what each turn is worth, on its own graph."""

    @property
    def needs(self) -> frozenset[str]: ...

    def __call__(self, evidence: Evidence) -> Credit: ...
    def metrics(self) -> Metrics:
        """What it says of itself after a step, named `credit/...`."""
        ...


class Baseline(Stateful, Protocol):
    """Against what: what a turn is worth compared with its peers, across the step."""

    @property
    def needs(self) -> frozenset[str]: ...

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]: ...


class CreditPart(Component):
    """Half of a credit rule. One without state is its own working part."""

    @property
    def needs(self) -> frozenset[str]:
        """What it wants read of turns: fields of `Reading`."""
        return frozenset()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""


class AssignConfig(CreditPart):
    """Settings of an `assign`."""

    group: ClassVar[str] = "credit"
    by_token: ClassVar[bool] = False
    """Whether it takes in what single tokens are paid (`Evidence.token_rewards`). To what others assign to a turn, the
    sum over its tokens is added."""

    def metrics(self) -> Metrics:
        """What it says of itself after a step, named `credit/...`."""
        return {}

    @property
    def by_turn(self) -> bool:
        """Whether an agent's later turns are worth something else than its earlier ones for what was paid between."""
        return False

    def pots(self, trajectory: Trajectory, evidence: Evidence) -> Sequence[tuple[frozenset[str], float]]:
        """Agents among whom it divides what they are paid in an episode, and how much that is: for the report of
        whether credit adds up to it. By default each agent has a pot of its own; those that answer by rule have none.
        """
        own, seats = trajectory.returns, trajectory.deal.seats.items()
        return [(frozenset({agent}), own.get(agent, 0.0)) for agent, role in seats if role not in evidence.rules]

    def build(self) -> Assign:
        return self  # type: ignore[return-value]


class BaselineConfig(CreditPart):
    """Settings of a `baseline`."""

    group: ClassVar[str] = "baselines"
    compares: ClassVar[bool] = False
    """Whether a turn is compared with peers in the same step, which takes groups of two or more."""
    by_name: ClassVar[bool] = False
    """Whether it compares what each named reward earned (`Evidence.named`)."""

    @property
    def by_episode(self) -> bool:
        """Whether all turns of an agent in an episode are compared, as one number, with those in other episodes."""
        return False

    def peers(self, evidence: Evidence, earned: Credit) -> Peers | None:
        """Who is compared with whom, for the report of how pure groups are; None where nobody is."""
        return None

    def build(self) -> Baseline:
        return self  # type: ignore[return-value]


class Learner(Stateful, Protocol):
    """Turns judged samples into new weights. Does not know what a game is."""

    @property
    def needs(self) -> frozenset[str]:
        """Fields of `Reading` that it wants read of turns before its next update."""
        ...

    def read(self, turns: Sequence[Turn], wanted: frozenset[str]) -> list[Reading]:
        """What its model says of each turn: `wanted` names fields of `Reading` among its settings' `readable`."""
        ...

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
    compares: ClassVar[bool] = False
    """Whether it compares what was said from one start, which takes groups of two or more."""
    reads: ClassVar[frozenset[str]] = frozenset({"logprobs"})
    """What of a turn it can always read, for credit that needs it: fields of `Reading`."""
    asks: ClassVar[frozenset[str]] = frozenset()
    """What of its readings credit must be worked out from, as it learns from what comes of that: a critic's values."""
    speaks: ClassVar[bool] = True
    """Whether what it learns speaks for its policy. A reward model's does not: the policy stays as it is."""

    @property
    def readable(self) -> frozenset[str]:
        """`reads`, and what these settings add to it, such as a reference model's log-probabilities."""
        return self.reads

    @property
    def judged(self) -> bool:
        """Whether it learns from credit; imitation does not."""
        return True

    def corrects(self, sampling: Sampling) -> bool:
        """Whether it can learn from tokens sampled like this (truncated sampling needs care)."""
        return not sampling.truncated

    @abstractmethod
    def build(self, brief: Brief) -> Learner: ...
