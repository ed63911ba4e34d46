"""PettingZoo bookkeeping for games that are played in words."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, Self

import numpy as np
from gymnasium.spaces import Dict, MultiBinary, Space, Text
from pettingzoo import AECEnv
from pydantic import Field, model_validator

from marl.config import Config, nearest
from marl.protocols import Game, GameConfig, Refusal
from marl.types import Findings, Info, Observation

PROBE = {"options": 1}
"""PettingZoo's `api_test` resets with this to see that options are accepted; it asks for nothing."""


class IllegalMove(Config):
    """What follows an answer that is no legal move."""

    retry: int = Field(default=0, ge=0)
    """How many times the same agent is asked again; an answer that is asked again pays nothing."""
    then: Literal["forfeit", "penalty", "random"] = "forfeit"
    """End the game at a cost, pay and have a uniformly random legal move played, or have one played for free."""
    penalty: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """What it costs the offender, in the game's reward. None: the game's own `foul`."""

    @model_validator(mode="after")
    def _random_is_free(self) -> Self:
        if self.then == "random" and self.penalty is not None:
            raise ValueError(f"penalty: {self.penalty} is never paid with then: 'random'; choices: forfeit, penalty")
        return self


class TextGameConfig(GameConfig):
    """Settings that every game in words has."""

    illegal: IllegalMove = IllegalMove()


class Words(Space[str]):
    """A finite vocabulary of moves."""

    def __init__(self, words: tuple[str, ...]) -> None:
        super().__init__(None, None)
        self.words = words

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        words = [w for i, w in enumerate(self.words) if mask is None or mask[i]]
        return words[int(self.np_random.integers(len(words)))]

    def contains(self, x: Any) -> bool:
        return x in self.words

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Words) and self.words == other.words


def prose(limit: int) -> Text:
    """Printable ASCII text of at most `limit` characters; a new space each time, for it carries random state."""
    return Text(min_length=0, max_length=limit, charset=frozenset(map(chr, (10, *range(32, 127)))))


@lru_cache(maxsize=4096)
def _mask(vocabulary: tuple[str, ...], legal: tuple[str, ...]) -> np.ndarray:
    """int8 [len(vocabulary)], 1 where the move is legal. Shared: copy before handing it out."""
    return np.array([word in legal for word in vocabulary], dtype=np.int8)


