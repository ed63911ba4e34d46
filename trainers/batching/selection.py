"""Samples -> those worth imitating."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from marl.types import Sample
from trainers.batching.pairs import worth

if TYPE_CHECKING:
    from trainers.settings.pairing import Keep


def kept(samples: Sequence[Sample], keep: Keep) -> list[Sample]:
    """In their order. The same worth is settled by who came first."""
    least = keep.at_least
    good = [sample for sample in samples if least is None or worth((sample,), keep.by) >= least]
    if keep.best is None:
        return good
    best = {id(sample) for group in _groups(good, keep) for side in _best(group, keep) for sample in side}
    return [sample for sample in good if id(sample) in best]


def distinct(samples: Sequence[Sample]) -> list[Sample]:
    """The first of those with the same prompt and completion."""
    first: dict[Hashable, Sample] = {}
    for sample in samples:
        first.setdefault((sample.prompt_ids, sample.token_ids), sample)
    return list(first.values())


def _groups(samples: Sequence[Sample], keep: Keep) -> list[list[list[Sample]]]:
    """Rivals, each the turns that are kept or left together."""
    groups: dict[Hashable, dict[Hashable, list[Sample]]] = {}
    for sample in samples:
        turn = sample.role, sample.prompt_ids
        alike, rival = (sample.agent, sample.id[0]) if keep.by == "paid" else (turn, sample.id)
        groups.setdefault((sample.group, alike), {}).setdefault(rival, []).append(sample)
    return [list(rivals.values()) for rivals in groups.values()]


def _best(rivals: Sequence[list[Sample]], keep: Keep) -> list[list[Sample]]:
    return sorted(rivals, key=lambda side: -worth(tuple(side), keep.by))[: keep.best]
