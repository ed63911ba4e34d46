"""Measures of a role's worth: how often it corrects a wrong answer of the role before it, and how often it spoils a
right one."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from marl.games.team.blackboard import TurnFacts
from marl.games.team.stages import TeamSeats


class CorrectionPair(NamedTuple):
    """Two roles whose answers the same check scores, with no other scored role between them."""

    earlier: str
    later: str
    check: str
    """Name of the check that scores both roles. An answer with a score of at least 1 is right."""

    @property
    def fixes(self) -> str:
        """Name of the measure that is 1 if `later` is right, in episodes in which `earlier` was wrong."""
        return f"{self.later}_fixes"

    @property
    def breaks(self) -> str:
        """Name of the measure that is 1 if `later` is wrong, in episodes in which `earlier` was right."""
        return f"{self.later}_breaks"


def correction_pairs(seats: TeamSeats) -> tuple[CorrectionPair, ...]:
    """Return each pair of roles that follow each other in the workflow and are scored by the same check."""
    pairs: list[CorrectionPair] = []
    for earlier, later in pairwise([role for role in seats.agents_of if role in seats.checks_of]):
        shared = [check for check in seats.checks_of[earlier] if check in seats.checks_of[later]]
        if shared:
            pairs.append(CorrectionPair(earlier, later, shared[0]))
    return tuple(pairs)


def correction_measures(
    pairs: tuple[CorrectionPair, ...], seats: TeamSeats, latest: Mapping[str, TurnFacts]
) -> dict[str, float]:
    """Return the measures of one episode. `latest` maps each agent to its facts after its last turn.

    A pair without a verdict on both roles has no measure. Several agents are right if most of them are.
    """
    measures: dict[str, float] = {}
    for pair in pairs:
        was_right = _is_right(seats.agents_of[pair.earlier], pair.check, latest)
        is_right = _is_right(seats.agents_of[pair.later], pair.check, latest)
        if was_right is not None and is_right is not None:
            measures[pair.breaks if was_right else pair.fixes] = float(is_right != was_right)
    return measures


def _is_right(agents: tuple[str, ...], check: str, latest: Mapping[str, TurnFacts]) -> bool | None:
    """Return True if most of `agents` are right, or None without a verdict on any of them."""
    # A check without an origin was not scored in this episode.
    scores = [latest[agent].facts[check] for agent in agents if check in latest[agent].origins]
    return 2 * sum(score >= 1 for score in scores) > len(scores) if scores else None
