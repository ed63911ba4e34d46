"""Tasks from a file or a Hugging Face data set: each row is a problem, and its columns are mapped."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from games.tasks.base import Draft, SplitTask, digest, divide
from games.tasks.spelling import spelling
from marl.config import Config, nearest
from marl.data_files import Rows, known_format, read_file
from marl.types import Problem

_TRAIN = "train"


class Columns(Config):
    """Names of the columns."""

    question: str = "question"
    """Column of the problem's text."""
    answer: str | None = "answer"
    """Column of the right answer; null where only tests or a judge can grade an answer."""
    wrong: str | None = None
    """Column of wrong answers: a text or a list of texts."""
    difficulty: str | None = None
    """Column of a number; the easiest problems come first. Without it problems keep their order."""
    split: str | None = None
    """Column that contains `train` for training problems; all others are held out."""
    facts: dict[str, str] = Field(default_factory=dict)
    """Name of a fact -> column, for verifiers and prompts."""
    secret: tuple[str, ...] = ()
    """Facts that no prompt may use, as they give the answer away; those from its column (or of `wrong`) always do."""

    @model_validator(mode="after")
    def _check_secret(self) -> Columns:
        for name in self.secret:
            if name not in self.facts:
                raise ValueError(f"secret: no fact {name!r}; {nearest(name, self.facts)}")
        return self

    @property
    def by_setting(self) -> dict[str, str]:
        """Setting -> the column that it names."""
        named = {name: getattr(self, name) for name in ("question", "answer", "wrong", "difficulty", "split")}
        named |= {f"facts.{name}": column for name, column in self.facts.items()}
        return {f"columns.{name}": column for name, column in named.items() if column}


