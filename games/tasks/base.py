"""Sources of problems: two splits that share none, the easiest first."""

from __future__ import annotations

import json
import random
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from pydantic import Field

from marl.config import nearest
from marl.protocols import Split, TaskConfig, Tasks
from marl.seeds import seed_of
from marl.types import Problem

_PATIENCE = 30
"""Draws per problem found without a new one, after which there are no more: one of n equally likely problems stays
unseen with probability exp(-30)."""


def digest(value: Any) -> str:
    """16 hex digits that name a plain JSON value."""
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Draft:
    """A problem that is known but not yet written down."""

    key: str
    """Canonical: equal for problems that are the same in other words."""
    difficulty: float
    write: Callable[[], Problem]


class Source:
    """Drafts in two splits, written down when asked for."""

    def __init__(
        self, train: Iterable[Draft], held_out: Iterable[Draft], read: Callable[[str], Draft | None] | None = None
    ) -> None:
        self._splits: dict[str, list[Draft]] = {"train": _ranked(train), "held_out": _ranked(held_out)}
        self._secret = frozenset(draft.key for draft in self._splits["held_out"])
        self._read = read
        self._written: dict[tuple[str, int], Problem] = {}

    def size(self, split: Split) -> int:
        return len(self._drafts(split))

    def problem(self, split: Split, index: int) -> Problem:
        """The problem number `index`, always the same.

        Raises:
            ValueError: if there is no such split or number.
        """
        known = self._written.get((split, index))
        if known is None:
            drafts = self._drafts(split)
            if not 0 <= index < len(drafts):
                raise ValueError(f"index: {index} in split {split!r}, which has {len(drafts)} problems; the first is 0")
            known = self._written[split, index] = drafts[index].write()
        return known

    def posed(self, text: str) -> Problem | None:
        """The problem that `text` poses; None if it poses none, or one that is held out."""
        draft = self._read(text) if self._read else None
        return None if draft is None or draft.key in self._secret else draft.write()

    def _drafts(self, split: str) -> list[Draft]:
        if split not in self._splits:
            raise ValueError(f"split: {split!r}; {nearest(split, self._splits)}")
        return self._splits[split]


def _ranked(drafts: Iterable[Draft]) -> list[Draft]:
    return sorted(drafts, key=lambda draft: draft.difficulty)


def divided(drafts: Sequence[Draft], held_out: int, seed: int) -> tuple[list[Draft], list[Draft]]:
    """(train, held out): `held_out` of the drafts are put aside by a keyed hash, the rest are left in their order."""
    by_lot = sorted(drafts, key=lambda draft: seed_of("split", seed, draft.key))
    secret = {draft.key for draft in by_lot[:held_out]}
    return [d for d in drafts if d.key not in secret], [d for d in drafts if d.key in secret]


class Generated(TaskConfig):
    """A seeded generator: draws different problems until both splits are full."""

    train: int = Field(1000, ge=1)
    """How many problems."""
    held_out: int = Field(200, ge=0)
    """How many problems that training never deals."""
    seed: int = 0

    @abstractmethod
    def draw(self, rng: random.Random) -> Draft:
        """A random problem."""

    def read(self, text: str) -> Draft | None:
        """The problem that `text` poses, worked out; None if it is none that these settings make."""
        return None

    def build(self) -> Tasks:
        """Raises:
        ValueError: if there are fewer different problems than both splits need.
        """
        return _generated(type(self), self.model_dump_json())


@lru_cache(maxsize=32)
def _generated(generator: type[Generated], settings_json: str) -> Source:
    # Cached, since every game at a table builds its own source of the same problems.
    settings = generator.model_validate_json(settings_json)
    drafts = _drawn(settings, settings.train + settings.held_out)
    train, held_out = divided(drafts, settings.held_out, settings.seed)
    return Source(train, held_out, settings.read)


def _drawn(settings: Generated, many: int) -> list[Draft]:
    rng = random.Random(seed_of(settings.kind, settings.seed))
    found: dict[str, Draft] = {}
    stale = 0
    while len(found) < many:
        draft = settings.draw(rng)
        stale = stale + 1 if draft.key in found else 0
        found.setdefault(draft.key, draft)
        if stale > _PATIENCE * (len(found) + 10):
            raise ValueError(
                f"train: {settings.train} and held_out: {settings.held_out} ask for {many} different problems, but the "
                f"settings of {settings.kind!r} make only {len(found)}; choices: train + held_out <= {len(found)}, or "
                "settings that make more"
            )
    return list(found.values())


def ordered(low_high: tuple[int, int], name: str, least: int, most: int) -> tuple[int, int]:
    """The range itself.

    Raises:
        ValueError: if it is none within `least` and `most`.
    """
    low, high = low_high
    if not least <= low <= high <= most:
        raise ValueError(
            f"{name}: {[low, high]} is no range; choices: [low, high] with {least} <= low <= high <= {most}"
        )
    return low_high


def distinct(candidates: Iterable[str], answer: str, many: int = 3) -> tuple[str, ...]:
    """The first `many` different candidates that are not the answer."""
    return tuple(text for text in dict.fromkeys(candidates) if text and text != answer)[:many]
