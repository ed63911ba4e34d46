"""Sources of problems, in a training and a held-out split that share none, and the games that deal them."""

from __future__ import annotations

import json
import random
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, Field, TypeAdapter, ValidationInfo

from marl.config import nearest
from marl.parts import Part
from marl.protocols import GameConfig, Split, TaskConfig, Tasks
from marl.seeds import seed_of
from marl.types import Problem

_PATIENCE = 30
"""Generation stops after this many draws per known problem without a new one: one of n equally likely problems stays
unseen with probability exp(-30)."""
_PROBLEM_ADAPTER = TypeAdapter(Problem)


def digest(value: Any) -> str:
    """Return 16 hex digits that identify a plain JSON value."""
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Draft:
    """A problem that is determined but not yet written out."""

    key: str
    """Equal for problems that differ in wording alone."""
    difficulty: float
    write: Callable[[], Problem]
    alias: str = ""
    """Equal for problems that may differ in spelling, too. Default: the key."""

    @property
    def aliases(self) -> set[str]:
        """Names under which a held-out problem is known again."""
        return {self.key, self.alias or self.key}


class ProblemSource:
    """Problems in two splits, easiest first, each written out when it is first used."""

    def __init__(
        self, train: Iterable[Draft], held_out: Iterable[Draft], read: Callable[[str], Draft | None] | None = None
    ) -> None:
        """Problems of `train` that are held out in another spelling are left out."""
        self._splits = {
            split: sorted(drafts, key=lambda draft: draft.difficulty)
            for split, drafts in (("train", train), ("held_out", held_out))
        }
        self._held_out = frozenset[str]().union(*(draft.aliases for draft in self._splits["held_out"]))
        self._splits["train"] = [d for d in self._splits["train"] if self._held_out.isdisjoint(d.aliases)]
        self._read = read
        self._written: dict[tuple[str, int], Problem] = {}

    def size(self, split: Split) -> int:
        return len(self._drafts(split))

    def problem(self, split: Split, index: int) -> Problem:
        """Return problem number `index`, always the same; raise ValueError if there is no such split or index."""
        problem = self._written.get((split, index))
        if problem is None:
            drafts = self._drafts(split)
            if not 0 <= index < len(drafts):
                raise ValueError(f"index: {index} in split {split!r}, which has {len(drafts)} problems; the first is 0")
            problem = self._written[split, index] = drafts[index].write()
        return problem

    def posed(self, text: str) -> Problem | None:
        """Return the problem that `text` poses; None if it poses none, or one that is held out, however spelled."""
        draft = self._read(text) if self._read else None
        return draft.write() if draft is not None and self._held_out.isdisjoint(draft.aliases) else None

    def _drafts(self, split: str) -> list[Draft]:
        if split not in self._splits:
            raise ValueError(f"split: {split!r}; {nearest(split, self._splits)}")
        return self._splits[split]


def divide(drafts: Sequence[Draft], held_out: int, seed: int) -> tuple[list[Draft], list[Draft]]:
    """Return (train, held out): `held_out` of the drafts are chosen by a keyed hash; both lists keep their order."""
    shuffled = sorted(drafts, key=lambda draft: seed_of("split", seed, draft.key))
    keys = {draft.key for draft in shuffled[:held_out]}
    return [d for d in drafts if d.key not in keys], [d for d in drafts if d.key in keys]


class SplitTask(TaskConfig):
    """Base of tasks whose problems are known as drafts in two splits."""

    @abstractmethod
    def splits(self) -> tuple[list[Draft], list[Draft]]:
        """Return (train, held out); raise ValueError if the problems cannot be made or loaded."""

    def read(self, text: str) -> Draft | None:
        """Return the problem that `text` poses, solved; None if these settings do not allow it."""
        return None

    def edition(self) -> int:
        """Return a number that changes with the content of the files that are read."""
        return 0

    def build(self) -> Tasks:
        return _build(type(self), self.model_dump_json(), self.edition())


@lru_cache(maxsize=32)
def _build(kind: type[SplitTask], settings_json: str, _edition: int) -> ProblemSource:
    # Cached, since every game of a run builds a source of the same problems.
    settings = kind.model_validate_json(settings_json)
    source = ProblemSource(*settings.splits(), settings.read)
    if not source.size("train"):
        count = source.size("held_out")
        raise ValueError(f"held_out: all {count} problems are held out, so there is none to train on")
    return source


