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

from marl.core.config import FIELD_PREFIX, choices_hint
from marl.core.plugins import PluginField
from marl.core.seeds import hash_to_seed
from marl.core.types import Problem
from marl.games.environments import RenderableGameConfig
from marl.protocols import Split, TaskConfig, TaskProblems

_PATIENCE = 30
"""Maximum number of draws in a row without a new problem, as a multiple of the problems drawn so far. One of n equally
likely problems remains undrawn with probability exp(-30)."""
_MAX_MISFITS = 10_000
"""Maximum number of draws in a row that do not fit a task's settings."""
_PROBLEM_ADAPTER = TypeAdapter(Problem)


def json_hash(value: Any) -> str:
    """Return a hash of a plain JSON value, 16 hex digits."""
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class LazyProblem:
    """A problem with its key and difficulty; the texts of the problem are written on demand."""

    key: str
    """Identifier of the problem, equal for problems that differ in wording alone."""
    difficulty: float
    """Number by which problems are sorted, easiest first."""
    build_problem: Callable[[], Problem]
    """Function that returns the problem with its texts."""
    alias: str = ""
    """Second identifier, equal for problems that differ in spelling (default: the key)."""

    @property
    def key_and_alias(self) -> set[str]:
        """Key and alias of the problem, by which a held-out problem is excluded from training."""
        return {self.key, self.alias or self.key}


TrainAndHeldOutProblems = tuple[list[LazyProblem], list[LazyProblem]]
"""Training problems and held-out problems."""


class LazyProblemSplits:
    """Problems in two splits, easiest first; the texts of each problem are written at its first use."""

    def __init__(
        self,
        train: Iterable[LazyProblem],
        held_out: Iterable[LazyProblem],
        read_posed_problem: Callable[[str], LazyProblem | None] | None = None,
    ) -> None:
        """Sort both splits by difficulty, and exclude held-out problems from `train`, also in another spelling."""
        self._held_out_identifiers = set[str]()
        self._splits: dict[str, list[LazyProblem]] = {"train": [], "held_out": []}
        for draft in sorted(held_out, key=lambda draft: draft.difficulty):
            self._splits["held_out"].append(draft)
            self._held_out_identifiers |= draft.key_and_alias
        for draft in sorted(train, key=lambda draft: draft.difficulty):
            if self._held_out_identifiers.isdisjoint(draft.key_and_alias):
                self._splits["train"].append(draft)
        self._read_posed_problem = read_posed_problem
        self._written: dict[tuple[str, int], Problem] = {}

    def problem_count(self, split: Split) -> int:
        return len(self._problems_of_split(split))

    def problem(self, split: Split, index: int) -> Problem:
        """Return problem `index` of `split`, always the same object; raise ValueError for an unknown split or index."""
        problem = self._written.get((split, index))
        if problem is None:
            drafts = self._problems_of_split(split)
            if not 0 <= index < len(drafts):
                raise ValueError(f"index: {index} in split {split!r}, which has {len(drafts)} problems; the first is 0")
            problem = self._written[split, index] = drafts[index].build_problem()
        return problem

    def parse_posed_problem(self, text: str) -> Problem | None:
        """Return the problem that an agent poses in `text`, or None if the problem is unreadable or held out."""
        draft = self._read_posed_problem(text) if self._read_posed_problem else None
        if draft is None or not self._held_out_identifiers.isdisjoint(draft.key_and_alias):
            return None
        return draft.build_problem()

    def _problems_of_split(self, split: str) -> list[LazyProblem]:
        if split not in self._splits:
            raise ValueError(f"split: {split!r}; {choices_hint(split, self._splits)}")
        return self._splits[split]


def split_train_held_out(problems: Sequence[LazyProblem], held_out_count: int, seed: int) -> TrainAndHeldOutProblems:
    """Return training and held-out problems, in the order of `problems`. A seeded hash chooses the held-out ones."""
    shuffled = sorted(problems, key=lambda draft: hash_to_seed("split", seed, draft.key))
    held_out_keys = {draft.key for draft in shuffled[:held_out_count]}
    splits: TrainAndHeldOutProblems = ([], [])
    for draft in problems:
        splits[draft.key in held_out_keys].append(draft)
    return splits


