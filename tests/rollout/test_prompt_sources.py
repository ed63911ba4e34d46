"""Sources of a conversation that are kept from call to call are those that a search from its beginning finds."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from marl.core.types import Message, SpanFromEarlierTurn
from marl.protocols import ProgramModelCall
from marl.rollout.prompt_sources import PromptSources, RecentConversations

AGENTS = ("planner", "solver")
ANSWERS = ("4", "5", " 4\n", "it is 4", "the sum of both is 4", "the sum of both is 4 or 5", "")


class Answer(NamedTuple):
    call: int
    text: str
    prefix: str
    depth: int


class Program:
    """Calls, answers and lost answers of one run of a program."""

    def __init__(self) -> None:
        self.sources, self.conversations = PromptSources(()), RecentConversations()
        self.events: list[tuple[str, int, str, int] | Answer | int] = []
        """Each call, answer and discarded call so far."""
        self.reused = 0

    def ask(self, call: ProgramModelCall, first: int) -> None:
        """Compare the sources of `call` with those of a new search, and record it."""
        conversation = self.conversations.find_or_add(call.messages)
        before = conversation.spans
        spans, depth = self.sources.find_spans_and_depth(call, conversation, first)
        self.reused += before is not None and conversation.spans is before
        assert (spans, depth) == self.search_anew(call, first)
        self.sources.add_call(call.id, call.agent, depth + 1)
        self.events.append((call.agent, call.id, conversation.digests[-1], depth + 1))

    def search_anew(self, call: ProgramModelCall, first: int) -> tuple[tuple[SpanFromEarlierTurn, ...], int]:
        sources = PromptSources(())
        for event in self.events:
            if isinstance(event, int):
                sources.discard_call(event)
            elif isinstance(event, Answer):
                sources.add_answer(event.call, event.text, event.prefix, (event.depth, event.call))
            else:
                sources.add_call(event[1], event[0], event[3])
        return sources.find_spans_and_depth(call, RecentConversations().find_or_add(call.messages), first)

    def answer(self, number: int, text: str) -> None:
        prefix, depth = next((e[2], e[3]) for e in self.events if isinstance(e, tuple) and e[1] == number)
        self.sources.add_answer(number, text, prefix, (depth, number))
        self.events.append(Answer(number, text, prefix, depth))

    def lose(self, number: int) -> None:
        self.sources.discard_call(number)
        self.events.append(number)


def words(rng: random.Random) -> str:
    pieces = [*ANSWERS, "so: ", "\n", "\n", "and", f"question {rng.randrange(100)}"]
    return "".join(rng.choices(pieces, k=rng.randint(1, 4)))


@pytest.mark.parametrize("first", [0, 1])
def test_sources_kept_from_call_to_call_are_those_of_a_new_search(first: int) -> None:
    reused = 0
    for seed in range(30):
        rng, program = random.Random(seed), Program()
        chats: list[list[Message]] = [[Message("user", "begin")]]
        for number in range(1, 25):
            chat = rng.choice(chats)
            if rng.random() < 0.2:
                # Another conversation begins like this one.
                chat = chat[: rng.randint(1, len(chat))]
                chats.append(chat)
            chat.append(Message("user", words(rng)))
            if rng.random() < 0.2:
                chat.append(Message("tool", f"result of call_{rng.randint(1, number):x}x0"))
            tool_sources = [
                (index, int(message.content[15:-2], 16)) for index, message in enumerate(chat) if message.role == "tool"
            ]
            agent = rng.choice(AGENTS)
            program.ask(ProgramModelCall(number, 0, agent, tuple(chat), tool_sources=tuple(tool_sources)), first)
            if rng.random() < 0.1:
                continue
            text = rng.choice(ANSWERS) if rng.random() < 0.5 else f"the answer to call {number}"
            program.answer(number, text)
            chat.append(Message("assistant", text if rng.random() < 0.9 else words(rng)))
            if rng.random() < 0.05:
                program.lose(rng.randint(1, number))
        reused += program.reused
    assert reused > 100


def test_a_dialogue_of_different_answers_is_searched_once() -> None:
    program, chat = Program(), list[Message]()
    for number in range(1, 9):
        chat.append(Message("user", f"question {number}"))
        program.ask(ProgramModelCall(number, 0, "solver", tuple(chat)), 0)
        program.answer(number, f"answer {number}")
        chat.append(Message("assistant", f"answer {number}"))
    assert program.reused == 7


def test_an_equal_answer_of_another_call_becomes_the_source_of_an_earlier_line() -> None:
    program, chat = Program(), [Message("user", "add")]
    for number in (1, 2):
        program.ask(ProgramModelCall(number, 0, "planner", (Message("user", f"plan {number}"),)), 0)
    program.answer(1, "the sum of both is 4")
    chat.append(Message("user", "read: the sum of both is 4"))
    program.ask(ProgramModelCall(3, 0, "solver", tuple(chat)), 0)
    program.answer(2, "the sum of both is 4")
    chat.append(Message("user", "go on"))
    call = ProgramModelCall(4, 0, "solver", tuple(chat))
    [span], depth = program.sources.find_spans_and_depth(call, program.conversations.find_or_add(call.messages), 0)
    assert (span.source, span.kind, span.message, depth) == (("", 2), "heard", 1, 0)
