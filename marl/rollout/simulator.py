"""Simulator of one process: plays, forks, samples and scores. A run reaches its policies only through a simulator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from marl.core.graph import Trajectory
from marl.core.types import Completion, Deal, Failure, Fork, Metrics, Purpose, Request, Ticket, Usage
from marl.protocols import (
    AddedPlayer,
    Engine,
    EngineConfig,
    Game,
    GameConfig,
    MeteredEngine,
    RemoteEngine,
    RewardTransform,
    SleepingEngine,
    models,
)
from marl.rollout.added_policies import AddedPolicies
from marl.rollout.base import WAIT_S, BaseSimulator, EngineMap, EpisodeResult
from marl.rollout.casting import RoleCasting
from marl.rollout.episode import Episode, EpisodeLimits, GameError
from marl.rollout.request_router import Answer, AnswerCallback, RequestRouter


@dataclass(slots=True)
class _OpenEpisode:
    """An episode in flight."""

    ticket: Ticket
    episode: Episode
    rewards: RewardTransform | None
    requests: set[Ticket] = field(default_factory=set)
    tokens: int = 0
    """Number of tokens sampled or scored for the episode."""


@dataclass(slots=True)
class PendingRequests:
    """Requests submitted to engines, and the answers received so far."""

    tickets: list[Ticket] = field(default_factory=list)
    answers: dict[Ticket, Answer] = field(default_factory=dict)

    @property
    def answered(self) -> bool:
        """Return True when all answers are there."""
        return len(self.answers) == len(self.tickets)

    def ordered_answers(self) -> list[Answer]:
        """Return the answers in the order of the requests."""
        return [self.answers[ticket] for ticket in self.tickets]


class RolloutSimulator(BaseSimulator):
    """Simulator of games with the roles at their seats and the engines of their policies, all in this process.

    The protocol `Simulator` documents its methods.
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
        """Create a simulator.

        Args:
            game: the game, or several games by the names in their deals.
            casting: the roles.
            engines: policy -> its engine.
            deadline_s: maximum time without an answer, and of one call of the game or a role, in seconds.
            worker_delay: rounds between a worker's request and its answer (see `RequestRouter`).
            max_turns: maximum length of an episode. A longer one counts as an error of its game.
        """
        self.router = RequestRouter(engines.values(), deadline_s, worker_delay)
        super().__init__(game if isinstance(game, Mapping) else {"": game}, casting, self.router)
        self.engines = engines
        self._limits = EpisodeLimits(max_turns, deadline_s)
        self.added = AddedPolicies({})
        """Policies of `add_policy`. Without slot pools, saved weights cannot be added."""
        self._tickets = count()
        self._idle: dict[str, list[Game]] = {name: [] for name in self.games}
        """Game -> built instances without an episode, for the next ones."""
        self._episodes: dict[Ticket, _OpenEpisode] = {}
        self._finished: dict[Ticket, EpisodeResult] = {}

    def variant(self, casting: RoleCasting, engines: EngineMap | None = None) -> RolloutSimulator:
        combined = dict(self.engines)
        for name, engine in (engines or {}).items():
            combined[name] = engine.build(None) if isinstance(engine, EngineConfig) else engine
        return self._sibling(self.games, casting, combined)

    def for_game(self, name: str) -> RolloutSimulator:
        return self._sibling(self.games[name], self.casting, self.engines)

    def _sibling(
        self, game: GameConfig | Mapping[str, GameConfig], casting: RoleCasting, engines: Mapping[str, Engine]
    ) -> RolloutSimulator:
        other = RolloutSimulator(game, casting, engines)
        # One router steps the engines of all siblings, in the order of their first requests.
        other.router = other._source = self.router
        other._limits, other.added = self._limits, self.added
        other.tokens, other.critic = self.tokens, self.critic
        return other

    def start(self, work: Sequence[Deal | Fork], rewards: RewardTransform | None = None) -> list[Ticket]:
        tickets: list[Ticket] = []
        try:
            for deal, fork in self._starts(work):
                tickets.append(self.start_episode(deal, fork, rewards))
        except GameError:
            self.cancel(tickets)
            raise
        return tickets

    def poll(self, wait_s: float) -> list[tuple[Ticket, Trajectory | None]]:
        return [(ticket, result.trajectory) for ticket, result in self.poll_results(wait_s)]

    def poll_results(self, wait_s: float) -> list[tuple[Ticket, EpisodeResult]]:
        """Return finished episodes as `poll` does, with the token counts and errors of each."""
        if not self._finished and self._episodes:
            self.router.step(wait_s)
        finished, self._finished = list(self._finished.items()), {}
        return finished

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._finished.pop(ticket, None)
            opened = self._episodes.pop(ticket, None)
            if opened and opened.requests:
                self.router.cancel(opened.requests)

    def _in_flight(self, ticket: Ticket) -> bool:
        return ticket in self._episodes

    def _collect(self, ticket: Ticket) -> Trajectory | None:
        return self._finished.pop(ticket).trajectory

    def ask(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Answer]:
        pending = self.submit_requests(requests, purpose)
        try:
            while not pending.answered:
                self.router.step(WAIT_S)
        finally:
            self.router.cancel(pending.tickets)
        return pending.ordered_answers()

    def submit_requests(self, requests: Sequence[Request], purpose: Purpose) -> PendingRequests:
        """Submit requests to their engines and return at once. `router.step` delivers their answers."""
        pending = PendingRequests()

        def deliver(ticket: Ticket, answer: Answer) -> None:
            pending.answers[ticket] = answer
            self._count(answer, purpose)

        pending.tickets = [self._submit(replace(request, purpose=purpose), deliver) for request in requests]
        return pending

    def load_weights(self, policy: str, weights: models.Weights, version: int) -> None:
        self.engines[policy].load_weights(policy, weights, version)

    def add_policy(self, name: str, player: AddedPlayer) -> None:
        if name in self.engines:
            raise ValueError(f"policy {name!r} is one of the simulator's own; choose another name")
        self.added.add(name, player)

    def remove_policy(self, name: str) -> None:
        slot = self.added.slot(name)
        if slot is None:
            raise ValueError(f"no policy {name!r} was added here")
        # An adapter sits in the engine of its policy, which goes on with the policy's own requests.
        if all(slot.engine is not engine for engine in self.engines.values()):
            self.router.remove_engine(slot.engine)
        self.added.remove(name)

    def take_failure_messages(self) -> list[str]:
        return self.router.failures.take_messages()

    def end_step(self) -> Metrics:
        for engine in self.added.engines():
            if isinstance(engine, MeteredEngine):
                engine.end_step()  # resets its counters; the figures belong to none of the run's policies
        figures: dict[str, Metrics] = {}
        # Policies may share an engine, whose counters start again at each call: by identity, so one call per engine.
        for engine in {id(engine): engine for engine in self.engines.values()}.values():
            if isinstance(engine, MeteredEngine):
                figures.update(engine.end_step())
        metrics: Metrics = {}
        for policy, policy_figures in figures.items():
            for key, value in policy_figures.items():
                metrics[f"policy/{policy}/{key}"] = value
        return metrics

    def sleep(self) -> None:
        for engine in {id(engine): engine for engine in (*self.engines.values(), *self.added.engines())}.values():
            if isinstance(engine, SleepingEngine):
                engine.sleep()

    @property
    def usage(self) -> dict[str, Usage]:
        usage: dict[str, Usage] = {}
        for policy, engine in self.engines.items():
            if isinstance(engine, RemoteEngine):
                usage[policy] = engine.spent.get(policy, Usage())
        return usage

    def restore_usage(self, spent: Mapping[str, Usage]) -> None:
        for policy, engine in self.engines.items():
            if isinstance(engine, RemoteEngine) and policy in spent:
                engine.spent[policy] = spent[policy]

    def start_episode(self, deal: Deal, fork: Fork | None = None, rewards: RewardTransform | None = None) -> Ticket:
        """Start one episode and return its ticket. A forked episode gets its name from `deal`."""
        if deal.game not in self.games:
            raise ValueError(f"no game {deal.game!r} here; games: {', '.join(map(repr, self.games))}")
        ticket, idle = next(self._tickets), self._idle[deal.game]
        try:
            game = idle.pop() if idle else self.games[deal.game].build()
            episode = Episode(game, deal, self.casting, self._limits)
            if fork:
                episode.replay(fork.trajectory, fork.trajectory.turns[fork.index].id)
                episode.apply_fork(fork)
        except GameError as error:
            self._drop_episode(ticket, error)
        else:
            opened = self._episodes[ticket] = _OpenEpisode(ticket, episode, rewards)
            self._advance(opened, None)
        return ticket

    def _advance(self, opened: _OpenEpisode, answer: tuple[str, Answer] | None) -> None:
        """Pass `answer` (agent, answer) to its episode, if any, and submit the requests that follow."""
        episode = opened.episode
        try:
            if answer:
                episode.answer(*answer)
            requests = episode.new_requests()
        except GameError as error:
            self.cancel([opened.ticket])
            self._drop_episode(opened.ticket, error, opened.tokens)
            return
        if episode.done:
            self._finish(opened)
            return
        for agent, request in requests:
            opened.requests.add(self._submit(request, partial(self._deliver, opened, agent)))

    def _deliver(self, opened: _OpenEpisode, agent: str, ticket: Ticket, answer: Answer) -> None:
        opened.requests.discard(ticket)
        opened.tokens += self._count(answer, opened.episode.trajectory.deal.purpose)
        if isinstance(answer, Failure) and answer.finish == "unjudged":
            self.unverified += 1
            self.cancel([opened.ticket])
            self._finished[opened.ticket] = EpisodeResult(None, opened.tokens)
        else:
            self._advance(opened, (agent, answer))

    def _submit(self, request: Request, deliver: AnswerCallback) -> Ticket:
        if slot := self.added.slot(request.policy):
            return self.router.submit(slot.engine, request, deliver, slot.policy)
        return self.router.submit(self.engines[request.policy], request, deliver)

    def _finish(self, opened: _OpenEpisode) -> None:
        self.cancel([opened.ticket])
        trajectory = opened.episode.trajectory
        # Only a game whose episode ended is used again: one that raised may be in any state.
        self._idle[trajectory.deal.game].append(opened.episode.game)
        if opened.rewards:
            trajectory = opened.rewards(trajectory)
        self._finished[opened.ticket] = EpisodeResult(trajectory, opened.tokens)

    def _drop_episode(self, ticket: Ticket, error: GameError, tokens: int = 0) -> None:
        self.drop(error)
        self._finished[ticket] = EpisodeResult(None, tokens, error)

    def _count(self, answer: Answer, purpose: Purpose) -> int:
        """Add the tokens of an answer to the counter of `purpose`; return their number."""
        tokens = len(answer.token_ids) if isinstance(answer, Completion) else 0
        self.tokens[purpose] += tokens
        return tokens
