"""Turns of an episode before they are played, and prompts that are shortened because they exceed a limit of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from marl.core.types import (
    Completion,
    CompletionFailure,
    EdgeKind,
    Info,
    Message,
    Request,
    SpanFromEarlierTurn,
    Turn,
    TurnId,
)
from marl.host.untrusted_text import replace_surrogates
from marl.protocols import RoleConfig
from marl.rollout.inner_turns import InnerTurns
from marl.text.answers import remove_thoughts_and_strip
from marl.text.tool_calls import split_tool_calls

OMITTED = "(dropped)"
"""Content of a tool's result that was dropped from a prompt."""
_SUMMARY: TurnId = ("", 0)
"""Provisional id of a summary, which gets its id when the turn after it is played."""


@dataclass(slots=True)
class OwnAndReadTurns:
    """Turns of one agent in an episode, and turns of other agents that this agent has read."""

    turns: list[Turn]
    """Turns of the agent, in playing order."""
    read_counts: dict[str, int]
    """Other agent -> number of the other agent's turns that this agent has read."""
    read: list[Turn]
    """Turns of other agents that this agent has read."""


def take_unread_turns(agent: str, heard_agents: Sequence[str], memory: Mapping[str, OwnAndReadTurns]) -> list[Turn]:
    """Return the turns of other `heard_agents` that `agent` has not read, in playing order, and count them as read.

    `memory` has the turns of each agent.
    """
    unread: list[Turn] = []
    read_counts = memory[agent].read_counts
    for other_agent in heard_agents:
        if other_agent != agent:
            turns, read_count = memory[other_agent].turns, read_counts.get(other_agent, 0)
            if len(turns) > read_count:
                unread += turns[read_count:]
                read_counts[other_agent] = len(turns)
    if len(unread) > 1:
        unread.sort(key=lambda turn: turn.id[1])
    return unread


@dataclass(frozen=True, slots=True)
class FullPrompt:
    """Request that was refused because its prompt is too long, and how it was shortened so far."""

    request: Request
    shortenings: int = 0
    """Number of tool results, or of the agent's earlier answers with the messages after them, that were left out."""
    summary_request: Request | None = None
    """Request for a summary of the conversation, or None if there is no summary."""
    summary: Completion | None = None
    """Summary in place of the conversation, or None if there is none yet."""


@dataclass(slots=True)
class PendingTurn:
    """Turn before it is played: request, facts for the agent, edges and, once it has arrived, the answer."""

    request: Request
    info: Info
    reads: Mapping[TurnId, frozenset[EdgeKind]]
    """Id of an earlier turn -> kinds of its edge to this turn."""
    sent: bool = False
    """True after `Episode.take_new_requests` returned the request."""
    answer: Completion | None = None
    """Answer of the policy, or None before it arrives."""
    inner: InnerTurns | None = None
    """Model calls of the program that takes this turn, or None if no program takes it."""
    full: FullPrompt | None = None
    """Prompt that `request` replaces because it was too long, or None."""

    @property
    def has_summary(self) -> bool:
        """True if the prompt of `request` has a summary in place of a conversation."""
        return self.full is not None and self.full.summary is not None

    @property
    def _awaits_summary(self) -> bool:
        return self.full is not None and self.request is self.full.summary_request

    def replace_refused_prompt(
        self, failure: CompletionFailure, role: RoleConfig, own_turns: Sequence[Turn], summary_seed: int
    ) -> bool:
        """Replace the request by the next shorter one of `role`, if its prompt was refused as too long.

        Args:
            failure: answer to the request.
            role: role of the agent.
            own_turns: earlier turns of the agent.
            summary_seed: seed of the tokens of a summary.

        Return False if there is no shorter one, or if the request failed for another reason.
        """
        if self.full and self._awaits_summary:
            # Without a summary, the agent's answer is the one to the full prompt, which was refused.
            self.request, self.full = self.full.request, None
            return False
        when_full = role.context.when_full if role.context else "overflow"
        full, shorter = self.full or FullPrompt(self.request), None
        if failure.finish != "overflow" or when_full == "overflow":
            return False
        if when_full == "summarize":
            # A prompt that is too long although it has a summary is not summarized again.
            if self.full is None and full.request.continues:
                shorter = _summary_request(full.request, role, summary_seed)
                full = replace(full, summary_request=shorter)
        else:
            full = replace(full, shortenings=full.shortenings + 1)
            shorten = _without_oldest_results if when_full == "drop_tool_results" else _without_oldest_answers
            parts = shorten(_conversation(own_turns, full.request), full.shortenings)
            shorter = _request_of_parts(full.request, parts) if parts else None
        if shorter is None:
            return False
        self.full, self.request, self.sent = full, shorter, False
        return True

    def take_summary(self, answer: Completion, own_turns: Sequence[Turn]) -> bool:
        """Put the summary `answer` into the prompt, after the agent's first prompt and before the new messages.

        `own_turns` are the earlier turns of the agent. Return False if the request does not ask for a summary.
        """
        if self.full is None or not self._awaits_summary:
            return False
        text = replace_surrogates(answer.text)
        self.full = replace(self.full, summary=replace(answer, text=text))
        *before, question = _parts_of_request(own_turns[0].request)
        summary = remove_thoughts_and_strip(text)
        parts = [question, _Part.own(Message("user", summary), _SUMMARY), *_parts_of_request(self.full.request)]
        self.request = _request_of_parts(self.full.request, [*before, _join_to_user_message(parts)])
        self.sent = False
        return True

    def prescribe_summary(self, summary: Completion, summary_request: Request, own_turns: Sequence[Turn]) -> None:
        """Put `summary` into the prompt as if it had been the answer to `summary_request`."""
        self.full, self.request = FullPrompt(self.request, summary_request=summary_request), summary_request
        self.take_summary(summary, own_turns)

    def use_recorded_prompt(
        self, recorded: Request, reads: Mapping[TurnId, frozenset[EdgeKind]], prefix: tuple[int, ...]
    ) -> None:
        """Ask with the prompt of the request `recorded`, which has a recorded summary and edges from `reads`.

        The answer begins with the tokens `prefix`.
        """
        prompt = {"messages": recorded.messages, "continues": recorded.continues, "marks": recorded.marks}
        self.request, self.reads = replace(self.request, **prompt, prefix=prefix), reads

    def summary_turn(self, agent: str, role: str, turn_id: TurnId, nth: int) -> Turn | None:
        """Return the summary as an inner turn, which becomes the source of its text in the prompt; None without one."""
        if self.full is None or self.full.summary is None or self.full.summary_request is None:
            return None
        marks = [mark._replace(source=turn_id) if mark.source == _SUMMARY else mark for mark in self.request.marks]
        self.request = replace(self.request, marks=tuple(marks))
        return Turn(
            id=turn_id,
            agent=agent,
            nth=nth,
            attempt=0,
            role=role,
            request=self.full.summary_request,
            completion=self.full.summary,
            action=self.full.summary.text.strip() or None,
            problem=self.info.get("problem", ""),
            inner=True,
        )


