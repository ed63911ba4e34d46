"""Protocol of games: PettingZoo environments in words, and what their settings export about them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from marl.config import Component
from marl.protocols.engines import EngineConfig
from marl.protocols.models import ModelConfig
from marl.protocols.roles import RoleConfig
from marl.types import Findings, Info, Observation, Problem


@dataclass(frozen=True, slots=True)
class Refusal:
    """Consequence of an illegal answer in the present state of a game."""

    payments: Mapping[str, float] = field(default_factory=dict)
    """Agent -> reward paid at once."""
    moves: tuple[str, ...] = ()
    """One of these is then played, each as likely. Empty: `step("")` decides what follows."""


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
    reward_components: dict[str, dict[str, float]]
    """The last step's `rewards` by component: agent -> name -> value."""
    reward_causes: dict[tuple[str, str], str]
    """(agent, name) -> the rule or expression that paid this component; entries may be missing."""

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None: ...
    def step(self, action: str | None) -> None:
        """Play a move; any text that is not a legal move, such as "", is an illegal one."""

    def copy(self, seed: int | None = None) -> Game:
        """Return a game in the same state, to be played on by itself.

        `seed`: of all that is left to chance in it. None: it draws what this game would draw.
        """
        ...

    def observe(self, agent: str) -> Observation: ...
    def start_key(self) -> str:
        """Return a name of the start state: equal keys, equal starts."""
        ...

    def refusal(self) -> Refusal:
        """Return what `step` would do with an illegal answer now."""
        ...

    def findings(self) -> Findings:
        """Return measures of the finished episode, and new starts that came up in it."""
        ...


@dataclass(frozen=True, slots=True)
class GameStart:
    """One outcome of the deal: `reset(options=...)` makes it happen."""

    probability: float
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Picture of a state of a game, for those who look at play."""

    kind: Literal["grid", "cards"]
    """`grid`: a board, row by row; `cards`: rows of cards."""
    rows: tuple[tuple[str, ...], ...]
    """Sign on each cell, or words on each card; "" for an empty cell."""
    caption: str = ""
    """All else that the state holds, in words."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """Settings of whoever speaks for an agent."""

    role: RoleConfig
    engine: EngineConfig
    model: ModelConfig | None
    """None: the engine needs none."""


class GameConfig(Component):
    """Settings of a game, and what is known about it."""

    group: ClassVar[str] = "games"

    @abstractmethod
    def build(self) -> Game:
        """Return a game with spaces and random numbers of its own, before its first `reset`."""

    def default_seats(self) -> Mapping[str, str]:
        """Return agent -> role, for seats that a scenario does not fill."""
        return {}

    def conflicts(self, speakers: Mapping[str, Speaker]) -> Iterable[str]:
        """Yield a message for each setting that contradicts those who speak for the agents (agent -> speaker)."""
        return ()

    def expected(self) -> Mapping[str, str]:
        """Return agent -> what its answers must be, in words, where neither rules nor prompts say so by themselves."""
        return {}

    def is_zero_sum(self) -> bool:
        """Return True if what all agents are paid adds up to 0 in every episode."""
        return False

    def perfect_information(self) -> bool:
        """Return True if every agent sees all that has happened and nothing is left to chance after the deal.

        Search then plans from the game's own state; else from states that the agent to move cannot tell from it.
        """
        return False

    def posed_to(self) -> Collection[str]:
        """Return the agents that may work on a problem which another agent posed in the same episode."""
        return ()

    def measured(self) -> Collection[str] | None:
        """Return the names of the measures that `Game.findings` reports; None if they are known only after play."""
        return None

    def held_out(self, n: int) -> Sequence[Mapping[str, Any]]:
        """Return `reset` options of up to `n` starts that training never deals; () if there are none."""
        return ()

    def problems(self, n: int) -> Sequence[Problem]:
        """Return up to `n` of the problems that are dealt, to try verifiers on; () if there are none."""
        return ()

    def opponents(self) -> Mapping[str, EngineConfig]:
        """Return the players that the game exports for evaluation (`nash`, `minimax`, ...)."""
        return {}

    def starts(self) -> tuple[GameStart, ...] | None:
        """Return every deal with its probability, if the game is small enough to be walked whole; else None."""
        return None

    def optimal(self, state: str) -> tuple[str, ...] | None:
        """Return the moves that lose nothing against a perfect opponent; None if unknown, () if all moves lose."""
        return None

    def positions(self) -> tuple[tuple[Mapping[str, Any], tuple[str, ...]], ...]:
        """Return (reset options, actions) that lead to each position in which `optimal` is to be measured."""
        return ()

    def drawing(self, state: str) -> Drawing | None:
        """Return a picture of an information state; None: it is shown as text."""
        return None
