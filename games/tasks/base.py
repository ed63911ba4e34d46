"""Sources of problems in two disjoint splits (training and held-out), and the base of games that deal them."""

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

from marl.core.config import choices_hint
from marl.core.plugins import PluginField
from marl.core.seeds import seed_of
from marl.core.types import Problem
from marl.protocols import GameConfig, Split, TaskConfig, Tasks

_PATIENCE = 30
"""Maximum number of draws per problem without a new problem. One of n equally likely problems remains undrawn with
probability exp(-30)."""
_PROBLEM_ADAPTER = TypeAdapter(Problem)


def digest(value: Any) -> str:
    """Return a hash of the plain JSON value `value` (16 hex digits)."""
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class ProblemDraft:
    """A problem with its key and difficulty; its texts are written on demand."""

    key: str
    """Identifier of the problem, equal for problems that differ in wording alone."""
    difficulty: float
    write: Callable[[], Problem]
    """Function that writes the problem out."""
    alias: str = ""
    """Second identifier, equal for problems that differ in spelling (default: the key)."""

    @property
    def identifiers(self) -> set[str]:
        """Identifiers by which a held-out problem is excluded from training."""
        return {self.key, self.alias or self.key}


class ProblemSource:
    """Problems in two splits, easiest first; each problem is written out at its first use."""

    def __init__(
        self,
        train: Iterable[ProblemDraft],
        held_out: Iterable[ProblemDraft],
        read: Callable[[str], ProblemDraft | None] | None = None,
    ) -> None:
        """Exclude problems of `train` that are held out, also in another spelling; `read` parses posed problems."""
        self._splits = {
            split: sorted(drafts, key=lambda draft: draft.difficulty)
            for split, drafts in (("train", train), ("held_out", held_out))
        }
        self._held_out = frozenset[str]().union(*(draft.identifiers for draft in self._splits["held_out"]))
        self._splits["train"] = [d for d in self._splits["train"] if self._held_out.isdisjoint(d.identifiers)]
        self._read = read
        self._written: dict[tuple[str, int], Problem] = {}

    def size(self, split: Split) -> int:
        return len(self._drafts(split))

    def problem(self, split: Split, index: int) -> Problem:
        """Return problem `index` of `split`, always the same object; raise ValueError for an unknown split or index."""
        problem = self._written.get((split, index))
        if problem is None:
            drafts = self._drafts(split)
            if not 0 <= index < len(drafts):
                raise ValueError(f"index: {index} in split {split!r}, which has {len(drafts)} problems; the first is 0")
            problem = self._written[split, index] = drafts[index].write()
        return problem

    def parse_posed_problem(self, text: str) -> Problem | None:
        """Return the problem posed by `text`, or None if it poses none or a held-out problem in any spelling."""
        draft = self._read(text) if self._read else None
        return draft.write() if draft is not None and self._held_out.isdisjoint(draft.identifiers) else None

    def _drafts(self, split: str) -> list[ProblemDraft]:
        if split not in self._splits:
            raise ValueError(f"split: {split!r}; {choices_hint(split, self._splits)}")
        return self._splits[split]


def train_held_out_split(
    drafts: Sequence[ProblemDraft], held_out: int, seed: int
) -> tuple[list[ProblemDraft], list[ProblemDraft]]:
    """Return (train, held out) in the order of `drafts`; a keyed hash chooses the `held_out` held-out problems."""
    shuffled = sorted(drafts, key=lambda draft: seed_of("split", seed, draft.key))
    keys = {draft.key for draft in shuffled[:held_out]}
    return [d for d in drafts if d.key not in keys], [d for d in drafts if d.key in keys]


class SplitTask(TaskConfig):
    """Base of tasks with drafts of problems in two splits."""

    @abstractmethod
    def splits(self) -> tuple[list[ProblemDraft], list[ProblemDraft]]:
        """Return the drafts (train, held out); raise ValueError if they cannot be generated or loaded."""

    def parse_problem(self, text: str) -> ProblemDraft | None:
        """Return the problem posed by `text` with its solution, or None if these settings do not allow it."""
        return None

    def content_version(self) -> int:
        """Return a fingerprint of the task's files."""
        return 0

    def build(self) -> Tasks:
        return _build(type(self), self.model_dump_json(), self.content_version())


