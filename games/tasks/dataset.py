"""Tasks from a file or a Hugging Face data set: each row is a problem, with its texts in named columns."""

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

from marl.core.config import Config, choices_hint
from marl.core.types import Problem
from marl.games.tasks.base import ProblemDraft, SplitTask, digest, train_held_out_split
from marl.games.tasks.normalization import normalize_question
from marl.host.data_files import DataTable, check_format, read_file

_TRAIN = "train"


class ColumnNames(Config):
    """Names of the columns that contain the parts of a problem."""

    question: str = "question"
    """Column of the problem's text."""
    answer: str | None = "answer"
    """Column of the right answer; null if only tests or a judge can grade an answer."""
    wrong: str | None = None
    """Column of wrong answers: a text or a list of texts."""
    difficulty: str | None = None
    """Column of a number to sort problems by, easiest first; null keeps the order of the rows."""
    split: str | None = None
    """Column with `train` for training problems; all other problems are held out."""
    facts: dict[str, str] = Field(default_factory=dict)
    """Name of a fact -> column, for verifiers and prompts."""
    secret: tuple[str, ...] = ()
    """Facts that no prompt may use, since they reveal the answer; facts from the columns of answers always do."""

    @model_validator(mode="after")
    def _check_secret(self) -> ColumnNames:
        for name in self.secret:
            if name not in self.facts:
                raise ValueError(f"secret: no fact {name!r}; {choices_hint(name, self.facts)}")
        return self

    @property
    def by_setting(self) -> dict[str, str]:
        """Setting of this class -> its column, without the settings that are null."""
        named = {name: getattr(self, name) for name in ("question", "answer", "wrong", "difficulty", "split")}
        named |= {f"facts.{name}": column for name, column in self.facts.items()}
        return {f"columns.{name}": column for name, column in named.items() if column}


