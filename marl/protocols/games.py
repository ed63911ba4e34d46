"""Protocol of games: PettingZoo environments with texts, and the facts that a game's settings export."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from marl.core.config import PluginConfig
from marl.core.types import EpisodeMeasuresAndNewStarts, Info, Observation, Problem
from marl.protocols.engines import EngineConfig
from marl.protocols.models import ModelConfig
from marl.protocols.roles import RoleConfig
from marl.protocols.tasks import TaskConfig


@dataclass(frozen=True, slots=True)
class IllegalMoveOutcome:
    """Consequence of an illegal answer in the current state of a game."""

    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    """Agent -> reward that it gets at once."""
    moves: tuple[str, ...] = ()
    """Legal moves, one of which is drawn uniformly and played instead of the illegal answer. If empty, the game plays
    `step("")`."""


class Game(Protocol):
    """PettingZoo `AECEnv[str, Observation, str]` with texts, whose course depends on seed and actions alone."""

    possible_agents: list[str]
    agents: list[str]
    agent_selection: str
    rewards: dict[str, float]
    terminations: dict[str, bool]
    truncations: dict[str, bool]
    infos: dict[str, Info]
    """Facts about the agent to move, and about the agents in its fact `together`."""
    reward_components: dict[str, dict[str, float]]
    """Agent -> name of a reward -> value, for the rewards paid after the last move."""
    reward_causes: dict[tuple[str, str], str]
    """(agent, name of a reward) -> rule or expression of the game that paid the reward. Entries may be missing."""

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None: ...
    def step(self, action: str | None) -> None:
        """Play a move. Any text other than a legal move, such as "", is an illegal move."""

    def copy(self, seed: int | None = None) -> Game:
        """Return an independent copy of the game in its present state.

        `seed` seeds the copy's random numbers. With None, the copy draws the same random numbers as this game.
        """
        ...

    def redeal(self, agent: str, rng: random.Random) -> bool:
        """Draw all that `agent` cannot know anew, as the deal would given what `agent` knows, and return True.

        Returns False, and changes nothing, if the game has no such way.
        """
        ...

    def random_returns(self, random_number: Callable[[], float]) -> tuple[float, ...] | None:
        """Return each agent's rewards until the end of a random continuation, or None if the game has no fast way."""
        ...

    def observe(self, agent: str) -> Observation: ...
    def start_state_key(self) -> str:
        """Return a key of the start state. Two episodes with equal keys had equal start states."""
        ...

    def illegal_move_outcome(self) -> IllegalMoveOutcome:
        """Return the consequence of an illegal answer in the current state, without applying it."""
        ...

    def episode_measures(self) -> EpisodeMeasuresAndNewStarts:
        """Return the measures of the finished episode, and new start states that the episode reached."""
        ...


EvaluationPosition = tuple[Mapping[str, Any], tuple[str, ...]]
"""(`reset` options, moves after the reset) that lead to a position in which an evaluation looks at the next move."""


@dataclass(frozen=True, slots=True)
class GameStart:
    """Start state of a game, with its probability and the options with which `reset` leads to it."""

    probability: float
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StateRendering:
    """Picture of a game state for HTML pages that show episodes."""

    kind: Literal["grid", "cards"]
    """Kind of picture: a board of cells (`grid`), or rows of cards (`cards`)."""
    rows: tuple[tuple[str, ...], ...]
    """Symbols of the cells or texts of the cards, row by row; "" for an empty cell."""
    caption: str = ""
    """Text below the picture, with facts that the picture does not show."""


@dataclass(frozen=True, slots=True)
class AgentRoleAndEngine:
    """Role of an agent, with engine and model of the role's policy."""

    role: RoleConfig
    engine: EngineConfig
    model: ModelConfig | None
    """Model of the policy, or None if the engine needs no model."""


