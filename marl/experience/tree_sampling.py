"""Tree sampling: at each turn several answers are sampled from the same state, and play goes on from the best one.

AT-GRPO (https://arxiv.org/abs/2510.11062, PettingLLMs): every agent samples K candidates at every turn, the one with
the highest score is continued, and candidates are compared with one another, for they share their state. There, a turn
is scored as it is said; here, where a reward may come late, a candidate is played to the end of its episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from marl.core.config import choices_hint, field_errors
from marl.core.graph import Trajectory
from marl.core.types import Deal, Metrics, Turn
from marl.experience.rollouts import StatelessExperience, mean_measures
from marl.protocols import Deals, Experience, ExperienceConfig, Simulator
from marl.search.turn_rules import BranchedRollout


class TreeSampling(ExperienceConfig):
    """Samples several answers at every turn, plays each to its end, and goes on from the best one (AT-GRPO).

    A deal with T such turns takes `candidates` x T episodes. Each is played from its candidate on, so in all they have
    about `candidates` x T x T / 2 new turns. All are trajectories of the step; a candidate is the first turn that its
    episode does not share, and the turns after it show what it is worth.
    """

    kind: str = "tree"
    plays_groups: ClassVar[bool] = True
    candidates: int = Field(4, ge=2)
    """Number of answers sampled at a turn: K in the paper."""
    roles: tuple[str, ...] = ()
    """Roles at whose turns this is done; default: all with turns in a model's tokens, whether they learn or not. Turns
    of other roles are not learnt from: they stand in rollouts that were chosen for their end."""
    agent: float = Field(1.0, ge=0)
    """Weight of the return of the agent whose turn it is in a candidate's score."""
    team: float = Field(0.0, ge=0)
    """Weight of the sum of all agents' returns in it (alpha in the paper; its code has 1)."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_old_name(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "own" in data:
            raise field_errors({"own": "unknown field 'own'; it is now called 'agent'"})
        return data

    @model_validator(mode="after")
    def _scored(self) -> Self:
        if not self.agent and not self.team:
            raise ValueError("agent and team are both 0, so no candidate would be better than another; give one more")
        return self

    def build(self) -> Experience:
        return TreeGrower(self)


class TreeGrower(StatelessExperience):
    """Experience that grows a tree from every deal, sampling the candidates of all deals together."""

    def __init__(self, settings: TreeSampling) -> None:
        self._settings = settings
        self._metrics: Metrics = {}

    def gather(self, step: int, deals: Deals, simulator: Simulator) -> list[Trajectory]:
        """Return the rollouts of every deal: by deal, then in the order of their start.

        Raises:
            ValueError: if `roles` names one that no seat has.
        """
        starts = deals(step)
        self._check_roles(starts)
        trunks = [BranchedRollout([first], first) for first in simulator.play(starts)]
        while growing := [(trunk, turn) for trunk in trunks if (turn := trunk.next(self._searched))]:
            forks = [trunk.fork(turn, self._new_answers(trunk), "train") for trunk, turn in growing]
            for (trunk, turn), rollouts in zip(growing, simulator.play_forks(forks), strict=True):
                self._decide(trunk, turn, rollouts)
        self._metrics = _measure(trunks)
        return [rollout for trunk in trunks for rollout in trunk.rollouts]

    def metrics(self) -> Metrics:
        """Return `tree/...` of the last step: rollouts and decisions of a deal, gain, tied, `first/...` of measures."""
        return dict(self._metrics)

    def _check_roles(self, deals: Sequence[Deal]) -> None:
        seated = {role for deal in deals for role in deal.seats.values()}
        for role in self._settings.roles:
            if deals and role not in seated:
                raise ValueError(
                    f"experience.roles: no seat has the role {role!r}; {choices_hint(role, sorted(seated))}"
                )

    def _searched(self, turn: Turn) -> bool:
        # A turn without tokens follows from the question alone, or could not be sampled at all.
        roles = self._settings.roles
        return bool(turn.completion.prompt_ids) and (not roles or turn.role in roles)

    def _new_answers(self, trunk: BranchedRollout) -> int:
        # The first rollout was not selected, so its answer is a candidate. A rollout selected by outcome is a biased
        # sample of its turns.
        return self._settings.candidates - (not trunk.scores)

    def _decide(self, trunk: BranchedRollout, turn: Turn, rollouts: Sequence[Trajectory]) -> None:
        candidates = [*(() if trunk.scores else (trunk.current,)), *rollouts]
        trunk.decide(turn, candidates, [self._score(rollout, turn.agent) for rollout in candidates])

    def _score(self, rollout: Trajectory, agent: str) -> float:
        returns = rollout.returns
        return self._settings.agent * returns.get(agent, 0.0) + self._settings.team * sum(returns.values())


def _measure(trunks: Sequence[BranchedRollout]) -> Metrics:
    if not trunks:
        return {}
    decisions = [scores for trunk in trunks for scores in trunk.scores if scores]
    metrics = {
        "tree/rollouts": fmean(len(trunk.rollouts) for trunk in trunks),
        "tree/decisions": len(decisions) / len(trunks),
    }
    if decisions:
        metrics["tree/gain"] = fmean(max(scores) - fmean(scores) for scores in decisions)
        metrics["tree/tied"] = fmean(max(scores) == min(scores) for scores in decisions)
    # First rollouts were played before anything was chosen: they show how well the policies do by themselves.
    return metrics | mean_measures([trunk.rollouts[0] for trunk in trunks], "tree/first/")
