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
from marl.view.verifier_scores import answers_of

DataFormat = Literal["parquet", "trl-sft", "trl-dpo", "trl-prompts", "verl", "openai"]
PairCriterion = Literal["advantage", "return"]
Row = dict[str, Any]
RowConverter = Callable[[Iterable[RecordedTurn]], Iterator[Row]]


@dataclass(frozen=True, slots=True)
class PairRule:
    """Rule that forms a preference pair from the answers to one prompt: the best is chosen, the worst rejected."""

    criterion: PairCriterion = "advantage"
    """Value by which answers are compared: the turn's advantage, or its agent's return in the episode. A text that
    was sampled several times has the mean of its values."""
    min_margin: float = 0.0
    """Minimum difference between the two values. Pairs of equal value are always left out."""


def answered_turns(turns: Iterable[RecordedTurn]) -> Iterator[RecordedTurn]:
    """Yield the turns with a non-empty answer. Failed requests are left out."""
    for recorded in turns:
        completion = recorded.turn.completion
        if completion.text and completion.finish in ("stop", "length"):
            yield recorded


def completed_turns(turns: Iterable[RecordedTurn]) -> Iterator[RecordedTurn]:
    """Yield the turns with a complete answer. Truncated answers are left out, because trainers append an end token
    to every answer and would teach the model to stop early."""
    return (recorded for recorded in answered_turns(turns) if recorded.turn.completion.finish == "stop")


def sft_rows(turns: Iterable[RecordedTurn]) -> Iterator[Row]:
    """Yield rows for TRL's SFTTrainer: a prompt and its completion. The loss covers the completion alone."""
    for recorded in completed_turns(turns):
        answer = [Message("assistant", recorded.turn.completion.text)._asdict()]
        yield {"prompt": _chat(recorded.prompt), "completion": answer, **_tools(recorded)}


def openai_rows(turns: Iterable[RecordedTurn]) -> Iterator[Row]:
    """Yield rows for OpenAI's supervised fine-tuning: a chat that ends with the assistant's answer.

    Earlier answers in a chat have weight 0. Otherwise every later row would train on them again, even on answers that
    the selection excludes.
    """
    for recorded in completed_turns(turns):
        messages: list[Row] = []
        for message in recorded.prompt:
            messages.append(message._asdict())
            if message.role == "assistant":
                messages[-1]["weight"] = 0
        messages.append(Message("assistant", recorded.turn.completion.text)._asdict())
        tools = [json.loads(tool) for tool in recorded.turn.request.tools]
        yield {"messages": messages, **({"tools": tools} if tools else {})}


@dataclass(slots=True)
class _Answers:
    """Answers to one prompt in one step."""

    recorded: RecordedTurn
    """First turn with the prompt."""
    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Answer text -> values of its samples."""


def pair_rows(turns: Iterable[RecordedTurn], rule: PairRule) -> Iterator[Row]:
    """Yield rows for TRL's DPOTrainer: the best and the worst answer to one prompt within a step.

    Answers are comparable if they come from one policy and from episodes with equal starts. Memory holds the answers of
    one step at a time.

    Raises:
        ScenarioError: if advantages are compared, and no turn of a step has one.
    """
    for step, recorded_turns in groupby(answered_turns(turns), key=lambda recorded: recorded.step):
        groups: dict[tuple[object, ...], _Answers] = {}
        for recorded in recorded_turns:
            value = recorded.credit.advantage if recorded.credit else None
            if rule.criterion == "return":
                value = recorded.agent_return
            if value is None:
                continue
            request = recorded.turn.request
            group = recorded.trajectory.start, request.policy, recorded.turn.role, request.tools, recorded.prompt
            answers = groups.setdefault(group, _Answers(recorded))
            answers.values[recorded.turn.completion.text].append(value)
        if not groups:
            raise ScenarioError(f"step {step}: none of its turns has an advantage to compare; give --by return")
        for answers in groups.values():
            yield from _pair(answers, rule)


def _pair(answers: _Answers, rule: PairRule) -> Iterator[Row]:
    """Yield the row of the best and the worst answer, or nothing if their values differ too little."""
    means = {text: fmean(values) for text, values in answers.values.items()}
    # `max` and `min` take the first of equal values, so the same run always gives the same pairs.
    chosen, rejected = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    margin = means[chosen] - means[rejected]
    if margin > 0 and margin >= rule.min_margin:
        recorded = answers.recorded
        yield {
            "prompt": _chat(recorded.prompt),
            "chosen": [Message("assistant", chosen)._asdict()],
            "rejected": [Message("assistant", rejected)._asdict()],
            **{"score_chosen": means[chosen], "score_rejected": means[rejected]},
            **{"step": recorded.step, "role": recorded.turn.role},
            **_tools(recorded),
        }


def prompt_rows(turns: Iterable[RecordedTurn]) -> Iterator[Row]:
    """Yield rows for TRL's GRPOTrainer: each distinct prompt once. Further columns reach its reward functions as
    arguments."""
    for recorded in _distinct_prompts(turns):
        turn = recorded.turn
        yield {
            "prompt": _chat(recorded.prompt),
            **{"role": turn.role, "start": recorded.trajectory.start, "problem": turn.problem},
            "answer": _right_answer(recorded),
            **_tools(recorded),
        }


def verl_rows(turns: Iterable[RecordedTurn], source: Callable[[RecordedTurn], str]) -> Iterator[Row]:
    """Yield rows in verl's format: each distinct prompt once, with the problem's right answer, or "" if unknown.

    `source` returns the data set's name, from which verl selects a reward function.
    """
    for index, recorded in enumerate(_distinct_prompts(turns)):
        turn, name = recorded.turn, source(recorded)
        yield {
            "data_source": name,
            "prompt": _chat(recorded.prompt),
            "ability": name,
            "reward_model": {"style": "rule", "ground_truth": _right_answer(recorded)},
            "extra_info": {
                **{"split": "train", "index": index, "step": recorded.step, "role": turn.role, "agent": turn.agent},
                **{"start": recorded.trajectory.start, "problem": turn.problem},
            },
        }


def _distinct_prompts(turns: Iterable[RecordedTurn]) -> Iterator[RecordedTurn]:
    """Yield the first turn of each distinct prompt. Memory holds a 16-byte digest per prompt."""
    seen: set[bytes] = set()
    for recorded in turns:
        turn = recorded.turn
        key = json.dumps([turn.role, turn.problem, turn.request.tools, _chat(recorded.prompt)]).encode()
        digest = hashlib.blake2b(key, digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            yield recorded


def _right_answer(recorded: RecordedTurn) -> str:
    """Return the right answer to the turn's problem from a verifier's request, or "" if no verifier received one."""
    return answers_of(recorded.trajectory).get(recorded.turn.problem, "")


def _tools(recorded: RecordedTurn) -> Mapping[str, str]:
    """Return the tool schemas as one JSON text, as TRL accepts them: no column type fits every schema."""
    tools = [json.loads(tool) for tool in recorded.turn.request.tools]
    return {"tools": json.dumps(tools)} if tools else {}


def _chat(messages: Sequence[Message]) -> list[Row]:
    return [message._asdict() for message in messages]
