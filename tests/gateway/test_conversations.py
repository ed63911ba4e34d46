"""Conversations of calls share the messages that they have in common, and none changes another."""

from __future__ import annotations

from marl.core.types import ToolCall
from marl.gateway.calls import Conversation


def texts(conversation: Conversation) -> list[str]:
    return [message.content + "".join(call.name for call in message.calls) for message in conversation.messages()]


def asked(*questions: str) -> Conversation:
    conversation = Conversation()
    for question in questions:
        conversation.add_message("user", question)
    return conversation


def test_two_conversations_that_continue_a_third_differently_keep_their_own_messages() -> None:
    first = asked("a", "b")
    before = first.messages()
    one, other = first.copy(), first.copy()
    one.add_message("user", "c")
    other.add_message("user", "d")
    first.add_message("user", "e")
    one.add_message("user", "f")
    assert (texts(one), texts(other), texts(first)) == (["a", "b", "c", "f"], ["a", "b", "d"], ["a", "b", "e"])
    assert [message.content for message in before] == ["a", "b"]
    assert one.digest == asked("a", "b", "c", "f").digest != other.digest


def test_a_tool_call_that_is_added_to_a_shared_answer_does_not_reach_the_others() -> None:
    first = asked("a")
    first.add_message("assistant", "answer")
    before = first.messages()
    continued = first.copy()
    continued.add_tool_call(ToolCall("search", "{}", "x"))
    continued.add_tool_call(ToolCall("open", "{}", "y"))
    assert texts(continued) == ["a", "answersearchopen"]
    assert texts(first) == ["a", "answer"]
    assert before[-1].calls == ()


def test_a_tool_call_after_a_refused_message_of_another_conversation_is_added_to_the_last_own_answer() -> None:
    first = asked("a")
    first.add_message("assistant", "answer")
    refused = first.copy()
    refused.add_message("user", "of a body that is refused later")
    first.add_tool_call(ToolCall("search", "{}", "x"))
    first.add_message("tool", "found", call_id="x")
    assert texts(first) == ["a", "answersearch", "found"]
    assert texts(refused) == ["a", "answer", "of a body that is refused later"]
