"""Demonstrations and preferences from a file, tokenised for the policy that learns from them.

Each answer of a row becomes one episode with one turn; nothing is played.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, get_args

from pydantic import field_validator

from marl.core.config import Config, Sampling, choices_hint
from marl.core.graph import Trajectory
from marl.core.types import Completion, Message, MessageRole, Metrics, Request, Reward, ToolCall, Turn
from marl.experience.rollouts import EpochSampler
from marl.host.data_files import check_data_file_format, read_data_table
from marl.protocols import DealsOfStep, Experience, ExperienceConfig, Simulator
from marl.text.tool_calls import parse_tool_calls, to_tool_call

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
written/epochs | passes | passes over the rows of the file so far (`demonstrations`, `preferences`)
"""

_MESSAGE_ROLES: tuple[str, ...] = get_args(MessageRole)


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """One row of a file of answers: a prompt with its answers and their rewards."""

    prompt: str | tuple[Message, ...]
    """Text that the role's templates turn into a prompt, or messages to use unchanged."""
    answers: tuple[str, ...]
    rewards: tuple[float, ...]
    """Reward of each answer."""


@dataclass(frozen=True, slots=True)
class DatasetRowReader:
    """Parser of one row of a file. Its methods raise ValueError with the row's location and the column."""

    location: str
    """File and line of the row, for error messages."""
    row: Mapping[str, Any]
    """Name of a column -> value."""

    def read_prompt(self, column: str) -> str | tuple[Message, ...]:
        """Return the prompt in `column`: a text, or the messages of a chat."""
        value = self._read_required_value(column)
        if isinstance(value, str):
            return value
        if not (chat := self._read_chat(column)):
            raise self._column_error(column, "no messages")
        return chat

    def read_answer(self, column: str) -> str:
        """Return the answer in `column`: a text, or the content of a single message of the assistant."""
        value = self._read_required_value(column)
        if not isinstance(value, str):
            chat = self._read_chat(column)
            if len(chat) != 1 or chat[0].role != "assistant":
                raise self._column_error(column, f"must be one message of the assistant, got {[m.role for m in chat]}")
            value = self._answer_of_message(column, chat[0])
        if not value:
            raise self._column_error(column, "an empty answer")
        return value

    def read_prompt_and_answer(self, column: str) -> tuple[tuple[Message, ...], str]:
        """Return (prompt, answer) of the chat in `column`, whose last message must be an answer of the assistant."""
        chat = self._read_chat(column)
        if len(chat) < 2 or chat[-1].role != "assistant" or not chat[-1].content:
            raise self._column_error(column, f"must end with an answer of the assistant, got {[m.role for m in chat]}")
        return chat[:-1], self._answer_of_message(column, chat[-1])

    def _answer_of_message(self, column: str, message: Message) -> str:
        if message.calls:
            problem = "an answer with `tool_calls` cannot be learned from; write them into `content` as the model does"
            raise self._column_error(column, problem)
        return message.content

    def _column_error(self, column: str, problem: str) -> ValueError:
        return ValueError(f"{self.location}, column {column!r}: {problem}")

    def _read_required_value(self, column: str) -> Any:
        if self.row.get(column) is None:
            raise self._column_error(column, f"missing; {choices_hint(column, self.row)}")
        return self.row[column]

    def _read_chat(self, column: str) -> tuple[Message, ...]:
        values = self._read_required_value(column)
        if not isinstance(values, Sequence):
            raise self._column_error(column, f"must be a text or a list of messages, got {type(values).__name__}")
        chat: list[Message] = []
        for value in values:
            if not isinstance(value, Mapping) or not isinstance(_content_of_message(value), str):
                raise self._column_error(
                    column, f"a message is an object with `role` and `content`, a text; got {value!r}"
                )
            if value.get("role") not in _MESSAGE_ROLES:
                problem = f"role {value.get('role')!r} is unknown; choices: {', '.join(_MESSAGE_ROLES)}"
                raise self._column_error(column, problem)
            identifiers = (str(value.get("tool_call_id") or ""), str(value.get("name") or ""))
            calls = self._read_tool_calls(column, value.get("tool_calls") or ())
            chat.append(Message(value["role"], _content_of_message(value), calls, *identifiers))
        return tuple(chat)

    def _read_tool_calls(self, column: str, values: Any) -> tuple[ToolCall, ...]:
        """Return the tool calls of a message, in the form of OpenAI's chat completions or of Transformers."""
        calls: list[ToolCall] = []
        for value in values if isinstance(values, Sequence) else (values,):
            match value:
                case {"function": {"name": str(name), "arguments": dict(arguments)}, **rest} if name:
                    calls.append(to_tool_call(name, arguments, str(rest.get("id") or "")))
                case {"function": {"name": str(name), "arguments": str(spelled)}, **rest} if name:
                    parsed = parse_tool_calls(f'{{"name": {json.dumps(name)}, "arguments": {spelled}}}')
                    if not parsed:
                        raise self._column_error(column, f"arguments of a tool call must be an object; got {spelled!r}")
                    calls.append(to_tool_call(**parsed[0], identifier=str(rest.get("id") or "")))
                case _:
                    problem = f"a tool call is an object with `function`, its `name` and `arguments`; got {value!r}"
                    raise self._column_error(column, problem)
        return tuple(calls)


