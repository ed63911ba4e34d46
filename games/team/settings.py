"""Settings of the team game: a workflow, checked before play."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import model_validator

from marl.games.team.speaker_checks import speaker_errors
from marl.games.team.workflow import Workflow
from marl.games.team.workflow_checks import workflow_errors
from marl.protocols import AgentSetup


class TeamConfig(Workflow):
    """A workflow of roles on the problems of a task."""

    kind: str = "team"
    example = (
        "task: arithmetic, stages: [{role: solver}, {role: verifier, verifies: solver, scores: [correct]}], "
        "rewards: {solver: {right: own.correct}}"
    )

    @model_validator(mode="after")
    def _check(self) -> TeamConfig:
        if problems := workflow_errors(self):
            raise ValueError("\n".join(problems))
        return self

    def build(self) -> Any:
        from marl.games.team.game import TeamGame

        return TeamGame(self)

    def conflicts(self, speakers: Mapping[str, AgentSetup]) -> Iterable[str]:
        return speaker_errors(self.stages, self.team_seats, speakers)
