"""Credit from the top down: what an episode paid -> agents -> their turns (calls) -> the turns' tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from credit.assign.edges import EdgeAssign
from credit.assign.teams import TeamAssign, first_values
from marl.config import Component, nearest, wrong
from marl.parts import Part, names
from marl.protocols import Assign, AssignConfig, Evidence
from marl.types import Advantage, Credit, Metrics, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory
    from marl.types import Turn

Judged = Mapping[str, Mapping[TurnId, Advantage]]
"""Level -> the credit of the part that weighs it; 0 where it judged nothing."""


@dataclass(frozen=True)
class SharedBy(Part):
    """Marks a field as a way of sharing: a word, a weight for each role, or a part that learns the weights.

    Use it as `Annotated[str | AssignConfig, SharedBy(words=("copy", "equal"))]`.
    """

    group: str = "credit"
    base: type[Component] = AssignConfig
    words: tuple[str, ...] = ()
    roles: bool = False
    """True if it may be a weight for each role."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._validate, serialization=core_schema.plain_serializer_function_ser_schema(_serialize)
        )

    def _validate(self, value: Any) -> Any:
        if value in self.words if isinstance(value, str) else isinstance(value, self.base):
            return value
        if isinstance(value, Mapping) and "kind" in value:
            return super()._validate(value)
        if self.roles and isinstance(value, Mapping) and value:
            return _check_weights(value)
        by_role = ", a weight for each role ({role: weight})" if self.roles else ""
        raise ValueError(f"unknown; {nearest(str(value), self.words)}{by_role}, or a part ({{kind: ...}})")

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        weights = {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}}
        # Kinds only: the settings of all parts would hold this very field again.
        kinds = {"anyOf": [{"enum": names(self.group)}, {"type": "string", "pattern": ":"}]}
        part = {"type": "object", "required": ["kind"], "properties": {"kind": kinds}}
        return {"anyOf": [{"enum": list(self.words)}, *([weights] if self.roles else []), part]}


def _check_weights(value: Mapping[Any, Any]) -> dict[str, float]:
    good = {
        str(role): float(weight)
        for role, weight in value.items()
        if isinstance(weight, int | float) and not isinstance(weight, bool) and 0 < weight < inf
    }
    if bad := {str(role): weight for role, weight in value.items() if str(role) not in good}:
        raise wrong({role: f"must be a number greater than 0 (got {weight!r})" for role, weight in bad.items()})
    return good


def _serialize(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, Component) else value


class Hierarchy(EdgeAssign, TeamAssign):
    """A team's reward is divided on three levels: among its agents, their turns, and the turns' tokens.

    The hierarchical credit assignment of LightningRL (Agent Lightning, arXiv 2508.03680), with weights at every level.
    `copy` gives everyone below all that is above: the default, and what its released code does. Other choices give
    shares that sum to 1, among the agents that took a turn and among the turns of an agent; so with shares at both
    levels the credit of an episode sums to what it paid, whatever the discount.

    Tokens are another matter: learners give each token of a turn the turn's whole credit, and baselines subtract from a
    token what they subtract from its turn. So here shares are multiplied by the number of tokens: `Advantage.tokens`
    average to the turn's credit, which is `value`, and equal shares would be copies.

    A part, such as `{kind: vdn}` or one of yours, gives shares in proportion to the absolute credit that it assigns: to
    an agent's turns together, to a turn, to a token. It judges the same step, and learns from it as it would alone.
    Where all weights are 0, shares are equal.
    """

    kind: str = "trajectory"
    agents: Annotated[str | dict[str, float] | AssignConfig, SharedBy(words=("copy", "equal"), roles=True)] = "copy"
    """Share of each agent in what its team is paid: `copy`, `equal`, a weight for each role, or a part."""
    calls: Annotated[str | AssignConfig, SharedBy(words=("copy", "equal", "reads"))] = "copy"
    """Share of each turn of an agent: `copy`, `equal`, `reads` (in proportion to how many turns read it; the game reads
    every turn, too), or a part."""
    tokens: Annotated[str | AssignConfig, SharedBy(words=("copy", "surprise"))] = "copy"
    """Share of each token of a turn: `copy`, `surprise` (in proportion to -log-probability when sampled), or a part
    that judges tokens."""
    discount: float = Field(default=1.0, ge=0, le=1)
    """Discount per turn: one after which its agent has k more is weighted `discount ** k`, before shares are taken."""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(part.needs for part in self.parts().values()))

    def parts(self) -> dict[str, AssignConfig]:
        """Return the part that weighs each level, for levels that have one."""
        levels = {"agents": self.agents, "calls": self.calls, "tokens": self.tokens}
        return {level: part for level, part in levels.items() if isinstance(part, AssignConfig)}

    def build(self) -> Assign:
        return BackPropagation(self)