class TaskWithHeldOutSplit(TaskConfig):
    """Base of tasks with problems in two splits, training and held-out."""

    @abstractmethod
    def train_and_held_out_problems(self) -> TrainAndHeldOutProblems:
        """Return training and held-out problems; raise ValueError if they cannot be generated or loaded."""

    def read_posed_problem(self, text: str) -> LazyProblem | None:
        """Return the problem that an agent poses in `text`, or None if these settings do not allow the problem."""
        return None

    def files_fingerprint(self) -> int:
        """Return a number that changes if the task's files change, or 0 for a task without files."""
        return 0

    def build(self) -> TaskProblems:
        return _cached_problem_splits(type(self), self.model_dump_json(), self.files_fingerprint())


@lru_cache(maxsize=32)
def _cached_problem_splits(
    task_type: type[TaskWithHeldOutSplit], settings_json: str, _files_fingerprint: int
) -> LazyProblemSplits:
    """Return the problems of a task; cached, because every game of a run builds the same problems."""
    task = task_type.model_validate_json(settings_json)
    source = LazyProblemSplits(*task.train_and_held_out_problems(), task.read_posed_problem)
    if not source.problem_count("train"):
        count = source.problem_count("held_out")
        raise ValueError(f"held_out: all {count} problems are held out, so there is none to train on")
    return source


class GeneratedTask(TaskWithHeldOutSplit):
    """Base of tasks that generate problems from a seed: distinct problems are drawn until both splits are full."""

    train: int = Field(default=1000, ge=1, le=1_000_000)
    """Number of training problems."""
    held_out: int = Field(default=200, ge=0, le=1_000_000)
    """Number of held-out problems, never used in training."""
    seed: int = 0
    """Seed of the generated problems."""

    @property
    def max_draws(self) -> int:
        """Maximum number of draws. It bounds the time of every command that reads the scenario to a few seconds, and
        must not depend on the machine's speed."""
        return 400_000

    @property
    def no_problem_fits_message(self) -> str:
        """Error message if no drawn problem fits the settings; begins with the setting to change."""
        return f"kind: the settings of {self.kind!r} make no problem; choose others"

    @abstractmethod
    def draw_problem(self, rng: random.Random) -> LazyProblem | None:
        """Return a random problem, or None if the problem that was drawn does not fit the settings."""

    def train_and_held_out_problems(self) -> TrainAndHeldOutProblems:
        drafts = self.draw_distinct_problems(self.train + self.held_out, hash_to_seed(self.kind, self.seed))
        return split_train_held_out(drafts, self.held_out, self.seed)

    def draw_distinct_problems(
        self, count: int, seed: int, is_wanted: Callable[[LazyProblem], bool] = lambda _: True
    ) -> list[LazyProblem]:
        """Return `count` different problems that `is_wanted`, in the order of their draws from `seed`.

        Raises:
            ValueError: if these settings make fewer problems; the message begins with the setting to change.
        """
        rng = random.Random(seed)
        drafts: dict[str, LazyProblem] = {}
        request = f"train: {self.train} and held_out: {self.held_out} ask for {count} different problems, but"
        max_draws = self.max_draws
        if count > max_draws:
            raise ValueError(
                f"{request} at most {max_draws:,} are drawn with these settings of {self.kind!r}; choices: train + "
                f"held_out <= {max_draws}, or settings of smaller problems"
            )
        draws = misfits = repeats = 0
        while len(drafts) < count:
            draft = self.draw_problem(rng)
            draws += 1
            if draft is None or not is_wanted(draft):
                misfits += 1
            else:
                misfits, repeats = 0, repeats + 1 if draft.key in drafts else 0
                drafts.setdefault(draft.key, draft)
            if misfits > _MAX_MISFITS or (draws >= max_draws and not drafts):
                raise ValueError(self.no_problem_fits_message)
            if repeats > _PATIENCE * (len(drafts) + 10) or (draws >= max_draws and len(drafts) < count):
                limited = f" in {draws:,} draws" if draws >= max_draws else ""
                raise ValueError(
                    f"{request} the settings of {self.kind!r} make only {len(drafts)}{limited}; choices: train + "
                    f"held_out <= {len(drafts)}, or settings that make more"
                )
        return list(drafts.values())


