"""Who earned it, from the top down: what an episode paid -> agents -> their turns (calls) -> the turns' tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from credit.assign.shares import SharedBy, shares
from credit.assign.teams import TeamAssign
from credit.inherited import in_its_own_episode
from marl.protocols import Assign, AssignConfig, Evidence
from marl.types import Advantage, Credit, Metrics, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory
    from marl.types import Turn


class Hierarchy(TeamAssign):
    """What a team is paid goes down three levels: to its agents, to their turns, to the turns' tokens.

    The hierarchical credit assignment of LightningRL (Agent Lightning, arXiv 2508.03680), with weights at every level.
    `copy` gives everyone below all that is above: the default, and what its released code does. Other choices give
    shares that sum to 1, among the agents that said something and among the turns of an agent; so with shares at both
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
    """`copy`, `equal`, a weight for each role, or a part."""
    calls: Annotated[str | AssignConfig, SharedBy(words=("copy", "equal", "reads"))] = "copy"
    """`copy`, `equal`, `reads` (in proportion to how many turns read it; the game reads every turn, too), or a part."""
    tokens: Annotated[str | AssignConfig, SharedBy(words=("copy", "surprise"))] = "copy"
    """`copy`, `surprise` (in proportion to -log-probability when sampled), or a part that judges tokens."""
    discount: float = Field(default=1.0, ge=0, le=1)
    """Per turn: one after which its agent has k more is weighted `discount ** k`, before shares are taken."""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(part.needs for part in self.parts().values()))

    def parts(self) -> dict[str, AssignConfig]:
        """Level -> the part that weighs it, where one does."""
        levels = {"agents": self.agents, "calls": self.calls, "tokens": self.tokens}
        return {level: by for level, by in levels.items() if isinstance(by, AssignConfig)}

    def build(self) -> Assign:
        return BackPropagation(self)


@dataclass(frozen=True, slots=True)
class _Step:
    """What all levels look at."""

    evidence: Evidence
    judged: Mapping[str, Credit] = field(default_factory=dict)
    """Level -> what the part that weighs it assigned."""

    def credit(self, level: str, turn: TurnId) -> Advantage:
        return self.judged[level].get(turn, _NONE)


class BackPropagation:
    """Carries returns down, level by level; holds the parts that weigh a level."""

    def __init__(self, settings: Hierarchy) -> None:
        self._settings, self.needs = settings, settings.needs
        self._parts = {level: part.build() for level, part in settings.parts().items()}

    def __call__(self, evidence: Evidence) -> Credit:
        """Credit of the turns of every team.

        Raises:
            ValueError: if `agents` weighs roles and leaves out one that speaks.
        """
        step = _Step(evidence, {level: part(evidence) for level, part in self._parts.items()})
        turns = {turn.id: turn for trajectory in evidence.trajectories for turn in trajectory.turns}
        worths = in_its_own_episode(pair for t in evidence.trajectories for pair in self._episode(t, step))
        if self._settings.tokens == "copy":
            return {turn: Advantage(worth) for turn, worth in worths.items()}
        return {turn: self._in_tokens(turns[turn], worth, step) for turn, worth in worths.items()}

    def _episode(self, trajectory: Trajectory, step: _Step) -> Iterator[tuple[TurnId, float]]:
        calls: dict[str, list[Turn]] = defaultdict(list)
        for turn in trajectory.turns:
            calls[turn.agent].append(turn)
        for agents, worth in self._settings.pots(trajectory, step.evidence):
            # In the order in which they first spoke: sets have none.
            spoke = {agent: turns for agent, turns in calls.items() if agent in agents}
            for turns, part in zip(spoke.values(), self._of_agents(spoke, step), strict=True):
                for turn, share in zip(turns, self._of_calls(turns, trajectory, step), strict=True):
                    yield turn.id, worth * part * share

    def _of_agents(self, spoke: Mapping[str, Sequence[Turn]], step: _Step) -> list[float]:
        by = self._settings.agents
        if by == "copy" or not spoke:
            return [1.0] * len(spoke)
        if isinstance(by, AssignConfig):
            return shares([sum(abs(step.credit("agents", turn.id).value) for turn in own) for own in spoke.values()])
        return shares([1.0 if by == "equal" else _of_role(turns[0].role, by) for turns in spoke.values()])

    def _of_calls(self, turns: Sequence[Turn], trajectory: Trajectory, step: _Step) -> list[float]:
        by, discount = self._settings.calls, self._settings.discount
        weights = [1.0] * len(turns)
        if by == "reads":
            weights = [1.0 + len(trajectory.graph.succ[turn.id]) for turn in turns]
        elif isinstance(by, AssignConfig):
            weights = [abs(step.credit("calls", turn.id).value) for turn in turns]
            weights = weights if any(weights) else [1.0] * len(turns)
        later = len(turns) - 1
        weights = [weight * discount ** (later - place) for place, weight in enumerate(weights)]
        return weights if by == "copy" else shares(weights)

    def _in_tokens(self, turn: Turn, worth: float, step: _Step) -> Advantage:
        said, by = turn.completion, self._settings.tokens
        many = len(said.token_ids)
        if not many:
            return Advantage(worth)
        weights: Sequence[float] = [-logprob for logprob in said.logprobs]
        if by != "surprise":
            weights = [abs(token) for token in step.credit("tokens", turn.id).tokens] or [1.0] * many
        return Advantage(worth, tuple([worth * many * share for share in shares(weights)]))

    def metrics(self) -> Metrics:
        """Those of the parts that weigh a level."""
        return reduce(lambda all_, part: all_ | part.metrics(), self._parts.values(), {})

    def state_dict(self) -> dict[str, Any]:
        states = {level: part.state_dict() for level, part in self._parts.items()}
        return {level: state for level, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for level, part in self._parts.items():
            part.load_state_dict(state.get(level, {}))


_NONE = Advantage(0.0)


def _of_role(role: str, weights: Any) -> float:
    if role not in weights:
        raise ValueError(f"credit.assign.agents: no weight for role {role!r}, which speaks; weights: {dict(weights)}")
    return weights[role]
