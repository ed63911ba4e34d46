"""Plays, forks and scores: the one way in which anything in a run gets answers from policies."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count

from marl.graph import Trajectory
from marl.protocols import Engine, Game, GameConfig
from marl.rollout import Cast, Episode, GameError
from marl.types import Completion, Deal, Failure, Request, Ticket, Turn, TurnId


class Table:
    """A game, who sits at it, and the engines that speak for them. Reads weights, never writes them."""

    def __init__(self, game: GameConfig, cast: Cast, engines: Mapping[str, Engine], deadline_s: float = 600.0) -> None:
        self.game, self.cast, self.engines, self.deadline_s = game, cast, engines, deadline_s
        self.may_drop = 0
        """How many episodes of a run may be dropped because the game raised, before that ends the run."""
        self.dropped = 0
        self.tokens: Counter[str] = Counter()
        """Sampled or scored tokens by purpose: train, eval, credit."""
        self._idle: list[Game] = []
        self._tickets = count()
        self._known: dict[str, Trajectory] = {}

    def play(self, deals: Sequence[Deal]) -> list[Trajectory]:
        """Play episodes to their end, all at once; returned in deal order."""
        self._known.clear()
        return self._finish([self._open(deal) for deal in deals])

    def fork(self, turn_id: TurnId, n: int, action: str | None = None) -> list[Trajectory]:
        """Play `n` continuations from just before a turn of the last `play`, after `action` if one is given.

        The start is replayed from seed and recorded answers; inherited turns keep their ids.
        """
        past = self._known[turn_id[0]]
        episodes = []
        for branch in range(1, n + 1):
            name = f"{past.id}~{turn_id[1]}.{action or ''}.{branch}"
            deal = replace(past.deal, episode=name, purpose="credit", branch=branch)
            episode = Episode(self._game(), deal, self.cast)
            episode.replay(past, turn_id)
            if action is not None:
                episode.force(action)
            episodes.append(episode)
        return self._finish(episodes)

    def score(self, requests: Sequence[Request]) -> list[Completion | Failure]:
        """Log-probabilities of each request's `forced` text, in order."""
        asked = {}
        for request in requests:
            asked[self._submit(request)] = len(asked)
        scored: dict[int, Completion | Failure] = {}
        while len(scored) < len(requests):
            scored.update((asked[ticket], said) for ticket, said in self._answers(set(asked) - set(scored)))
        return [scored[i] for i in range(len(requests))]

    def address(self, turn: Turn) -> Request:
        """The request of a recorded turn, put to the policy that speaks for its role here."""
        role = self.cast.roles[turn.role]
        return replace(turn.request, policy=role.policy, sampling=role.sampling)

    def _open(self, deal: Deal) -> Episode | None:
        try:
            return Episode(self._game(), deal, self.cast)
        except GameError as error:
            self._drop(error)
            return None

    def _finish(self, episodes: Sequence[Episode | None]) -> list[Trajectory]:
        asked: dict[Ticket, tuple[Episode, str]] = {}
        for episode in episodes:
            if episode and not episode.over:
                self._ask(episode, asked)
        while asked:
            for ticket, said in self._answers(asked):
                if ticket in asked:
                    episode, agent = asked.pop(ticket)
                    self._tell(episode, agent, said, asked)
        return [self._close(episode) for episode in episodes if episode and episode.over]

    def _ask(self, episode: Episode, asked: dict[Ticket, tuple[Episode, str]]) -> None:
        for agent, request in episode.asks():
            asked[self._submit(request)] = episode, agent

    def _tell(
        self, episode: Episode, agent: str, said: Completion | Failure, asked: dict[Ticket, tuple[Episode, str]]
    ) -> None:
        if isinstance(said, Completion):
            self.tokens[episode.trajectory.deal.purpose] += len(said.token_ids)
        try:
            episode.answer(agent, said)
            if not episode.over:
                self._ask(episode, asked)
        except GameError as error:
            self._drop(error)
            orphans = [ticket for ticket, (owner, _) in asked.items() if owner is episode]
            for engine in self._distinct():
                engine.cancel(orphans)
            for ticket in orphans:
                del asked[ticket]

    def _drop(self, error: GameError) -> None:
        self.dropped += 1
        if self.dropped > self.may_drop:
            raise error

    def _submit(self, request: Request) -> Ticket:
        ticket = next(self._tickets)
        self.engines[request.policy].submit(ticket, request)
        return ticket

    def _answers(self, waiting: Collection[Ticket]) -> list[tuple[Ticket, Completion | Failure]]:
        """Whatever has finished; waits for at least one answer, but not for ever."""
        engines = self._distinct()
        patience = 0.0 if len(engines) > 1 else 1.0
        until = time.monotonic() + self.deadline_s
        while not (answers := [answer for engine in engines for answer in engine.step(patience)]):
            if time.monotonic() > until:
                raise TimeoutError(
                    f"no policy of {sorted(self.engines)} answered any of {len(waiting)} requests "
                    f"within {self.deadline_s:g} s (schedule.deadline_s)"
                )
        return answers

    def _distinct(self) -> list[Engine]:
        return list({id(engine): engine for engine in self.engines.values()}.values())

    def _game(self) -> Game:
        return self._idle.pop() if self._idle else self.game.build()

    def _close(self, episode: Episode) -> Trajectory:
        self._idle.append(episode.game)
        self._known[episode.trajectory.id] = episode.trajectory
        return episode.trajectory
