"""Conversion of recorded turns to chat rows for text-based trainers: TRL, verl and OpenAI's fine-tuning.

The rows hold texts without token ids, so the trainer tokenizes them again.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import fmean
from typing import Any, Literal

from marl.core.types import Message
from marl.export.turn_selection import RecordedTurn
from marl.scenario.load import ScenarioError
from marl.view.verifier_scores import right_answers_by_problem_key

DataFormat = Literal["parquet", "trl-sft", "trl-dpo", "trl-prompts", "verl", "openai"]
PairCriterion = Literal["advantage", "return"]
Row = dict[str, Any]
RowConverter = Callable[[Iterable[RecordedTurn]], Iterator[Row]]


@dataclass(frozen=True, slots=True)
class PreferencePairRule:
    """Rule that forms a preference pair from the answers to one prompt: the best is chosen, the worst rejected."""

    criterion: PairCriterion = "advantage"
    """Value by which answers are compared: the turn's advantage, or its agent's return in the episode. A text that
    was sampled several times has the mean of its values."""
    min_margin: float = 0.0
    """Minimum difference between the values of the two answers (default: 0; equal answers never form a pair)."""


def answered_turns(turns: Iterable[RecordedTurn], *, exclude_truncated: bool = False) -> Iterator[RecordedTurn]:
    """Yield the turns with a non-empty answer. Failed requests are left out, and with `exclude_truncated` truncated
    answers.

    After a truncated answer trainers would append an end token, from which the model would learn to stop early.
    """
    for recorded in turns:
        completion = recorded.turn.completion
        if completion.text and completion.finish in (("stop",) if exclude_truncated else ("stop", "length")):
            yield recorded


def sft_rows(turns: Iterable[RecordedTurn]) -> Iterator[Row]:
    """Yield rows for TRL's SFTTrainer: a prompt and its completion. The loss covers the completion alone."""
    for recorded in answered_turns(turns, exclude_truncated=True):
        answer = [Message("assistant", recorded.turn.completion.text).to_dict()]
        yield {"prompt": _message_rows(recorded.prompt), "completion": answer, **_tool_schemas_column(recorded)}


def openai_rows(turns: Iterable[RecordedTurn]) -> Iterator[Row]:
    """Yield rows for OpenAI's supervised fine-tuning: a chat that ends with the assistant's answer.

    Earlier answers in a chat have weight 0. Otherwise every later row would train on them again, even on answers that
    the selection excludes.
    """
    for recorded in answered_turns(turns, exclude_truncated=True):
        messages: list[Row] = []
        for message in recorded.prompt:
            messages.append(message.to_dict())
            if message.role == "assistant":
                messages[-1]["weight"] = 0
        messages.append(Message("assistant", recorded.turn.completion.text).to_dict())
        tools = [json.loads(tool) for tool in recorded.turn.request.tools]
        yield {"messages": messages, **({"tools": tools} if tools else {})}


