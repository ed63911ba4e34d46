"""Versions of instructions with their parents and scores, and the Pareto front over starts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

VersionStatus = Literal["initial", "dropped", "eliminated", "outranked", "kept", "adopted"]
"""Fate of a version: not playable or known (`dropped`), not better than the incumbent (`eliminated`), behind others of
its search (`outranked`; it may come again), not surely better than the incumbent (`kept`, it has played the last rung),
or `adopted`."""


@dataclass(slots=True)
class PromptVersion:
    """Instructions of a policy's roles, with their origin and their scores."""

    number: int
    parent: int | None
    """Number of the version that the proposer changed, or None for the first version."""
    search: int
    """Number of the search that made the version, from 1; 0 for the first version."""
    role: str
    """Role whose instructions differ from the parent's; "" for the first version."""
    instructions: dict[str, str]
    """Role -> instructions."""
    status: VersionStatus
    reason: str = ""
    """Reason for the status, in words."""
    answer: str = ""
    """Full answer of the proposer."""
    scores: list[float | None] = field(default_factory=list[float | None])
    """Score on each start that was played, in the order of the starts; None without an outcome."""
    gain: list[float] | None = None
    """Mean gain over the incumbent with its interval (97.5 %, as a search looks twice): low, mean, high. None if it
    was not measured."""

    @property
    def mean_score(self) -> float | None:
        """Mean score over the starts with an outcome, or None without any."""
        known = [score for score in self.scores if score is not None]
        return fmean(known) if known else None

    def diff(self, parent: PromptVersion) -> list[str]:
        """Return the lines of the unified diff from the parent's instructions of the changed role."""
        before, after = parent.instructions[self.role], self.instructions[self.role]
        names = f"version {parent.number}", f"version {self.number}"
        return list(difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm=""))


def front_weights(scores_by_version: Mapping[int, Sequence[float | None]]) -> dict[int, int]:
    """Return version -> number of starts on which no version scores higher, for the Pareto front over starts.

    A dominated version, which another one beats on some start and matches on all others, is left out, as in algorithm
    2 of GEPA (arXiv 2507.19457). Starts without an outcome for any of the versions are ignored.
    """
    starts = range(min(map(len, scores_by_version.values()), default=0))
    rows: dict[int, list[float]] = {number: [] for number in scores_by_version}
    for start in starts:
        column = {number: scores[start] for number, scores in scores_by_version.items()}
        for number, score in column.items():
            if score is not None and None not in column.values():
                rows[number].append(score)
    front = [number for number in rows if not any(_dominates(rows[other], rows[number]) for other in rows)]
    weights = dict.fromkeys(front, 0)
    for scores in zip(*rows.values(), strict=True):
        best = max(scores)
        for number, score in zip(rows, scores, strict=True):
            if number in weights and score == best:
                weights[number] += 1
    return {number: weight for number, weight in weights.items() if weight}


def _dominates(scores: Sequence[float], others: Sequence[float]) -> bool:
    pairs = list(zip(scores, others, strict=True))
    return all(score >= other for score, other in pairs) and any(score > other for score, other in pairs)


def rung_ends(candidate_count: int, start_count: int) -> list[int]:
    """Return the number of starts that the candidates of each rung of successive halving have played at its end.

    After each rung but the last, half of the candidates go on; the last candidate plays the last rung, with all
    starts, alone. Each rung has four times as many starts as the one before (Jamieson and Talwalkar 2016, 1502.07943),
    but at least `_FEWEST`.
    """
    halvings = max(1, (candidate_count - 1).bit_length())
    ends: list[int] = []
    for rung in range(halvings):
        quarter = start_count // 4 ** (halvings - rung)
        ends.append(min(max(quarter, _FEWEST), start_count - 1))
    return [*ends, start_count]


_FEWEST = 4
"""Minimum number of starts of the first rung."""
