"""Credit in levels: a team's reward is divided among agents, their turns (calls) and the turns' tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import neg
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from marl.core.config import PluginConfig, choices_hint, field_errors
from marl.core.graph import Trajectory
from marl.core.plugins import PluginField, known_kinds
from marl.core.types import Advantage, Credit, Metrics, Turn, TurnId
from marl.credit.assign.edges import EdgeFollowingAssign
from marl.credit.assign.teams import TeamAssign
from marl.protocols import AssignConfig, AssignRule, Evidence

LevelCredit = Mapping[str, Mapping[TurnId, Advantage]]
"""Level (`agents`, `calls`, `tokens`) -> credit by the plug-in that weighs the level; 0 for turns without an entry."""


@dataclass(frozen=True)
class CreditSharesField(PluginField):
    """Annotation of a settings field that divides credit: by a word, a weight for each role, or an `assign` plug-in.

    Example: `Annotated[str | AssignConfig, CreditSharesField(words=("copy", "equal"))]`.
    """

    group: str = "credit"
    base: type[PluginConfig] = AssignConfig
    words: tuple[str, ...] = ()
    """Words that the field accepts."""
    roles: bool = False
    """True if the field accepts a weight for each role."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def serialize_plugin_settings(setting: Any) -> Any:
            return setting.model_dump(mode="json") if isinstance(setting, PluginConfig) else setting

        return core_schema.no_info_plain_validator_function(
            self._validate_shares_setting,
            serialization=core_schema.plain_serializer_function_ser_schema(serialize_plugin_settings),
        )

    def _validate_shares_setting(self, setting: Any) -> Any:
        if setting in self.words if isinstance(setting, str) else isinstance(setting, self.base):
            return setting
        if isinstance(setting, Mapping) and "kind" in setting:
            return super()._validate_plugin_settings(setting)
        if self.roles and isinstance(setting, Mapping) and setting:
            weights: dict[str, float] = {}
            problems: dict[str, str] = {}
            for role, weight in setting.items():
                # YAML's `true` is an int to Python, but not a weight.
                if isinstance(weight, int | float) and not isinstance(weight, bool) and 0 < weight < inf:
                    weights[str(role)] = float(weight)
                else:
                    problems[str(role)] = f"must be a number greater than 0 (got {weight!r})"
            if problems:
                raise field_errors(problems)
            return weights
        by_role = ", a weight for each role ({role: weight})" if self.roles else ""
        raise ValueError(f"unknown; {choices_hint(str(setting), self.words)}{by_role}, or a part ({{kind: ...}})")

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        weights = {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}}
        # Other plug-ins are given by kind only: a schema of their settings would contain this field again, endlessly.
        kinds = {"anyOf": [{"enum": known_kinds(self.group)}, {"type": "string", "pattern": ":"}]}
        part = {"type": "object", "required": ["kind"], "properties": {"kind": kinds}}
        return {"anyOf": [{"enum": list(self.words)}, *([weights] if self.roles else []), part]}


class HierarchicalAssign(EdgeFollowingAssign, TeamAssign):
    """A team's reward is divided on three levels: among its agents, their turns, and the turns' tokens.

    The hierarchical credit assignment of LightningRL (Agent Lightning, arXiv 2508.03680), with weights at every level.
    `copy` gives every member of the lower level the full credit of the upper level: the default, as in the released
    code. Other choices give shares that sum to 1, among the agents that took a turn and among the turns of an agent; so
    with shares at both levels the credit of an episode sums to its reward, for any discount.

    Tokens differ: learners give each token of a turn the turn's full credit, and baselines subtract the same number
    from a turn and from its tokens. So token shares are multiplied by the number of tokens: `Advantage.tokens` average
    to the turn's credit, which is `value`, and equal shares would be copies.

    A plug-in, such as `{kind: vdn}` or one of yours, gives shares in proportion to the absolute credit that it assigns:
    to an agent's turns together, to a turn, to a token. The plug-in credits the same step, and learns from the step as
    it would alone. If all weights are 0, shares are equal.
    """

    kind: str = "trajectory"
    agents: Annotated[str | dict[str, float] | AssignConfig, CreditSharesField(words=("copy", "equal"), roles=True)] = (
        "copy"
    )
    """Share of each agent in its team's reward: `copy`, `equal`, a weight for each role, or a plug-in."""
    calls: Annotated[str | AssignConfig, CreditSharesField(words=("copy", "equal", "reads"))] = "copy"
    """Share of each turn of an agent: `copy`, `equal`, `reads` (in proportion to its number of readers; the game counts
    as a reader of every turn), or a plug-in."""
    tokens: Annotated[str | AssignConfig, CreditSharesField(words=("copy", "surprise"))] = "copy"
    """Share of each token of a turn: `copy`, `surprise` (in proportion to -log-probability when sampled), or a plug-in
    that credits tokens."""
    discount: float = Field(default=1.0, ge=0, le=1)
    """Discount per turn: a turn before k later turns of its agent has weight `discount ** k`, before shares are
    normalised. """

    @property
    def needed_reading_fields(self) -> frozenset[str]:
        return frozenset().union(
            *(plugin.needed_reading_fields for plugin in self.weighting_plugin_by_level().values())
        )

    def weighting_plugin_by_level(self) -> dict[str, AssignConfig]:
        """Return level -> the plug-in that weighs the level, for levels with a plug-in."""
        levels = {"agents": self.agents, "calls": self.calls, "tokens": self.tokens}
        return {level: setting for level, setting in levels.items() if isinstance(setting, AssignConfig)}

    def build(self) -> AssignRule:
        return HierarchicalRule(self)