_Span = tuple[TurnId, EdgeKind, int, int]
"""(source, kind, begin, end) of a span of a message that was made from an earlier turn."""


class _Part(NamedTuple):
    """Message of a conversation, with the spans that come from earlier turns."""

    message: Message
    spans: tuple[_Span, ...] = ()

    @classmethod
    def own(cls, message: Message, source: TurnId) -> _Part:
        """Return a part with one span: all of `message` comes from the turn `source`, which the agent took itself."""
        return cls(message, ((source, "self", 0, len(message.content)),))


def _parts_of_request(request: Request) -> list[_Part]:
    parts: list[_Part] = []
    for index, message in enumerate(request.messages):
        marks = [mark for mark in request.marks if mark.message == index]
        spans: list[_Span] = [(mark.source, mark.kind, mark.begin, mark.end) for mark in marks]
        parts.append(_Part(message, tuple(spans)))
    return parts


def _conversation(own_turns: Sequence[Turn], request: Request) -> list[_Part]:
    """Return the messages of the conversation that the prompt of `request` continues, and those of `request`."""
    continued: list[Turn] = []
    following = request
    for turn in reversed(own_turns):
        if not following.continues:
            break
        continued.insert(0, turn)
        following = turn.request
    parts: list[_Part] = []
    for turn in continued:
        content, calls = split_tool_calls(turn.completion.text)
        parts += [*_parts_of_request(turn.request), _Part.own(Message("assistant", content, calls), turn.id)]
    return parts + _parts_of_request(request)


def _without_oldest_results(parts: list[_Part], count: int) -> list[_Part] | None:
    """Return `parts` with the content of the oldest `count` tool results dropped; None if there are not as many."""
    shorter = list(parts)
    for index, part in enumerate(parts):
        if count and part.message.role == "tool" and part.message.content != OMITTED:
            shorter[index] = _Part(part.message._replace(content=OMITTED))
            count -= 1
    return None if count else shorter


def _without_oldest_answers(parts: list[_Part], count: int) -> list[_Part] | None:
    """Return `parts` without the oldest `count` answers and the messages that follow each.

    The result is None if the conversation has no more than `count` answers, as the last one is kept.
    """
    answers = [index for index, part in enumerate(parts) if part.message.role == "assistant"]
    return parts[: answers[0]] + parts[answers[count] :] if count < len(answers) else None


def _summary_request(full: Request, role: RoleConfig, seed: int) -> Request:
    """Return the request for a summary of the conversation that the prompt of `full` continues."""
    assert role.context is not None
    return Request(
        policy=full.policy,
        messages=(Message("user", role.context.ask),),
        sampling=role.sampling.model_copy(update={"structured": None}),
        seed=seed,
        continues=full.continues,
        purpose=full.purpose,
    )


def _join_to_user_message(parts: Sequence[_Part]) -> _Part:
    """Return one message of the user with the contents of `parts`, since results may not follow a message of a user."""
    content = ""
    spans: list[_Span] = []
    for part in parts:
        content += "\n\n" if content else ""
        shift = len(content)
        for source, kind, begin, end in part.spans:
            spans.append((source, kind, begin + shift, end + shift))
        content += part.message.content
    return _Part(Message("user", content), tuple(spans))


def _request_of_parts(request: Request, parts: Sequence[_Part]) -> Request:
    """Return `request` with a prompt that consists of `parts` and continues no other."""
    marks: list[SpanFromEarlierTurn] = []
    for index, part in enumerate(parts):
        marks += [SpanFromEarlierTurn(source, kind, index, begin, end) for source, kind, begin, end in part.spans]
    return replace(request, messages=tuple([part.message for part in parts]), continues=(), marks=tuple(marks))


def empty_completion_if_failed(answer: Completion | CompletionFailure) -> Completion:
    """Return `answer`, with a failure replaced by an empty completion that states the reason."""
    if isinstance(answer, Completion):
        return answer
    finish = "overflow" if answer.finish == "overflow" else "aborted"
    return Completion("", (), (), (), finish, usage=answer.usage, reason=answer.reason)
