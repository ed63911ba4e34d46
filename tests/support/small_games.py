"""Games and engines that are small enough to be worked out by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from marl.core.types import Completion, CompletionFailure, Deal, Message, Request, Ticket
from marl.games.base import FinalRewards, IllegalMoveHandling, NextAgent, TextGame, TextGameConfig
from marl.protocols import Engine, GameConfig, GameStart, PromptContext, RoleConfig, WeightlessEngine
from marl.roles.answering import PlayerRole
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator

PAIR = ("player_0", "player_1")
TRIO = ("player_0", "player_1", "player_2")
SEATS = dict.fromkeys(TRIO, "player")


class FunctionEngine(WeightlessEngine):
    """An engine whose answers are a function of the request, in made-up tokens; records its requests."""

    def __init__(
        self, say: Callable[[Request], str | CompletionFailure], *, newest_first: bool = False, batch: int = 0
    ) -> None:
        self._say, self._newest_first, self._batch = say, newest_first, batch
        self.requests: dict[Ticket, Request] = {}
        self.cancelled: list[Ticket] = []
        self._open: list[Ticket] = []

    def submit(self, ticket: Ticket, request: Request) -> None:
        self.requests[ticket] = request
        self._open.append(ticket)

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        order = sorted(self._open, reverse=self._newest_first)
        chosen = order[: self._batch] if self._batch else order
        self._open = [ticket for ticket in self._open if ticket not in chosen]
        return [(ticket, self._answer(self.requests[ticket])) for ticket in chosen]

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        gone = list(tickets)
        self.cancelled += gone
        self._open = [ticket for ticket in self._open if ticket not in gone]

    def _answer(self, request: Request) -> Completion | CompletionFailure:
        answer = self._say(request)
        return (
            answer
            if isinstance(answer, CompletionFailure)
            else Completion(answer, (1, 2), (3, 4), (-0.25, -0.5), "stop")
        )


def random_move(request: Request) -> str:
    """Any legal move, by the request's own seed."""
    texts = list((request.options or {}).values())
    return texts[request.seed % len(texts)]


class HearingPlayer(PlayerRole):
    """Its prompt holds what was said since its last turn."""

    kind: str = "listener"

    def messages(self, context: PromptContext) -> tuple[Message, ...]:
        heard = " ".join(f"{turn.agent}:{turn.completion.text}" for turn in context.new_turns)
        return (Message("user", f"{context.observation['text']} heard {heard} mine {len(context.own_turns)}"),)


def make_simulator(
    game: GameConfig, engines: Engine | Mapping[str, Engine], seed: int = 0, /, **roles: RoleConfig
) -> RolloutSimulator:
    """A game at which one policy, `actor`, plays every seat, unless roles say otherwise."""
    speakers = engines if isinstance(engines, Mapping) else {"actor": engines}
    return RolloutSimulator(
        game, RoleRequestBuilder(roles or {"player": PlayerRole(policy="actor")}, seed), speakers, deadline_s=5.0
    )


def make_deal(name: str, game: GameConfig, seed: int = 0, **options: Any) -> Deal:
    """The role `player` in every seat."""
    agents = game.build().possible_agents
    return Deal(name, name, seed, dict.fromkeys(agents, "player"), options=options or None)


class PenniesConfig(TextGameConfig):
    """Matching pennies, `rounds` times; both are asked at once. player_0 wins 1 if they match."""

    kind: str = "pennies"
    rounds: int = 1

    def build(self) -> Pennies:
        return Pennies(self)

    def all_start_states(self) -> tuple[GameStart, ...]:
        return (GameStart(1.0, {}),)


class Pennies(TextGame):
    name = "pennies"
    zero_sum = True

    def __init__(self, config: PenniesConfig) -> None:
        super().__init__(PAIR, config.illegal, ("heads", "tails"))
        self.rounds = config.rounds

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.shown: list[str] = []
        return PAIR[0]

    def start_state_key(self) -> str:
        return ""

    def describe_observation(self, agent: str) -> str:
        return f"round {len(self.shown) // 2}"

    def information_state(self, agent: str) -> str:
        return " ".join(self.shown[: len(self.shown) // 2 * 2])

    def agents_asked_together(self, agent: str) -> tuple[str, ...]:
        return PAIR if agent == PAIR[0] else (PAIR[1],)

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        self.shown.append(action)
        if self.agent_selection == PAIR[0]:
            return PAIR[1]
        won = 1.0 if self.shown[-1] == self.shown[-2] else -1.0
        outcome = {PAIR[0]: won, PAIR[1]: -won}
        if len(self.shown) == 2 * self.rounds:
            return outcome
        self.add_rewards(outcome)
        return PAIR[0]


class CircleConfig(TextGameConfig):
    """Three agents say `stay` or `quit` in turn, for `rounds` rounds.

    Who quits is paid the round's number and is gone; those who stay to the end are paid 10. `deaf` hears only itself.
    """

    kind: str = "circle"
    rounds: int = 3
    deaf: str = ""

    def build(self) -> Circle:
        return Circle(self)

    def all_start_states(self) -> tuple[GameStart, ...]:
        return (GameStart(1.0, {}),)


class Circle(TextGame):
    name = "circle"

    def __init__(self, config: CircleConfig) -> None:
        super().__init__(TRIO, config.illegal, ("stay", "quit"))
        self.rounds, self.deaf = config.rounds, config.deaf

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.round, self.quitters = 1, 0
        return TRIO[0]

    def start_state_key(self) -> str:
        return ""

    def describe_observation(self, agent: str) -> str:
        return f"round {self.round}, {self.quitters} gone"

    def information_state(self, agent: str) -> str:
        return f"{agent} {self.round} {self.quitters}"

    def heard_agents(self, agent: str) -> tuple[str, ...]:
        return (agent,) if agent == self.deaf else tuple(other for other in TRIO if other != self.deaf)

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        mover = self.agent_selection
        if action == "quit":
            self.add_rewards({mover: float(self.round)}, "left")
            self.terminations[mover] = True
            self.quitters += 1
        alive = [agent for agent in self.agents if not self.terminations[agent]]
        later = [agent for agent in alive if agent > mover]
        self.round += not later
        if not alive or self.round > self.rounds:
            return dict.fromkeys(alive, 10.0)
        return (later or alive)[0]

    def step(self, action: str | None) -> None:
        super().step(action)
        if action is not None:
            self.agent_selection = self._deads_step_first()


class FailingPenniesConfig(TextGameConfig):
    """Two turns each, played by both at once; `crack` breaks it when it comes second."""

    kind: str = "fragile"

    def build(self) -> FailingPennies:
        return FailingPennies(PAIR, IllegalMoveHandling(), ("safe", "crack"))


class FailingPennies(Pennies):
    name = "fragile"

    def __init__(self, agents: tuple[str, ...], illegal: IllegalMoveHandling, words: tuple[str, ...]) -> None:
        TextGame.__init__(self, agents, illegal, words)
        self.rounds = 2

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        if action == "crack":
            raise ZeroDivisionError("the glass broke")
        return super().apply_action(action)