@lru_cache(maxsize=32)
def _build(kind: type[SplitTask], settings_json: str, _content_version: int) -> ProblemSource:
    # Cached, since every game of a run builds a source of the same problems.
    settings = kind.model_validate_json(settings_json)
    source = ProblemSource(*settings.splits(), settings.parse_problem)
    if not source.size("train"):
        count = source.size("held_out")
        raise ValueError(f"held_out: all {count} problems are held out, so there is none to train on")
    return source


class GeneratedTask(SplitTask):
    """Base of seeded generators: draws distinct problems until both splits are full."""

    train: int = Field(1000, ge=1, le=1_000_000)
    """Number of training problems."""
    held_out: int = Field(200, ge=0, le=1_000_000)
    """Number of held-out problems, never used in training."""
    seed: int = 0
    """Seed of the generated problems."""

    @abstractmethod
    def draw(self, rng: random.Random) -> ProblemDraft:
        """Return a random problem."""

    def splits(self) -> tuple[list[ProblemDraft], list[ProblemDraft]]:
        count = self.train + self.held_out
        rng = random.Random(seed_of(self.kind, self.seed))
        drafts: dict[str, ProblemDraft] = {}
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
        return train_held_out_split(list(drafts.values()), self.held_out, self.seed)


def range_within(minimum: int, maximum: int) -> AfterValidator:
    """Return a validator of a range [low, high] between `minimum` and `maximum`, for `Annotated` settings."""

    def check(low_high: tuple[int, int], info: ValidationInfo) -> tuple[int, int]:
        low, high = low_high
        if not minimum <= low <= high <= maximum:
            limits = f"{minimum} <= low <= high <= {maximum}"
            raise ValueError(f"{info.field_name}: {[low, high]} is no range; choices: [low, high] with {limits}")
        return low_high

    return AfterValidator(check)


def wrong_answers(candidates: Iterable[str], answer: str) -> tuple[str, ...]:
    """Return the first three distinct non-empty candidates that differ from `answer`."""
    return tuple(text for text in dict.fromkeys(candidates) if text and text != answer)[:3]


class TaskGameConfig(GameConfig):
    """Settings of a game that deals the problems of a task."""

    task: Annotated[TaskConfig, PluginField("tasks", TaskConfig)]
    """Source of the problems."""

    @cached_property
    def tasks(self) -> Tasks:
        """The problems of the task, built at their first use."""
        return self.task.build()

    @property
    def secret_facts(self) -> frozenset[str]:
        """Facts that reveal a problem's answer, so that no prompt may use them."""
        return self.task.secret_facts

    def held_out(self, n: int) -> Sequence[Mapping[str, Any]]:
        return [{"split": "held_out", "index": index} for index in _spread(self.tasks, "held_out", n)]

    def problems(self, n: int) -> Sequence[Problem]:
        return [self.tasks.problem("train", index) for index in _spread(self.tasks, "train", n)]

    def unmet_requirements(self) -> Iterable[str]:
        return (f"task.{problem}" for problem in self.task.unmet_requirements())


def _spread(tasks: Tasks, split: Split, n: int) -> Sequence[int]:
    """Return up to `n` indices at even distances over the split, hence over its difficulties."""
    size = tasks.size(split)
    count = min(n, size)
    return [i * size // count for i in range(count)]


def deal_problem(game: str, tasks: Tasks, rng: random.Random, options: Mapping[str, Any]) -> Problem:
    """Return the problem chosen by the options of a reset; raise ValueError if there is no such problem.

    The option `problem` is the problem itself. Otherwise `split` and `index` name it. Without `index`, it is drawn from
    the easiest `open` share of the split.
    """
    if "problem" in options:
        return _PROBLEM_ADAPTER.validate_python(options["problem"])
    split = options.get("split", "train")
    if split not in get_args(Split):
        raise ValueError(f"{game}: option split: no split {split!r}; {choices_hint(str(split), get_args(Split))}")
    size = tasks.size(split)
    index = options["index"] if "index" in options else rng.randrange(max(1, round(size * options.get("open", 1.0))))
    if type(index) is not int or not 0 <= index < size:
        raise ValueError(
            f"{game}: option index: no problem {index!r} in split {split!r}, which has {size}; choices: 0 to {size - 1}"
        )
    return tasks.problem(split, index)