class TableTask(SplitTask):
    """Base of tasks whose problems are rows; those with the same question are one, and never in both splits."""

    columns: Columns = Columns()
    """Names of the columns to read."""
    answer_pattern: str | None = None
    """The answer is the first group that this regular expression matches in its column: `#### (.+)` for GSM8K."""
    held_out: Annotated[int, Field(ge=0)] | Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Number or share of problems that training never deals, chosen by `seed`. Ignored where the data define it."""
    seed: int = 0
    """Seed of the choice of `held_out`."""
    poses: bool = False
    """Allow a challenger to pose a problem, as {"question": ..., "answer": ...}."""

    @property
    def posing(self) -> str:
        return """JSON with the problem and its answer: {"question": "2 + 2?", "answer": "4"}""" if self.poses else ""

    @property
    def secret_facts(self) -> frozenset[str]:
        columns = self.columns
        telling = (name for name, column in columns.facts.items() if column in (columns.answer, columns.wrong))
        return frozenset((*columns.secret, *telling))

    @field_validator("answer_pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        try:
            groups = re.compile(pattern).groups if pattern else 1
        except re.error as error:
            raise ValueError(f"answer_pattern: {pattern!r} is no regular expression: {error}") from error
        if groups < 1:
            raise ValueError(f"answer_pattern: {pattern!r} has no group; put the answer in brackets: '#### (.+)'")
        return pattern

    @abstractmethod
    def load(self) -> tuple[Rows, Rows | None]:
        """Return (training rows, held-out rows if stored separately); raise ValueError if they cannot be read."""

    def read(self, text: str) -> Draft | None:
        if not self.poses:
            return None
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return None
        match data:
            case {"question": str(question), "answer": str() | int() | float() as answer, **rest} if not rest:
                problem = Problem(_key(question), question.strip(), _text(answer))
                return _draft(problem, 0.0) if problem.question else None
        return None

    def splits(self) -> tuple[list[Draft], list[Draft]]:
        rows, held_out_rows = self.load()
        drafts = self._drafts(rows)
        if held_out_rows is not None:
            held_out = {key: draft for key, (draft, _) in self._drafts(held_out_rows).items()}
            return [draft for key, (draft, _) in drafts.items() if key not in held_out], list(held_out.values())
        if self.columns.split:
            train = [draft for draft, split in drafts.values() if split == _TRAIN]
            return train, [draft for draft, split in drafts.values() if split != _TRAIN]
        count = self.held_out if isinstance(self.held_out, int) else round(self.held_out * len(drafts))
        return divide([draft for draft, _ in drafts.values()], count, self.seed)

    def _drafts(self, rows: Rows) -> dict[str, tuple[Draft, str]]:
        """Return key -> (problem, split), in the order of the rows."""
        if not rows.rows:
            raise ValueError(f"{rows.name}: no rows")
        for setting, column in self.columns.by_setting.items():
            if column not in rows.columns:
                hint = nearest(column, rows.columns)
                raise ValueError(f"{setting}: not every row of {rows.name} has a column {column!r}; {hint}")
        drafts: dict[str, tuple[Draft, str]] = {}
        for number, row in enumerate(rows.rows, 1):
            draft = self._row_draft(row, f"{rows.name}, row {number}")
            drafts.setdefault(draft.key, (draft, str(row[self.columns.split]) if self.columns.split else _TRAIN))
        return drafts

    def _row_draft(self, row: Mapping[str, Any], where: str) -> Draft:
        columns = self.columns
        question = row[columns.question]
        if not isinstance(question, str) or not question.strip():
            raise ValueError(f"columns.question: {where}: {question!r} is no question")
        facts = {name: _plain(row[column], f"{where}, column {column!r}") for name, column in columns.facts.items()}
        wrong = row[columns.wrong] if columns.wrong else None
        wrong = tuple(_text(text) for text in ([wrong] if wrong and isinstance(wrong, str) else wrong or []))
        problem = Problem(_key(question), question, self._answer(row, where), wrong, facts)
        return _draft(problem, _number(row[columns.difficulty], where) if columns.difficulty else 0.0)

    def _answer(self, row: Mapping[str, Any], where: str) -> str:
        if self.columns.answer is None:
            return ""
        value = row[self.columns.answer]
        if value is None or isinstance(value, dict | list):
            raise ValueError(f"columns.answer: {where}: {value!r} is no answer")
        if self.answer_pattern is None:
            return _text(value)
        match = re.search(self.answer_pattern, _text(value))
        if match is None or match[1] is None:
            raise ValueError(f"answer_pattern: {where}: {self.answer_pattern!r} finds nothing in {value!r}")
        return match[1].strip()


class FileTask(TableTask):
    """Problems from a CSV, JSON lines or Parquet file, one per row."""

    kind: str = "file"
    example = "path: problems.jsonl, columns: {question: problem, answer: solution}"
    path: Path
    """File of the problems: `.csv`, `.jsonl`, `.jsonl.zst` or `.parquet`."""
    held_out_path: Path | None = None
    """A file of problems that are all held out."""

    @field_validator("path", "held_out_path")
    @classmethod
    def _check_format(cls, path: Path | None) -> Path | None:
        return path and known_format(path)

    def missing(self) -> Iterable[str]:
        for name, path in (("path", self.path), ("held_out_path", self.held_out_path)):
            if path and not path.is_file():
                yield f"{name}: no such file: {path}"

    def edition(self) -> int:
        paths = [path for path in (self.path, self.held_out_path) if path and path.is_file()]
        return sum(path.stat().st_mtime_ns for path in paths)

    def load(self) -> tuple[Rows, Rows | None]:
        return read_file(self.path), read_file(self.held_out_path) if self.held_out_path else None


class DatasetTask(TableTask):
    """Problems from a Hugging Face data set, by name on the hub or as a local folder."""

    kind: str = "dataset"
    example = 'path: openai/gsm8k, name: main, answer_pattern: "#### (.+)"'
    path: str
    """Argument of `datasets.load_dataset`: `openai/gsm8k`, `./folder`."""
    name: str | None = None
    """Configuration of the data set."""
    revision: str | None = None
    """Branch, tag or commit of the data set on the hub. Default: its newest."""
    split: str = "train"
    """Split of the training problems."""
    held_out_split: str | None = None
    """A split that is held out."""

    @model_validator(mode="after")
    def _check_splits(self) -> DatasetTask:
        if self.held_out_split == self.split:
            raise ValueError(f"held_out_split: {self.split!r} is trained on; choose another, or set `held_out`")
        return self

    def load(self) -> tuple[Rows, Rows | None]:
        return self._load_split(self.split), self._load_split(self.held_out_split) if self.held_out_split else None

    def _load_split(self, split: str) -> Rows:
        try:
            from datasets import Dataset, load_dataset
            from datasets.exceptions import DatasetsError
        except ImportError as error:
            advice = "needs the package `datasets`: pip install 'marl-llm[data]'"
            raise ValueError(f"path: {self.path}: {advice}") from error
        where = f"data set {self.path}" + (f" ({self.name})" if self.name else "") + f", split {split!r}"
        try:
            # Code that comes with a data set is never run.
            table = load_dataset(self.path, self.name, split=split, revision=self.revision)
        except (OSError, ValueError, RuntimeError, DatasetsError) as error:
            # A missing data set, split or configuration, no network, or a script that would have to be run.
            raise ValueError(f"path: {where}: {error}") from error
        if not isinstance(table, Dataset):
            raise ValueError(f"split: {where}: must name one split")
        return Rows(where, tuple(table.column_names), table.to_list())


def _key(question: str) -> str:
    """Return the key of a question, the same for questions that differ in white space alone."""
    return digest(" ".join(question.split()))


def _draft(problem: Problem, difficulty: float) -> Draft:
    return Draft(problem.key, difficulty, lambda: problem, digest(spelling(problem.question) or problem.question))


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else str(value)


def _number(value: Any, where: str) -> float:
    with suppress(ValueError):  # every cell of a CSV file is a text
        value = float(value) if isinstance(value, str) else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"columns.difficulty: {where}: {value!r} is no number")
    return float(value)


def _plain(value: Any, where: str) -> Any:
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise ValueError(f"columns.facts: {where}: {value!r} is no plain JSON") from error
