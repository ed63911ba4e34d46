"""Tool calls in the chat templates that TRL ships: each is read back exactly, or refused with the reason."""

from __future__ import annotations

import json
import random
import re

import pytest

from marl.core.config import Sampling
from marl.core.types import Message, Request, ToolCall
from marl.models.tool_call_formats import AnswerWithCalls, ToolCallFormat
from marl.models.tool_continuation import tool_continuation_fault
from marl.text.answers import remove_thoughts
from marl.text.json_text import parse_strict_json
from marl.text.tool_calls import split_tool_calls, to_tool_call
from tests.support.trl_templates import TEMPLATES, chat

if not TEMPLATES:
    pytest.skip("TRL is not installed", allow_module_level=True)
READ = (
    "llama3_1", "llama3_2", "qwen2_5", "qwen2_5_training", "qwen3", "qwen3_5_nothink", "qwen3_5_nothink_training",
    "qwen3_5_think", "qwen3_5_think_training", "qwen3_6", "qwen3_6_training", "qwen3_8", "qwen3_8_training",
    "qwen3_instruct_2507", "qwen3_instruct_2507_training", "qwen3_training", "qwen3_vl", "qwen3_vl_training",
)  # fmt: skip
"""Templates whose calls are read back. All others must be refused with a reason, or take no tools."""
SINGLE = ("llama3_1", "llama3_2")
"""Templates that render one call only."""
SCHEMA = json.dumps(
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Searches.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "Words."},
                    "count": {"type": "integer", "description": "Number of results."},
                },
            },
        },
    }
)
CALL = to_tool_call("search", {"query": 'le "mot" juste é 7 < 8', "count": 3})
OTHER = to_tool_call("search", {"query": "12"})
QUESTION = Message("user", "Which papers?")


def prompt_ids(name: str, *messages: Message) -> tuple[int, ...]:
    return chat(name).prompt(Request("actor", messages, Sampling(), tools=(SCHEMA,))).ids


def rendered_answer(name: str, *answer: Message) -> tuple[int, ...]:
    """Return the tokens of an answer as the template writes it, up to its end token, before a tool's result."""
    tokenizer, results = chat(name).tokenizer, tuple(Message("tool", "found") for _ in answer[0].calls)
    head, whole = (tokenizer.decode(prompt_ids(name, QUESTION, *more)) for more in ((), (*answer, *results)))
    assert whole.startswith(head)
    ids = encoded(name, whole[len(head) :])
    return ids[: 1 + next(place for place, token in enumerate(ids) if token in chat(name).ends)]


def read(name: str, ids: tuple[int, ...]) -> str:
    """Return the text of the answer `ids` as engines give it to roles."""
    tokenizer = chat(name)
    text = tokenizer.thinking_prefix + tokenizer.text(ids)
    return tokenizer.canonical_answer(text, ids, prompt_ids(name, QUESTION), (SCHEMA,))


def encoded(name: str, text: str) -> tuple[int, ...]:
    return tuple(chat(name).tokenizer(text, add_special_tokens=False).input_ids)


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in READ])
def test_another_template_is_refused_with_the_reason(name: str) -> None:
    reason = chat(name).tool_call_format
    assert isinstance(reason, str)
    assert re.search(r"takes no tools|does not render calls|reads back the call|differently|refuses messages", reason)


@pytest.mark.parametrize("name", READ)
def test_a_call_is_read_back_exactly(name: str) -> None:
    for call in (CALL, OTHER):
        answer = rendered_answer(name, Message("assistant", "", (call,)))
        assert split_tool_calls(remove_thoughts(read(name, answer))) == ("", (call,))


@pytest.mark.parametrize("name", [name for name in READ if name not in SINGLE])
def test_a_text_with_several_calls_and_a_thought_is_read_back_exactly(name: str) -> None:
    answer = rendered_answer(name, Message("assistant", "Let me look.", (CALL, OTHER)))
    assert split_tool_calls(remove_thoughts(read(name, answer))) == ("Let me look.", (CALL, OTHER))
    tokenizer = chat(name)
    written = tokenizer.tokenizer.decode(rendered_answer(name, Message("assistant", "", (OTHER, CALL))))
    begin = "" if tokenizer.thinking_prefix else "<think>\n"
    thought = f"{begin}Is <tool_call> right?\n</think>\n\n{written[written.index('<tool_call>') :]}"
    text = read(name, encoded(name, thought))
    assert text.startswith("<think>\nIs <tool_call> right?\n</think>")
    assert split_tool_calls(remove_thoughts(text)) == ("", (OTHER, CALL))


