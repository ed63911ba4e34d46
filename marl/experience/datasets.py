"""Demonstrations and preferences from a file, tokenised for the policy that learns from them.

Each answer of a row becomes one episode with one turn; nothing is played.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints

from pydantic import field_validator

from marl.core.config import Config, Sampling, choices_hint
from marl.core.graph import Trajectory
from marl.core.types import Completion, Deal, Failure, Message, Metrics, Request, Reward, Turn
from marl.experience.rollouts import EpochOrder
from marl.host.data_files import check_format, read_file
from marl.protocols import Deals, Experience, ExperienceConfig, Simulator

_MESSAGE_ROLES: tuple[str, ...] = get_args(get_type_hints(Message)["role"])


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """A prompt with its answers and their rewards."""

    prompt: str | tuple[Message, ...]
    """Text for the template of the role, or messages to use unchanged."""
    answers: tuple[str, ...]
    rewards: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RowReader:
    """One row of a file, with its location for error messages. All methods raise ValueError naming the column."""

    location: str
    row: Mapping[str, Any]

    def prompt(self, column: str) -> str | tuple[Message, ...]:
        """Return the prompt in `column`: a text, or the messages of a chat."""
        value = self._value(column)
        if isinstance(value, str):
            return value
        if not (chat := self._chat(column)):
            raise self._wrong(column, "no messages")
        return chat

    def answer(self, column: str) -> str:
        """Return the answer in `column`: a text, or the content of a single message of the assistant."""
        value = self._value(column)
        if not isinstance(value, str):
            chat = self._chat(column)
            if len(chat) != 1 or chat[0].role != "assistant":
                raise self._wrong(column, f"must be one message of the assistant, got {[m.role for m in chat]}")
            value = chat[0].content
        if not value:
            raise self._wrong(column, "an empty answer")
        return value

    def exchange(self, column: str) -> tuple[tuple[Message, ...], str]:
        """Return (prompt, answer) of the chat in `column`, which must end with an answer of the assistant."""
        chat = self._chat(column)
        if len(chat) < 2 or chat[-1].role != "assistant" or not chat[-1].content:
            raise self._wrong(column, f"must end with an answer of the assistant, got {[m.role for m in chat]}")
        return chat[:-1], chat[-1].content

    def _wrong(self, column: str, problem: str) -> ValueError:
        return ValueError(f"{self.location}, column {column!r}: {problem}")

    def _value(self, column: str) -> Any:
        if self.row.get(column) is None:
            raise self._wrong(column, f"missing; {choices_hint(column, self.row)}")
        return self.row[column]

    def _chat(self, column: str) -> tuple[Message, ...]:
        messages = self._value(column)
        if not isinstance(messages, Sequence):
            raise self._wrong(column, f"must be a text or a list of messages, got {type(messages).__name__}")
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
                problem = f"a message is an object with `role` and `content`, a text; got {message!r}"
                raise self._wrong(column, problem)
            if message.get("role") not in _MESSAGE_ROLES:
                problem = f"role {message.get('role')!r} is unknown; choices: {', '.join(_MESSAGE_ROLES)}"
                raise self._wrong(column, problem)
        return tuple([Message(message["role"], message["content"]) for message in messages])


class AnswerFile(ExperienceConfig):
    """Takes the episodes of each step from a file of answers, row by row, epoch after epoch."""

    example = "path: answers.jsonl"
    off_policy: ClassVar[bool] = True
    answers: ClassVar[int] = 1
    """Number of answers in a row; each is an episode of the same group."""
    path: Path
    """File of the answers: `.csv`, `.jsonl`, `.jsonl.zst` or `.parquet`."""
    role: str | None = None
    """Role of the answers; required if the game seats several roles. Texts become prompts by the role's templates, as
    if the text were the whole observation; messages are used unchanged."""
    shuffle: bool = True
    """Shuffle the rows in each epoch, by `seed`."""
    seed: int = 0
    """Seed of the order of the rows."""

    @field_validator("path")
    @classmethod
    def _check_format(cls, path: Path) -> Path:
        return check_format(path)

    def unmet_requirements(self) -> Iterable[str]:
        try:
            self.rows()
        except ValueError as error:
            yield str(error)

    def conflicts(self, seats: Mapping[str, str], group_size: int) -> Iterable[str]:
        roles = sorted(set(seats.values()))
        if self.role is None and len(roles) > 1:
            yield f"role: missing: who gave the answers? choices: {', '.join(roles)}"
        elif self.role is not None and self.role not in roles:
            yield f"role: no seat has the role {self.role!r}; {choices_hint(self.role, roles)}"
        if group_size % self.answers:
            yield (
                f"kind: a row of {self.kind!r} is {self.answers} episodes of one start, but schedule.group_size is "
                f"{group_size}; use {self.answers}"
            )

    def rows(self) -> Sequence[DatasetRow]:
        """Return the file's rows.

        Raises:
            ValueError: naming file, line and column.
        """
        stamp = self.path.stat().st_mtime_ns if self.path.is_file() else 0
        return _read(type(self), self.model_dump_json(), stamp)

    @abstractmethod
    def parse(self, row: RowReader) -> DatasetRow:
        """Return the prompt, answers and rewards of a row."""

    def build(self) -> Experience:
        return AnswerReplay(self)


class DemonstrationColumns(Config):
    """Names of the columns of demonstrations."""

    prompt: str = "prompt"
    """Column of the prompt: a text, or messages."""
    completion: str = "completion"
    """Column of the answer."""
    messages: str = "messages"
    """Column of a chat that ends with the answer; it overrides the other two columns."""


class Demonstrations(AnswerFile):
    """Answers to be imitated (`sft`), each with reward 1: columns `prompt` and `completion`, or `messages`.

    `messages` is a chat that ends with the assistant's answer.
    """

    kind: str = "demonstrations"
    columns: DemonstrationColumns = DemonstrationColumns()
    """Names of the columns to read."""

    def parse(self, row: RowReader) -> DatasetRow:
        columns = self.columns
        if row.row.get(columns.messages) is not None:
            prompt, answer = row.exchange(columns.messages)
            return DatasetRow(prompt, (answer,), (1.0,))
        return DatasetRow(row.prompt(columns.prompt), (row.answer(columns.completion),), (1.0,))


class PreferenceColumns(Config):
    """Names of the columns of preferences."""

    prompt: str = "prompt"
    """Column of the prompt: a text, or messages."""
    chosen: str = "chosen"
    """Column of the better answer."""
    rejected: str = "rejected"
    """Column of the worse answer."""


class Preferences(AnswerFile):
    """Pairs of answers (`dpo`, `reward_modeling`): columns `prompt`, `chosen` (reward 1) and `rejected` (reward 0).

    A row is a group of two episodes.
    """

    kind: str = "preferences"
    answers: ClassVar[int] = 2
    columns: PreferenceColumns = PreferenceColumns()
    """Names of the columns to read."""

    def parse(self, row: RowReader) -> DatasetRow:
        answers = (row.answer(self.columns.chosen), row.answer(self.columns.rejected))
        return DatasetRow(row.prompt(self.columns.prompt), answers, (1.0, 0.0))


@lru_cache(maxsize=4)
def _read(kind: type[AnswerFile], settings_json: str, _stamp: int) -> Sequence[DatasetRow]:
    # Cached, since a scenario is checked before it is built; keyed by the file's last change, so that edits count.
    settings = kind.model_validate_json(settings_json)
    table = read_file(settings.path)
    if not table.rows:
        raise ValueError(f"path: {table.name}: no rows")
    return [settings.parse(RowReader(f"path: {table.location(i)}", row)) for i, row in enumerate(table.rows)]


class AnswerReplay:
    """Experience that replays the rows of a file."""

    def __init__(self, settings: AnswerFile) -> None:
        self._settings = settings
        self._rows = settings.rows()
        blocks = [range(index, index + 1) for index in range(len(self._rows))]
        self._order = EpochOrder(blocks, shuffle=settings.shuffle, seed=settings.seed)

    def gather(self, step: int, deals: Deals, simulator: Simulator) -> list[Trajectory]:
        """Return one episode for each deal. Episodes of one row have the same start."""
        step_deals, per_row = deals(step), self._settings.answers
        rows = self._order.take(len(step_deals) // per_row)
        turns: list[Turn] = []
        for i, deal in enumerate(step_deals):
            row, answer = divmod(i, per_row)
            turns.append(self._turn(deal, self._rows[rows[row]], answer, simulator))
        scores = simulator.score([replace(turn.request, forced=turn.completion.text) for turn in turns], "train")
        episodes: list[Trajectory] = []
        for i, (deal, turn, score) in enumerate(zip(step_deals, turns, scores, strict=True)):
            row, answer = divmod(i, per_row)
            episodes.append(self._episode(deal, _scored(turn, score), rows[row], answer))
        return episodes

    def metrics(self) -> Metrics:
        """Return `written/epochs`: the number of passes over the rows so far."""
        return {"written/epochs": self._order.used / len(self._rows)}

    def state_dict(self) -> dict[str, Any]:
        return {"used": self._order.used, "rows": len(self._rows)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["rows"] != len(self._rows):
            raise ValueError(
                f"experience.path: {self._settings.path} has {len(self._rows)} rows, but had {state['rows']} when the "
                "state was saved; a run goes on only with the same file"
            )
        self._order.used = int(state["used"])

    def _turn(self, deal: Deal, row: DatasetRow, nth: int, simulator: Simulator) -> Turn:
        """Return the turn of a row's answer with index `nth`, without tokens."""
        role = self._settings.role or next(iter(deal.seats.values()))
        agent = next(agent for agent, seated in deal.seats.items() if seated == role)
        prompt, completion = row.prompt, Completion(row.answers[nth], (), (), (), "stop")
        request = Request("", () if isinstance(prompt, str) else prompt, Sampling())
        turn = Turn((deal.episode, 0), agent, 0, 0, role, request, completion, completion.text)
        if isinstance(prompt, str):
            return replace(turn, request=simulator.request_from_text(role, agent, prompt))
        return replace(turn, request=simulator.request_for(turn))

    def _episode(self, deal: Deal, turn: Turn, row: int, nth: int) -> Trajectory:
        episode = Trajectory(deal, f"{self._settings.path.name}:{row}")
        episode.add(turn, ())
        episode.rewards = [Reward(turn.agent, self._rows[row].rewards[nth], turn.id)]
        episode.end = "terminated"
        return episode


def _scored(turn: Turn, answer: Completion | Failure) -> Turn:
    if isinstance(answer, Completion):
        return replace(turn, completion=answer)
    # An answer that is too long keeps its text and has no tokens, so no learner sees it.
    return replace(turn, completion=replace(turn.completion, finish=answer.finish), action=None)
