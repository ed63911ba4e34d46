"""A simulator in parts, each with engines of its own: episodes are dealt out among them, wherever they live.

Which part plays an episode follows from what is started alone. So the batches of every engine, and with them the last
bits of log-probabilities, are the same whether the parts live in this process or in others, however long each takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from statistics import fmean
from typing import TYPE_CHECKING, cast

from marl.graph import Trajectory
from marl.protocols import EngineConfig, GameConfig, Player, Rewards
from marl.rollout.base import WAIT_S, BaseSimulator, EpisodeResult, PartStatus, Players
from marl.rollout.casting import RoleCasting
from marl.rollout.parts import Job, JobBatch, PartReport, Parts, RequestList, Result, Table
from marl.rollout.request_router import Answer
from marl.seeds import seed_of
from marl.types import Completion, Deal, Fork, Metrics, Purpose, Request, Ticket, Usage

if TYPE_CHECKING:
    from marl.protocols import Weights


class _Ledger:
    """Results that have come from the parts, until whoever started their jobs takes them; and what policies cost."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.tickets, self.tables = count(), count()
        self.results: dict[Ticket, Result] = {}
        self.spent: dict[str, Usage] = {}
        self.failures: list[str] = []

    def pump(self, wait_s: float) -> None:
        self.results.update(self.parts.wait(wait_s))

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        self.parts.cancel(tickets)
        for ticket in tickets:
            self.results.pop(ticket, None)