def validate_range_within(minimum: int, maximum: int) -> AfterValidator:
    """Return a validator for a setting [low, high] that must lie between `minimum` and `maximum`."""

    def check_range(low_high: tuple[int, int], info: ValidationInfo) -> tuple[int, int]:
        low, high = low_high
        if not minimum <= low <= high <= maximum:
            limits = f"{minimum} <= low <= high <= {maximum}"
            raise ValueError(f"{info.field_name}: {[low, high]} is no range; choices: [low, high] with {limits}")
        return low_high

    return AfterValidator(check_range)


def first_distinct_wrong_answers(candidates: Iterable[str], answer: str) -> tuple[str, ...]:
    """Return the first three distinct non-empty candidates that differ from `answer`."""
    distinct = dict.fromkeys(candidates)
    return tuple(text for text in distinct if text and text != answer)[:3]


class TaskGameConfig(RenderableGameConfig):
    """Settings of a game that deals the problems of a task."""

    task: Annotated[TaskConfig, PluginField("tasks", TaskConfig)]
    """Source of the problems."""

    @cached_property
    def task_problems(self) -> TaskProblems:
        """The task's problems, which are generated or loaded at their first use.

        Raises:
            ValueError: if the problems are unavailable; the message begins with the setting, such as `task.path`.
        """
        try:
            return self.task.build()
        except ValueError as error:
            raise ValueError(f"task.{error}" if FIELD_PREFIX.match(str(error)) else f"task: {error}") from error

    def dealt_task(self) -> TaskConfig:
        return self.task

    @property
    def secret_fact_names(self) -> frozenset[str]:
        """Names of facts that no prompt may use, since they reveal a problem's answer."""
        return self.task.secret_fact_names

    def held_out_reset_options(self, max_count: int) -> Sequence[Mapping[str, Any]]:
        return [
            {"split": "held_out", "index": index}
            for index in _evenly_spaced_indices(self.task_problems, "held_out", max_count)
        ]

    def problems(self, max_count: int) -> Sequence[Problem]:
        return [
            self.task_problems.problem("train", index)
            for index in _evenly_spaced_indices(self.task_problems, "train", max_count)
        ]

    def unmet_requirements(self) -> Iterable[str]:
        return (f"task.{problem}" for problem in self.task.unmet_requirements())


def _evenly_spaced_indices(problems: TaskProblems, split: Split, maximum_count: int) -> Sequence[int]:
    """Return up to `maximum_count` evenly spaced indices of problems in `split`, to cover all difficulties."""
    size = problems.problem_count(split)
    count = min(maximum_count, size)
    return [i * size // count for i in range(count)]


def deal_problem(game_name: str, problems: TaskProblems, rng: random.Random, options: Mapping[str, Any]) -> Problem:
    """Return the problem chosen by the `options` of a game's reset; raise ValueError if the problem does not exist.

    The option `problem` is the problem itself. Otherwise, the options `split` and `index` select the problem. Without
    `index`, the problem is drawn from the easiest fraction `open` of the split.
    """
    if "problem" in options:
        return _PROBLEM_ADAPTER.validate_python(options["problem"])
    split = options.get("split", "train")
    if split not in get_args(Split):
        raise ValueError(f"{game_name}: option split: no split {split!r}; {choices_hint(str(split), get_args(Split))}")
    size = problems.problem_count(split)
    index = options["index"] if "index" in options else rng.randrange(max(1, round(size * options.get("open", 1.0))))
    if type(index) is not int or not 0 <= index < size:
        raise ValueError(
            f"{game_name}: option index: no problem {index!r} in split {split!r}, which has {size}; "
            f"choices: 0 to {size - 1}"
        )
    return problems.problem(split, index)
