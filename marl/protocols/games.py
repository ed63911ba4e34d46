"""Protocol of games: PettingZoo environments in words, and the facts that a game's settings export."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from marl.core.config import PluginConfig
from marl.core.types import Findings, Info, Observation, Problem
from marl.protocols.engines import EngineConfig
from marl.protocols.models import ModelConfig
from marl.protocols.roles import RoleConfig


@dataclass(frozen=True, slots=True)
class IllegalMoveOutcome:
    """Consequence of an illegal answer in the current state of a game."""

    rewards: Mapping[str, float] = field(default_factory=dict)
    """Reward that each agent gets at once."""
    moves: tuple[str, ...] = ()
    """Moves from which one is drawn uniformly and played. If empty, `step("")` decides the consequence."""


class Game(Protocol):
    """A PettingZoo `AECEnv[str, Observation, str]` played in words: a pure function of seed and actions."""

    possible_agents: list[str]
    agents: list[str]
    agent_selection: str
    rewards: dict[str, float]
    terminations: dict[str, bool]
    truncations: dict[str, bool]
    infos: dict[str, Info]
    """Facts for the agent to move, and for the agents in its `together`."""
    reward_components: dict[str, dict[str, float]]
    """Components of the last step's `rewards`: agent -> name -> value."""
    reward_causes: dict[tuple[str, str], str]
    """Rule or expression that paid a reward component, by (agent, name). Entries may be missing."""

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None: ...
    def step(self, action: str | None) -> None:
        """Play a move. Any text other than a legal move, such as "", is an illegal move."""

    def copy(self, seed: int | None = None) -> Game:
        """Return an independent game in the same state.

        `seed` restarts the copy's random numbers. With None, the copy draws the same random numbers as this game.
        """
        ...

    def observe(self, agent: str) -> Observation: ...
    def start_key(self) -> str:
        """Return a key of the start state. Two episodes with equal keys had equal start states."""
        ...

    def illegal_move_outcome(self) -> IllegalMoveOutcome:
        """Return the consequence of an illegal answer in the current state, without applying it."""
        ...

    def findings(self) -> Findings:
        """Return the measures of the finished episode, and the new start states found in it."""
        ...


@dataclass(frozen=True, slots=True)
class GameStart:
    """One possible start state of a game, reached by `reset(options=...)`."""

    probability: float
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StateRendering:
    """Picture of a game state, for the pages that show episodes."""

    kind: Literal["grid", "cards"]
    """`grid`: a board, row by row; `cards`: rows of cards."""
    rows: tuple[tuple[str, ...], ...]
    """Symbol of each cell, or text of each card; "" for an empty cell."""
    caption: str = ""
    """Remaining facts of the state, in words."""


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """Role, engine and model of an agent."""

    role: RoleConfig
    engine: EngineConfig
    model: ModelConfig | None
    """Model of the policy, or None if the engine needs no model."""


class GameConfig(PluginConfig):
    """Settings of a game, and the facts about it that follow from them."""

    group: ClassVar[str] = "games"

    @abstractmethod
    def build(self) -> Game:
        """Return a new game with its own spaces and random generator, before its first `reset`."""

    def default_seats(self) -> Mapping[str, str]:
        """Return the role of each agent whose seat a scenario may leave out."""
        return {}

    def conflicts(self, speakers: Mapping[str, AgentSetup]) -> Iterable[str]:
        """Yield an error message for each setting that contradicts the role, engine or model of an agent."""
        return ()

    def answer_hints(self) -> Mapping[str, str]:
        """Return a description of valid answers for each agent whose rules and prompts do not contain one."""
        return {}

    def is_zero_sum(self) -> bool:
        """Return True if the rewards of all agents sum to 0 in every episode."""
        return False

    def perfect_information(self) -> bool:
        """Return True if every agent observes the full state and no move after the start is random.

        Search then plans from the game's true state; else it samples states of the agent's information set.
        """
        return False

    def posed_problem_agents(self) -> Collection[str]:
        """Return the agents allowed to work on a problem posed by another agent of the episode."""
        return ()

    def measure_names(self) -> Collection[str] | None:
        """Return the names of the measures in `Game.findings`, or None if they are known only after play."""
        return None

    def held_out(self, n: int) -> Sequence[Mapping[str, Any]]:
        """Return `reset` options of up to `n` start states that training never uses; () if there are none."""
        return ()

    def problems(self, n: int) -> Sequence[Problem]:
        """Return up to `n` of the training problems, on which verifiers can be tried; () if there are none."""
        return ()

    def opponents(self) -> Mapping[str, EngineConfig]:
        """Return the reference players that the game exports for evaluation (`nash`, `minimax`, ...)."""
        return {}

    def starts(self) -> tuple[GameStart, ...] | None:
        """Return the start states with their probabilities, or None if the game is too large to be enumerated."""
        return None

    def optimal(self, state: str) -> tuple[str, ...] | None:
        """Return the optimal moves against a perfect opponent; () if all moves lose, None if they are unknown."""
        return None

    def positions(self) -> tuple[tuple[Mapping[str, Any], tuple[str, ...]], ...]:
        """Return (reset options, moves) leading to each position in which play is compared with `optimal`."""
        return ()

    def render_state(self, state: str) -> StateRendering | None:
        """Return a picture of the information state `state`, or None to show it as text."""
        return None
