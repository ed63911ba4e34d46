"""Recorded turns of a run that match a selection, with the chats that they answered and the judgements of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from marl.config import nearest
from marl.graph import Trajectory, conversations
from marl.judging.records import TurnRecord
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario
from marl.types import Message, Turn, TurnId


@dataclass(frozen=True, slots=True)
class TurnSelection:
    """Conditions that all must hold of a turn; what is None or empty holds of every one."""

    roles: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    first: int | None = None
    last: int | None = None
    """First and last step."""
    min_return: float | None = None
    """Least return of its agent in the episode."""
    min_advantage: float | None = None
    """Least advantage of the turn."""
    readable: bool = False
    """Only turns in which a legal move was read."""


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A turn as it was recorded, and what was made of it."""

    step: int
    trajectory: Trajectory
    """The first episode of the step in which it stands."""
    turn: Turn
    prompt: tuple[Message, ...]
    """The whole chat that it answered, earlier turns included where the prompt continues them."""
    judged: TurnRecord | None

    @property
    def total(self) -> float:
        """Return of its agent in the episode."""
        return self.trajectory.returns.get(self.turn.agent, 0.0)


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """An episode, and those of its turns that match and that no earlier episode of the step holds."""

    step: int
    trajectory: Trajectory
    turns: tuple[RecordedTurn, ...]


class Recording:
    """Episodes that a run recorded, read one by one: one episode and one step's judgement are held at a time."""

    def __init__(self, run: Path, chosen: TurnSelection) -> None:
        """Open a run.

        Raises:
            ScenarioError: if there is no run, no recorded step in the selection, or no such role or policy.
        """
        self.home = RunFolder(run)
        self.scenario = self.home.scenario()
        self.chosen = chosen
        for option, names, known in (
            ("--role", chosen.roles, self.scenario.roles),
            ("--policy", chosen.policies, self.scenario.policies),
        ):
            for name in names:
                if name not in known:
                    raise ScenarioError(f"{option} {name}: the run has none of this name; {nearest(name, known)}")
        self.steps = [step for step in self.home.recorded() if _between(step, chosen)]
        if not self.steps:
            recorded = self.home.recorded()
            have = f"it recorded {len(recorded)}, {recorded[0]} to {recorded[-1]}" if recorded else "it recorded none"
            raise ScenarioError(f"{run}: no episodes of these steps; {have} (checkpoint.trajectories)")

    def episodes(self) -> Iterator[RecordedEpisode]:
        """Yield the recorded episodes in the order of play.

        Raises:
            ScenarioError: if advantages are asked for, and a step has no judgement.
            FolderError, ValueError: if a file is damaged, or leads out of the run's folder.
        """
        for step in self.steps:
            judged = self._judged(step)
            seen: set[TurnId] = set()
            for trajectory in self.home.read_episodes(step):
                turns = [t for t in _turns(step, trajectory, judged) if t.turn.id not in seen]
                seen.update(t.turn.id for t in turns)
                yield RecordedEpisode(step, trajectory, tuple(filter(self._matches, turns)))

    def turns(self) -> Iterator[RecordedTurn]:
        """Yield the turns that match, in the order of play; the errors are those of `episodes`."""
        for episode in self.episodes():
            yield from episode.turns

    def _judged(self, step: int) -> Mapping[TurnId, TurnRecord]:
        if self.home.has_judgement(step):
            return self.home.judgement(step).turns()
        if self.chosen.min_advantage is not None:
            raise ScenarioError(f"--min-advantage: step {step} has no judgement, so that its turns have no advantages")
        return {}

    def _matches(self, recorded: RecordedTurn) -> bool:
        chosen, turn = self.chosen, recorded.turn
        if (chosen.roles and turn.role not in chosen.roles) or (chosen.readable and turn.action is None):
            return False
        if chosen.policies and turn.request.policy.partition("@")[0] not in chosen.policies:
            return False
        if chosen.min_return is not None and not recorded.total >= chosen.min_return:
            return False
        advantage = recorded.judged.advantage if recorded.judged else None
        return chosen.min_advantage is None or (advantage is not None and advantage >= chosen.min_advantage)


def learned_roles(scenario: Scenario) -> tuple[str, ...]:
    """Return the roles that are learned from; of a run without one, all that do not answer by rule."""
    learning = tuple(name for name, _, _ in scenario.learning_roles())
    return learning or tuple(name for name in scenario.roles if name not in scenario.rule_roles)


def _between(step: int, chosen: TurnSelection) -> bool:
    return (chosen.first is None or step >= chosen.first) and (chosen.last is None or step <= chosen.last)


def _turns(step: int, trajectory: Trajectory, judged: Mapping[TurnId, TurnRecord]) -> Iterator[RecordedTurn]:
    by_agent: dict[str, list[Turn]] = defaultdict(list)
    for turn in trajectory.turns:
        by_agent[turn.agent].append(turn)
    chats = {turn: chat for turns in by_agent.values() for turn, chat in conversations(turns)}
    for turn in trajectory.turns:
        yield RecordedTurn(step, trajectory, turn, chats[turn.id][:-1], judged.get(turn.id))