class PartitionedSimulator(BaseSimulator):
    """Simulator whose episodes are played by several parts. Rewards are changed, and what is dropped counted, here."""

    def __init__(self, games: Mapping[str, GameConfig], casting: RoleCasting, parts: Parts) -> None:
        super().__init__(games, casting)
        self._ledger = _Ledger(parts)
        self._table = Table(next(self._ledger.tables), None, casting)
        self._open: dict[Ticket, tuple[Purpose, Rewards | None]] = {}
        """Episodes that have not been collected."""

    def variant(self, casting: RoleCasting, engines: Players | None = None) -> PartitionedSimulator:
        """Return as described in the base.

        Raises:
            ValueError: if an engine is not given by its settings, from which every part can build its own.
        """
        settings = {name: engine for name, engine in (engines or {}).items() if isinstance(engine, EngineConfig)}
        if built := (engines or {}).keys() - settings.keys():
            raise ValueError(f"{', '.join(sorted(built))}: engines of this process cannot speak in another")
        return self._like(self.games, replace(self._table, roles=casting, players={**self._table.players, **settings}))

    def of_game(self, name: str) -> PartitionedSimulator:
        return self._like({"": self.games[name]}, replace(self._table, game=name))

    def _like(self, games: Mapping[str, GameConfig], table: Table) -> PartitionedSimulator:
        other = PartitionedSimulator(games, table.roles, self._ledger.parts)
        other._ledger, other.tokens, other.critic = self._ledger, self.tokens, self.critic
        other._table = replace(table, number=next(self._ledger.tables))
        return other

    def start(self, work: Sequence[Deal | Fork], rewards: Rewards | None = None) -> list[Ticket]:
        starts = self._starts(work)
        tickets = self._submit(starts, starts[0][0].episode if starts else "")
        self._open |= {ticket: (deal.purpose, rewards) for ticket, (deal, _) in zip(tickets, starts, strict=True)}
        return tickets

    def _submit(self, jobs: Sequence[Job], name: str) -> list[Ticket]:
        """Share jobs out among the parts; return their tickets.

        Each part gets neighbours, as episodes of one start read the same prompts. `name` says which part is the first:
        otherwise few jobs would always be the same part's.
        """
        parts = self._ledger.parts
        tickets = [next(self._ledger.tickets) for _ in jobs]
        shares: dict[int, dict[Ticket, Job]] = {}
        first = seed_of("part", name) % parts.count
        for index, (ticket, job) in enumerate(zip(tickets, jobs, strict=True)):
            part = (first + index * parts.count // len(jobs)) % parts.count
            shares.setdefault(part, {})[ticket] = job
        for part, share in shares.items():
            parts.submit(part, JobBatch(self._table, share))
        return tickets

    def poll(self, wait_s: float) -> list[tuple[Ticket, Trajectory | None]]:
        if self._open and not self._open.keys() & self._ledger.results.keys():
            self._ledger.pump(wait_s)
        finished = [ticket for ticket in self._ledger.results if ticket in self._open]
        return [(ticket, self._collect(ticket)) for ticket in finished]

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        given_up = [ticket for ticket in tickets if self._open.pop(ticket, None)]
        if given_up:
            self._ledger.cancel(given_up)

    def _in_flight(self, ticket: Ticket) -> bool:
        return ticket in self._open and ticket not in self._ledger.results

    def pump(self, wait_s: float) -> None:
        self._ledger.pump(wait_s)

    def _collect(self, ticket: Ticket) -> Trajectory | None:
        purpose, rewards = self._open.pop(ticket)
        result = cast("EpisodeResult", self._ledger.results.pop(ticket))
        self.tokens[purpose] += result.tokens
        if result.error:
            self.drop(result.error)
        if result.trajectory is None:
            self.unjudged += result.error is None
            return None
        return rewards(result.trajectory) if rewards else result.trajectory

    def ask(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Answer]:
        chunks = self._chunks(requests)
        tickets = self._submit(
            [RequestList(chunk, purpose) for chunk in chunks], str(requests[0].seed) if requests else ""
        )
        results = self._ledger.results
        try:
            while not results.keys() >= set(tickets):
                self._ledger.pump(WAIT_S)
            answers = [answer for ticket in tickets for answer in cast("list[Answer]", results.pop(ticket))]
        finally:
            self._ledger.cancel(tickets)
        self.tokens[purpose] += sum(len(answer.token_ids) for answer in answers if isinstance(answer, Completion))
        return answers

    def _chunks(self, requests: Sequence[Request]) -> list[Sequence[Request]]:
        """Return the requests as one chunk for each part, or fewer if there are fewer requests."""
        count, total = min(self._ledger.parts.count, len(requests)), len(requests)
        return [requests[i * total // count : (i + 1) * total // count] for i in range(count)]

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        self._ledger.parts.load_weights(policy, weights, version)

    def add_policy(self, name: str, player: Player) -> None:
        self._ledger.parts.set_guest(name, player)

    def remove_policy(self, name: str) -> None:
        self._ledger.parts.set_guest(name, None)

    def take_failures(self) -> list[str]:
        failures, self._ledger.failures = self._ledger.failures, []
        return self._ledger.parts.take_notes() + failures

    def status(self) -> list[PartStatus]:
        return self._ledger.parts.status()

    def end_step(self) -> Metrics:
        """Return as described in the base; a figure of several parts is their mean. Parts learn what all have spent."""
        reports, metrics = self._ledger.parts.end_step()
        self._ledger.failures += [failure for report in reports for failure in report.failures]
        self._take_costs(reports)
        names = dict.fromkeys(name for report in reports for name in report.metrics)
        return metrics | {name: fmean(r.metrics[name] for r in reports if name in r.metrics) for name in names}

    def sleep(self) -> None:
        self._ledger.parts.sleep()

    def _take_costs(self, reports: Iterable[PartReport]) -> None:
        """Add what parts have spent, and tell each of them the sum."""
        total = dict(self._ledger.spent)
        for report in reports:
            for policy, usage in report.spent.items():
                total[policy] = total.get(policy, Usage()) + usage
        if total:
            self.restore_spent(total)

    @property
    def spent(self) -> dict[str, Usage]:
        return dict(self._ledger.spent)

    def restore_spent(self, spent: Mapping[str, Usage]) -> None:
        self._ledger.spent = dict(spent)
        self._ledger.parts.restore_spent(spent)
