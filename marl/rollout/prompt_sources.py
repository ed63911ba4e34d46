"""Sources of the prompts of a program's calls: earlier answers that a conversation repeats.

Programs send a long dialogue whole with every call. So digests and sources of recent conversations are kept, and a
conversation that continues one of them costs only its new messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from marl.core.list_snapshot import begins_with
from marl.core.types import EdgeKind, Message, SpanFromEarlierTurn, Turn, TurnId
from marl.protocols import ProgramModelCall
from marl.rollout.quotations import QuotationFinder, SearchedTexts
from marl.text.answers import remove_thoughts
from marl.text.tool_calls import join_tool_calls, split_tool_calls

PROVISIONAL = ""
"""Episode id in the provisional turn ids of calls, which get their final ids after their program has ended."""
_MAX_RECENT = 64
"""Maximum number of recent conversations of a program that are kept."""


@dataclass(slots=True)
class _ConversationSpans:
    """Spans of a conversation that come from earlier turns, and the facts on which they depend."""

    agent: str
    """Agent that the program asks."""
    first_message: int
    """Index of the first searched message, from which the spans count messages."""
    answers: int
    """Number of recorded answers for which the messages were searched."""
    discarded: int
    """Number of discarded calls at that time."""
    end: int
    """Index after the last searched message."""
    spans: list[SpanFromEarlierTurn] = field(default_factory=list[SpanFromEarlierTurn])
    depth: int = -1
    """Largest depth of a call that a span comes from, or -1 if there is none."""
    digests: set[str] = field(default_factory=set[str])
    """Digests of the prefixes that end with an assistant's message."""
    texts: SearchedTexts = field(default_factory=SearchedTexts)
    """Contents of messages that are not the agent's own."""
    quoted: set[str] = field(default_factory=set[str])
    """Answers that `texts` quote."""
    names_unknown_call: bool = False
    """True if a tool's result names a call that was not made so far."""


@dataclass(slots=True)
class KnownConversation:
    """Messages of a call, with what is known of them."""

    messages: Sequence[Message]
    digests: list[str]
    """Digest of each non-empty prefix of `messages`. Prefixes that differ only in wire format have equal digests."""
    last: Message | None = None
    """Last message."""
    spans: _ConversationSpans | None = None


class RecentConversations:
    """Recent conversations of a program."""

    def __init__(self) -> None:
        self._recent: list[KnownConversation] = []
        """Conversations in the order of their last use."""

    def find_or_add(self, messages: Sequence[Message]) -> KnownConversation:
        """Return the conversation of `messages`. It is valid until the next call, which may extend it in place."""
        conversation = KnownConversation((), [])
        lengths = {len(known.digests) for known in self._recent}
        ends = {length: messages[length - 1] for length in lengths if length <= len(messages)}
        for index in reversed(range(len(self._recent))):
            known = self._recent[index]
            # Comparing the last messages first avoids comparing most of the full conversations.
            if ends.get(len(known.digests)) == known.last and begins_with(messages, known.messages):
                conversation = self._recent.pop(index)
                break
        digests = conversation.digests
        for message in messages[len(digests) :]:
            digests.append(extend_digest(digests[-1] if digests else "", message))
        if messages:
            conversation.messages, conversation.last = messages, messages[-1]
            self._recent.append(conversation)
            del self._recent[:-_MAX_RECENT]
        return conversation


def extend_digest(prefix_digest: str, message: Message) -> str:
    """Return the digest of the conversation with `prefix_digest` ("" if it is empty) after `message` is appended."""
    content = message.content
    if message.role == "assistant":
        # Clients may drop thoughts, strip spaces and reformat the arguments of tool calls, so all three are normalised.
        text, tool_calls = remove_thoughts(content).strip(), message.calls
        content = join_tool_calls(text, tool_calls) if tool_calls else join_tool_calls(*split_tool_calls(text))
    return blake2b(f"{prefix_digest}\0{message.role}\0{content}".encode(), digest_size=16).hexdigest()


class _Call(NamedTuple):
    agent: str
    depth: int
    """Number of edges of the longest path of inner turns that ends at this call."""


