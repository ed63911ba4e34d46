"""Measures of a role's worth: how often it corrects a wrong answer of the role before it, and how often it spoils a
right one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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

    A pair without a verdict on both roles has no measure. Several agents are right if most of them are. If a role of a
    loop answers again after the other one, its answer before that counts, one turn earlier.
    """
    measures: dict[str, float] = {}
    for pair in pairs:
        later = [latest[agent] for agent in seats.agents_of[pair.later]]
        answered_at = max(map(_step_of_move, later))
        earlier = [_turn_before(latest[agent], answered_at) for agent in seats.agents_of[pair.earlier]]
        was_right, is_right = _is_right(earlier, pair.check), _is_right(later, pair.check)
        if was_right is not None and is_right is not None:
            measures[pair.breaks if was_right else pair.fixes] = float(is_right != was_right)
    return measures


def _step_of_move(turn: TurnFacts) -> float:
    """Return the index of the game's step that made the move of `turn`, or minus infinity without a move."""
    steps = [origin.source for origin in turn.origins.get("move", ()) if isinstance(origin.source, int)]
    return max(steps, default=-math.inf)


def _turn_before(turn: TurnFacts, step: float) -> TurnFacts:
    """Return `turn` if its move was made before the step `step`, else the same agent's turn before it."""
    is_later = turn.previous_origins and _step_of_move(turn) > step
    return TurnFacts(turn.facts["before"], turn.previous_origins) if is_later else turn


def _is_right(turns: Sequence[TurnFacts], check: str) -> bool | None:
    """Return True if the answers of most of `turns` are right, or None without a verdict on any of them."""
    # A check without an origin was not scored in this episode.
    scores = [turn.facts[check] for turn in turns if check in turn.origins]
    return 2 * sum(score >= 1 for score in scores) > len(scores) if scores else None
