"""Selection of a run's recorded turns, each with its full chat and its credit record."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from marl.core.config import choices_hint
from marl.core.graph import Trajectory, chats_up_to_each_turn
from marl.core.types import Message, Turn, TurnId
from marl.credit_stage.records import TurnCreditRecord
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario


@dataclass(frozen=True, slots=True)
class TurnSelection:
    """Conditions for exporting a turn. All conditions must hold; None and empty values match every turn."""

    roles: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    first_step: int | None = None
    last_step: int | None = None
    """Last recorded step whose turns are selected; this step and `first_step` are included."""
    min_return: float | None = None
    """Minimum return of the turn's agent in the episode."""
    min_advantage: float | None = None
    """Minimum advantage of the turn."""
    readable: bool = False
    """True selects only turns from whose answers a legal move was parsed."""


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """Recorded turn with its episode, its full prompt and its credit record."""

    step: int
    trajectory: Trajectory
    """First episode of the step that contains this turn, since branched episodes share turns."""
    turn: Turn
    prompt: tuple[Message, ...]
    """Full chat before the turn's answer, including earlier turns that the prompt continues."""
    credit: TurnCreditRecord | None
    """Credit record of the turn, or None if the turn got no credit."""

    @property
    def return_of_agent(self) -> float:
        """Return of the turn's agent in the episode."""
        return self.trajectory.returns.get(self.turn.agent, 0.0)


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """Recorded episode of a run with its selected turns."""

    step: int
    trajectory: Trajectory
    turns: tuple[RecordedTurn, ...]
    """Selected turns of the episode, without turns that an earlier episode of the step already contains."""


class RunRecording:
    """Recorded episodes of a run, read lazily: memory holds one episode and the credit record of one step."""

    def __init__(self, run: Path, chosen: TurnSelection) -> None:
        """Open the recordings of `run`, and check that the selection `chosen` fits the recordings.

        Raises:
            ScenarioError: if there is no run, or it has no recorded step, role or policy of the selection.
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
        recorded = self.home.recorded_steps()
        first = 0 if chosen.first_step is None else chosen.first_step
        last = math.inf if chosen.last_step is None else chosen.last_step
        self.steps = [step for step in recorded if first <= step <= last]
        if not self.steps:
            have = f"it recorded {len(recorded)}, {recorded[0]} to {recorded[-1]}" if recorded else "it recorded none"
            raise ScenarioError(f"{run}: no episodes of these steps; {have} (checkpoint.trajectories)")

    def episodes(self) -> Iterator[RecordedEpisode]:
        """Yield the recorded episodes in order of play.

        Raises:
            ScenarioError: if the selection needs advantages and a step has no credit record.
            RunFolderError, ValueError: if a file is damaged, or its path leaves the run's folder.
        """
        for step in self.steps:
            if self.home.has_credit_record(step):
                credit = self.home.read_credit_of_step(step).turns()
            elif self.chosen.min_advantage is None:
                credit = {}
            else:
                problem = "has no credit record, so its turns have no advantages"
                raise ScenarioError(f"--min-advantage: step {step} {problem}")
            # Branched episodes share their first turns with a parent; `seen` prevents exporting these twice.
            seen: set[TurnId] = set()
            for trajectory in self.home.iter_trajectories(step):
                by_agent: dict[str, list[Turn]] = defaultdict(list)
                for turn in trajectory.turns:
                    by_agent[turn.agent].append(turn)
                chats: dict[TurnId, tuple[Message, ...]] = {}
                for turns in by_agent.values():
                    chats.update(chats_up_to_each_turn(turns))
                selected = []
                for turn in trajectory.turns:
                    recorded = RecordedTurn(step, trajectory, turn, chats[turn.id][:-1], credit.get(turn.id))
                    if turn.id not in seen and self._is_selected(recorded):
                        selected.append(recorded)
                seen.update(turn.id for turn in trajectory.turns)
                yield RecordedEpisode(step, trajectory, tuple(selected))

    def turns(self) -> Iterator[RecordedTurn]:
        """Yield the selected turns in order of play. Raises the same errors as `episodes`."""
        for episode in self.episodes():
            yield from episode.turns

    def _is_selected(self, recorded_turn: RecordedTurn) -> bool:
        chosen, turn = self.chosen, recorded_turn.turn
        if (chosen.roles and turn.role not in chosen.roles) or (chosen.readable and turn.action is None):
            return False
        # NAME@STEP is an earlier version of policy NAME.
        if chosen.policies and turn.request.policy.partition("@")[0] not in chosen.policies:
            return False
        # `not >=` also rejects a return of NaN.
        if chosen.min_return is not None and not recorded_turn.return_of_agent >= chosen.min_return:
            return False
        advantage = recorded_turn.credit.advantage if recorded_turn.credit else None
        return chosen.min_advantage is None or (advantage is not None and advantage >= chosen.min_advantage)


def trained_roles(scenario: Scenario) -> tuple[str, ...]:
    """Return the roles whose turns train a policy, or all roles that are not rule-based if the run trains none."""
    learning = tuple(name for name, _, _ in scenario.learning_roles())
    return learning or tuple(name for name in scenario.roles if name not in scenario.rule_based_roles)
