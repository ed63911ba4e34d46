"""Settings of a one-model population (NeuPL): its members, their interaction graph, and the payoffs between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Literal

from pydantic import Field, PositiveInt

from marl.core.config import choices_hint
from marl.protocols import Experience, ExperienceConfig, PromptContext, ScenarioSummary
from marl.protocols.roles import RoleTemplateError

GraphRule = Literal["uniform", "latest", "psro", "rectified", "alpha_rank"]


class OneModelPopulation(ExperienceConfig):
    """Population whose members are roles of one model, told apart by their prompts (NeuPL, Liu et al. 2022,
    https://arxiv.org/abs/2202.07415).

    In each episode one member learns against an earlier member, which has the newest weights, too, and is not trained.
    The interaction graph gives the probabilities of a member's opponents. The paper conditions its network on a
    member's row of the graph and learns payoffs; here a prompt names the member, and payoffs are mean returns of
    matches.
    """

    kind: str = "neupl"
    example = "members: [initial, first, second]"
    members: tuple[str, ...] = Field(min_length=2)
    """Roles of the members, earliest first. The first is an untrained role, such as one that plays at random; all
    others are trained roles of one policy, with different `instructions` or `prompt`."""
    by: GraphRule = "psro"
    """Distribution over the earlier members, from which a member's opponents are drawn. `uniform`: equal probabilities,
    as in fictitious play. `latest`: the member just before. `psro`: a Nash equilibrium of their payoffs. `rectified`:
    the same equilibrium, restricted to those that the member just before beats or ties. `alpha_rank`: the stationary
    distribution of alpha-Rank on their payoffs. All are the rules of `league`, applied to the earlier members."""
    every: PositiveInt = 12
    """Number of steps between two measurements of all payoffs (`psro`, `rectified` and `alpha_rank`)."""
    matches: PositiveInt = 8
    """Number of episodes between two members in each measurement."""
    grow: PositiveInt | None = None
    """Number of steps after which the next member begins to learn (null: all members learn from the first step)."""

    @property
    def needs_payoffs(self) -> bool:
        """Return True if members play matches, so that `by` can use their payoffs."""
        return self.by in ("psro", "rectified", "alpha_rank")

    def active_members(self, step: int) -> tuple[str, ...]:
        """Return the members that play in step number `step`, the first of which is never trained."""
        return self.members if self.grow is None else self.members[: 2 + step // self.grow]

    def build(self) -> Experience:
        from marl.experience.league.neupl import OneModelPopulationExperience

        return OneModelPopulationExperience(self)

    def seatings(self, role_by_agent: Mapping[str, str]) -> list[dict[str, str]]:
        """Return the scenario's seats, and for each member the seats with this member at every agent."""
        return [dict(role_by_agent), *[dict.fromkeys(role_by_agent, member) for member in self.members]]

    def scenario_conflicts(self, summary: ScenarioSummary) -> Iterator[str]:
        if summary.game is None:
            yield "kind: 'neupl' plays one game; give `game` in place of `games`"
            return
        if len(summary.seats) != 2:
            yield f"kind: 'neupl' plays games of two agents; {summary.game.kind!r} has {len(summary.seats)}"
        elif self.needs_payoffs and not summary.game.is_zero_sum():
            yield f"by: {self.by!r} needs a zero-sum game, which {summary.game.kind!r} is not; use uniform or latest"
        for member, count in Counter(self.members).items():
            if member not in summary.roles:
                yield f"members: no role {member!r}; {choices_hint(member, summary.roles)}"
            elif count > 1:
                yield f"members: {member!r} stands {count} times; name each member once"
        if not summary.roles.keys() >= {*self.members}:
            return
        first, *trained = self.members
        if first in summary.trained_roles:
            yield f"members: the first, {first!r}, has no earlier member to learn against; begin with an untrained role"
        for member in trained:
            if member not in summary.trained_roles:
                yield f"members: {member!r} does not learn; {choices_hint(member, summary.trained_roles)}"
                return
        yield from self._members_that_are_not_one_model(summary, trained)

    def _members_that_are_not_one_model(self, summary: ScenarioSummary, trained: list[str]) -> Iterator[str]:
        """Yield an error message for each member with another policy than the one before, or with its prompt."""
        role_by_prompt: dict[object, str] = {}
        for before, member in pairwise(trained):
            policies = [summary.roles[role].policy for role in (before, member)]
            if policies[0] != policies[1]:
                yield f"members: {before!r} and {member!r} have the policies {' and '.join(policies)}; give them one"
        for member in trained:
            role = summary.roles[member]
            try:
                prompt = role.messages(PromptContext.from_text("agent", "observation"))
            except RoleTemplateError as error:
                raise error.of_role(member) from error
            if (other := role_by_prompt.setdefault(prompt, member)) != member:
                yield (
                    f"members: {other!r} and {member!r} have equal prompts, so that they are one player; name the "
                    "member in the instructions or the prompt of its role"
                )
