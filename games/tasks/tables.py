"""Problems from a file or a data set: a row is a problem, columns are mapped."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from games.tasks.base import Draft, Source, digest, divided
from games.tasks.rows import read_split
from marl.config import Config, nearest
from marl.data_files import Rows, known_format, read_file
from marl.protocols import TaskConfig, Tasks
from marl.types import Problem

_TRAIN = "train"


class Columns(Config):
    """Which column holds what."""

    question: str = "question"
    answer: str | None = "answer"
    """Null where only tests or a judge can tell what is right."""
    wrong: str | None = None
    """Wrong answers: a text or a list of texts."""
    difficulty: str | None = None
    """A number; the easiest come first. Without it problems keep their order."""
    split: str | None = None
    """Says `train` of problems to be trained on; all others are held out."""
    facts: dict[str, str] = Field(default_factory=dict)
    """Name of a fact -> column, for verifiers and prompts."""

    @property
    def wanted(self) -> dict[str, str]:
        """Setting -> the column that it names."""
        named = {name: getattr(self, name) for name in ("question", "answer", "wrong", "difficulty", "split")}
        named |= {f"facts.{name}": column for name, column in self.facts.items()}
        return {f"columns.{name}": column for name, column in named.items() if column}


class Table(TaskConfig):
    """Rows that become problems; those with the same question are one, and never in both splits."""

    columns: Columns = Columns()
    answer_pattern: str | None = None
    """The answer is the first group that this regular expression finds in its column: `#### (.+)` for GSM8K."""
    held_out: Annotated[int, Field(ge=0)] | Annotated[float, Field(gt=0, lt=1)] = 0.1
    """How many problems training never deals, or their share; chosen by `seed`. Not used where the data say it."""
    seed: int = 0
    poses: bool = False
    """Whether a challenger may pose a problem, as {"question": ..., "answer": ...}."""

    @field_validator("answer_pattern")
    @classmethod
    def _one_group(cls, pattern: str | None) -> str | None:
        try:
            groups = re.compile(pattern).groups if pattern else 1
        except re.error as error:
            raise ValueError(f"answer_pattern: {pattern!r} is no regular expression: {error}") from error
        if groups < 1:
            raise ValueError(
                f"answer_pattern: {pattern!r} has no group; put what is the answer in brackets: '#### (.+)'"
            )
        return pattern

    @abstractmethod
    def tables(self) -> tuple[Rows, Rows | None]:
        """(what to train on, what is held out, if that lies apart)

        Raises:
            ValueError: if something is not there or cannot be read.
        """

    def read(self, text: str) -> Draft | None:
        """The problem in a JSON object, if challengers may pose problems."""
        if not self.poses:
            return None
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(said, dict) or set(said) != {"question", "answer"}:
            return None
        question, answer = said["question"], said["answer"]
        usable = isinstance(question, str) and question.strip() and isinstance(answer, str | int | float)
        return _draft(Problem(_key(question), question.strip(), _text(answer)), 0.0) if usable else None

    def drafts(self, rows: Rows) -> dict[str, tuple[Draft, str]]:
        """Key -> problem and its split, in the order of the rows.

        Raises:
            ValueError: naming the table and the column or row that is wrong.
        """
        if not rows.rows:
            raise ValueError(f"{rows.name}: no rows")
        for setting, column in self.columns.wanted.items():
            if column not in rows.columns:
                near = nearest(column, rows.columns)
                raise ValueError(f"{setting}: not every row of {rows.name} has a column {column!r}; {near}")
        found: dict[str, tuple[Draft, str]] = {}
        for number, row in enumerate(rows.rows, 1):
            draft = self._draft(row, f"{rows.name}, row {number}")
            found.setdefault(draft.key, (draft, str(row[self.columns.split]) if self.columns.split else _TRAIN))
        return found

    def _draft(self, row: Mapping[str, Any], where: str) -> Draft:
        columns = self.columns
        question = row[columns.question]
        if not isinstance(question, str) or not question.strip():
            raise ValueError(f"columns.question: {where}: {question!r} is no question")
        facts = {name: _plain(row[column], f"{where}, column {column!r}") for name, column in columns.facts.items()}
        wrong = row[columns.wrong] if columns.wrong else None
        wrongs = [wrong] if isinstance(wrong, str) else wrong or []
        problem = Problem(
            _key(question), question, self._answer(row, where), tuple(_text(text) for text in wrongs), facts
        )
        return _draft(problem, _number(row[columns.difficulty], where) if columns.difficulty else 0.0)

    def _answer(self, row: Mapping[str, Any], where: str) -> str:
        if self.columns.answer is None:
            return ""
        value = row[self.columns.answer]
        if value is None or isinstance(value, dict | list):
            raise ValueError(f"columns.answer: {where}: {value!r} is no answer")
        if self.answer_pattern is None:
            return _text(value)
        found = re.search(self.answer_pattern, _text(value))
        if found is None or found[1] is None:
            raise ValueError(f"answer_pattern: {where}: {self.answer_pattern!r} finds nothing in {value!r}")
        return found[1].strip()

    def divided(self) -> tuple[list[Draft], list[Draft]]:
        """(train, held out)"""
        rows, apart = self.tables()
        known = self.drafts(rows)
        if apart is not None:
            secret = {key: draft for key, (draft, _) in self.drafts(apart).items()}
            return [draft for key, (draft, _) in known.items() if key not in secret], list(secret.values())
        if self.columns.split:
            held_out = [draft for draft, split in known.values() if split != _TRAIN]
            return [draft for draft, split in known.values() if split == _TRAIN], held_out
        drafts = [draft for draft, _ in known.values()]
        many = self.held_out if isinstance(self.held_out, int) else round(self.held_out * len(drafts))
        return divided(drafts, many, self.seed)

    def build(self) -> Tasks:
        """Raises:
        ValueError: as `tables`, and if nothing is left to train on.
        """
        return _built(type(self), self.model_dump_json(), self.edition())

    def edition(self) -> int:
        """Changes when what lies under the same name does."""
        return 0


@lru_cache(maxsize=8)
def _built(kind: type[Table], settings_json: str, _edition: int) -> Source:
    # Cached, since every game at a table builds its own source of the same problems.
    settings = kind.model_validate_json(settings_json)
    train, held_out = settings.divided()
    if not train:
        raise ValueError(f"held_out: all {len(held_out)} problems are held out, so there is none to train on")
    return Source(train, held_out, settings.read)


class File(Table):
    """Problems from a JSON lines or Parquet file, a row each."""

    kind: str = "file"
    path: Path
    """`.jsonl`, `.jsonl.zst` or `.parquet`."""
    held_out_path: Path | None = None
    """A file of problems that are all held out."""

    @field_validator("path", "held_out_path")
    @classmethod
    def _known_format(cls, path: Path | None) -> Path | None:
        return path and known_format(path)

    def missing(self) -> Iterable[str]:
        for name, path in (("path", self.path), ("held_out_path", self.held_out_path)):
            if path and not path.is_file():
                yield f"{name}: no such file: {path}"

    def edition(self) -> int:
        paths = [path for path in (self.path, self.held_out_path) if path and path.is_file()]
        return sum(path.stat().st_mtime_ns for path in paths)

    def tables(self) -> tuple[Rows, Rows | None]:
        return read_file(self.path), read_file(self.held_out_path) if self.held_out_path else None


class Dataset(Table):
    """Problems from a Hugging Face data set, by name on the hub or as a local folder."""

    kind: str = "dataset"
    path: str
    """As `datasets.load_dataset` takes it: `openai/gsm8k`, `./folder`."""
    name: str | None = None
    """Configuration of the data set."""
    revision: str | None = None
    split: str = "train"
    held_out_split: str | None = None
    """A split that is held out."""

    @model_validator(mode="after")
    def _two_splits(self) -> Dataset:
        if self.held_out_split == self.split:
            raise ValueError(f"held_out_split: {self.split!r} is trained on; choose another, or set `held_out`")
        return self

    def tables(self) -> tuple[Rows, Rows | None]:
        read = partial(read_split, self.path, self.name, self.revision)
        return read(self.split), read(self.held_out_split) if self.held_out_split else None


def _key(question: str) -> str:
    """The same for questions that differ in white space alone."""
    return digest(" ".join(question.split()))


def _draft(problem: Problem, difficulty: float) -> Draft:
    return Draft(problem.key, difficulty, lambda: problem)


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else str(value)


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"columns.difficulty: {where}: {value!r} is no number")
    return float(value)


def _plain(value: Any, where: str) -> Any:
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise ValueError(f"columns.facts: {where}: {value!r} is no plain JSON") from error
