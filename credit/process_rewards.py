"""Gathers process rewards, turn by turn, and combines them with the outcome."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from credit.combining import FORMS, Row, compared, whitened
from credit.inherited import in_its_own_episode
from credit.verdicts import Verdicts
from marl.protocols import Evidence
from marl.types import Advantage, Credit, Message, Metrics, TurnId

if TYPE_CHECKING:
    from credit.process import Process
    from marl.graph import Trajectory
    from marl.types import Turn

MODEL = "model"
Rewards = Mapping[str, Mapping[TurnId, float]]
"""Source -> turn -> its process reward; 0 where there is none."""


class Part(NamedTuple):
    """What an agent did in an episode."""

    trajectory: Trajectory
    turns: list[Turn]
    paid: Rewards
    """What the game paid on the way."""
    outcome: float
    """What its team was paid otherwise."""


class ProcessRewards:
    """Looks at turns and combines; holds the processes of verifiers and the reward model."""

    needs: frozenset[str] = frozenset()

    def __init__(self, settings: Process) -> None:
        self._settings = settings
        self._verdicts = Verdicts(settings.verifiers) if settings.verifiers else None
        self._scorer: Any = None
        if settings.model:
            from credit.reward_model import Scorer

            self._scorer = Scorer(settings.model)
        self._metrics: Metrics = {}

    def __call__(self, evidence: Evidence) -> Credit:
        """Credit of the turns of every team.

        Raises:
            ValueError: if `verifiers` compare with a right answer, and no verifier at the table was told one.
        """
        parts = list(self._parts(evidence))
        seen = self._seen(parts, evidence)
        rows = [self._row(part, seen) for part in parts]
        self._metrics = self._found(rows)
        worths = self._whitened(parts, rows, self._combined(parts, rows))
        return {turn: Advantage(worth) for turn, worth in worths.items()}

    def _combined(self, parts: Sequence[Part], rows: Sequence[Row]) -> dict[TurnId, float]:
        combined = FORMS[self._settings.combine](rows, self._settings.mix)
        return in_its_own_episode(
            (turn.id, worth)
            for part, worths in zip(parts, combined, strict=True)
            for turn, worth in zip(part.turns, worths, strict=True)
        )

    def _whitened(self, parts: Sequence[Part], rows: Sequence[Row], worths: dict[TurnId, float]) -> dict[TurnId, float]:
        """Over the turns that have peers, where the form ends so; each of them once."""
        # PRIME's code adds 1e-8 to the variance, GDPO's adds epsilon to the standard deviation.
        added = {"prime_released": (1e-8, 0.0), "decoupled": (0.0, self._settings.epsilon)}
        if self._settings.combine not in added:
            return worths
        peers = dict.fromkeys(
            turn.id for part, some in zip(parts, compared(rows), strict=True) if some for turn in part.turns
        )
        white = whitened([worths[turn] for turn in peers], *added[self._settings.combine])
        return worths | dict(zip(peers, white, strict=True))

    def _parts(self, evidence: Evidence) -> Iterator[Part]:
        for trajectory in evidence.trajectories:
            said: dict[str, list[Turn]] = defaultdict(list)
            for turn in trajectory.turns:
                said[turn.agent].append(turn)
            paid = paid_on_the_way(trajectory, self._settings.rewards)
            outcomes = [reward for reward in trajectory.rewards if reward.name not in paid]
            for team in self._settings.teams_of(trajectory, evidence):
                outcome = team.share * sum(reward.value for reward in outcomes if reward.agent in team.agents)
                yield from (Part(trajectory, own, paid, outcome) for agent, own in said.items() if agent in team.agents)

    def _seen(self, parts: Sequence[Part], evidence: Evidence) -> Rewards:
        """What checks and the model say of each turn, once where several episodes hold it."""
        roles = self._settings.roles
        turns = {turn.id: turn for part in parts if not roles or part.turns[0].role in roles for turn in part.turns}
        seen: dict[str, Mapping[TurnId, float]] = {}
        if self._verdicts:
            seen |= self._verdicts(turns.values(), evidence)
        if self._scorer:
            chats = {turn: chat for part in parts for turn, chat in conversations(part.turns) if turn in turns}
            seen[MODEL] = dict(zip(chats, self._scorer(list(chats.values())), strict=True))
        return seen

    def _row(self, part: Part, seen: Rewards) -> Row:
        sources = {**part.paid, **seen}
        process = [[sources[name].get(turn.id, 0.0) for turn in part.turns] for name in self._settings.sources]
        first = part.turns[0]
        return Row((part.trajectory.start, first.agent, first.role), process, part.outcome)

    def _found(self, rows: Sequence[Row]) -> Metrics:
        """The mean process reward of a turn, by source."""
        by_source = zip(self._settings.sources, zip(*[row.process for row in rows], strict=True), strict=False)
        found = {f"credit/process/{name}": fmean([r for row in own for r in row]) for name, own in by_source}
        return found | ({"credit/process_failed": float(self._verdicts.failed)} if self._verdicts else {})

    def metrics(self) -> Metrics:
        """`credit/process/SOURCE`: the mean process reward of a turn; `credit/process_failed`: checks that failed."""
        return self._metrics

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""


def paid_on_the_way(trajectory: Trajectory, names: Sequence[str]) -> dict[str, Mapping[TurnId, float]]:
    """Rewards of these names -> turn -> what its agent was paid for it: for its last turn at or before the payment.

    What an agent is paid before it ever spoke is paid for none of its turns.
    """
    paid: dict[str, dict[TurnId, float]] = {name: defaultdict(float) for name in names}
    due: dict[TurnId, list[tuple[str, str, float]]] = defaultdict(list)
    for reward in trajectory.rewards:
        if reward.name in paid:
            due[reward.turn].append((reward.name, reward.agent, reward.value))
    last: dict[str, TurnId] = {}
    for turn in trajectory.turns if due else ():
        last[turn.agent] = turn.id
        for name, agent, value in due.get(turn.id, ()):
            if agent in last:
                paid[name][last[agent]] += value
    return dict(paid)


def conversations(turns: Iterable[Turn]) -> Iterator[tuple[TurnId, tuple[Message, ...]]]:
    """What an agent had read when it spoke, and what it then said, for each of its turns in an episode."""
    before: tuple[Message, ...] = ()
    for turn in turns:
        request = turn.request
        read = (*before, *request.messages) if request.continues else request.messages
        before = (*read, Message("assistant", turn.completion.text))
        yield turn.id, before
