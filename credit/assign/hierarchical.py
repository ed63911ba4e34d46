"""Credit in levels: a team's reward is divided among agents, their turns (calls) and the turns' tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from marl.core.config import PluginConfig, choices_hint, field_errors
from marl.core.graph import Trajectory
from marl.core.plugins import PluginField, known_kinds
from marl.core.types import Advantage, Credit, Metrics, Turn, TurnId
from marl.credit.assign.edges import EdgeAssign
from marl.credit.assign.teams import TeamAssign, first_values
from marl.protocols import Assign, AssignConfig, Evidence

LevelCredit = Mapping[str, Mapping[TurnId, Advantage]]
"""Level -> the credit from the plug-in that weighs it; 0 for turns without an entry."""


@dataclass(frozen=True)
class WeightsField(PluginField):
    """Marks a field that defines shares: by a word, by a weight for each role, or by a plug-in that learns them.

    Use it as `Annotated[str | AssignConfig, WeightsField(words=("copy", "equal"))]`.
    """

    group: str = "credit"
    base: type[PluginConfig] = AssignConfig
    words: tuple[str, ...] = ()
    """Words that the field accepts."""
    roles: bool = False
    """True if the field accepts a weight for each role."""

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
        raise ValueError(f"unknown; {choices_hint(str(value), self.words)}{by_role}, or a part ({{kind: ...}})")

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        weights = {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}}
        # Kinds only: the settings of all plug-ins would contain this field again, without end.
        kinds = {"anyOf": [{"enum": known_kinds(self.group)}, {"type": "string", "pattern": ":"}]}
        part = {"type": "object", "required": ["kind"], "properties": {"kind": kinds}}
        return {"anyOf": [{"enum": list(self.words)}, *([weights] if self.roles else []), part]}


def _check_weights(value: Mapping[Any, Any]) -> dict[str, float]:
    weights: dict[str, float] = {}
    problems: dict[str, str] = {}
    for role, weight in value.items():
        # YAML's `true` is an int to Python, and no weight.
        if isinstance(weight, int | float) and not isinstance(weight, bool) and 0 < weight < inf:
            weights[str(role)] = float(weight)
        else:
            problems[str(role)] = f"must be a number greater than 0 (got {weight!r})"
    if problems:
        raise field_errors(problems)
    return weights


def _serialize(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, PluginConfig) else value


class HierarchicalAssign(EdgeAssign, TeamAssign):
    """A team's reward is divided on three levels: among its agents, their turns, and the turns' tokens.

    The hierarchical credit assignment of LightningRL (Agent Lightning, arXiv 2508.03680), with weights at every level.
    `copy` gives every member of the lower level the full credit of the upper level: the default, as in the released
    code. Other choices give shares that sum to 1, among the agents that took a turn and among the turns of an agent; so
    with shares at both levels the credit of an episode sums to its reward, for any discount.

    Tokens differ: learners give each token of a turn the turn's full credit, and baselines subtract the same number
    from a turn and from its tokens. So token shares are multiplied by the number of tokens: `Advantage.tokens` average
    to the turn's credit, which is `value`, and equal shares would be copies.

    A plug-in, such as `{kind: vdn}` or one of yours, gives shares in proportion to the absolute credit that it assigns:
    to an agent's turns together, to a turn, to a token. It credits the same step, and learns from it as it would alone.
    If all weights are 0, shares are equal.
    """

    kind: str = "trajectory"
    agents: Annotated[str | dict[str, float] | AssignConfig, WeightsField(words=("copy", "equal"), roles=True)] = "copy"
    """Share of each agent in its team's reward: `copy`, `equal`, a weight for each role, or a plug-in."""
    calls: Annotated[str | AssignConfig, WeightsField(words=("copy", "equal", "reads"))] = "copy"
    """Share of each turn of an agent: `copy`, `equal`, `reads` (in proportion to its number of readers; the game counts
    as a reader of every turn), or a plug-in."""
    tokens: Annotated[str | AssignConfig, WeightsField(words=("copy", "surprise"))] = "copy"
    """Share of each token of a turn: `copy`, `surprise` (in proportion to -log-probability when sampled), or a plug-in
    that credits tokens."""
    discount: float = Field(default=1.0, ge=0, le=1)
    """Discount per turn: a turn before k later turns of its agent has weight `discount ** k`, before shares are
    normalised. """

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(plugin.needs for plugin in self.level_plugins().values()))

    def level_plugins(self) -> dict[str, AssignConfig]:
        """Return level -> the plug-in that weighs it, for levels with a plug-in."""
        levels = {"agents": self.agents, "calls": self.calls, "tokens": self.tokens}
        return {level: setting for level, setting in levels.items() if isinstance(setting, AssignConfig)}

    def build(self) -> Assign:
        return HierarchicalRule(self)


