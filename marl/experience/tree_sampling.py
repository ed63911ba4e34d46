"""Tree sampling: at each turn several answers are sampled from the same state, and play goes on from the best one.

AT-GRPO (https://arxiv.org/abs/2510.11062, PettingLLMs): every agent samples K candidates at every turn, play continues
from the candidate with the highest score, and candidates are compared with one another, because they share their state.
The paper scores a turn at once; here a candidate is played to the end of its episode, because a reward may come late.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from marl.core.config import DistinctValues, choices_hint, field_errors
from marl.core.graph import Trajectory
from marl.core.types import Metrics, Turn
from marl.experience.rollouts import StatelessExperience, mean_measures
from marl.protocols import DealsOfStep, Experience, ExperienceConfig, Simulator
from marl.search.turn_rules import BranchedRollout

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
tree/rollouts | episodes | rollouts played of a deal (`experience: tree`)
tree/decisions | turns | turns of a deal at which candidates were compared
tree/gain | score | best candidate's score minus the mean one, mean over decisions
tree/tied | share of decisions | all candidates had the same score
tree/first/MEASURE | the game's | mean of a measure over the first rollouts, before anything was chosen
"""


class TreeSampling(ExperienceConfig):
    """Samples several answers at every turn, plays each to its end, and goes on from the best one (AT-GRPO).

    A deal with T turns of these roles takes `candidates` x T episodes. Each episode is played from its candidate on, so
    all episodes together have about `candidates` x T x T / 2 new turns. All episodes are trajectories of the step. A
    candidate is the first turn that its episode shares with no other episode; the later turns determine its score.
    """

    kind: str = "tree"
    plays_groups: ClassVar[bool] = True
    candidates: int = Field(default=4, ge=2)
    """Number of answers sampled at a turn: K in the paper."""
    roles: DistinctValues[str] = ()
    """Roles at whose turns candidates are sampled (default: all roles of language models, whether they learn or not).
    Turns of other roles are not learned from, because their rollouts were selected by the outcome."""
    agent: float = Field(default=1.0, ge=0)
    """Weight of the acting agent's own return in a candidate's score."""
    team: float = Field(default=0.0, ge=0)
    """Weight of the sum of all agents' returns in a candidate's score (alpha in the paper; the paper's code has 1)."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_renamed_field_own(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "own" in data:
            raise field_errors({"own": "unknown field 'own'; it is now called 'agent'"})
        return data

    @model_validator(mode="after")
    def _check_has_positive_weight(self) -> Self:
        if not self.agent and not self.team:
            raise ValueError("agent and team are both 0, so no candidate would be better than another; give one more")
        return self

    def build(self) -> Experience:
        return TreeSampler(self)


class TreeSampler(StatelessExperience):
    """Experience built from `TreeSampling`: grows a tree from every deal, sampling the candidates of all deals
    together.

    Metrics `tree/...` of a step: `rollouts`, `decisions`: number per deal; `gain`: best score minus mean score of a
    decision's candidates; `tied`: share of decisions whose candidates have equal scores; `first/...`: means of the
    game's measures in the first rollout of each deal.
    """

    def __init__(self, settings: TreeSampling) -> None:
        self._settings = settings

    def gather(self, step: int, deals: DealsOfStep, simulator: Simulator) -> list[Trajectory]:
        """Return the rollouts of every deal, ordered by deal and then by the start of the rollout.

        Raises:
            ValueError: if `roles` names a role that no seat has.

        """
        settings, starts = self._settings, deals(step)
        seated: set[str] = set()
        for deal in starts:
            seated.update(deal.seats.values())
        for role in settings.roles if starts else ():
            if role not in seated:
                raise ValueError(
                    f"experience.roles: no seat has the role {role!r}; {choices_hint(role, sorted(seated))}"
                )
        trunks = [BranchedRollout([first], first) for first in simulator.play(starts)]
        while growing := [(trunk, turn) for trunk in trunks if (turn := trunk.next_open_turn(self._is_branching_turn))]:
            # The first rollout of a deal was not selected, so its answer is a candidate of the first decision.
            # Selected rollouts are biased samples, so later decisions draw all of their candidates anew.
            forks = [trunk.fork(turn, settings.candidates - (not trunk.scores), "train") for trunk, turn in growing]
            for (trunk, turn), rollouts in zip(growing, simulator.play_forks(forks), strict=True):
                candidates = [*rollouts] if trunk.scores else [trunk.current, *rollouts]
                scores: list[float] = []
                for rollout in candidates:
                    returns = rollout.returns
                    scores.append(settings.agent * returns.get(turn.agent, 0.0) + settings.team * sum(returns.values()))
                trunk.continue_from_best(turn, candidates, scores)
        gains: list[float] = []
        ties: list[bool] = []
        all_rollouts: list[Trajectory] = []
        first_rollouts: list[Trajectory] = []
        for trunk in trunks:
            all_rollouts += trunk.rollouts
            first_rollouts.append(trunk.rollouts[0])
            for scores in filter(None, trunk.scores):
                gains.append(max(scores) - fmean(scores))
                ties.append(max(scores) == min(scores))
        metrics: Metrics = {}
        if trunks:
            metrics |= {"tree/rollouts": len(all_rollouts) / len(trunks), "tree/decisions": len(gains) / len(trunks)}
        if gains:
            metrics |= {"tree/gain": fmean(gains), "tree/tied": fmean(ties)}
        # First rollouts precede all selection, so their measures show how well the policies play without search.
        self._metrics = metrics | mean_measures(first_rollouts, "tree/first/")
        return all_rollouts

    def _is_branching_turn(self, turn: Turn) -> bool:
        # Turns without tokens come from rule-based policies or from failed requests.
        roles = self._settings.roles
        return bool(turn.completion.prompt_ids) and (not roles or turn.role in roles)
