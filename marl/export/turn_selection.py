"""Selection of a run's recorded turns, each with its full chat and its credit record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from marl.core.config import choices_hint
from marl.core.graph import Trajectory, conversations
from marl.core.types import Message, Turn, TurnId
from marl.credit_stage.records import TurnCreditRecord
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario


@dataclass(frozen=True, slots=True)
class TurnSelection:
    """Conditions on a turn, all of which must hold. None and empty values match every turn."""

    roles: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    first_step: int | None = None
    last_step: int | None = None
    """First and last recorded step, both inclusive."""
    min_return: float | None = None
    """Minimum return of the turn's agent in the episode."""
    min_advantage: float | None = None
    """Minimum advantage of the turn."""
    readable: bool = False
    """True selects only turns from which a legal move was parsed."""


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """Recorded turn with its episode, its full prompt and its credit record."""

    step: int
    trajectory: Trajectory
    """First episode of the step with this turn; branched episodes share turns."""
    turn: Turn
    prompt: tuple[Message, ...]
    """Full chat before the answer, including earlier turns that the prompt continues."""
    credit: TurnCreditRecord | None

    @property
    def agent_return(self) -> float:
        """Return of the turn's agent in the episode."""
        return self.trajectory.returns.get(self.turn.agent, 0.0)


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """Episode with its selected turns, except turns that an earlier episode of the step already contains."""

    step: int
    trajectory: Trajectory
    turns: tuple[RecordedTurn, ...]


class RunRecording:
    """Recorded episodes of a run, read lazily: memory holds one episode and the credit record of one step."""

    def __init__(self, run: Path, chosen: TurnSelection) -> None:
        """Open the run and check the selection.

        Raises:
            ScenarioError: if there is no run, no recorded step in the selection, or no such role or policy.
        """
        self.home = RunFolder(run)
        self.scenario = self.home.scenario()
        self.chosen = chosen
        for option, names, choices in (
            ("--role", chosen.roles, self.scenario.roles),
            ("--policy", chosen.policies, self.scenario.policies),
        ):
            for name in names:
                if name not in choices:
                    hint = choices_hint(name, choices)
                    raise ScenarioError(f"{option} {name}: the run has none of this name; {hint}")
        self.steps = [step for step in self.home.recorded_steps() if _between(step, chosen)]
        if not self.steps:
            recorded = self.home.recorded_steps()
            have = f"it recorded {len(recorded)}, {recorded[0]} to {recorded[-1]}" if recorded else "it recorded none"
            raise ScenarioError(f"{run}: no episodes of these steps; {have} (checkpoint.trajectories)")

    def episodes(self) -> Iterator[RecordedEpisode]:
        """Yield the recorded episodes in order of play.

        Raises:
            ScenarioError: if the selection needs advantages and a step has no credit record.
            FolderError, ValueError: if a file is damaged, or its path leaves the run's folder.
        """
        for step in self.steps:
            credit = self._credit_of(step)
            # A branched episode starts with the turns of its parent, which must not count twice.
            seen: set[TurnId] = set()
            for trajectory in self.home.iter_trajectories(step):
                turns = [t for t in _turns(step, trajectory, credit) if t.turn.id not in seen]
                seen.update(t.turn.id for t in turns)
                yield RecordedEpisode(step, trajectory, tuple(filter(self._matches, turns)))

    def turns(self) -> Iterator[RecordedTurn]:
        """Yield the selected turns in order of play. Raises the errors of `episodes`."""
        for episode in self.episodes():
            yield from episode.turns

    def _credit_of(self, step: int) -> Mapping[TurnId, TurnCreditRecord]:
        if self.home.has_credit(step):
            return self.home.read_credit(step).turns()
        if self.chosen.min_advantage is not None:
            raise ScenarioError(f"--min-advantage: step {step} has no credit record, so its turns have no advantages")
        return {}

    def _matches(self, recorded: RecordedTurn) -> bool:
        chosen, turn = self.chosen, recorded.turn
        if (chosen.roles and turn.role not in chosen.roles) or (chosen.readable and turn.action is None):
            return False
        # Earlier versions of a policy are called NAME@STEP.
        if chosen.policies and turn.request.policy.partition("@")[0] not in chosen.policies:
            return False
        # `not >=` also rejects a NaN return.
        if chosen.min_return is not None and not recorded.agent_return >= chosen.min_return:
            return False
        advantage = recorded.credit.advantage if recorded.credit else None
        return chosen.min_advantage is None or (advantage is not None and advantage >= chosen.min_advantage)


def trained_roles(scenario: Scenario) -> tuple[str, ...]:
    """Return the roles whose turns train a policy, or all roles that are not rule-based if the run trains none."""
    learning = tuple(name for name, _, _ in scenario.learning_roles())
    return learning or tuple(name for name in scenario.roles if name not in scenario.rule_roles)


def _between(step: int, chosen: TurnSelection) -> bool:
    return (chosen.first_step is None or step >= chosen.first_step) and (
        chosen.last_step is None or step <= chosen.last_step
    )


def _turns(step: int, trajectory: Trajectory, credit: Mapping[TurnId, TurnCreditRecord]) -> Iterator[RecordedTurn]:
    by_agent: dict[str, list[Turn]] = defaultdict(list)
    for turn in trajectory.turns:
        by_agent[turn.agent].append(turn)
    chats = {turn: chat for turns in by_agent.values() for turn, chat in conversations(turns)}
    for turn in trajectory.turns:
        yield RecordedTurn(step, trajectory, turn, chats[turn.id][:-1], credit.get(turn.id))