class PromptSources:
    """Finder of the earlier turns that the prompts of a program's calls repeat."""

    def __init__(self, read_turns: Iterable[Turn]) -> None:
        """`read_turns`: turns of the game that the program's agent has read, and that its calls may quote."""
        self._calls: dict[int, _Call] = {}
        """Id of a call that was not discarded -> the call."""
        self._answered: dict[str, int] = {}
        """Digest of a conversation that ends with an answer -> id of the answered call."""
        self._answers: list[tuple[str, str]] = []
        """(visible text, digest of the conversation that ends with it) of each answer, in order."""
        self._discarded = 0
        self._finder: QuotationFinder[TurnId] = QuotationFinder()
        for turn in read_turns:
            self._finder.add_answer(turn.id, turn.completion.text.strip())

    def add_call(self, call_id: int, agent: str, depth: int) -> None:
        """Add a call without an answer so far."""
        self._calls[call_id] = _Call(agent, depth)

    def discard_call(self, call_id: int) -> None:
        """Remove the call with this id, if there is one, so that it is no source any more."""
        if self._calls.pop(call_id, None):
            self._discarded += 1

    def add_answer(self, call_id: int, text: str, conversation_digest: str, sort_key: Any) -> None:
        """Add the answer `text` to call `call_id`.

        Args:
            call_id: id of the call.
            text: text of the answer.
            conversation_digest: digest of the call's conversation, "" for an empty one.
            sort_key: sort key of the call among calls with equal answers.
        """
        visible = split_tool_calls(remove_thoughts(text))[0]
        self._finder.add_answer((PROVISIONAL, call_id), visible, sort_key)
        digest = extend_digest(conversation_digest, Message("assistant", text))
        self._answered[digest] = call_id
        self._answers.append((visible, digest))

    def find_own_answered_call(self, agent: str, conversation_digest: str) -> int | None:
        """Return the id of the call that `agent` answered with the end of `conversation_digest`, or None."""
        call_id = self._answered.get(conversation_digest)
        return call_id if call_id in self._calls and self._calls[call_id].agent == agent else None

    def find_spans_and_depth(
        self, call: ProgramModelCall, conversation: KnownConversation, first_message: int
    ) -> tuple[tuple[SpanFromEarlierTurn, ...], int]:
        """Return the spans of a call's messages that come from earlier turns, and the largest depth of these turns.

        Args:
            call: call of the program.
            conversation: the call's conversation.
            first_message: index of the first message of the prompt, from which the spans count messages.
        """
        known, digests = conversation.spans, conversation.digests
        is_valid = known is not None and self._is_valid(known, call.agent, first_message)
        if not (known and is_valid and self._extend_spans(known, call, digests)):
            known = _ConversationSpans(
                call.agent, first_message, len(self._answers), self._discarded, end=first_message
            )
            conversation.spans = known
            self._extend_spans(known, call, digests)
        return tuple(known.spans), known.depth

    def _is_valid(self, known: _ConversationSpans, agent: str, first_message: int) -> bool:
        """Return True if the spans in `known` hold for a call of `agent`, after all answers so far."""
        if (known.agent, known.first_message, known.discarded) != (agent, first_message, self._discarded):
            return False
        if known.names_unknown_call:
            return False
        for answer, digest in self._answers[known.answers :]:
            if digest in known.digests or (answer and known.texts.may_quote(answer)):
                return False
        known.answers = len(self._answers)
        return True

    def _extend_spans(self, known: _ConversationSpans, call: ProgramModelCall, digests: Sequence[str]) -> bool:
        """Add the spans of the messages after those in `known`. Return False if these would change earlier spans."""
        spans: list[SpanFromEarlierTurn] = []
        quoting: list[tuple[int, str]] = []
        for index in range(known.end, len(call.messages)):
            message, own = call.messages[index], None
            if message.role == "assistant":
                known.digests.add(digests[index])
                own = self.find_own_answered_call(call.agent, digests[index])
            if own is None:
                quoting.append((index - known.first_message, message.content))
            else:
                source = (PROVISIONAL, own)
                spans.append(SpanFromEarlierTurn(source, "self", index - known.first_message, 0, len(message.content)))
        quoted: set[str] = set()
        for quotation in self._finder.find_quotations(quoting):
            answer = call.messages[known.first_message + quotation.text].content[quotation.begin : quotation.end]
            # Several sources of one answer are assigned to all its quotations, so to earlier ones, too.
            if answer in known.quoted and self._finder.count_sources(answer) > 1:
                return False
            quoted.add(answer)
            episode, number = quotation.source
            is_own = episode == PROVISIONAL and number in self._calls and self._calls[number].agent == call.agent
            if episode != PROVISIONAL or number in self._calls:
                kind: EdgeKind = "self" if is_own else "heard"
                spans.append(
                    SpanFromEarlierTurn(quotation.source, kind, quotation.text, quotation.begin, quotation.end)
                )
        for index, caller in call.tool_sources:
            if index >= known.end and caller in self._calls:
                length = len(call.messages[index].content)
                spans.append(SpanFromEarlierTurn((PROVISIONAL, caller), "tool", index - known.first_message, 0, length))
            elif index >= known.end:
                known.names_unknown_call = True
        known.spans += sorted(spans, key=lambda span: (span.message, span.begin, span.end, span.source[1]))
        depths = [self._calls[span.source[1]].depth for span in spans if span.source[0] == PROVISIONAL]
        known.depth = max(known.depth, *depths, -1)
        known.end = len(call.messages)
        known.quoted |= quoted
        for _, text in quoting:
            known.texts.add(text)
        return True
