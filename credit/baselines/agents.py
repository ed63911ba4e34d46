"""Groups that tell a team's agents apart: by turn (AT-GRPO), by agent (Dr. MAS), by task and role (TRR++)."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator

from credit.baselines.peers import Standardized, problem, prompt
from marl.protocols import Likeness
from marl.types import Turn

if TYPE_CHECKING:
    from marl.graph import Trajectory


class Teamwise(Standardized):
    """Base of groups of an agent's own turns, each of which counts as one peer."""

    like: Literal["start", "problem"] = "start"
    """Where those who are compared come from: episodes that began in the same state, or work on the same problem."""

    def key(self, trajectory: Trajectory, turn: Turn) -> Hashable:
        return (trajectory.start if self.like == "start" else problem(turn)), turn.agent, turn.role

    def one(self, trajectory: Trajectory, turn: Turn) -> Hashable:
        return turn.id


class AgentTurnGroup(Teamwise):
    """AT-GRPO (arXiv 2510.11062): GRPO among an agent's nth turns that were asked the same, token for token.

    The paper's key is (problem, agent, turn). With `experience: tree` the peers are the candidates of one turn. Of
    episodes that have parted, nth turns do not share a state and are not compared: a mean per turn index would pay for
    going on. So without a tree little beside first turns has peers, and the rest gets 0.
    """

    kind: str = "agent_turn_group"

    @property
    def likeness(self) -> Likeness:
        return "prompt"

    def key(self, trajectory: Trajectory, turn: Turn) -> Hashable:
        return super().key(trajectory, turn), turn.nth, prompt(turn)


class AgentGroup(Teamwise):
    """Dr. MAS (arXiv 2602.08847): (r - mean) / (std + epsilon) over all turns of one agent in a group of episodes.

    Every turn counts, so an episode in which the agent spoke more often weighs more; in `group` each counts once.
    """

    kind: str = "agent_group"

    @property
    def likeness(self) -> Likeness:
        return self.like


class TaskRole(Standardized):
    """TRR++ (Absolute Zero, arXiv 2505.03335): (r - mean) / (std + epsilon) per task and role, over the whole step.

    An agent's work on one problem in one episode counts once. The game is the same for the whole step, so tasks differ
    only by the kinds of problems that `task` tells apart. What is compared shares neither start nor problem.
    """

    kind: str = "task_role"
    compares: ClassVar[bool] = False
    task: str = Field(default="", examples=["^[a-z]+"])
    """A regular expression: what it finds in a problem's key (`code` begins them with a family's name, `arithmetic`
    has the operator in them) is the task; empty: all problems are one. Turns that work on no problem are one task."""

    @field_validator("task")
    @classmethod
    def _compiles(cls, task: str) -> str:
        try:
            re.compile(task)
        except re.error as error:
            raise ValueError(f"{task!r} is no regular expression: {error}") from None
        return task

    @property
    def likeness(self) -> Likeness | None:
        return None

    def key(self, trajectory: Trajectory, turn: Turn) -> Hashable:
        """Raises:
        ValueError: if nothing of a problem's key tells its task.
        """
        if not self.task or not turn.problem:
            return "", turn.role
        if not (found := re.search(self.task, turn.problem)):
            raise ValueError(
                f"credit.baseline.task: {self.task!r} finds nothing in {turn.problem!r} (turn {turn.id}); give "
                "one that finds something in every problem's key, or an empty one (all are one task)"
            )
        return found.group(), turn.role

    def one(self, trajectory: Trajectory, turn: Turn) -> Hashable:
        return trajectory.id, turn.agent, turn.problem