class BackPropagation:
    """Carries returns down, level by level; holds the parts that weigh a level."""

    def __init__(self, settings: Hierarchy) -> None:
        self._settings, self.needs = settings, settings.needs
        self._parts = {level: part.build() for level, part in settings.parts().items()}

    def __call__(self, evidence: Evidence) -> Credit:
        """Return the credit of the turns of every team.

        Raises:
            ValueError: if `agents` weighs roles and leaves out one that takes a turn.
        """
        judged = {level: defaultdict(lambda: Advantage(0.0), part(evidence)) for level, part in self._parts.items()}
        turns = {turn.id: turn for trajectory in evidence.trajectories for turn in trajectory.turns}
        earned = first_values(pair for t in evidence.trajectories for pair in self._episode(t, evidence, judged))
        if self._settings.tokens == "copy":
            return {turn: Advantage(value) for turn, value in earned.items()}
        return {turn: self._token_credit(turns[turn], value, judged) for turn, value in earned.items()}

    def _episode(self, trajectory: Trajectory, evidence: Evidence, judged: Judged) -> Iterator[tuple[TurnId, float]]:
        turns_of: dict[str, list[Turn]] = defaultdict(list)
        for turn in trajectory.turns:
            turns_of[turn.agent].append(turn)
        for agents, paid in self._settings.reward_pools(trajectory, evidence):
            # In the order of their first turns: sets have none.
            calls = [turns for agent, turns in turns_of.items() if agent in agents]
            for turns, part in zip(calls, self._agent_shares(calls, judged), strict=True):
                for turn, share in zip(turns, self._call_shares(turns, trajectory, judged), strict=True):
                    yield turn.id, paid * part * share

    def _agent_shares(self, calls: Sequence[Sequence[Turn]], judged: Judged) -> list[float]:
        setting = self._settings.agents
        if setting == "copy" or not calls:
            return [1.0] * len(calls)
        if isinstance(setting, AssignConfig):
            return shares([sum(abs(judged["agents"][turn.id].value) for turn in turns) for turns in calls])
        return shares([1.0 if setting == "equal" else _role_weight(turns[0].role, setting) for turns in calls])

    def _call_shares(self, turns: Sequence[Turn], trajectory: Trajectory, judged: Judged) -> list[float]:
        setting, discount = self._settings.calls, self._settings.discount
        weights = [1.0] * len(turns)
        if setting == "reads":
            weights = [1.0 + len(trajectory.readers(turn.id, self._settings.along)) for turn in turns]
        elif isinstance(setting, AssignConfig):
            weights = [abs(judged["calls"][turn.id].value) for turn in turns]
            weights = weights if any(weights) else [1.0] * len(turns)
        last = len(turns) - 1
        weights = [weight * discount ** (last - place) for place, weight in enumerate(weights)]
        return weights if setting == "copy" else shares(weights)

    def _token_credit(self, turn: Turn, earned: float, judged: Judged) -> Advantage:
        count = len(turn.completion.token_ids)
        if not count:
            return Advantage(earned)
        weights: Sequence[float] = [-logprob for logprob in turn.completion.logprobs]
        if self._settings.tokens != "surprise":
            weights = [abs(token) for token in judged["tokens"][turn.id].tokens] or [1.0] * count
        return Advantage(earned, tuple([earned * count * share for share in shares(weights)]))

    def metrics(self) -> Metrics:
        """Return those of the parts that weigh a level."""
        return reduce(lambda metrics, part: metrics | part.metrics(), self._parts.values(), {})

    def state_dict(self) -> dict[str, Any]:
        states = {level: part.state_dict() for level, part in self._parts.items()}
        return {level: state for level, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for level, part in self._parts.items():
            part.load_state_dict(state.get(level, {}))


def shares(weights: Sequence[float]) -> list[float]:
    """Return shares in proportion to `weights` (>= 0); equal ones if all of these are 0 or one is infinite."""
    total = sum(weights)
    if total in (0, inf):
        return [1 / len(weights)] * len(weights)
    return [weight / total for weight in weights]


def _role_weight(role: str, weights: Any) -> float:
    if role not in weights:
        raise ValueError(f"credit.assign.agents: no weight for role {role!r}, which speaks; weights: {dict(weights)}")
    return weights[role]