class TextGame(AECEnv[str, Observation, str]):
    """A turn-based game in words: a pure function of seed, options and actions.

    Subclasses write `deal`, `describe`, `state_of`, `move`, `start_key` and, where moves are restricted, `legal`.
    """

    name: ClassVar[str]
    zero_sum: ClassVar[bool] = False
    """Whether what an offender pays for an illegal move is shared by the others."""
    common: ClassVar[bool] = False
    """Whether all are paid alike, so that all pay for an illegal move."""
    foul: ClassVar[float] = 1.0
    """Default cost of an illegal move: never less than the worst regular loss, or breaking the rules would pay."""
    choices: ClassVar[tuple[str, ...]] = ()
    """What `reset(options=...)` understands."""

    infos: dict[str, Any]
    paid: dict[str, dict[str, float]]

    def __init__(
        self, agents: tuple[str, ...], illegal: IllegalMove, vocabulary: tuple[str, ...] | None = None
    ) -> None:
        if vocabulary is None and illegal.then != "forfeit":
            raise ValueError(f"illegal.then: {illegal.then!r} needs a game with a list of moves; choices: forfeit")
        self.metadata = {"name": self.name, "render_modes": [], "is_parallelizable": False}
        self.possible_agents = list(agents)
        self.seats = agents
        self.vocabulary = vocabulary
        """Every move there is; None when any text is a move."""
        self.illegal = illegal
        self.cost = self.foul if illegal.penalty is None else illegal.penalty
        self.render_mode = None
        self.rng = random.Random(0)

    # --- what a game says of itself --------------------------------------------------------------------------------

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        """Set up a new game; return the agent to move first."""
        raise NotImplementedError

    def describe(self, agent: str) -> str:
        """What `agent` can see, in words."""
        raise NotImplementedError

    def state_of(self, agent: str) -> str:
        """All that `agent` knows: its information state."""
        raise NotImplementedError

    def move(self, action: str) -> str | Mapping[str, float]:
        """Apply a legal move; return the agent to move next, or everyone's outcome at the end."""
        raise NotImplementedError

    def start_key(self) -> str:
        """Names the start state: equal keys, equal starts."""
        raise NotImplementedError

    def legal(self) -> tuple[str, ...] | None:
        """The moves open to the agent to move (and to those asked with it); None when any text is one."""
        return self.vocabulary

    def hears(self, agent: str) -> tuple[str, ...]:
        """Whose turns `agent` can see, its own included. Decides the edges of the trajectory graph."""
        return self.seats

    def together(self, agent: str) -> tuple[str, ...]:
        """The agents whose observations are final when `agent` is to move, itself first."""
        return (agent,)

    def problem(self) -> str:
        """Key of the problem that is worked on now; "" where there is none."""
        return ""

    def examples(self, agent: str) -> tuple[str, ...]:
        """Moves that show what an answer of `agent` looks like, where any text is a move."""
        return ()

    # --- PettingZoo ------------------------------------------------------------------------------------------------

    @cached_property
    def _spaces(self) -> dict[str, tuple[Space[Any], Space[str]]]:
        words = self.vocabulary
        if words is None:
            return {agent: (Dict(text=prose(65536)), prose(4096)) for agent in self.seats}
        return {
            agent: (Dict(text=prose(65536), action_mask=MultiBinary(len(words))), Words(words)) for agent in self.seats
        }

    def observation_space(self, agent: str) -> Space[Any]:
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> Space[str]:
        return self._spaces[agent][1]

    def observe(self, agent: str) -> Observation:
        seen: Observation = {"text": self.describe(agent)}
        if self.vocabulary is not None:
            open_moves = self._legal if self.infos.get(agent) else ()
            seen["action_mask"] = _mask(self.vocabulary, open_moves or ()).copy()
        return seen

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Deal anew. `options` (see `choices`) says how; what it leaves open, `seed` decides.

        Raises:
            ValueError: if an option is unknown or its value impossible.
        """
        self.rng.seed(seed)
        self.agents = agents = list(self.seats)
        self.rewards = dict.fromkeys(agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(agents, 0.0)
        self.terminations = dict.fromkeys(agents, False)
        self.truncations = dict.fromkeys(agents, False)
        self._skip_agent_selection = None  # PettingZoo leaves it behind when dead agents are not stepped
        self.paid = {}
        self._ask(self.deal(self.rng, self._known(options)), 0)

    def step(self, action: str | None) -> None:
        """Play a move; any text that is not a legal move, such as "", is an illegal one. None: for the dead only."""
        agent = self.agent_selection
        if self.paid:
            self.paid = {}
            self._clear_rewards()
        if self.terminations[agent]:
            self._was_dead_step(action)  # type: ignore[arg-type]
            return
        if action is None:
            raise ValueError(f"{self.name}: step(None) for {agent}, who is alive; an illegal move is any other text")
        self._cumulative_rewards[agent] = 0.0
        legal = self._legal
        played = action if action and (legal is None or action in legal) else self._refuse(agent)
        if played is not None:
            self._play(played)
        if self.paid:
            self._accumulate_rewards()

    def pay(self, payments: Mapping[str, float], name: str = "outcome") -> None:
        """Add to what this step pays, under a component's name."""
        for agent, value in payments.items():
            parts = self.paid.setdefault(agent, {})
            parts[name] = parts.get(name, 0.0) + value
            self.rewards[agent] += value

    def findings(self) -> Findings:
        """What the episode showed, beside its rewards."""
        return Findings()

    def refusal(self) -> Refusal:
        """What `step` does with an illegal move here and now, without doing it."""
        if self._attempt < self.illegal.retry or self.illegal.then == "forfeit":
            return Refusal()
        payments = self._fine(self.agent_selection) if self.illegal.then == "penalty" else {}
        return Refusal(payments, self._legal or ())

    # --- bookkeeping -----------------------------------------------------------------------------------------------

    def _known(self, options: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if not options or options == PROBE:
            return {}
        for name in options:
            if name not in self.choices:
                raise ValueError(f"{self.name}: unknown reset option {name!r}; {nearest(name, list(self.choices))}")
        return options

    def _ask(self, agent: str, attempt: int) -> None:
        self.agent_selection = agent
        self._attempt = attempt
        self._legal = legal = self.legal()
        self.infos = {each: {} for each in self.agents}
        together = self.together(agent)
        for each in together:
            info: Info = {
                "legal": legal,
                "hears": self.hears(each),
                "together": together,
                "state": self.state_of(each),
                "attempt": attempt,
                "problem": self.problem(),
                "examples": self.examples(each),
            }
            self.infos[each] = info

    def _play(self, action: str) -> None:
        outcome = self.move(action)
        if isinstance(outcome, str):
            self._ask(outcome, 0)
        else:
            self.pay(outcome)
            self._end()

    def _end(self) -> None:
        self._legal = ()
        self.terminations = dict.fromkeys(self.agents, True)
        self.infos = {agent: {} for agent in self.agents}

    def _refuse(self, agent: str) -> str | None:
        """Apply the illegal-move policy; the move to be played instead, if any."""
        if self._attempt < self.illegal.retry:
            self._ask(agent, self._attempt + 1)
            return None
        if self.illegal.then != "random":
            self.pay(self._fine(agent), "illegal")
        if self.illegal.then == "forfeit":
            self._end()
            return None
        return self.rng.choice(self._legal or ())

    def _fine(self, offender: str) -> dict[str, float]:
        if self.common:
            return dict.fromkeys(self.agents, -self.cost)
        others = [agent for agent in self.agents if agent != offender]
        share = self.cost / len(others) if self.zero_sum and others else 0.0
        return {offender: -self.cost} | dict.fromkeys(others, share)


def replay(game: Game, seed: int | None, options: Mapping[str, Any] | None, actions: Iterable[str | None]) -> None:
    """Bring `game` where `actions` lead from a start; None is a refused answer. This is how an episode is forked."""
    game.reset(seed, options)
    for action in actions:
        game.step("" if action is None else action)