class GeneratedTask(SplitTask):
    """Base of seeded generators: draws different problems until both splits are full."""

    train: int = Field(1000, ge=1, le=1_000_000)
    """Number of training problems."""
    held_out: int = Field(200, ge=0, le=1_000_000)
    """Number of problems that training never deals."""
    seed: int = 0
    """Seed of the problems: another one, other problems."""

    @abstractmethod
    def draw(self, rng: random.Random) -> Draft:
        """Return a random problem."""

    def splits(self) -> tuple[list[Draft], list[Draft]]:
        count = self.train + self.held_out
        rng = random.Random(seed_of(self.kind, self.seed))
        drafts: dict[str, Draft] = {}
        repeats = 0
        while len(drafts) < count:
            draft = self.draw(rng)
            repeats = repeats + 1 if draft.key in drafts else 0
            drafts.setdefault(draft.key, draft)
            if repeats > _PATIENCE * (len(drafts) + 10):
                raise ValueError(
                    f"train: {self.train} and held_out: {self.held_out} ask for {count} different problems, but the "
                    f"settings of {self.kind!r} make only {len(drafts)}; choices: train + held_out <= {len(drafts)}, "
                    "or settings that make more"
                )
        return divide(list(drafts.values()), self.held_out, self.seed)


def within(least: int, most: int) -> AfterValidator:
    """Return a validator of a setting that is a range [low, high] within `least` and `most`."""

    def check(low_high: tuple[int, int], info: ValidationInfo) -> tuple[int, int]:
        low, high = low_high
        if not least <= low <= high <= most:
            limits = f"{least} <= low <= high <= {most}"
            raise ValueError(f"{info.field_name}: {[low, high]} is no range; choices: [low, high] with {limits}")
        return low_high

    return AfterValidator(check)


def wrong_answers(candidates: Iterable[str], answer: str) -> tuple[str, ...]:
    """Return the first three different candidates that are not the answer."""
    return tuple(text for text in dict.fromkeys(candidates) if text and text != answer)[:3]


class TaskGameConfig(GameConfig):
    """Settings of a game that deals the problems of a task."""

    task: Annotated[TaskConfig, Part("tasks", TaskConfig)]
    """Source of the problems."""

    @cached_property
    def tasks(self) -> Tasks:
        """The problems."""
        return self.task.build()

    @property
    def secret_facts(self) -> frozenset[str]:
        """Facts of the problems that give the answer away."""
        return self.task.secret_facts

    def held_out(self, n: int) -> Sequence[Mapping[str, Any]]:
        return [{"split": "held_out", "index": index} for index in _spread(self.tasks, "held_out", n)]

    def problems(self, n: int) -> Sequence[Problem]:
        return [self.tasks.problem("train", index) for index in _spread(self.tasks, "train", n)]

    def missing(self) -> Iterable[str]:
        return (f"task.{problem}" for problem in self.task.missing())


def _spread(tasks: Tasks, split: Split, n: int) -> Sequence[int]:
    """Return up to `n` indices, spread evenly over the split, whose easiest problems come first."""
    size = tasks.size(split)
    count = min(n, size)
    return [i * size // count for i in range(count)]


def deal_problem(game: str, tasks: Tasks, rng: random.Random, options: Mapping[str, Any]) -> Problem:
    """Return the problem that reset options choose; raise ValueError if there is no such problem.

    `problem` holds the problem itself. Otherwise `split` and `index` name it; without an index it is drawn from the
    easiest `open` share of the split.
    """
    if "problem" in options:
        return _PROBLEM_ADAPTER.validate_python(options["problem"])
    split = options.get("split", "train")
    if split not in get_args(Split):
        raise ValueError(f"{game}: option split: no split {split!r}; {nearest(str(split), get_args(Split))}")
    size = tasks.size(split)
    index = options["index"] if "index" in options else rng.randrange(max(1, round(size * options.get("open", 1.0))))
    if type(index) is not int or not 0 <= index < size:
        raise ValueError(
            f"{game}: option index: no problem {index!r} in split {split!r}, which has {size}; choices: 0 to {size - 1}"
        )
    return tasks.problem(split, index)