class HierarchicalRule:
    """The built rule: divides rewards level by level, with the built plug-ins that weigh a level."""

    def __init__(self, settings: HierarchicalAssign) -> None:
        self._settings, self.needs = settings, settings.needs
        self._plugins = {level: plugin.build() for level, plugin in settings.level_plugins().items()}

    def __call__(self, evidence: Evidence) -> Credit:
        """Return the credit of the turns of every team.

        Raises:
            ValueError: if `agents` weighs roles and leaves out one that takes a turn.
        """
        level_credit: dict[str, Mapping[TurnId, Advantage]] = {}
        for level, plugin in self._plugins.items():
            level_credit[level] = defaultdict(lambda: Advantage(0.0), plugin(evidence))
        episodes = (self._episode(trajectory, evidence, level_credit) for trajectory in evidence.trajectories)
        earned = first_values(chain.from_iterable(episodes))
        if self._settings.tokens == "copy":
            return {turn: Advantage(value) for turn, value in earned.items()}
        turns = {turn.id: turn for trajectory in evidence.trajectories for turn in trajectory.turns}
        return {turn: self._token_credit(turns[turn], value, level_credit) for turn, value in earned.items()}

    def _episode(
        self, trajectory: Trajectory, evidence: Evidence, level_credit: LevelCredit
    ) -> Iterator[tuple[TurnId, float]]:
        turns_of: dict[str, list[Turn]] = defaultdict(list)
        for turn in trajectory.turns:
            turns_of[turn.agent].append(turn)
        for agents, reward in self._settings.reward_pools(trajectory, evidence):
            # In the order of the agents' first turns: a set has no order.
            calls = [turns for agent, turns in turns_of.items() if agent in agents]
            for turns, agent_share in zip(calls, self._agent_shares(calls, level_credit), strict=True):
                call_shares = self._call_shares(turns, trajectory, level_credit)
                for turn, call_share in zip(turns, call_shares, strict=True):
                    yield turn.id, reward * agent_share * call_share

    def _agent_shares(self, calls: Sequence[Sequence[Turn]], level_credit: LevelCredit) -> list[float]:
        setting = self._settings.agents
        if setting == "copy" or not calls:
            return [1.0] * len(calls)
        weights: list[float] = []
        for turns in calls:
            if isinstance(setting, AssignConfig):
                weights.append(sum(abs(level_credit["agents"][turn.id].value) for turn in turns))
            else:
                weights.append(1.0 if setting == "equal" else _role_weight(turns[0].role, setting))
        return normalized_weights(weights)

    def _call_shares(self, turns: Sequence[Turn], trajectory: Trajectory, level_credit: LevelCredit) -> list[float]:
        setting, discount = self._settings.calls, self._settings.discount
        weights = [1.0] * len(turns)
        if setting == "reads":
            weights = [1.0 + len(trajectory.readers(turn.id, self._settings.along)) for turn in turns]
        elif isinstance(setting, AssignConfig):
            weights = [abs(level_credit["calls"][turn.id].value) for turn in turns]
            weights = weights if any(weights) else [1.0] * len(turns)
        last = len(turns) - 1
        weights = [weight * discount ** (last - index) for index, weight in enumerate(weights)]
        return weights if setting == "copy" else normalized_weights(weights)

    def _token_credit(self, turn: Turn, earned: float, level_credit: LevelCredit) -> Advantage:
        count = len(turn.completion.token_ids)
        if not count:
            return Advantage(earned)
        weights: Sequence[float] = [-logprob for logprob in turn.completion.logprobs]
        if self._settings.tokens != "surprise":
            weights = [abs(token) for token in level_credit["tokens"][turn.id].tokens] or [1.0] * count
        return Advantage(earned, tuple([earned * count * share for share in normalized_weights(weights)]))

    def metrics(self) -> Metrics:
        """Return the metrics of the plug-ins that weigh a level."""
        metrics: Metrics = {}
        for plugin in self._plugins.values():
            metrics |= plugin.metrics()
        return metrics

    def state_dict(self) -> dict[str, Any]:
        states = {level: plugin.state_dict() for level, plugin in self._plugins.items()}
        return {level: state for level, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for level, plugin in self._plugins.items():
            plugin.load_state_dict(state.get(level, {}))


def normalized_weights(weights: Sequence[float]) -> list[float]:
    """Return shares in proportion to `weights` (>= 0); equal shares if all weights are 0 or one is infinite."""
    total = sum(weights)
    if total in (0, inf):
        return [1 / len(weights)] * len(weights)
    return [weight / total for weight in weights]


def _role_weight(role: str, weights: Any) -> float:
    if role not in weights:
        raise ValueError(f"credit.assign.agents: no weight for role {role!r}, which speaks; weights: {dict(weights)}")
    return weights[role]