class RowTask(SplitTask):
    """Base of tasks with one problem a row. Rows with the same question are one problem, in one split only."""

    columns: ColumnNames = ColumnNames()
    """Names of the columns to read."""
    answer_pattern: str | None = None
    """Regular expression whose first group is the answer within its column: `#### (.+)` for GSM8K."""
    held_out: Annotated[int, Field(ge=0)] | Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Number or share of held-out problems, chosen by `seed`. Ignored if the data define a held-out split."""
    seed: int = 0
    """Seed of the choice of `held_out`."""
    poses: bool = False
    """True if a challenger may pose a problem, as {"question": ..., "answer": ...}."""

    @property
    def posing_instructions(self) -> str:
        return """JSON with the problem and its answer: {"question": "2 + 2?", "answer": "4"}""" if self.poses else ""

    @property
    def secret_facts(self) -> frozenset[str]:
        columns = self.columns
        secret = set(columns.secret)
        for name, column in columns.facts.items():
            if column in (columns.answer, columns.wrong):
                secret.add(name)
        return frozenset(secret)

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
    def load(self) -> tuple[DataTable, DataTable | None]:
        """Return (training rows, held-out rows or None if in one table); raise ValueError for unreadable data."""

    def parse_problem(self, text: str) -> ProblemDraft | None:
        if not self.poses:
            return None
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return None
        match data:
            case {"question": str(question), "answer": str() | int() | float() as answer, **extra} if not extra:
                problem = Problem(_key(question), question.strip(), _text(answer))
                return _draft(problem, 0.0) if problem.question else None
        return None

    def splits(self) -> tuple[list[ProblemDraft], list[ProblemDraft]]:
        rows, held_out_rows = self.load()
        drafts = self._drafts(rows)
        held_out_keys: set[str] = set()
        held_out: list[ProblemDraft] = []
        if held_out_rows is not None:
            for key, (draft, _) in self._drafts(held_out_rows).items():
                held_out_keys.add(key)
                held_out.append(draft)
        elif not self.columns.split:
            count = self.held_out if isinstance(self.held_out, int) else round(self.held_out * len(drafts))
            return train_held_out_split([draft for draft, _ in drafts.values()], count, self.seed)
        train: list[ProblemDraft] = []
        for key, (draft, split) in drafts.items():
            if held_out_rows is None and split != _TRAIN:
                held_out.append(draft)
            elif key not in held_out_keys:
                train.append(draft)
        return train, held_out

    def _drafts(self, rows: DataTable) -> dict[str, tuple[ProblemDraft, str]]:
        """Return key -> (draft, split) in the order of the rows; the first of several rows with one question counts."""
        if not rows.rows:
            raise ValueError(f"{rows.name}: no rows")
        for setting, column in self.columns.by_setting.items():
            if column not in rows.columns:
                hint = choices_hint(column, rows.columns)
                raise ValueError(f"{setting}: not every row of {rows.name} has a column {column!r}; {hint}")
        drafts: dict[str, tuple[ProblemDraft, str]] = {}
        for number, row in enumerate(rows.rows, 1):
            draft = self._row_draft(row, f"{rows.name}, row {number}")
            drafts.setdefault(draft.key, (draft, str(row[self.columns.split]) if self.columns.split else _TRAIN))
        return drafts

    def _row_draft(self, row: Mapping[str, Any], where: str) -> ProblemDraft:
        """Return the draft of one row; `where` names the row in errors."""
        columns = self.columns
        question = row[columns.question]
        if not isinstance(question, str) or not question.strip():
            raise ValueError(f"columns.question: {where}: {question!r} is no question")
        facts = {name: _plain(row[column], f"{where}, column {column!r}") for name, column in columns.facts.items()}
        wrong = (row[columns.wrong] if columns.wrong else None) or []
        wrong_texts = [wrong] if isinstance(wrong, str) else wrong  # one text or a list of texts
        problem = Problem(_key(question), question, self._answer(row, where), tuple(map(_text, wrong_texts)), facts)
        return _draft(problem, _number(row[columns.difficulty], where) if columns.difficulty else 0.0)

    def _answer(self, row: Mapping[str, Any], where: str) -> str:
        """Return the right answer of one row, or "" without a column of answers."""
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


class FileTask(RowTask):
    """Problems from a CSV, JSON lines or Parquet file, one per row."""

    kind: str = "file"
    example = "path: problems.jsonl, columns: {question: problem, answer: solution}"
    path: Path
    """File of the problems: `.csv`, `.jsonl`, `.jsonl.zst` or `.parquet`."""
    held_out_path: Path | None = None
    """File of held-out problems."""

    @field_validator("path", "held_out_path")
    @classmethod
    def _check_format(cls, path: Path | None) -> Path | None:
        return path and check_format(path)

    def unmet_requirements(self) -> Iterable[str]:
        for name, path in (("path", self.path), ("held_out_path", self.held_out_path)):
            if path and not path.is_file():
                yield f"{name}: no such file: {path}"

    def content_version(self) -> int:
        paths = [path for path in (self.path, self.held_out_path) if path and path.is_file()]
        return sum(path.stat().st_mtime_ns for path in paths)

    def load(self) -> tuple[DataTable, DataTable | None]:
        return read_file(self.path), read_file(self.held_out_path) if self.held_out_path else None


class DatasetTask(RowTask):
    """Problems from a Hugging Face data set, on the hub or in a local folder."""

    kind: str = "dataset"
    example = 'path: openai/gsm8k, name: main, answer_pattern: "#### (.+)"'
    path: str
    """Argument of `datasets.load_dataset`: `openai/gsm8k`, `./folder`."""
    name: str | None = None
    """Configuration of the data set."""
    revision: str | None = None
    """Branch, tag or commit of the data set on the hub (default: the newest commit)."""
    split: str = "train"
    """Split of the training problems."""
    held_out_split: str | None = None
    """Split of the held-out problems."""

    @model_validator(mode="after")
    def _check_splits(self) -> DatasetTask:
        if self.held_out_split == self.split:
            raise ValueError(f"held_out_split: {self.split!r} is trained on; choose another, or set `held_out`")
        return self

    def load(self) -> tuple[DataTable, DataTable | None]:
        return self._load_split(self.split), self._load_split(self.held_out_split) if self.held_out_split else None

    def _load_split(self, split: str) -> DataTable:
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
        return DataTable(where, tuple(table.column_names), table.to_list())


def _key(question: str) -> str:
    """Return the key of a question, equal for questions that differ in white space alone."""
    return digest(" ".join(question.split()))


def _draft(problem: Problem, difficulty: float) -> ProblemDraft:
    # The alias also finds a held-out question in another spelling; a question of signs alone has no normal form.
    return ProblemDraft(
        problem.key, difficulty, lambda: problem, digest(normalize_question(problem.question) or problem.question)
    )


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else str(value)


def _number(value: Any, where: str) -> float:
    """Return the difficulty in a cell; raise ValueError if it is no finite number."""
    with suppress(ValueError):  # every cell of a CSV file is a text
        value = float(value) if isinstance(value, str) else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"columns.difficulty: {where}: {value!r} is no number")
    return float(value)


def _plain(value: Any, where: str) -> Any:
    """Return a cell as plain JSON; raise ValueError if it is none."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise ValueError(f"columns.facts: {where}: {value!r} is no plain JSON") from error
