"""Protocol of games: PettingZoo environments in words, and what their settings export about them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from marl.config import Component
from marl.protocols.engines import EngineConfig
from marl.types import Findings, Info, Observation, Problem


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
    reward_components: dict[str, dict[str, float]]
    """The last step's `rewards` by component: agent -> name -> value."""
    reward_causes: dict[tuple[str, str], str]
    """(agent, name) -> the rule or expression that paid this component; entries may be missing."""

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None: ...
    def step(self, action: str | None) -> None:
        """Play a move; any text that is not a legal move, such as "", is an illegal one."""

    def observe(self, agent: str) -> Observation: ...
    def start_key(self) -> str:
        """Names the start state: equal keys, equal starts."""
        ...

    def refusal(self) -> Refusal: ...
    def findings(self) -> Findings:
        """What the episode, which is over, showed."""
        ...


@dataclass(frozen=True, slots=True)
class GameStart:
    """One outcome of the deal: `reset(options=...)` makes it happen."""

    probability: float
    options: Mapping[str, Any]


class GameConfig(Component):
    """Settings of a game, and what is known about it."""

    group: ClassVar[str] = "games"

    @abstractmethod
    def build(self) -> Game:
        """A game that has not been dealt, with spaces and random numbers of its own."""

    def default_seats(self) -> Mapping[str, str]:
        """Agent -> the role that takes its seat where a scenario does not say otherwise."""
        return {}

    def held_out(self, n: int) -> Sequence[Mapping[str, Any]]:
        """`reset` options of up to `n` starts that training never deals; () if there are none."""
        return ()

    def problems(self, n: int) -> Sequence[Problem]:
        """Up to `n` of the problems that are dealt, to try verifiers on; () if there are none."""
        return ()

    def opponents(self) -> Mapping[str, EngineConfig]:
        """Players that the game exports (`nash`, `minimax`, ...), for evaluation."""
        return {}

    def starts(self) -> tuple[GameStart, ...] | None:
        """Every deal with its probability, if the game is small enough to be walked whole."""
        return None

    def optimal(self, state: str) -> tuple[str, ...] | None:
        """The moves that lose nothing against a perfect opponent in `state`; None if unknown, () if all do."""
        return None

    def positions(self) -> tuple[tuple[Mapping[str, Any], tuple[str, ...]], ...]:
        """(reset options, actions) that lead to each position in which `optimal` is to be measured."""
        return ()
