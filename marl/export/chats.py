"""Recorded turns as rows of chats, for libraries that train on texts: TRL, verl and OpenAI's fine-tuning.

They hold texts and no token ids: whoever reads them tokenises anew.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from marl.export.selection import RecordedTurn
from marl.scenario.load import ScenarioError
from marl.types import Message
from marl.view.verdicts import answers_of

Format = Literal["parquet", "trl-sft", "trl-dpo", "trl-prompts", "verl", "openai"]
By = Literal["advantage", "return"]
Row = dict[str, Any]
Rows = Callable[[Iterable[RecordedTurn]], Iterator[Row]]


@dataclass(frozen=True, slots=True)
class PairRule:
    """Rule by which answers to one prompt become a pair: the best one is chosen, the worst one rejected."""

    by: By = "advantage"
    """Value that is compared: of the turn, or what its agent was paid in the episode. Of an answer that was given
    several times, it is the mean."""
    min_margin: float = 0.0
    """Pairs that differ by less are left out, and always those that do not differ."""


def answered(turns: Iterable[RecordedTurn]) -> Iterator[RecordedTurn]:
    """Yield the turns in which there is an answer to compare: those that failed, or are empty, are left out."""
    for recorded in turns:
        completion = recorded.turn.completion
        if completion.text and completion.finish in ("stop", "length"):
            yield recorded


def ended(turns: Iterable[RecordedTurn]) -> Iterator[RecordedTurn]:
    """Yield the turns with a whole answer to imitate. One that was cut off is left out: trainers write the end token
    behind each answer, and would teach to stop in the middle."""
    return (recorded for recorded in answered(turns) if recorded.turn.completion.finish == "stop")


def sft_rows(turns: Iterable[RecordedTurn]) -> Iterator[Row]:
    """Yield rows of TRL's SFTTrainer: a prompt and its completion, of which the latter is learned."""
    for recorded in ended(turns):
        answer = [_message(Message("assistant", recorded.turn.completion.text))]
        yield {"prompt": _chat(recorded.prompt), "completion": answer, **_tools(recorded)}


def openai_rows(turns: Iterable[RecordedTurn]) -> Iterator[Row]:
    """Yield rows of OpenAI's supervised fine-tuning: a chat that ends with the assistant's answer.

    Earlier answers in a chat have weight 0. Without it all of them would be learned again with every later one, also
    those that the selection leaves out.
    """
    for recorded in ended(turns):
        earlier = [_message(m) | ({"weight": 0} if m.role == "assistant" else {}) for m in recorded.prompt]
        answer = _message(Message("assistant", recorded.turn.completion.text))
        tools = [json.loads(tool) for tool in recorded.turn.request.tools]
        yield {"messages": [*earlier, answer], **({"tools": tools} if tools else {})}


@dataclass(slots=True)
class _Answers:
    """Answers to one prompt in one step."""

    recorded: RecordedTurn
    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Text -> its values."""


def pair_rows(turns: Iterable[RecordedTurn], rule: PairRule) -> Iterator[Row]:
    """Yield rows of TRL's DPOTrainer: from all answers of a step to the same prompt, by the same policy in episodes
    with the same start, the best and the worst one. The answers of one step are held at a time.

    Raises:
        ScenarioError: if advantages are compared, and no turn of a step has one.
    """
    step, groups, judged = 0, {}, True
    for recorded in answered(turns):
        if recorded.step != step:
            yield from _pairs(groups.values(), rule)
            _expect_judged(step, rule, judged=judged)
            step, groups, judged = recorded.step, {}, False
        value = _value(recorded, rule.by)
        judged = judged or value is not None
        if value is not None:
            answers = groups.setdefault(_group(recorded), _Answers(recorded))
            answers.values[recorded.turn.completion.text].append(value)
    yield from _pairs(groups.values(), rule)
    _expect_judged(step, rule, judged=judged)


def _expect_judged(step: int, rule: PairRule, *, judged: bool) -> None:
    if not judged and rule.by == "advantage":
        raise ScenarioError(f"step {step}: none of its turns has an advantage to compare; give --by return")


def _value(recorded: RecordedTurn, by: By) -> float | None:
    if by == "return":
        return recorded.total
    return recorded.judged.advantage if recorded.judged else None


def _group(recorded: RecordedTurn) -> tuple[object, ...]:
    request = recorded.turn.request
    return recorded.trajectory.start, request.policy, recorded.turn.role, request.tools, recorded.prompt


def _pairs(groups: Iterable[_Answers], rule: PairRule) -> Iterator[Row]:
    for answers in groups:
        # Equal values: the first text, so that the same run gives the same pairs.
        means = {text: fmean(values) for text, values in answers.values.items()}
        chosen, rejected = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
        margin = means[chosen] - means[rejected]
        if margin > 0 and margin >= rule.min_margin:
            recorded = answers.recorded
            yield {
                "prompt": _chat(recorded.prompt),
                "chosen": [_message(Message("assistant", chosen))],
                "rejected": [_message(Message("assistant", rejected))],
                **{"score_chosen": means[chosen], "score_rejected": means[rejected]},
                **{"step": recorded.step, "role": recorded.turn.role, **_tools(recorded)},
            }


def prompt_rows(turns: Iterable[RecordedTurn]) -> Iterator[Row]:
    """Yield rows of TRL's GRPOTrainer: each prompt once. Other columns are arguments of its reward functions."""
    for recorded in _different(turns):
        turn = recorded.turn
        yield {
            **{"prompt": _chat(recorded.prompt), "role": turn.role, "start": recorded.trajectory.start},
            **{"problem": turn.problem, "answer": _answer(recorded), **_tools(recorded)},
        }


def verl_rows(turns: Iterable[RecordedTurn], source: Callable[[RecordedTurn], str]) -> Iterator[Row]:
    """Yield rows of verl's data for reinforcement learning: each prompt once, with the right answer where there is one.

    `source`: the name of the data by which verl picks a reward function.
    """
    for index, recorded in enumerate(_different(turns)):
        turn, name = recorded.turn, source(recorded)
        yield {
            **{"data_source": name, "prompt": _chat(recorded.prompt), "ability": name},
            "reward_model": {"style": "rule", "ground_truth": _answer(recorded)},
            "extra_info": {
                **{"split": "train", "index": index, "step": recorded.step, "role": turn.role, "agent": turn.agent},
                **{"start": recorded.trajectory.start, "problem": turn.problem},
            },
        }


def _different(turns: Iterable[RecordedTurn]) -> Iterator[RecordedTurn]:
    """Yield the first turn of each prompt; prompts are told apart by 16 bytes each, which are all that is held."""
    seen: set[bytes] = set()
    for recorded in turns:
        turn = recorded.turn
        key = json.dumps([turn.role, turn.problem, turn.request.tools, _chat(recorded.prompt)]).encode()
        digest = hashlib.blake2b(key, digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            yield recorded


def _answer(recorded: RecordedTurn) -> str:
    """Return the right answer to the problem that the turn is about, as verifiers read it; "" if none did."""
    return answers_of(recorded.trajectory).get(recorded.turn.problem, "")


def _tools(recorded: RecordedTurn) -> Mapping[str, str]:
    """Return the schemas of tools as one text of JSON, which TRL takes: a table has no type for all schemas."""
    tools = [json.loads(tool) for tool in recorded.turn.request.tools]
    return {"tools": json.dumps(tools)} if tools else {}


def _chat(messages: Sequence[Message]) -> list[Row]:
    return [_message(message) for message in messages]


def _message(message: Message) -> Row:
    return {"role": message.role, "content": message.content}
