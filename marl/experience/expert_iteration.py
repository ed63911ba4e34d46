"""Expert iteration: self-play with tree search, whose moves the policies learn to imitate.

Expert iteration (Anthony et al. 2017), AlphaZero (1712.01815): search makes a better policy of the present one, the
policy imitates it, and the next search begins from there. The turns are those that the search chose, with the
log-probabilities that the policy gives them, so any learner that takes others' words learns from them. `sft` minimises
the cross entropy to the search's policy as a whole; with a `critic`, that learns how searched games end, and the next
search may value positions by it (`values: critic`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from marl.core.config import choices_hint
from marl.core.graph import Trajectory
from marl.core.types import Deal, Metrics
from marl.experience.rollouts import StatelessExperience
from marl.protocols import Deals, Experience, ExperienceConfig, ScenarioSummary, Simulator
from marl.rollout.base import BaseSimulator
from marl.search.mcts import SearchResult
from marl.search.play import SearchPlayer, SearchSeats, critic_obstacle, search_metrics
from marl.search.settings import RootNoise, SearchSettings


class SearchSelfPlay(SearchSettings, ExperienceConfig):
    """Self-play by tree search, whose moves policies learn to choose by themselves (expert iteration, AlphaZero)."""

    kind: str = "search"
    off_policy: ClassVar[bool] = True
    roles: tuple[str, ...] = ()
    """Roles that choose their moves by search (default: all roles). Other roles sample their answers."""
    temperature: float = Field(default=1.0, ge=0)
    """A move is drawn from the search's policy to the power of 1 / temperature, and that is what imitation learns."""
    targets: Literal["policy", "move"] = "policy"
    """Text that `sft` imitates of a turn: all that the search's policy might have said, each by its probability (cross
    entropy to that policy), or the one move that was drawn from it. Other learners know the move alone."""
    noise: RootNoise | None = RootNoise()
    """`puct`: noise in the prior at the root. None: there is none."""

    def conflicts(self, seats: Mapping[str, str], group_size: int) -> Iterable[str]:
        for role in self.roles:
            if role not in seats.values():
                yield f"roles: no seat has the role {role!r}; {choices_hint(role, set(seats.values()))}"

    def scenario_conflicts(self, cast: ScenarioSummary) -> Iterable[str]:
        if self.values != "critic":
            return
        if cast.game and (problem := critic_obstacle(cast.game)):
            yield f"values: 'critic', but game {cast.game.kind!r} {problem}"
        for role in dict.fromkeys(cast.seats.values()):
            policy = cast.trained_roles.get(role)
            if policy is None or "values" not in cast.readable.get(policy, ()):
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
        self._metrics: Metrics = {}

    def gather(self, step: int, deals: Deals, simulator: Simulator) -> list[Trajectory]:
        """Return the step's episodes, in the order of its deals, without those that were dropped."""
        assert isinstance(simulator, BaseSimulator)
        # A search player plays one game with fixed seats, so that deals are grouped by both.
        tables: dict[tuple[str, tuple[tuple[str, str], ...]], list[Deal]] = defaultdict(list)
        starts = deals(step)
        for deal in starts:
            tables[deal.game, tuple(deal.seats.items())].append(deal)
        played: dict[str, Trajectory] = {}
        learn_policy = self._settings.targets == "policy"
        results: list[SearchResult] = []
        for (_, seats), group in tables.items():
            seating = SearchSeats(self._settings.roles or frozenset(role for _, role in seats), dict(seats))
            player = SearchPlayer(simulator, self._settings, seating, purpose="train", targets=learn_policy)
            played |= {trajectory.id: trajectory for trajectory in player.play(group)}
            results += player.results
        self._metrics = search_metrics(results)
        return [played[deal.episode] for deal in starts if deal.episode in played]

    def metrics(self) -> Metrics:
        """Return `search/...` of the last step."""
        return dict(self._metrics)
