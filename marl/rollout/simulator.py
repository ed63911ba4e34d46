"""The simulator: plays, forks, samples and scores. All that a run gets from policies goes through it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Self

from marl.graph import Trajectory
from marl.protocols import (
    Engine,
    EngineConfig,
    Game,
    GameConfig,
    MeteredEngine,
    Player,
    Rewards,
    Service,
    SleepingEngine,
)
from marl.rollout.base import WAIT_S, BaseSimulator, EpisodeResult, Players
from marl.rollout.casting import RoleCasting
from marl.rollout.episode import Episode, GameError, PlayLimits
from marl.rollout.guests import Guests, Spare
from marl.rollout.request_router import Answer, Deliver, RequestRouter
from marl.types import Completion, Deal, Failure, Fork, Metrics, Purpose, Request, Ticket, Usage

if TYPE_CHECKING:
    from marl.protocols import Weights


@dataclass(slots=True)
class _Play:
    """An episode in flight."""

    ticket: Ticket
    episode: Episode
    rewards: Rewards | None
    requests: set[Ticket] = field(default_factory=set)
    tokens: int = 0
    """Tokens that were sampled or scored for it."""


@dataclass(slots=True)
class PendingAnswers:
    """Requests that were put to engines, and the answers that have come."""

    tickets: list[Ticket] = field(default_factory=list)
    answers: dict[Ticket, Answer] = field(default_factory=dict)

    @property
    def answered(self) -> bool:
        """Return True when all answers have come."""
        return len(self.answers) == len(self.tickets)

    def in_order(self) -> list[Answer]:
        """Return the answers in the order of the requests."""
        return [self.answers[ticket] for ticket in self.tickets]


class RolloutSimulator(BaseSimulator):
    """The `Simulator` of a game, the roles at its seats, and the engines that speak for them.

    Methods of the protocol are described there.
    """

    def __init__(
        self,
        game: GameConfig | Mapping[str, GameConfig],
        casting: RoleCasting,
        engines: Mapping[str, Engine],
        deadline_s: float = 600.0,
        worker_delay: int | None = None,
        max_turns: int = 10_000,
    ) -> None:
        """`game`: the one that is played, or several by the names that deals give them. `deadline_s`, which is also the
        longest time of a call of the game, and `worker_delay` are those of the `RequestRouter`; an episode that is not
        over after `max_turns` counts as one whose game raised."""
        super().__init__(game if isinstance(game, Mapping) else {"": game}, casting)
        self.engines = engines
        self._limits = PlayLimits(max_turns, deadline_s)
        self._router = RequestRouter(engines.values(), deadline_s, worker_delay)
        self._guests = Guests({})
        self._tickets = count()
        self._idle: dict[str, list[Game]] = {name: [] for name in self.games}
        """Game -> instances that no episode uses."""
        self._plays: dict[Ticket, _Play] = {}
        self._finished: dict[Ticket, EpisodeResult] = {}

    def with_spares(self, spares: Mapping[str, Spare]) -> Self:
        """Give it room for saved weights (policy -> room), before any player is added; return it."""
        self._guests = Guests(spares)
        return self

    def variant(self, casting: RoleCasting, engines: Players | None = None) -> RolloutSimulator:
        built = {
            name: engine.build(None) if isinstance(engine, EngineConfig) else engine
            for name, engine in (engines or {}).items()
        }
        return self._like(self.games, casting, {**self.engines, **built})

    def of_game(self, name: str) -> RolloutSimulator:
        return self._like(self.games[name], self.casting, self.engines)

    def _like(
        self, game: GameConfig | Mapping[str, GameConfig], casting: RoleCasting, engines: Mapping[str, Engine]
    ) -> RolloutSimulator:
        other = RolloutSimulator(game, casting, engines)
        other._limits, other._router, other.tokens = self._limits, self._router, self.tokens
        other._guests, other.critic = self._guests, self.critic
        return other

    def start(self, work: Sequence[Deal | Fork], rewards: Rewards | None = None) -> list[Ticket]:
        tickets: list[Ticket] = []
        try:
            for deal, fork in self._starts(work):
                tickets.append(self.begin(deal, fork, rewards))
        except GameError:
            self.cancel(tickets)
            raise
        return tickets

    def poll(self, wait_s: float) -> list[tuple[Ticket, Trajectory | None]]:
        return [(ticket, outcome.trajectory) for ticket, outcome in self.outcomes(wait_s)]

    def outcomes(self, wait_s: float) -> list[tuple[Ticket, EpisodeResult]]:
        """Return as `poll`, with all that is known of each episode's end."""
        if not self._finished and self._plays:
            self._router.pump(wait_s)
        finished, self._finished = list(self._finished.items()), {}
        return finished

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._finished.pop(ticket, None)
            play = self._plays.pop(ticket, None)
            if play and play.requests:
                self._router.cancel(play.requests)

    def _in_flight(self, ticket: Ticket) -> bool:
        return ticket in self._plays

    def pump(self, wait_s: float) -> None:
        self._router.pump(wait_s)

    def _collect(self, ticket: Ticket) -> Trajectory | None:
        return self._finished.pop(ticket).trajectory

    def ask(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Answer]:
        pending = self.put_all(requests, purpose)
        try:
            while not pending.answered:
                self._router.pump(WAIT_S)
        finally:
            self.withdraw(pending)
        return pending.in_order()

    def put_all(self, requests: Sequence[Request], purpose: Purpose) -> PendingAnswers:
        """Put requests to their engines, and return at once; answers come while `outcomes` or `ask` is called."""
        pending = PendingAnswers()

        def deliver(ticket: Ticket, answer: Answer) -> None:
            pending.answers[ticket] = answer
            self._count(answer, purpose)

        pending.tickets = [self._put(replace(request, purpose=purpose), deliver) for request in requests]
        return pending

    def withdraw(self, pending: PendingAnswers) -> None:
        """Take back the requests that were not answered yet."""
        self._router.cancel(pending.tickets)

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        self.engines[policy].load_weights(policy, weights, version)

    def add_policy(self, name: str, player: Player) -> None:
        if name in self.engines:
            raise ValueError(f"policy {name!r} is one of the simulator's own; choose another name")
        self._guests.add(name, player)

    def remove_policy(self, name: str) -> None:
        place = self._guests.place(name)
        if place is None:
            raise ValueError(f"no policy {name!r} was added here")
        if all(place.engine is not engine for engine in self.engines.values()):
            self._router.forget(place.engine)
        self._guests.remove(name)

    def take_failures(self) -> list[str]:
        return self._router.failures.take()

    def end_step(self) -> Metrics:
        for guest in self._guests.engines():
            if isinstance(guest, MeteredEngine):
                guest.end_step()
        metered = {id(engine): engine for engine in self.engines.values() if isinstance(engine, MeteredEngine)}
        figures = {name: each for engine in metered.values() for name, each in engine.end_step().items()}
        return {f"policy/{name}/{key}": value for name, each in figures.items() for key, value in each.items()}

    def sleep(self) -> None:
        for engine in {id(engine): engine for engine in (*self.engines.values(), *self._guests.engines())}.values():
            if isinstance(engine, SleepingEngine):
                engine.sleep()

    @property
    def spent(self) -> dict[str, Usage]:
        services = {policy: engine for policy, engine in self.engines.items() if isinstance(engine, Service)}
        return {policy: engine.spent.get(policy, Usage()) for policy, engine in services.items()}

    def restore_spent(self, spent: Mapping[str, Usage]) -> None:
        for policy, engine in self.engines.items():
            if isinstance(engine, Service) and policy in spent:
                engine.spent[policy] = spent[policy]

    def begin(self, deal: Deal, fork: Fork | None = None, rewards: Rewards | None = None) -> Ticket:
        """Begin one episode, of a fork under the name that `deal` gives it; return its ticket."""
        ticket = next(self._tickets)
        try:
            episode = Episode(self._game(deal.game), deal, self.casting, self._limits)
            if fork:
                episode.replay(fork.trajectory, fork.trajectory.turns[fork.index].id)
                episode.follow(fork)
        except GameError as error:
            self._leave_out(ticket, error)
        else:
            play = self._plays[ticket] = _Play(ticket, episode, rewards)
            self._advance(play, None)
        return ticket

    def _game(self, name: str) -> Game:
        """Return a game in which no episode is going on."""
        if name not in self.games:
            raise ValueError(f"no game {name!r} here; games: {', '.join(map(repr, self.games))}")
        return self._idle[name].pop() if self._idle[name] else self.games[name].build()

    def _advance(self, play: _Play, answer: tuple[str, Answer] | None) -> None:
        """Hand an answer to its episode, if there is one, and put the questions that follow."""
        episode = play.episode
        try:
            if answer:
                episode.answer(*answer)
            questions = episode.new_requests()
        except GameError as error:
            self.cancel([play.ticket])
            self._leave_out(play.ticket, error, play.tokens)
            return
        if episode.over:
            self._finish(play)
            return
        for agent, request in questions:
            play.requests.add(self._put(request, partial(self._deliver, play, agent)))

    def _deliver(self, play: _Play, agent: str, ticket: Ticket, answer: Answer) -> None:
        play.requests.discard(ticket)
        play.tokens += self._count(answer, play.episode.trajectory.deal.purpose)
        if isinstance(answer, Failure) and answer.finish == "unjudged":
            self.unjudged += 1
            self.cancel([play.ticket])
            self._finished[play.ticket] = EpisodeResult(None, play.tokens)
        else:
            self._advance(play, (agent, answer))

    def _put(self, request: Request, deliver: Deliver) -> Ticket:
        if guest := self._guests.place(request.policy):
            return self._router.submit(guest.engine, request, deliver, guest.policy)
        return self._router.submit(self.engines[request.policy], request, deliver)

    def _finish(self, play: _Play) -> None:
        self.cancel([play.ticket])
        trajectory = play.episode.trajectory
        self._idle[trajectory.deal.game].append(play.episode.game)
        self._finished[play.ticket] = EpisodeResult(
            play.rewards(trajectory) if play.rewards else trajectory, play.tokens
        )

    def _leave_out(self, ticket: Ticket, error: GameError, tokens: int = 0) -> None:
        self.drop(error)
        self._finished[ticket] = EpisodeResult(None, tokens, error)

    def _count(self, answer: Answer, purpose: Purpose) -> int:
        """Count and return the tokens of an answer."""
        tokens = len(answer.token_ids) if isinstance(answer, Completion) else 0
        self.tokens[purpose] += tokens
        return tokens