@pytest.mark.parametrize("name", SINGLE)
def test_a_template_of_single_calls_refuses_several(name: str) -> None:
    with pytest.raises(ValueError, match="single tool-calls at once"):
        prompt_ids(name, QUESTION, Message("assistant", "", (CALL, OTHER)))


@pytest.mark.parametrize("name", READ)
def test_an_answer_without_a_call_stays_as_it_is(name: str) -> None:
    tokenizer = chat(name)
    for text in ("Nothing was found.", 'The format is {"name": "search"}.', "", "<think>\nHm.\n</think>\n\nNo."):
        ids = encoded(name, text + tokenizer.tokenizer.decode(sorted(tokenizer.ends)[:1]))
        assert read(name, ids) == tokenizer.thinking_prefix + tokenizer.text(ids)


@pytest.mark.parametrize("name", READ)
def test_a_prompt_may_continue_after_a_call(name: str) -> None:
    assert tool_continuation_fault(chat(name)) == ""


@pytest.mark.parametrize("name", ["deepseekv3", "gemma4", "nemotron_3_nano", "gptoss"])
def test_a_template_that_cannot_continue_after_a_call_says_why(name: str) -> None:
    assert re.search("renders a question differently|is no answer with a call", tool_continuation_fault(chat(name)))


@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "qwen3_5_nothink"])
def test_a_continued_prompt_is_the_whole_chat(name: str) -> None:
    call, result = Message("assistant", "", (CALL,)), Message("tool", "3 papers", name="search")
    before = (*prompt_ids(name, QUESTION), *rendered_answer(name, call))
    request = Request("actor", (result,), Sampling(), continues=before, tools=(SCHEMA,))
    continued = chat(name).prompt(request).ids
    assert continued[: len(before)] == before
    # Tokens may differ where the rendered answer begins: a whole chat merges characters across this place.
    decode = chat(name).tokenizer.decode
    assert decode(continued) == decode(prompt_ids(name, QUESTION, call, result))


_PIECES = [
    "", '"', "{", "}", ",", ":", "\\", "\n", " ", "0", "é", "<tool_call>", "</tool_call>", "NaN", "<parameter=query>",
    "</parameter>", "</function>", "<|im_end|>", "<|eot_id|>", "</think>", '"name": "search", ', '"query": "again", ',
]  # fmt: skip


def _mutated(text: str, rng: random.Random) -> str:
    """Return `text` with one to three random edits."""
    for _ in range(rng.randint(1, 3)):
        begin = rng.randrange(len(text) + 1)
        end = min(len(text), begin + rng.choice((0, 1, 1, 2, 5, 20)))
        piece = rng.choice([*_PIECES, text[end : end + 12]])
        text = text[:begin] + piece + text[end:]
    return text[: rng.randrange(len(text) + 1)] if rng.random() < 0.1 else text


def _valid_calls(name: str, text: str) -> list[ToolCall]:
    """Return the calls in `text` by a strict reading of the family's format that shares no code with the parser."""
    if name.startswith("llama"):
        spelled = re.findall(r'\{"name":\s*"([^"\\]+)",\s*"parameters":\s*(.*?)\}\s*<\|eot_id\|>', text, re.DOTALL)
        return [to_tool_call(tool, parse_strict_json(arguments)) for tool, arguments in spelled]
    calls: list[ToolCall] = []
    for spelled in re.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL):
        values = parse_strict_json(spelled)
        for value in values if isinstance(values, list) else [values]:
            calls.append(to_tool_call(value["name"], value["arguments"]))
    return calls


@pytest.mark.parametrize("name", ["qwen2_5", "llama3_1", "qwen3_5_nothink"])
def test_mutated_answers_never_raise_and_none_is_repaired(name: str) -> None:
    tokenizer, rng = chat(name), random.Random(name)
    call_format = tokenizer.tool_call_format
    assert isinstance(call_format, ToolCallFormat)
    sound = tokenizer.tokenizer.decode(rendered_answer(name, Message("assistant", "", (CALL,))))
    schemas, read_count = [json.loads(SCHEMA)], 0

    def render(calls: tuple[ToolCall, ...]) -> str:
        return tokenizer.tokenizer.decode(rendered_answer(name, Message("assistant", "", calls)))

    for _ in range(3400):
        text = _mutated(sound, rng)
        answer = call_format.read(text, "", render, schemas)
        if answer is None:
            continue
        read_count += 1
        assert isinstance(answer, AnswerWithCalls)
        if name.startswith("qwen3_5"):
            assert render(answer.calls) in text, "a call counts only if the template writes it in this way"
        else:
            assert list(answer.calls) == _valid_calls(name, text)
    assert read_count > 100, "some edits leave the call valid"
