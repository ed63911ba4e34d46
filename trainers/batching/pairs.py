"""Samples -> pairs of which one side went better. No tensors yet."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from marl.types import Sample
from trainers.batching.rows import Row

if TYPE_CHECKING:
    from trainers.settings.pairing import Pairing, Worth

Side = tuple[Sample, ...]
"""One turn, or an agent's turns of one episode."""


@dataclass(frozen=True, slots=True, eq=False)
class Contest:
    """Sides that began alike, and which went better than which. The unit of its rows: each is computed once, however
    many pairs it is in."""

    sides: tuple[Side, ...]
    pairs: tuple[tuple[int, int], ...]
    """(better, worse), as places in `sides`."""

    @property
    def samples(self) -> list[Sample]:
        """All that are in a pair."""
        return [sample for side in self.sides for sample in side]


def contests(samples: Iterable[Sample], settings: Pairing) -> list[Contest]:
    """All comparisons that the samples allow, in order of first appearance; sides in no pair are left out.

    Sides with the same tokens are never a pair: whatever the loss, their gradients cancel. What has no tokens teaches
    nothing.
    """
    spoken = [sample for sample in samples if sample.token_ids]
    grouped = _episodes(spoken) if settings.pairs == "episodes" else _siblings(spoken)
    most = 1 if settings.pairs == "best_worst" else settings.most
    found = (_contest(sides, [worth(side, settings.by) for side in sides], settings.margin, most) for sides in grouped)
    return [contest for contest in found if contest.pairs]


def paired_rows(samples: Iterable[Sample], settings: Pairing) -> list[Row]:
    """A row for each turn in a pair, with its `Contest` as unit and the facts `side` (its place there) and `pairs` (how
    many there are; on one row of each contest, so that their sum over rows is the number of all)."""
    return [row for contest in contests(samples, settings) for row in _rows(contest)]


def worth(side: Side, by: Worth) -> float:
    """The mean over its turns: what was paid is the same for all turns of an episode."""
    return fmean(sample.paid if by == "paid" else sample.earned for sample in side)


def _siblings(samples: Sequence[Sample]) -> list[list[Side]]:
    """Turns by what was asked, from the same start."""
    groups: dict[Hashable, list[Side]] = {}
    for sample in samples:
        groups.setdefault((sample.group, sample.role, sample.prompt_ids), []).append((sample,))
    return list(groups.values())


def _episodes(samples: Sequence[Sample]) -> list[list[Side]]:
    """Turns by agent and start, then by episode."""
    groups: dict[Hashable, dict[str, list[Sample]]] = {}
    for sample in samples:
        groups.setdefault((sample.group, sample.agent), {}).setdefault(sample.id[0], []).append(sample)
    return [[tuple(turns) for turns in episodes.values()] for episodes in groups.values()]


def _contest(sides: Sequence[Side], scores: Sequence[float], margin: float, most: int | None) -> Contest:
    said = [tuple((sample.prompt_ids, sample.token_ids) for sample in side) for side in sides]
    places = range(len(sides))
    # Scores are sums of rewards: what differs by their rounding alone is a tie.
    gaps = {(i, j): round(scores[i] - scores[j], 9) for i in places for j in places if said[i] != said[j]}
    pairs = [pair for pair, gap in gaps.items() if gap >= margin]
    if most is not None and len(pairs) > most:
        better, worse = (sorted({pair[place] for pair in pairs}) for place in (0, 1))
        turn = {(i, j): (worse.index(j) - better.index(i)) % len(worse) for i, j in pairs}
        # Among equally clear pairs, partners that have not met others yet come first.
        pairs = sorted(pairs, key=lambda pair: (-gaps[pair], turn[pair], pair))[:most]
    kept = sorted({place for pair in pairs for place in pair})
    return Contest(tuple(sides[i] for i in kept), tuple((kept.index(i), kept.index(j)) for i, j in pairs))


def _rows(contest: Contest) -> list[Row]:
    rows = [
        Row(sample.prompt_ids, sample.token_ids, unit=contest, facts={"side": side, "pairs": 0.0}, samples=(sample,))
        for side, turns in enumerate(contest.sides)
        for sample in turns
    ]
    first = rows[0]
    counted = {**first.facts, "pairs": float(len(contest.pairs))}
    return [Row(first.prompt_ids, first.token_ids, unit=contest, facts=counted, samples=first.samples), *rows[1:]]