class GameConfig(PluginConfig):
    """Base class of the settings of a game, which export facts about the game."""

    group: ClassVar[str] = "games"
    simultaneous: ClassVar[bool] = False
    """True if all agents always move at the same time, with all settings."""

    @abstractmethod
    def build(self) -> Game:
        """Return a new game with its own spaces and random generator, before its first `reset`."""

    def build_environment(self, render_mode: str | None = None) -> Any:
        """Return a new game as a PettingZoo `AECEnv` for other libraries, which renders in `render_mode` if given.

        Raises ValueError if the game does not have this render mode.
        """
        if render_mode is not None:
            raise ValueError(f"render_mode: {self.kind!r} has no {render_mode!r}; choices: None")
        return self.build()

    def build_parallel_environment(self, render_mode: str | None = None) -> Any:
        """Return a new game as a PettingZoo `ParallelEnv` for other libraries, which renders in `render_mode` if given.

        Raises ValueError if the game cannot be played in rounds of all agents, or does not have this render mode.
        """
        raise ValueError(f"kind: {self.kind!r} has no parallel environment; choices: marl.env")

    def default_role_of_agent(self) -> Mapping[str, str]:
        """Return agent -> role, for the agents whose seats a scenario may omit."""
        return {}

    def dealt_task(self) -> TaskConfig | None:
        """Return the task whose problems the game deals, or None if it deals no problems of a task."""
        return None

    def agent_answering_tool_calls_of_each_agent(self) -> Mapping[str, str]:
        """Return agent -> agent that answers its tool calls, for all agents that may call tools."""
        return {}

    def seating_conflicts(self, speakers: Mapping[str, AgentRoleAndEngine]) -> Iterable[str]:
        """Yield an error message for each setting that contradicts the role, engine or model of an agent.

        `speakers` maps each agent to its setup.
        """
        return ()

    def answer_format_by_agent(self) -> Mapping[str, str]:
        """Return agent -> description of valid answers, for agents whose rules and prompts lack this description."""
        return {}

    def is_zero_sum(self) -> bool:
        """Return True if the rewards of all agents sum to 0 in every episode."""
        return False

    def is_simultaneous(self) -> bool:
        """Return True if all agents always move at the same time with these settings."""
        return self.simultaneous

    def has_perfect_information(self) -> bool:
        """Return True if every agent observes the full state and no move after the start is random.

        Tree search then starts from the true state. Otherwise it samples states of the agent's information set.
        """
        return False

    def agents_working_on_posed_problems(self) -> Collection[str]:
        """Return the agents allowed to work on a problem posed by another agent of the episode."""
        return ()

    def measure_names(self) -> Collection[str] | None:
        """Return the names of the measures in `Game.findings`, or None if they are known only after play."""
        return None

    def held_out_reset_options(self, max_count: int) -> Sequence[Mapping[str, Any]]:
        """Return the `reset` options of up to `max_count` start states that training never uses; () if there are
        none."""
        return ()

    def forfeit_cost(self) -> float | None:
        """Return the cost of an illegal move that ends the game, in units of reward; None if none does."""
        return None

    def constant_rewards(self) -> Mapping[str, float] | None:
        """Return role -> reward, for roles that are paid the same whatever they do; None if no role is ever paid."""
        return {}

    def problems(self, max_count: int) -> Sequence[Problem]:
        """Return up to `max_count` training problems, on which verifiers can be tested; () if the game has no
        problems."""
        return ()

    def reference_players(self) -> Mapping[str, EngineConfig]:
        """Return name -> engine settings, for the game's reference players in evaluations (`nash`, `minimax`, ...)."""
        return {}

    def all_start_states(self) -> tuple[GameStart, ...] | None:
        """Return the start states with their probabilities, or None if the game is too large to be enumerated."""
        return None

    def optimal_moves(self, state: str) -> tuple[str, ...] | None:
        """Return the optimal moves in `state` against a perfect opponent.

        The result is () if all moves lose, or None if the optimal moves are unknown.
        """
        return None

    def evaluation_positions(self) -> tuple[EvaluationPosition, ...]:
        """Return the positions in which an evaluation compares moves with optimal ones."""
        return ()

    def render_state(self, state: str) -> StateRendering | None:
        """Return a picture of the information state `state`, or None to show it as text."""
        return None
