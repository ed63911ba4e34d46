"""Tasks from a file or a Hugging Face data set: each row is a problem, with its texts in named columns."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from marl.core.config import Config, DistinctValues, choices_hint
from marl.core.types import Problem
from marl.games.tasks.base import (
    LazyProblem,
    TaskWithHeldOutSplit,
    TrainAndHeldOutProblems,
    json_hash,
    split_train_held_out,
)
from marl.games.tasks.normalization import normalize_question
from marl.host.data_files import DataTable, check_data_file_format, read_data_table
from marl.text.linear_patterns import compile_pattern

_TRAIN = "train"
TrainAndHeldOutTable = tuple[DataTable, DataTable | None]
"""Table of training problems, and table of held-out problems or None if the training table contains them."""


class TableColumnNames(Config):
    """Names of the table's columns that contain question, answer and other parts of a problem."""

    question: str = "question"
    """Column of the problem's text."""
    answer: str | None = "answer"
    """Column of the right answer; null if only tests or a judge can grade an answer."""
    wrong: str | None = None
    """Column of wrong answers: a text or a list of texts (default: no wrong answers)."""
    difficulty: str | None = None
    """Column of a number by which problems are sorted, easiest first (default: problems keep the order of the rows)."""
    split: str | None = None
    """Column that contains `train` for training problems; problems with any other value are held out (default: the
    setting `held_out` of the task applies)."""
    facts: dict[str, str] = Field(default_factory=dict)
    """Column of each fact, by name of the fact; verifiers and prompts may use facts."""
    secret: DistinctValues[str] = ()
    """Names of facts that no prompt may use, since they reveal the answer. Facts from the columns of right and wrong
    answers are always secret."""

    @model_validator(mode="after")
    def _check_secret_fact_names(self) -> TableColumnNames:
        for name in self.secret:
            if name not in self.facts:
                raise ValueError(f"secret: no fact {name!r}; {choices_hint(name, self.facts)}")
        return self