@dataclass(slots=True)
class _AnswersToOnePrompt:
    """Answers to one prompt in one step."""

    recorded: RecordedTurn
    """First turn with this prompt, from which the pair's row takes its columns."""
    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Answer text -> values of its samples."""


def dpo_rows(turns: Iterable[RecordedTurn], pair_rule: PreferencePairRule) -> Iterator[Row]:
    """Yield rows for TRL's DPOTrainer: the best and the worst answer to one prompt within a step.

    Answers are comparable if they come from one policy and from episodes with equal starts. Memory holds the answers of
    one step at a time.

    Raises:
        ScenarioError: if advantages are compared, and no turn of a step has one.
    """
    for step, recorded_turns in groupby(answered_turns(turns), key=lambda recorded: recorded.step):
        groups: dict[tuple[object, ...], _AnswersToOnePrompt] = {}
        for recorded in recorded_turns:
            value = recorded.credit.advantage if recorded.credit else None
            if pair_rule.criterion == "return":
                value = recorded.return_of_agent
            if value is None:
                continue
            request = recorded.turn.request
            group = recorded.trajectory.start, request.policy, recorded.turn.role, request.tools, recorded.prompt
            answers = groups.setdefault(group, _AnswersToOnePrompt(recorded))
            answers.values[recorded.turn.completion.text].append(value)
        if not groups:
            raise ScenarioError(f"step {step}: none of its turns has an advantage to compare; give --by return")
        for answers in groups.values():
            means = {text: fmean(values) for text, values in answers.values.items()}
            # Of answers with equal values, `max` and `min` take the first, so exports of a run always give equal pairs.
            chosen, rejected = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
            margin = means[chosen] - means[rejected]
            # `not (margin > 0 …)` also leaves out a margin of NaN.
            if not (margin > 0 and margin >= pair_rule.min_margin):
                continue
            recorded = answers.recorded
            yield {
                "prompt": _message_rows(recorded.prompt),
                "chosen": [Message("assistant", chosen).to_dict()],
                "rejected": [Message("assistant", rejected).to_dict()],
                **{"score_chosen": means[chosen], "score_rejected": means[rejected]},
                **{"step": recorded.step, "role": recorded.turn.role},
                **_tool_schemas_column(recorded),
            }


def grpo_prompt_rows(turns: Iterable[RecordedTurn]) -> Iterator[Row]:
    """Yield rows for TRL's GRPOTrainer: each distinct prompt once.

    GRPOTrainer passes the other columns to its reward functions as arguments.
    """
    for recorded in _first_turn_of_each_prompt(turns):
        turn = recorded.turn
        yield {
            "prompt": _message_rows(recorded.prompt),
            **{"role": turn.role, "start": recorded.trajectory.start, "problem": turn.problem},
            # A verifier's request contains the right answer.
            "answer": right_answers_by_problem_key(recorded.trajectory).get(turn.problem, ""),
            **_tool_schemas_column(recorded),
        }


def verl_rows(turns: Iterable[RecordedTurn], data_source_of_turn: Callable[[RecordedTurn], str]) -> Iterator[Row]:
    """Yield rows in verl's format: each distinct prompt once, with the problem's right answer, or "" if unknown.

    `data_source_of_turn` returns the name of a turn's data set, by which verl selects a reward function.
    """
    for index, recorded in enumerate(_first_turn_of_each_prompt(turns)):
        turn, name = recorded.turn, data_source_of_turn(recorded)
        right_answer = right_answers_by_problem_key(recorded.trajectory).get(turn.problem, "")
        yield {
            "data_source": name,
            "prompt": _message_rows(recorded.prompt),
            "ability": name,
            "reward_model": {"style": "rule", "ground_truth": right_answer},
            "extra_info": {
                **{"split": "train", "index": index, "step": recorded.step, "role": turn.role, "agent": turn.agent},
                **{"start": recorded.trajectory.start, "problem": turn.problem},
            },
        }


def _first_turn_of_each_prompt(turns: Iterable[RecordedTurn]) -> Iterator[RecordedTurn]:
    """Yield the first turn of each distinct prompt. Memory holds a 16-byte digest of each prompt."""
    seen: set[bytes] = set()
    for recorded in turns:
        turn = recorded.turn
        key = json.dumps([turn.role, turn.problem, turn.request.tools, _message_rows(recorded.prompt)]).encode()
        digest = hashlib.blake2b(key, digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            yield recorded


def _tool_schemas_column(recorded_turn: RecordedTurn) -> Mapping[str, str]:
    """Return the column `tools` of a row: all tool schemas as one JSON text, or no column without tools.

    TRL accepts the text, while no column type would fit every schema.
    """
    tools = [json.loads(tool) for tool in recorded_turn.turn.request.tools]
    return {"tools": json.dumps(tools)} if tools else {}


def _message_rows(messages: Sequence[Message]) -> list[Row]:
    return [message.to_dict() for message in messages]
