"""The simulator: plays, forks, samples and scores. All that a run gets from policies goes through it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from urllib.parse import quote

from marl.graph import Trajectory
from marl.protocols import Engine, Game, GameConfig, MeteredEngine, Rewards, RoleConfig, Service, SleepingEngine, View
from marl.rollout.casting import RoleCasting
from marl.rollout.episode import Episode, GameError, PlayLimits
from marl.rollout.request_router import Answer, Deliver, RequestRouter
from marl.types import Completion, Deal, Failure, Fork, Metrics, Purpose, Request, Ticket, Turn, Usage

_WAIT_S = 1.0
"""Longest that a blocking call sleeps before it looks at its deadline again."""


@dataclass(slots=True)
class _Play:
    """An episode in flight."""

    ticket: Ticket
    episode: Episode
    rewards: Rewards | None
    requests: set[Ticket] = field(default_factory=set)


class RolloutSimulator:
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
        self.games: Mapping[str, GameConfig] = game if isinstance(game, Mapping) else {"": game}
        self.casting, self.engines = casting, engines
        self.may_drop = 0
        """Number of episodes of a run that may be dropped because the game raised; one more ends the run."""
        self.dropped = 0
        self.unjudged = 0
        """Number of episodes that were left out because a worker process failed, for no fault of theirs."""
        self.tokens: Counter[str] = Counter()
        """Tokens sampled or scored, by purpose: train, eval, credit."""
        self._limits = PlayLimits(max_turns, deadline_s)
        self._router = RequestRouter(engines.values(), deadline_s, worker_delay)
        self._tickets = count()
        self._idle: dict[str, list[Game]] = {name: [] for name in self.games}
        """Game -> instances that no episode uses."""
        self._plays: dict[Ticket, _Play] = {}
        self._finished: dict[Ticket, Trajectory | None] = {}
        self._branches: dict[str, Counter[str]] = {}

    def variant(self, casting: RoleCasting, engines: Mapping[str, Engine] | None = None) -> RolloutSimulator:
        """Return another simulator of the same game with other roles and, if given, more engines or other ones.

        Both may have requests in flight at the same time, and tokens are counted together. Its dropped episodes are its
        own, and none may be dropped there.
        """
        return self._like(self.games, casting, {**self.engines, **(engines or {})})

    def of_game(self, name: str) -> RolloutSimulator:
        """Return another simulator, as `variant` does, of one of several games: its deals name none."""
        return self._like(self.games[name], self.casting, self.engines)

    def _like(
        self, game: GameConfig | Mapping[str, GameConfig], casting: RoleCasting, engines: Mapping[str, Engine]
    ) -> RolloutSimulator:
        other = RolloutSimulator(game, casting, engines)
        other._limits, other._router, other.tokens = self._limits, self._router, self.tokens
        return other

    def greedy(self) -> RolloutSimulator:
        return self.variant(self.casting.greedy())

    def start(self, work: Sequence[Deal | Fork], rewards: Rewards | None = None) -> list[Ticket]:
        for fork in (item for item in work if isinstance(item, Fork)):
            past = fork.trajectory
            if not 0 <= fork.index < len(past.turns):
                raise ValueError(f"fork: episode {past.id!r} has no turn {fork.index}; it has {len(past.turns)}")
        tickets: list[Ticket] = []
        try:
            for item in work:
                deals = [(item, None)] if isinstance(item, Deal) else [(deal, item) for deal in self._forked(item)]
                for deal, fork in deals:
                    tickets.append(next(self._tickets))
                    self._begin(tickets[-1], deal, fork, rewards)
        except GameError:
            self.cancel(tickets)
            raise
        return tickets

    def poll(self, wait_s: float) -> list[tuple[Ticket, Trajectory | None]]:
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

    def play(self, work: Sequence[Deal | Fork], rewards: Rewards | None = None) -> list[Trajectory]:
        return [trajectory for trajectory in self._drain(self.start(work, rewards)) if trajectory]

    def branch(self, forks: Sequence[Fork], rewards: Rewards | None = None) -> list[list[Trajectory]]:
        played = iter(self._drain(self.start(forks, rewards)))
        return [[trajectory for trajectory in islice(played, fork.n) if trajectory] for fork in forks]

    def _drain(self, tickets: Sequence[Ticket]) -> list[Trajectory | None]:
        """Wait for these episodes; those of other callers stay for `poll`."""
        try:
            for ticket in tickets:
                while ticket in self._plays:
                    self._router.pump(_WAIT_S)
            return [self._finished.pop(ticket) for ticket in tickets]
        finally:
            self.cancel(tickets)

    def release(self, trajectories: Iterable[Trajectory]) -> None:
        """Forget which continuations of these episodes were played."""
        for trajectory in trajectories:
            self._branches.pop(trajectory.id, None)

    def ask(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Answer]:
        answers: dict[Ticket, Answer] = {}
        tickets = [self._put(replace(request, purpose=purpose), answers.__setitem__) for request in requests]
        try:
            while len(answers) < len(requests):
                self._router.pump(_WAIT_S)
        finally:
            self._router.cancel(tickets)
        for answer in answers.values():
            self._count(answer, purpose)
        return [answers[ticket] for ticket in tickets]

    def score(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Answer]:
        if missing := [i for i, request in enumerate(requests) if request.forced is None]:
            raise ValueError(f"score: request {missing[0]} has no `forced` text; `ask` samples one")
        return self.ask(requests, purpose)

    def request_for(self, turn: Turn) -> Request:
        role = self._role(turn.role, f"turn {turn.id}: ")
        return replace(turn.request, policy=role.policy, sampling=role.sampling)

    def request_from_text(self, role: str, agent: str, text: str) -> Request:
        """Return what `role`, in the seat of `agent`, new_requests its policy if `text` is all that it has observed."""
        self._role(role)
        return self.casting.request(role, View.of(agent, text), 0)

    def _role(self, name: str, where: str = "") -> RoleConfig:
        if name not in self.casting.roles:
            raise ValueError(f"{where}no role {name!r} here; roles: {', '.join(self.casting.roles)}")
        return self.casting.roles[name]

    def take_failures(self) -> list[str]:
        """Return messages, since the last call, about requests that got no completion: first causes, then numbers."""
        return self._router.failures.take()

    def end_step(self) -> Metrics:
        """Return the figures of engines in the step, as `policy/NAME/...`."""
        metered = {id(engine): engine for engine in self.engines.values() if isinstance(engine, MeteredEngine)}
        figures = {name: each for engine in metered.values() for name, each in engine.end_step().items()}
        return {f"policy/{name}/{key}": value for name, each in figures.items() for key, value in each.items()}

    def sleep(self) -> None:
        """Let engines that can free their memory do so, until they are needed again."""
        for engine in {id(engine): engine for engine in self.engines.values()}.values():
            if isinstance(engine, SleepingEngine):
                engine.sleep()

    @property
    def spent(self) -> dict[str, Usage]:
        """Return what the answers of remote policies have cost in this run."""
        services = {policy: engine for policy, engine in self.engines.items() if isinstance(engine, Service)}
        return {policy: engine.spent.get(policy, Usage()) for policy, engine in services.items()}

    def restore_spent(self, spent: Mapping[str, Usage]) -> None:
        """Go on from what an interrupted run had spent."""
        for policy, engine in self.engines.items():
            if isinstance(engine, Service) and policy in spent:
                engine.spent[policy] = spent[policy]

    def _forked(self, fork: Fork) -> list[Deal]:
        """Return the deals of a fork's continuations, numbered on from those that were started before."""
        past, course = fork.trajectory, f"{fork.index}.{_course(fork)}"
        branches = self._branches.setdefault(past.id, Counter())
        first = branches[course] + 1
        branches[course] += fork.n
        return [
            replace(past.deal, episode=f"{past.id}~{course}.{branch}", purpose=fork.purpose, branch=branch)
            for branch in range(first, first + fork.n)
        ]

    def _begin(self, ticket: Ticket, deal: Deal, fork: Fork | None, rewards: Rewards | None) -> None:
        try:
            episode = Episode(self._game(deal.game), deal, self.casting, self._limits)
            if fork:
                episode.replay(fork.trajectory, fork.trajectory.turns[fork.index].id)
                episode.follow(fork)
        except GameError as error:
            self._drop(ticket, error)
            return
        play = self._plays[ticket] = _Play(ticket, episode, rewards)
        self._advance(play, None)

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
            self._drop(play.ticket, error)
            return
        if episode.over:
            self._finish(play)
            return
        for agent, request in questions:
            play.requests.add(self._put(request, partial(self._deliver, play, agent)))

    def _deliver(self, play: _Play, agent: str, ticket: Ticket, answer: Answer) -> None:
        play.requests.discard(ticket)
        self._count(answer, play.episode.trajectory.deal.purpose)
        if isinstance(answer, Failure) and answer.finish == "unjudged":
            self.unjudged += 1
            self.cancel([play.ticket])
            self._finished[play.ticket] = None
        else:
            self._advance(play, (agent, answer))

    def _put(self, request: Request, deliver: Deliver) -> Ticket:
        return self._router.submit(self.engines[request.policy], request, deliver)

    def _finish(self, play: _Play) -> None:
        self.cancel([play.ticket])
        trajectory = play.episode.trajectory
        self._idle[trajectory.deal.game].append(play.episode.game)
        self._finished[play.ticket] = play.rewards(trajectory) if play.rewards else trajectory

    def _drop(self, ticket: Ticket, error: GameError) -> None:
        self.dropped += 1
        if self.dropped > self.may_drop:
            if self.may_drop:
                error.add_note(f"{self.may_drop} episodes were dropped before this one (schedule.max_drops)")
            raise error
        self._finished[ticket] = None

    def _count(self, answer: Answer, purpose: Purpose) -> None:
        if isinstance(answer, Completion):
            self.tokens[purpose] += len(answer.token_ids)


def _course(fork: Fork) -> str:
    """Return what a fork does as a part of its episodes' names, different for different forks."""
    muted = [f"{quote(agent)}={_word(move)}" for agent, move in fork.muted]
    return ",".join([_word(fork.action), *muted, *(["kept"] if fork.keeps else [])])


def _word(move: str | None) -> str:
    """Return a move as a part of a name, without the characters that separate its parts."""
    if move is None:
        return ""
    return quote(move, safe=" ").replace("~", "%7E") or "="
