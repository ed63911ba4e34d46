"""What each replaceable part must do: settings that a scenario names, and the working parts they build.

Implementations live in the other packages and are found by name (`marl.parts`). Nothing here imports torch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from marl.config import Component, Sampling
from marl.types import (
    Completion,
    Credit,
    Deal,
    Failure,
    Info,
    Message,
    Metrics,
    Observation,
    Reading,
    Request,
    Sample,
    Ticket,
    Turn,
    TurnId,
)

if TYPE_CHECKING:
    from torch import Tensor

    from marl.graph import Trajectory
    from marl.scenario import Scenario

    Weights = Iterable[tuple[str, Tensor]] | Path
    """Named tensors, or a folder that holds them."""


class Stateful(Protocol):
    """Survives a restart. State is a nest of dicts with string keys, numbers, strings, lists and tensors."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


# --- games -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a game does with an answer that is no legal move, here and now."""

    payments: Mapping[str, float] = field(default_factory=dict)
    """Agent -> what it is paid (negative: pays) at once."""
    moves: tuple[str, ...] = ()
    """One of these is then played, each as likely. Empty: the game's own `step("")` says what follows."""


class Game(Protocol):
    """A PettingZoo `AECEnv[str, Observation, str]` played in words: a pure function of seed and actions."""

    possible_agents: list[str]
    agents: list[str]
    agent_selection: str
    rewards: dict[str, float]
    terminations: dict[str, bool]
    truncations: dict[str, bool]
    infos: dict[str, Info]
    """Filled for the agent to move (and for those in its `together`)."""
    paid: dict[str, dict[str, float]]
    """The last step's `rewards` by component: agent -> name -> value."""

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None: ...
    def step(self, action: str | None) -> None:
        """Play a move; any text that is not a legal move, such as "", is an illegal one."""

    def observe(self, agent: str) -> Observation: ...
    def start_key(self) -> str:
        """Names the start state: equal keys, equal starts."""
        ...

    def refusal(self) -> Refusal: ...


@dataclass(frozen=True, slots=True)
class Start:
    """One outcome of the deal: `reset(options=...)` makes it happen."""

    probability: float
    options: Mapping[str, Any]


class GameConfig(Component):
    """Settings of a game, and what is known about it."""

    group: ClassVar[str] = "games"

    @abstractmethod
    def build(self) -> Game:
        """A game that has not been dealt, with spaces and random numbers of its own."""

    def opponents(self) -> Mapping[str, EngineConfig]:
        """Players that the game exports (`nash`, `minimax`, ...), for evaluation."""
        return {}

    def starts(self) -> tuple[Start, ...] | None:
        """Every deal with its probability, if the game is small enough to be walked whole."""
        return None

    def optimal(self, state: str) -> tuple[str, ...] | None:
        """The moves that lose nothing against a perfect opponent in `state`; None if unknown, () if all do."""
        return None

    def positions(self) -> tuple[tuple[Mapping[str, Any], tuple[str, ...]], ...]:
        """(reset options, actions) that lead to each position in which `optimal` is to be measured."""
        return ()


# --- roles -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """What a role may look at when it speaks."""

    agent: str
    observation: Observation
    info: Info
    mine: Sequence[Turn] = ()
    """The agent's earlier turns."""
    unread: Sequence[Turn] = ()
    """Turns it can hear since its last one."""


class RoleConfig(Component):
    """A way of speaking. Without state, so a role is its own settings."""

    group: ClassVar[str] = "roles"
    policy: str
    trainable: bool = True
    sampling: Sampling = Sampling()
    history: Literal["fresh", "append"] = "fresh"
    """`fresh`: every prompt stands alone. `append`: it continues the agent's last turn, token for token."""

    @abstractmethod
    def messages(self, view: View) -> tuple[Message, ...]:
        """The prompt."""

    def continues(self, view: View) -> tuple[int, ...]:
        """Token ids that the prompt continues."""
        return ()

    @abstractmethod
    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        """The move said in `text`, or None."""

    @abstractmethod
    def phrase(self, move: str) -> str:
        """The canonical text that says `move`: `parse(phrase(move), legal) == move`."""


# --- engines and models ----------------------------------------------------------------------------------------


class ModelConfig(Component):
    """Where weights come from, and how they are held."""

    group: ClassVar[str] = "models"

    @abstractmethod
    def prepare(self, scenario: Scenario, policy: str) -> Source:
        """Make sure that the weights exist; say where."""


class Source(Protocol):
    """Weights and tokenizer on disk or on a hub. `load` may be called more than once: each copy is its own."""

    def model(self) -> Any: ...
    def tokenizer(self) -> Any: ...


class Engine(Protocol):
    """One base in memory that samples for one or more policies."""

    def submit(self, ticket: Ticket, request: Request) -> None: ...
    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        """Whatever has finished. With `wait_s = 0` it never blocks on anything but its own arithmetic."""
        ...

    def cancel(self, tickets: Iterable[Ticket]) -> None: ...
    def load_weights(self, policy: str, weights: Weights, version: int) -> None: ...


class EngineConfig(Component):
    """Settings of an engine."""

    group: ClassVar[str] = "engines"
    speaks_for_models: ClassVar[bool] = False
    """Whether it needs a model's weights; those of scripted players are in their settings."""

    @abstractmethod
    def build(self, source: Source | None) -> Engine:
        """An engine, ready to sample."""


# --- learning --------------------------------------------------------------------------------------------------


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
