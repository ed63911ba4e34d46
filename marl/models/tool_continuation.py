"""Proof that a prompt can continue an answer with tool calls, by rendering the chat whole and in parts."""

from __future__ import annotations

from marl.core.config import Sampling, shorten
from marl.core.types import Message, Request, ToolCall
from marl.models.chat_template import ChatTokenizer
from marl.models.tool_call_formats import PROBE_TOOL_SCHEMA
from marl.text.answers import remove_thoughts
from marl.text.tool_calls import split_tool_calls, to_tool_call

_QUESTION = Message("user", "marl-probe-question")
_CALLS = (to_tool_call("probe_tool", {"text": "a b"}), to_tool_call("probe_tool", {"text": "c"}))
_RESULTS = (Message("tool", "marl-probe-result", name="probe_tool"), Message("tool", "another", name="probe_tool"))


def tool_continuation_fault(chat: ChatTokenizer) -> str:
    """Return the reason why `history: append` cannot continue after a tool call with this chat template, or "".

    The whole chat of question, calls and results must consist of the prompt with the question, an answer that is read
    as these calls, and the continuation with the results.
    """
    counts = [1]
    if not isinstance(chat.tool_call_format, str) and _renders(chat, _CALLS):
        counts.append(2)
    for count in counts:
        if fault := _fault_with_calls(chat, _CALLS[:count], _RESULTS[:count]):
            return fault
    return ""


def _fault_with_calls(chat: ChatTokenizer, calls: tuple[ToolCall, ...], results: tuple[Message, ...]) -> str:
    answer = Message("assistant", "", calls)
    try:
        head, whole = _rendered(chat, _QUESTION), _rendered(chat, _QUESTION, answer, *results)
        continuations: dict[str, str] = {}
        for end in sorted(chat.ends):
            # The answer ends with the sampled end token, which the continuation then leaves out.
            continuations[chat.tokenizer.decode([end])] = _rendered(chat, *results, continues=(end,))
    except ValueError as error:
        return str(error)
    if not whole.startswith(head):
        return "the chat template renders a question differently if an answer with a call follows"
    for end, continuation in continuations.items():
        sampled = whole[len(head) :].removesuffix(continuation)
        if whole.endswith(end + continuation) and _read_calls(chat, sampled, head) == calls:
            return ""
    return (
        "the chat template renders a call and its result as "
        f"{shorten(repr(whole[len(head) :]), 200)}, which is no answer with a call, followed by the result alone"
    )


def _rendered(chat: ChatTokenizer, *messages: Message, continues: tuple[int, ...] = ()) -> str:
    """Return the text of a prompt, without the tokens that it continues."""
    request = Request("", messages, Sampling(), continues=continues, tools=(PROBE_TOOL_SCHEMA,))
    ids = chat.prompt(request).ids[len(continues) :]
    return chat.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _renders(chat: ChatTokenizer, calls: tuple[ToolCall, ...]) -> bool:
    """Return True if the chat template renders an answer with several calls."""
    try:
        text = _rendered(chat, _QUESTION, Message("assistant", "", calls), *_RESULTS)
    except ValueError:
        return False
    return text.count(_CALLS[0].name) >= len(calls)


def _read_calls(chat: ChatTokenizer, answer: str, prompt: str) -> tuple[ToolCall, ...]:
    """Return the calls in `answer`, a text with special tokens, as engines and roles read them."""
    ids, prompt_ids = (chat.tokenizer(text, add_special_tokens=False).input_ids for text in (answer, prompt))
    text = chat.thinking_prefix + chat.text(tuple(ids))
    return split_tool_calls(remove_thoughts(chat.canonical_answer(text, ids, prompt_ids, (PROBE_TOOL_SCHEMA,))))[1]
