"""Settings of the team game: a workflow, checked before play."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from pydantic import model_validator

from marl.games.team.speaker_checks import role_and_engine_errors
from marl.games.team.workflow import WorkflowConfig
from marl.games.team.workflow_checks import workflow_errors
from marl.protocols import AgentRoleAndEngine


class TeamConfig(WorkflowConfig):
    """Team game: a workflow of roles that work on the problems of a task."""

    kind: str = "team"
    example = (
        "task: arithmetic, stages: [{role: solver}, {role: verifier, verifies: solver, scores: [correct]}], "
        "rewards: {solver: {right: own.correct}}"
    )

    @model_validator(mode="after")
    def _check_workflow(self) -> TeamConfig:
        if errors := workflow_errors(self):
            raise ValueError("\n".join(errors))
        return self

    def constant_rewards(self) -> Mapping[str, float] | None:
        if self.unreadable.penalty:
            return {}
        if not any(self.rewards.values()):
            return None
        constant = {role: 0.0 for role in self.team_seats.role_of.values() if not self.rewards.get(role)}
        for role, components in self.rewards.items():
            # Expressions other than a number have no value before play, so their ValueError is ignored.
            with suppress(ValueError):
                constant[role] = math.fsum(float(component.value) for component in components.values())
        return constant

    def build(self) -> Any:
        from marl.games.team.game import TeamGame

        return TeamGame(self)

    def seating_conflicts(self, speakers: Mapping[str, AgentRoleAndEngine]) -> Iterable[str]:
        return role_and_engine_errors(self.stages, self.team_seats, speakers)
