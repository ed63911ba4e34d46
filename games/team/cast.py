"""Who is there: the agents of every role and stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from games.team.stages import Stage


class Cast:
    """Agents of a workflow, in the order in which their roles first speak.

    A role with one agent lends it its name; more are numbered. A role that speaks in several stages has the same
    agents in all of them.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.all = tuple(stages)
        self.stages = {stage.called: stage for stage in stages}
        """By name; of stages with one name, the last."""
        many: dict[str, int] = {}
        for stage in stages:
            here = many.get(stage.partner, 1) if stage.partner else stage.n
            for role in filter(None, (stage.role, stage.tools)):
                many[role] = max(many.get(role, 1), here)
        self.of_role: dict[str, tuple[str, ...]] = {
            role: (role,) if n == 1 else tuple(f"{role}_{i}" for i in range(n)) for role, n in many.items()
        }
        """Role -> its agents."""
        self.roles: dict[str, str] = {agent: role for role, agents in self.of_role.items() for agent in agents}
        """Agent -> its role."""
        self.index: dict[str, int] = {a: i for agents in self.of_role.values() for i, a in enumerate(agents)}
        """Agent -> its place among those of its role."""
        self.scores: dict[str, tuple[str, ...]] = {}
        """Role -> the checks that it is verified by, in one stage or several."""
        for stage in stages:
            if stage.verifies:
                known = self.scores.get(stage.verifies, ())
                self.scores[stage.verifies] = tuple(dict.fromkeys((*known, *stage.scores)))

    def speakers(self, stage: Stage) -> tuple[str, ...]:
        """The agents that speak in a stage."""
        many = len(self.of_role[stage.partner]) if stage.partner else stage.n
        return self.of_role[stage.role][:many]

    def named(self, name: str) -> tuple[str, ...]:
        """The agents of a role, or the one agent of this name."""
        return self.of_role.get(name) or (name,)

    def partner(self, stage: Stage, agent: str) -> str | None:
        """The agent that `agent` is there for."""
        return self.of_role[stage.partner][self.index[agent]] if stage.partner else None

    def toolbox(self, stage: Stage, agent: str) -> str:
        """The agent that answers the tool calls of `agent`."""
        return self.of_role[stage.tools or ""][self.index[agent]]