class HierarchicalRule:
    """Rule built from `HierarchicalAssign`, with the plug-ins that weigh a level: divides rewards level by level."""

    def __init__(self, settings: HierarchicalAssign) -> None:
        self._settings, self.needed_reading_fields = settings, settings.needed_reading_fields
        self._plugins = {level: plugin.build() for level, plugin in settings.weighting_plugin_by_level().items()}

    def __call__(self, evidence: Evidence) -> Credit:
        """Return the credit of the turns of every team.

        Raises:
            ValueError: if `agents` weighs roles and leaves out one that takes a turn.
        """
        level_credit: dict[str, Mapping[TurnId, Advantage]] = {}
        for level, plugin in self._plugins.items():
            level_credit[level] = defaultdict(lambda: Advantage(0.0), plugin(evidence))
        credit: Credit = {}
        for trajectory in evidence.trajectories:
            turns_by_agent: dict[str, list[Turn]] = defaultdict(list)
            for turn in trajectory.turns:
                turns_by_agent[turn.agent].append(turn)
            for agents, reward in self._settings.agent_groups_with_shared_reward(trajectory, evidence):
                # The agents are iterated in the order of their first turns, because a set has no reproducible order.
                calls = [turns for agent, turns in turns_by_agent.items() if agent in agents]
                for turns, agent_share in zip(
                    calls, self._agent_shares_of_team_reward(calls, level_credit), strict=True
                ):
                    call_shares = self._turn_shares(turns, trajectory, level_credit)
                    for turn, call_share in zip(turns, call_shares, strict=True):
                        # A turn shared by several forks of an episode is credited in the first of these forks only.
                        if turn.id not in credit:
                            earned, count = reward * agent_share * call_share, len(turn.completion.token_ids)
                            shares = self._token_shares(turn, level_credit)
                            credit[turn.id] = Advantage(earned, tuple([earned * count * share for share in shares]))
        return credit

    def _agent_shares_of_team_reward(
        self, turns_by_agent: Sequence[Sequence[Turn]], level_credit: LevelCredit
    ) -> list[float]:
        """Return the share of each agent in the team's reward; `turns_by_agent` are the turns of each agent."""
        setting = self._settings.agents
        if setting == "copy" or not turns_by_agent:
            return [1.0] * len(turns_by_agent)
        weights: list[float] = []
        for turns in turns_by_agent:
            role = turns[0].role
            if isinstance(setting, AssignConfig):
                weights.append(sum(abs(level_credit["agents"][turn.id].value) for turn in turns))
            elif isinstance(setting, str):
                weights.append(1.0)
            elif role in setting:
                weights.append(setting[role])
            else:
                problem = f"no weight for role {role!r}, which speaks; weights: {dict(setting)}"
                raise ValueError(f"credit.assign.agents: {problem}")
        return normalize_weights(weights)

    def _turn_shares(self, turns: Sequence[Turn], trajectory: Trajectory, level_credit: LevelCredit) -> list[float]:
        """Return the share of each of an agent's turns in the agent's reward."""
        setting = self._settings.calls
        weights = [1.0] * len(turns)
        for index, turn in enumerate(turns):
            if setting == "reads":
                weights[index] += len(trajectory.readers(turn.id, self._settings.along))
            elif isinstance(setting, AssignConfig):
                weights[index] = abs(level_credit["calls"][turn.id].value)
        if not any(weights):
            weights = [1.0] * len(turns)
        for index in range(len(turns)):
            weights[index] *= self._settings.discount ** (len(turns) - 1 - index)
        return weights if setting == "copy" else normalize_weights(weights)

    def _token_shares(self, turn: Turn, level_credit: LevelCredit) -> list[float]:
        """Return the share of each token in the turn's credit; [] if all tokens get the turn's credit."""
        count, setting = len(turn.completion.token_ids), self._settings.tokens
        if setting == "copy" or not count:
            return []
        if setting == "surprise":
            return normalize_weights(list(map(neg, turn.completion.logprobs)))
        return normalize_weights(list(map(abs, level_credit["tokens"][turn.id].tokens)) or [1.0] * count)

    def metrics(self) -> Metrics:
        """Return the metrics of the plug-ins that weigh a level."""
        metrics: Metrics = {}
        for plugin in self._plugins.values():
            metrics |= plugin.metrics()
        return metrics

    def state_dict(self) -> dict[str, Any]:
        states: dict[str, Any] = {}
        for level, plugin in self._plugins.items():
            if state := plugin.state_dict():
                states[level] = state
        return states

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for level, plugin in self._plugins.items():
            plugin.load_state_dict(state.get(level, {}))


def normalize_weights(weights: Sequence[float]) -> list[float]:
    """Return shares in proportion to `weights` (>= 0); equal shares if all weights are 0 or one is infinite."""
    total = sum(weights)
    if total in (0, inf):
        return [1 / len(weights)] * len(weights)
    return [weight / total for weight in weights]