def _content_of_message(message: Mapping[str, Any]) -> Any:
    """Return the content of a data set's message; "" if it has none beside its tool calls."""
    return message.get("content") or "" if message.get("tool_calls") else message.get("content")


class AnswerDataset(ExperienceConfig):
    """Base of experiences that take the episodes of each step from a file of answers, epoch after epoch.

    The rows are shuffled in each epoch, unless `shuffle` is false.
    """

    example = "path: answers.jsonl"
    off_policy: ClassVar[bool] = True
    answers: ClassVar[int] = 1
    """Number of answers in a row of the file. The answers of a row are the episodes of one group."""
    path: Path
    """File of the answers: `.csv`, `.jsonl`, `.jsonl.zst` or `.parquet`."""
    role: str | None = None
    """Role that gave the answers; required if the game seats several roles. A prompt that is a text goes through the
    role's templates, as if it were the whole observation; a prompt of messages is used unchanged."""
    shuffle: bool = True
    """True: shuffle the rows in each epoch, by `seed`; false: keep the order of the file."""
    seed: int = 0
    """Seed of the order of the rows."""

    @field_validator("path")
    @classmethod
    def _check_known_format(cls, path: Path) -> Path:
        return check_data_file_format(path)

    def unmet_requirements(self) -> Iterable[str]:
        try:
            self.rows()
        except ValueError as error:
            yield str(error)

    def seating_conflicts(self, role_by_agent: Mapping[str, str], group_size: int) -> Iterable[str]:
        roles = sorted(set(role_by_agent.values()))
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
            ValueError: if a row cannot be parsed; the message names file, line and column.

        """
        changed_ns = self.path.stat().st_mtime_ns if self.path.is_file() else 0
        return _read_and_cache_rows(type(self), self.model_dump_json(), changed_ns)

    @abstractmethod
    def parse_row(self, row: DatasetRowReader) -> DatasetRow:
        """Return the prompt, the answers and the rewards of a row."""

    def build(self) -> Experience:
        return AnswerDatasetReplay(self)


class DemonstrationColumns(Config):
    """Names of the columns of demonstrations."""

    prompt: str = "prompt"
    """Column of the prompt: a text, or messages."""
    completion: str = "completion"
    """Column of the answer."""
    messages: str = "messages"
    """Column of a chat that ends with the answer. If a row has this column, the other two columns are ignored."""


class Demonstrations(AnswerDataset):
    """File of answers that a policy imitates (`sft`), each with reward 1.

    Its columns are `prompt` and `completion`, or `messages`: a chat that ends with the assistant's answer.
    """

    kind: str = "demonstrations"
    columns: DemonstrationColumns = DemonstrationColumns()
    """Names of the columns to read."""

    def parse_row(self, row: DatasetRowReader) -> DatasetRow:
        columns = self.columns
        if row.row.get(columns.messages) is not None:
            prompt, answer = row.read_prompt_and_answer(columns.messages)
            return DatasetRow(prompt, (answer,), (1.0,))
        return DatasetRow(row.read_prompt(columns.prompt), (row.read_answer(columns.completion),), (1.0,))


class PreferenceColumns(Config):
    """Names of the columns of preferences."""

    prompt: str = "prompt"
    """Column of the prompt: a text, or messages."""
    chosen: str = "chosen"
    """Column of the better answer."""
    rejected: str = "rejected"
    """Column of the worse answer."""


class Preferences(AnswerDataset):
    """File of preference pairs (`dpo`, `reward_modeling`): columns `prompt`, `chosen` and `rejected`.

    A row is a group of two episodes: the chosen answer has reward 1, the rejected answer reward 0.
    """

    kind: str = "preferences"
    answers: ClassVar[int] = 2
    columns: PreferenceColumns = PreferenceColumns()
    """Names of the columns to read."""

    def parse_row(self, row: DatasetRowReader) -> DatasetRow:
        answers = (row.read_answer(self.columns.chosen), row.read_answer(self.columns.rejected))
        return DatasetRow(row.read_prompt(self.columns.prompt), answers, (1.0, 0.0))


@lru_cache(maxsize=4)
def _read_and_cache_rows(
    settings_class: type[AnswerDataset], settings_json: str, _file_changed_ns: int
) -> Sequence[DatasetRow]:
    # The rows are cached, because they are read when the scenario is checked, and again when it is built.
    # The cache's key contains the file's modification time, so that a changed file is read again.
    settings = settings_class.model_validate_json(settings_json)
    table = read_data_table(settings.path)
    if not table.rows:
        raise ValueError(f"path: {table.name}: no rows")
    return [
        settings.parse_row(DatasetRowReader(f"path: {table.row_location(i)}", row)) for i, row in enumerate(table.rows)
    ]


class AnswerDatasetReplay:
    """Experience built from `AnswerDataset`: replays the rows of a file as episodes with one turn."""

    def __init__(self, settings: AnswerDataset) -> None:
        self._settings = settings
        self._rows = settings.rows()
        blocks = [range(index, index + 1) for index in range(len(self._rows))]
        self._order = EpochSampler(blocks, shuffle=settings.shuffle, seed=settings.seed)

    def gather(self, step: int, deals: DealsOfStep, simulator: Simulator) -> list[Trajectory]:
        """Return one episode for each deal of the step. Episodes of one row have the same start."""
        step_deals, answers = deals(step), self._settings.answers
        row_indices = self._order.next_indices(len(step_deals) // answers)
        turns: list[Turn] = []
        scoring_requests: list[Request] = []
        for i, deal in enumerate(step_deals):
            row = self._rows[row_indices[i // answers]]
            role = self._settings.role or next(iter(deal.seats.values()))
            agent = next(agent for agent, seated in deal.seats.items() if seated == role)
            messages = () if isinstance(row.prompt, str) else row.prompt
            request, text = Request("", messages, Sampling()), row.answers[i % answers]
            turn = Turn((deal.episode, 0), agent, 0, 0, role, request, Completion(text, (), (), (), "stop"), text)
            if isinstance(row.prompt, str):
                request = simulator.request_from_text(role, agent, row.prompt)
            else:
                request = simulator.request_to_current_policy(turn)
            turns.append(replace(turn, request=request))
            scoring_requests.append(replace(request, forced=text))
        scores = simulator.score_forced_texts(scoring_requests, "train")
        episodes: list[Trajectory] = []
        for i, (deal, turn, score) in enumerate(zip(step_deals, turns, scores, strict=True)):
            if isinstance(score, Completion):
                turn = replace(turn, completion=score)
            else:
                # An answer that exceeds the context keeps its text without tokens, so no learner trains on it.
                turn = replace(turn, completion=replace(turn.completion, finish=score.finish), action=None)
            row_index = row_indices[i // answers]
            episode = Trajectory(deal, f"{self._settings.path.name}:{row_index}")
            episode.add(turn, ())
            episode.rewards = [Reward(turn.agent, self._rows[row_index].rewards[i % answers], turn.id)]
            episode.end = "terminated"
            episodes.append(episode)
        return episodes

    def metrics(self) -> Metrics:
        """Return `written/epochs`: the number of passes over the rows of the file so far."""
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
