"""Plays, forks and scores: the one way in which anything in a run gets answers from policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from urllib.parse import quote
from weakref import WeakValueDictionary

from marl.graph import Trajectory
from marl.protocols import Engine, Game, GameConfig, Service, View
from marl.rollout.casting import Cast
from marl.rollout.episode import Episode, GameError
from marl.rollout.request_router import Line
from marl.types import Completion, Deal, Failure, Fork, Purpose, Request, Ticket, Turn, TurnId, Usage


class Table:
    """A game, who sits at it, and the engines that speak for them. Reads weights, never writes them.

    `aliases`: policy -> what its engine calls it, where that is another name.
    """

    def __init__(
        self,
        game: GameConfig,
        cast: Cast,
        engines: Mapping[str, Engine],
        deadline_s: float = 600.0,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.game, self.cast, self.engines, self.deadline_s = game, cast, engines, deadline_s
        self.may_drop = 0
        """How many episodes of a run may be dropped because the game raised, before that ends the run."""
        self.dropped = 0
        self.tokens: Counter[str] = Counter()
        """Tokens sampled or scored, by purpose: train, eval, credit."""
        self._idle: list[Game] = []
        self._line = Line(engines, deadline_s, aliases or {})
        # What can be forked: every episode that somebody still holds.
        self._known: WeakValueDictionary[str, Trajectory] = WeakValueDictionary()
        self._branches: dict[str, Counter[Fork]] = {}

    def beside(self, cast: Cast, engines: Mapping[str, Engine] | None = None) -> Table:
        """Another table with the same game and engines, and more of them: tokens are counted together, drops are not.

        What goes wrong there is never dropped, so that it takes nothing from what this one may drop.
        """
        other = Table(self.game, cast, {**self.engines, **(engines or {})}, self.deadline_s)
        other.tokens = self.tokens
        return other

    def play(self, deals: Sequence[Deal]) -> list[Trajectory]:
        """Play episodes to their end, all at once; returned in deal order."""
        self._branches = {name: counts for name, counts in self._branches.items() if name in self._known}
        played = self._finish([self._begin(partial(self._dealt, deal)) for deal in deals])
        return [trajectory for trajectory in played if trajectory]

    def fork(self, turn_id: TurnId, n: int, action: str | None = None) -> list[Trajectory]:
        """Play `n` continuations from just before a turn of an earlier episode, after `action` if one is given.

        The start is replayed from seed and recorded answers; inherited turns keep their ids. Asked again, it plays
        other continuations.

        Raises:
            ValueError: if the turn is of no episode that was played here and is still held.
        """
        return self.branch([Fork(turn_id, action, n=n)])[0]

    def branch(self, forks: Sequence[Fork]) -> list[list[Trajectory]]:
        """Play the courses of all `forks` at once; the same way as in `fork`, which names no more than one.

        Raises:
            ValueError: if a turn's episode was not played here or is no longer held, or has no such turn.
        """
        starts = [self._starts(fork) for fork in forks]
        courses = iter(self._finish([self._begin(start) for group in starts for start in group]))
        return [[course for course in islice(courses, len(group)) if course] for group in starts]

    def hold(self, trajectories: Sequence[Trajectory]) -> None:
        """Make recorded episodes of this very game ready to be forked, for as long as somebody else holds them."""
        self._known.update((trajectory.id, trajectory) for trajectory in trajectories)

    def _starts(self, fork: Fork) -> list[Callable[[], Episode]]:
        past = self._known.get(fork.turn[0])
        if past is None:
            raise ValueError(f"fork: no episode {fork.turn[0]!r} at hand; only what was played here can be forked")
        if not 0 <= fork.turn[1] < len(past.turns):
            raise ValueError(f"fork: episode {past.id!r} has no turn {fork.turn[1]}; it has {len(past.turns)}")
        branches, alike = self._branches.setdefault(past.id, Counter()), replace(fork, n=1, purpose="credit")
        first = branches[alike] + 1
        branches[alike] += fork.n
        return [partial(self._branch, past, fork, branch) for branch in range(first, first + fork.n)]

    def score(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Completion | Failure]:
        """Log-probabilities of each request's `forced` text, in order; one without such a text is answered.

        The tokens are counted under `purpose`.
        """
        asked = {self._line.submit(request): index for index, request in enumerate(requests)}
        scored: dict[int, Completion | Failure] = {}
        try:
            while asked:
                scored.update((asked.pop(ticket), said) for ticket, said in self._line.answers())
        finally:
            self._line.cancel(asked)
        self.tokens[purpose] += sum(len(said.token_ids) for said in scored.values() if isinstance(said, Completion))
        return [scored[index] for index in range(len(requests))]

    def greedy(self) -> Table:
        """The same, but everybody says what is most likely."""
        return self.beside(self.cast.greedy())

    def address(self, turn: Turn) -> Request:
        """The request of a recorded turn, put to the policy that speaks for its role here."""
        if turn.role not in self.cast.roles:
            raise ValueError(f"turn {turn.id}: no role {turn.role!r} here; roles: {', '.join(self.cast.roles)}")
        role = self.cast.roles[turn.role]
        return replace(turn.request, policy=role.policy, sampling=role.sampling)

    def question(self, role: str, agent: str, text: str) -> Request:
        """What `role` asks its policy in the seat of `agent` if `text` is all that it has seen.

        Raises:
            ValueError: if there is no such role.
        """
        if role not in self.cast.roles:
            raise ValueError(f"no role {role!r} here; roles: {', '.join(self.cast.roles)}")
        return self.cast.request(role, View.of(agent, text), 0)

    @property
    def spent(self) -> dict[str, Usage]:
        """What the answers of policies that are paid for have cost in this run."""
        services = {policy: engine for policy, engine in self.engines.items() if isinstance(engine, Service)}
        return {policy: engine.spent.get(policy, Usage()) for policy, engine in services.items()}

    def restore_spent(self, spent: Mapping[str, Usage]) -> None:
        """Go on from what an interrupted run had spent."""
        for policy, engine in self.engines.items():
            if isinstance(engine, Service) and policy in spent:
                engine.spent[policy] = spent[policy]

    def _begin(self, start: Callable[[], Episode]) -> Episode | None:
        try:
            return start()
        except GameError as error:
            self._drop(error)
            return None

    def _dealt(self, deal: Deal) -> Episode:
        return Episode(self._game(), deal, self.cast)

    def _branch(self, past: Trajectory, fork: Fork, branch: int) -> Episode:
        name = f"{past.id}~{fork.turn[1]}.{_course(fork)}.{branch}"
        episode = self._dealt(replace(past.deal, episode=name, purpose=fork.purpose, branch=branch))
        episode.replay(past, past.turns[fork.turn[1]].id)
        episode.follow(fork, past)
        return episode

    def _finish(self, episodes: Sequence[Episode | None]) -> list[Trajectory | None]:
        """None for what was dropped."""
        asked: dict[Ticket, tuple[Episode, str]] = {}
        try:
            for episode in episodes:
                if episode and not episode.over:
                    self._go_on(episode, asked)
            while asked:
                for ticket, said in self._line.answers():
                    if ticket in asked:  # not so if another answer of this batch ended its episode
                        episode, agent = asked.pop(ticket)
                        self._tell(episode, agent, said, asked)
        finally:
            self._line.cancel(asked)
        return [self._close(episode) if episode and episode.over else None for episode in episodes]

    def _tell(
        self, episode: Episode, agent: str, said: Completion | Failure, asked: dict[Ticket, tuple[Episode, str]]
    ) -> None:
        if isinstance(said, Completion):
            self.tokens[episode.trajectory.deal.purpose] += len(said.token_ids)
        self._go_on(episode, asked, (agent, said))

    def _go_on(
        self,
        episode: Episode,
        asked: dict[Ticket, tuple[Episode, str]],
        told: tuple[str, Completion | Failure] | None = None,
    ) -> None:
        """Pass an answer on, if there is one, and put the questions that follow."""
        try:
            if told:
                episode.answer(*told)
            new = episode.asks()
        except GameError as error:
            self._abandon(episode, asked)
            self._drop(error)
            return
        if not episode.over:
            for agent, request in new:
                asked[self._line.submit(request)] = episode, agent
        elif episode.waits:
            self._abandon(episode, asked)

    def _abandon(self, episode: Episode, asked: dict[Ticket, tuple[Episode, str]]) -> None:
        """Take back an episode's open questions."""
        orphans = [ticket for ticket, (owner, _) in asked.items() if owner is episode]
        self._line.cancel(orphans)
        for ticket in orphans:
            del asked[ticket]

    def _drop(self, error: GameError) -> None:
        self.dropped += 1
        if self.dropped > self.may_drop:
            if self.may_drop:
                error.add_note(f"{self.may_drop} episodes were dropped before this one (schedule.max_drops)")
            raise error

    def _game(self) -> Game:
        return self._idle.pop() if self._idle else self.game.build()

    def _close(self, episode: Episode) -> Trajectory:
        self._idle.append(episode.game)
        self._known[episode.trajectory.id] = episode.trajectory
        return episode.trajectory


def _course(fork: Fork) -> str:
    """What a fork does, as a part of its episodes' names: no other fork's is the same."""
    muted = [f"{quote(agent)}={_word(move)}" for agent, move in fork.muted]
    return ",".join([_word(fork.action), *muted, *(["kept"] if fork.keeps else [])])


def _word(move: str | None) -> str:
    """A move as a part of a name: without the characters that separate its parts."""
    if move is None:
        return ""
    return quote(move, safe=" ").replace("~", "%7E") or "="