class TableTask(TaskWithHeldOutSplit):
    """Base of tasks with one problem per distinct question of a table: of equal questions, the first row counts."""

    columns: TableColumnNames = TableColumnNames()
    """Names of the table's columns that contain the parts of a problem."""
    answer_pattern: str | None = None
    """Regular expression whose first group is the answer within the column of the answer, such as `#### (.+)` for GSM8K
    (default: the full column is the answer)."""
    held_out: Annotated[int, Field(ge=0)] | Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Number or share of held-out problems, chosen by `seed`. Ignored if the data define a held-out split."""
    seed: int = 0
    """Seed by which the held-out problems are chosen."""
    poses: bool = False
    """True if an agent may pose further problems, each as {"question": ..., "answer": ...}."""

    @property
    def problem_posing_instructions(self) -> str:
        return """JSON with the problem and its answer: {"question": "2 + 2?", "answer": "4"}""" if self.poses else ""

    @property
    def secret_fact_names(self) -> frozenset[str]:
        columns = self.columns
        secret = set(columns.secret)
        for name, column in columns.facts.items():
            if column in (columns.answer, columns.wrong):
                secret.add(name)
        return frozenset(secret)

    @field_validator("answer_pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        if pattern and compile_pattern(pattern).groups < 1:
            raise ValueError(f"{pattern!r} has no group; put the answer in brackets: '#### (.+)'")
        return pattern

    @abstractmethod
    def load_tables(self) -> TrainAndHeldOutTable:
        """Return the training rows, and the held-out rows or None if both are in one table.

        Raises:
            ValueError: if the data cannot be read.
        """

    def read_posed_problem(self, text: str) -> LazyProblem | None:
        if not self.poses:
            return None
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return None
        match data:
            case {"question": str(question), "answer": str() | int() | float() as answer, **extra} if not extra:
                problem = Problem(_deduplication_key(question), question.strip(), _cell_to_text(answer))
                return _make_lazy_problem(problem, 0.0) if problem.question else None
        return None

    def train_and_held_out_problems(self) -> TrainAndHeldOutProblems:
        table, held_out_table = self.load_tables()
        drafts = self._problems_and_splits_by_key(table)
        if held_out_table is not None:
            held_out_drafts = self._problems_and_splits_by_key(held_out_table)
            train = [draft for key, (draft, _) in drafts.items() if key not in held_out_drafts]
            return train, [draft for draft, _ in held_out_drafts.values()]
        splits: TrainAndHeldOutProblems = ([], [])
        for draft, split in drafts.values():
            splits[split != _TRAIN].append(draft)
        if self.columns.split:
            return splits
        count = self.held_out if isinstance(self.held_out, int) else round(self.held_out * len(drafts))
        return split_train_held_out(splits[0], count, self.seed)

    def _problems_and_splits_by_key(self, table: DataTable) -> dict[str, tuple[LazyProblem, str]]:
        """Return (draft, split) of each problem by key, in the order of the rows.

        Of several rows with the same question, the first one counts.
        """
        if not table.rows:
            raise ValueError(f"{table.name}: no rows")
        columns = self.columns
        column_of = {name: getattr(columns, name) for name in ("question", "answer", "wrong", "difficulty", "split")}
        column_of |= {f"facts.{name}": column for name, column in columns.facts.items()}
        for name, column in column_of.items():
            if column and column not in table.columns:
                hint = choices_hint(column, table.columns)
                raise ValueError(f"columns.{name}: not every row of {table.name} has a column {column!r}; {hint}")
        drafts: dict[str, tuple[LazyProblem, str]] = {}
        for number, row in enumerate(table.rows, 1):
            source_label = f"{table.name}, row {number}"
            question = row[columns.question]
            if not isinstance(question, str) or not question.strip():
                raise ValueError(f"columns.question: {source_label}: {question!r} is no question")
            facts = dict[str, Any]()
            for name, column in columns.facts.items():
                try:
                    facts[name] = json.loads(json.dumps(row[column]))
                except (TypeError, ValueError) as error:
                    fault = f"{source_label}, column {column!r}: {row[column]!r} is no plain JSON"
                    raise ValueError(f"columns.facts: {fault}") from error
            answer = self._read_answer(row, source_label)
            wrong = (row[columns.wrong] if columns.wrong else None) or []
            wrong_texts = tuple(map(_cell_to_text, [wrong] if isinstance(wrong, str) else wrong))
            problem = Problem(_deduplication_key(question), question, answer, wrong_texts, facts)
            difficulty = _read_difficulty(row[columns.difficulty], source_label) if columns.difficulty else 0.0
            split = str(row[columns.split]) if columns.split else _TRAIN
            drafts.setdefault(problem.key, (_make_lazy_problem(problem, difficulty), split))
        return drafts

    def _read_answer(self, row: Mapping[str, Any], source_label: str) -> str:
        """Return the right answer in one row, or "" if no column has answers. `source_label` names the row in
        errors."""
        if self.columns.answer is None:
            return ""
        value = row[self.columns.answer]
        if value is None or isinstance(value, dict | list):
            raise ValueError(f"columns.answer: {source_label}: {value!r} is no answer")
        if self.answer_pattern is None:
            return _cell_to_text(value)
        match = compile_pattern(self.answer_pattern).search(_cell_to_text(value).rstrip("\n"))
        if match is None or match[1] is None:
            raise ValueError(f"answer_pattern: {source_label}: {self.answer_pattern!r} finds nothing in {value!r}")
        return match[1].strip()


class FileTask(TableTask):
    """Problems from a CSV, JSON lines or Parquet file, one per row."""

    kind: str = "file"
    example = "path: problems.jsonl, columns: {question: problem, answer: solution}"
    path: Path
    """File of the problems: `.csv`, `.jsonl`, `.jsonl.zst` or `.parquet`."""
    held_out_path: Path | None = None
    """File of the held-out problems (default: the held-out problems are in the same file)."""

    @field_validator("path", "held_out_path")
    @classmethod
    def _check_file_format(cls, path: Path | None) -> Path | None:
        return path and check_data_file_format(path)

    def unmet_requirements(self) -> Iterable[str]:
        for name, path in (("path", self.path), ("held_out_path", self.held_out_path)):
            if path and not path.is_file():
                yield f"{name}: no such file: {path}"

    def files_fingerprint(self) -> int:
        paths = [path for path in (self.path, self.held_out_path) if path and path.is_file()]
        return sum(path.stat().st_mtime_ns for path in paths)

    def load_tables(self) -> TrainAndHeldOutTable:
        return read_data_table(self.path), read_data_table(self.held_out_path) if self.held_out_path else None


class DatasetTask(TableTask):
    """Problems from a Hugging Face data set, on the hub or in a local folder: CSV, JSON, Parquet, Arrow or text."""

    kind: str = "dataset"
    example = 'path: openai/gsm8k, name: main, answer_pattern: "#### (.+)"'
    path: str
    """Name of the data set on the hub, such as `openai/gsm8k`, or its folder, such as `./folder`."""
    name: str | None = None
    """Name of the data set's configuration, such as `main` (default: the data set's default configuration)."""
    revision: str | None = None
    """Branch, tag or commit of the data set on the hub (default: the newest commit)."""
    split: str = "train"
    """Name of the data set's split with the training problems."""
    held_out_split: str | None = None
    """Name of the data set's split with the held-out problems (default: they are chosen from the training split)."""

    @model_validator(mode="after")
    def _check_held_out_split_is_not_trained_on(self) -> DatasetTask:
        if self.held_out_split == self.split:
            raise ValueError(f"held_out_split: {self.split!r} is trained on; choose another, or set `held_out`")
        return self

    def load_tables(self) -> TrainAndHeldOutTable:
        held_out = self._load_split(self.held_out_split) if self.held_out_split else None
        return self._load_split(self.split), held_out

    def _load_split(self, split: str) -> DataTable:
        try:
            # `datasets` is an extra, and its import takes seconds.
            from marl.games.tasks.dataset_loading import load_dataset_split
        except ImportError as error:
            message = f"path: {self.path}: needs the package `datasets`: pip install 'marl-llm[data]'"
            raise ValueError(message) from error
        return load_dataset_split(self.path, self.name, split, self.revision)


def _deduplication_key(question: str) -> str:
    """Return the key of a question, equal for questions that differ in white space alone."""
    return json_hash(" ".join(question.split()))


def _make_lazy_problem(problem: Problem, difficulty: float) -> LazyProblem:
    # The alias finds a held-out question in other spellings, too. A question of punctuation alone has none.
    alias = json_hash(normalize_question(problem.question) or problem.question)
    return LazyProblem(problem.key, difficulty, lambda: problem, alias)


def _cell_to_text(cell: Any) -> str:
    return cell.strip() if isinstance(cell, str) else str(cell)


def _read_difficulty(cell: Any, source_label: str) -> float:
    """Return the difficulty in a cell; raise ValueError if the cell contains no finite number."""
    with suppress(ValueError):  # in a CSV file, every cell is a text
        cell = float(cell) if isinstance(cell, str) else cell
    if isinstance(cell, bool) or not isinstance(cell, int | float) or not isfinite(cell):
        raise ValueError(f"columns.difficulty: {source_label}: {cell!r} is no number")
    return float(cell)
