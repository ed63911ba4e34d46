"""Expert iteration: self-play with tree search, whose moves the policies learn to imitate.

Expert iteration (Anthony et al. 2017), AlphaZero (1712.01815): search improves the current policy, the policy imitates
the result, and the next search starts from the new policy. The recorded turns are the moves that the search chose, with
the policy's own log-probabilities, so every learner that accepts off-policy data learns from them. `sft` minimises the
cross entropy to the search's distribution over moves. A `critic` learns the outcomes of searched games, and the next
search may value positions by the critic (`values: critic`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from marl.core.config import DistinctValues, choices_hint
from marl.core.graph import Trajectory
from marl.core.types import Deal
from marl.experience.rollouts import StatelessExperience
from marl.protocols import DealsOfStep, Experience, ExperienceConfig, ScenarioSummary, Simulator
from marl.rollout.base import BaseSimulator
from marl.search.mcts import SearchResult
from marl.search.play import SearchPlayer, SearchRoles, reason_critics_cannot_value_positions, search_metrics
from marl.search.settings import RootNoise, SearchSettings


class SearchSelfPlay(SearchSettings, ExperienceConfig):
    """Self-play by tree search; policies learn to choose the search's moves without search (expert iteration)."""

    kind: str = "search"
    off_policy: ClassVar[bool] = True
    roles: DistinctValues[str] = ()
    """Roles that choose their moves by search (default: all roles). Other roles sample their answers."""
    temperature: float = Field(default=1.0, ge=0)
    """Temperature of the search's distribution over moves, from which moves are drawn: probabilities are raised to the
    power of 1 / temperature. Imitation learns this distribution."""
    targets: Literal["policy", "move"] = "policy"
    """Target of `sft` at a turn. `policy`: the texts of all moves with their probabilities under the search (cross
    entropy); `move`: the move that was drawn. Other learners learn from the drawn move only."""
    noise: RootNoise | None = RootNoise()
    """Noise in the prior at the root of `puct` (null: no noise)."""

    def seating_conflicts(self, role_by_agent: Mapping[str, str], group_size: int) -> Iterable[str]:
        for role in self.roles:
            if role not in role_by_agent.values():
                yield f"roles: no seat has the role {role!r}; {choices_hint(role, set(role_by_agent.values()))}"

    def scenario_conflicts(self, summary: ScenarioSummary) -> Iterable[str]:
        if self.values != "critic":
            return
        if summary.game and (problem := reason_critics_cannot_value_positions(summary.game)):
            yield f"values: 'critic', but game {summary.game.kind!r} {problem}"
        for role in dict.fromkeys(summary.seats.values()):
            policy = summary.trained_roles.get(role)
            if policy is None or "values" not in summary.readable.get(policy, ()):
                whose = "nobody learns from it" if policy is None else f"the learner of policy {policy!r} has none"
                yield (
                    f"values: 'critic', but role {role!r} has no critic: {whose}; choices: rollouts, or a learner with "
                    "one (`sft` with `critic: {where: trunk}`, awr, ppo)"
                )

    def build(self) -> Experience:
        return ExpertIteration(self)


class ExpertIteration(StatelessExperience):
    """Experience that plays the deals of each step by tree search, all deals in parallel."""

    def __init__(self, settings: SearchSelfPlay) -> None:
        self._settings = settings

    def gather(self, step: int, deals: DealsOfStep, simulator: Simulator) -> list[Trajectory]:
        """Return the step's episodes, in the order of the step's deals. Dropped episodes are left out."""
        assert isinstance(simulator, BaseSimulator)
        # A search player handles one game with one assignment of seats, so deals are grouped by both.
        deals_by_seats: dict[tuple[str, tuple[tuple[str, str], ...]], list[Deal]] = defaultdict(list)
        starts = deals(step)
        for deal in starts:
            deals_by_seats[deal.game, tuple(deal.seats.items())].append(deal)
        played: dict[str, Trajectory] = {}
        learn_policy = self._settings.targets == "policy"
        results: list[SearchResult] = []
        for equal_deals in deals_by_seats.values():
            seats = equal_deals[0].seats
            seating = SearchRoles(self._settings.roles or frozenset(seats.values()), dict(seats))
            player = SearchPlayer(simulator, self._settings, seating, purpose="train", targets=learn_policy)
            for trajectory in player.play(equal_deals):
                played[trajectory.id] = trajectory
            results += player.results
        self._metrics = search_metrics(results)
        return [played[deal.episode] for deal in starts if deal.episode in played]
