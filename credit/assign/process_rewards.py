"""Gathers process rewards, turn by turn, and combines them with the outcome."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from credit.assign.combining import FORMS, Row, compared, whitened
from credit.assign.verdicts import Verdicts
from credit.inherited import in_its_own_episode
from marl.conversations import conversations
from marl.protocols import Evidence
from marl.types import Advantage, Credit, Metrics, TurnId

if TYPE_CHECKING:
    from credit.assign.process import Process
    from marl.graph import Trajectory
    from marl.types import Turn

MODEL, LEARNER = "model", "learner"
Rewards = Mapping[str, Mapping[TurnId, float]]
"""Source -> turn -> its process reward; 0 where there is none."""
Step = tuple[TurnId, int]
"""A turn and 0; or a turn and one of its tokens, where the learner's own model pays for tokens."""


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

    def __init__(self, settings: Process) -> None:
        self._settings, self.needs = settings, settings.needs
        self._verdicts = Verdicts(settings.verifiers) if settings.verifiers else None
        self._scorer: Any = None
        if settings.model:
            from marl.engines.reward_model.engine import Scorer

            self._scorer = Scorer(settings.model)
        self._metrics: Metrics = {}

    def __call__(self, evidence: Evidence) -> Credit:
        """Credit of the turns of every team.

        Raises:
            ValueError: if `verifiers` compare with a right answer, and no verifier at the table was told one.
        """
        parts = list(self._parts(evidence))
        seen = self._seen(parts, evidence)
        rows = [self._row(part, seen, evidence) for part in parts]
        self._metrics = self._found(rows)
        worths = self._whitened(parts, rows, self._combined(parts, rows))
        if self._settings.learner:
            return _by_token(worths)
        return {turn: Advantage(worth) for (turn, _), worth in worths.items()}

    def _steps(self, part: Part) -> Iterator[Step]:
        """The steps of an agent: its turns, or their tokens. A turn without tokens is one step."""
        for turn in part.turns:
            yield from ((turn.id, t) for t in range(self._length(turn)))

    def _length(self, turn: Turn) -> int:
        return max(1, len(turn.completion.token_ids)) if self._settings.learner else 1

    def _combined(self, parts: Sequence[Part], rows: Sequence[Row]) -> dict[Step, float]:
        combined = FORMS[self._settings.combine](rows, self._settings.mix)
        return in_its_own_episode(
            pair
            for part, worths in zip(parts, combined, strict=True)
            for pair in zip(self._steps(part), worths, strict=True)
        )

    def _whitened(self, parts: Sequence[Part], rows: Sequence[Row], worths: dict[Step, float]) -> dict[Step, float]:
        """Over the steps that have peers, where the form ends so; each of them once."""
        # PRIME's code adds 1e-8 to the variance, GDPO's adds epsilon to the standard deviation.
        added = {"prime_released": (1e-8, 0.0), "decoupled": (0.0, self._settings.epsilon)}
        if self._settings.combine not in added:
            return worths
        peers = dict.fromkeys(
            step for part, some in zip(parts, compared(rows), strict=True) if some for step in self._steps(part)
        )
        white = whitened([worths[step] for step in peers], *added[self._settings.combine])
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

    def _row(self, part: Part, seen: Rewards, evidence: Evidence) -> Row:
        sources = {**part.paid, **seen}
        process = [self._rewards(part, sources[name]) for name in self._settings.sources if name != LEARNER]
        if self._settings.learner:
            process.append([reward for turn in part.turns for reward in self._implied(turn, evidence)])
        first = part.turns[0]
        return Row((part.trajectory.start, first.agent, first.role), process, part.outcome)

    def _rewards(self, part: Part, paid: Mapping[TurnId, float]) -> list[float]:
        """Of an agent's steps: what a turn is paid for counts at its last one."""
        return [r for turn in part.turns for r in (*[0.0] * (self._length(turn) - 1), paid.get(turn.id, 0.0))]

    def _implied(self, turn: Turn, evidence: Evidence) -> Sequence[float]:
        """What the learner's model pays for each token; nothing for what was not read, as its policy does not learn."""
        reading = evidence.readings.get(turn.id)
        return (reading.rewards if reading else None) or [0.0] * self._length(turn)

    def _found(self, rows: Sequence[Row]) -> Metrics:
        """The mean process reward of a step, by source."""
        by_source = zip(self._settings.sources, zip(*[row.process for row in rows], strict=True), strict=False)
        found = {f"credit/process/{name}": fmean([r for row in own for r in row]) for name, own in by_source}
        return found | ({"credit/process_failed": float(self._verdicts.failed)} if self._verdicts else {})

    def metrics(self) -> Metrics:
        """`credit/process/SOURCE`: the mean process reward of a step; `credit/process_failed`: checks that failed."""
        return self._metrics

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""


def _by_token(worths: Mapping[Step, float]) -> Credit:
    """Of each turn the mean over its tokens, and every token's own."""
    tokens: dict[TurnId, list[float]] = defaultdict(list)
    for (turn, _), worth in worths.items():
        tokens[turn].append(worth)
    return {turn: Advantage(fmean(own), tuple(own)) for turn, own in tokens.items()}


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
