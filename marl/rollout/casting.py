"""Roles by name, and the requests they send to their policies."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import overload

from marl.core.types import EdgeKind, Message, Request, SourceSpan, Turn, TurnId
from marl.host.outside import replace_surrogates
from marl.protocols import PromptContext, RoleConfig
from marl.protocols.roles import MarkedPrompt
from marl.text.answers import public_text
from marl.text.origins import (
    NO_ORIGINS,
    Origin,
    Span,
    add_origins,
    merged,
    swap_recorded_origins,
    take_recorded_origins,
    without_origins,
)


class RoleCasting:
    """Roles by name, and the seed of all their samples."""

    def __init__(self, roles: Mapping[str, RoleConfig], seed: int) -> None:
        self.roles, self.seed = roles, seed
        self._options: dict[tuple[str, tuple[str, ...]], dict[str, str]] = {}
        """Role and legal moves -> text of each move."""
        self._toolboxes = frozenset(name for name, role in roles.items() if role.answers_calls)
        """Roles whose turns are results of tool calls."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the constructor's arguments alone, without the cache."""
        return RoleCasting, (self.roles, self.seed)

    def greedy(self) -> RoleCasting:
        """Return the same roles, sampling at temperature 0."""
        roles: dict[str, RoleConfig] = {}
        for name, role in self.roles.items():
            sampling = role.sampling.model_copy(update={"temperature": 0.0})
            roles[name] = role.model_copy(update={"sampling": sampling})
        return RoleCasting(roles, self.seed)

    def option_texts(self, role: str, legal: tuple[str, ...] | None) -> Mapping[str, str] | None:
        """Return legal move -> the text of `role` for the move, or None if any text is a move."""
        if legal is None:
            return None
        texts = self._options.get((role, legal))
        if texts is None:
            texts = self._options[role, legal] = {move: self.roles[role].phrase(move) for move in legal}
        return texts

    def public_turn(self, turn: Turn) -> Turn:
        """Return `turn` as other agents read it: without thoughts if its role hides them."""
        text = turn.completion.text
        if self.roles[turn.role].thinking == "show" or (public := public_text(text)) == text:
            return turn
        return replace(turn, completion=replace(turn.completion, text=public))

    def with_origins(self, turns: Sequence[Turn], cache: dict[TurnId, Turn], *, mine: bool = False) -> Sequence[Turn]:
        """Return `turns` with their texts and moves marked by turn of origin.

        `cache`: turns marked by earlier calls. `mine`: True for turns of the reader.
        """
        kinds: tuple[EdgeKind, EdgeKind] = ("self", "self") if mine else ("heard", "tool")
        return _MarkedTurns(turns, cache, kinds, self._toolboxes) if turns else ()

    def request(self, role: str, view: PromptContext, seed: int) -> Request:
        """Return the request of `role` to its policy in the situation `view`.

        Observations may contain text from outside: lone surrogates, refused by files and tokenizers, are replaced.
        """
        speaker = self.roles[role]
        prompt = _prompt(speaker, view)
        marks: list[SourceSpan] = []
        for index, spans in enumerate(prompt.spans):
            if spans:
                marks += _marks(spans, index, view)
        tools = [json.dumps({"type": "function", "function": tool.model_dump(mode="json")}) for tool in speaker.tools]
        return Request(
            policy=speaker.policy,
            messages=prompt.texts,
            sampling=speaker.sampling,
            seed=seed,
            options=self.option_texts(role, view.info["legal"]),
            state=replace_surrogates(without_origins(view.info["state"])),
            continues=speaker.continues(view),
            examples=tuple([replace_surrogates(speaker.phrase(move)) for move in view.info.get("examples", ())]),
            tools=tuple(tools),
            answer_schema=speaker.answer_schema if speaker.sampling.structured == "json" else "",
            marks=tuple(marks),
        )


class _MarkedTurns(Sequence[Turn]):
    """Turns whose texts are marked on access: most prompts read few of them."""

    __slots__ = ("_cache", "_kinds", "_toolboxes", "turns")

    def __init__(
        self,
        turns: Sequence[Turn],
        cache: dict[TurnId, Turn],
        kinds: tuple[EdgeKind, EdgeKind],
        toolboxes: Collection[str],
    ) -> None:
        """`kinds`: kinds of the edges from an ordinary turn and from a turn with the result of a tool call."""
        self.turns, self._cache, self._kinds, self._toolboxes = turns, cache, kinds, toolboxes

    def __len__(self) -> int:
        return len(self.turns)

    def __iter__(self) -> Iterator[Turn]:
        return map(self._mark, self.turns)

    @overload
    def __getitem__(self, index: int) -> Turn: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Turn]: ...
    def __getitem__(self, index: int | slice) -> Turn | Sequence[Turn]:
        if isinstance(index, slice):
            return _MarkedTurns(self.turns[index], self._cache, self._kinds, self._toolboxes)
        return self._mark(self.turns[index])

    def _mark(self, turn: Turn) -> Turn:
        marked = self._cache.get(turn.id)
        if marked is None:
            origins = frozenset([Origin(turn.id, self._kinds[turn.role in self._toolboxes])])
            completion = replace(turn.completion, text=add_origins(turn.completion.text, origins))
            action = turn.action and add_origins(turn.action, origins)
            marked = self._cache[turn.id] = replace(turn, completion=completion, action=action)
        return marked


def _unmarked(turns: Sequence[Turn]) -> Sequence[Turn]:
    return turns.turns if isinstance(turns, _MarkedTurns) else turns


def _prompt(speaker: RoleConfig, view: PromptContext) -> MarkedPrompt:
    """Return the prompt of a role. Origins read by the role's own code mark the whole prompt."""
    # The recording is one per thread: a caller's own goes on afterwards, without the origins of this prompt.
    notes = swap_recorded_origins(NO_ORIGINS)
    try:
        messages, origins = speaker.messages(view), take_recorded_origins()
    finally:
        swap_recorded_origins(notes)
    if origins:
        return MarkedPrompt.of(Message(message.role, add_origins(message.content, origins)) for message in messages)
    return messages if isinstance(messages, MarkedPrompt) else MarkedPrompt.of(messages)


def _marks(spans: tuple[Span, ...], index: int, view: PromptContext) -> Iterator[SourceSpan]:
    """Yield the spans of message `index` with earlier turns as their source, by beginning."""
    named: list[Span] = []
    for span in spans:
        begin, end, origin = span
        if isinstance(origin.source, tuple):
            named.append(span)
        else:
            named += [(begin, end, source) for source in _turn_origins(origin.source, origin.kind, view)]
    for begin, end, (source, kind) in merged(named):
        yield SourceSpan(source, kind, index, begin, end)  # type: ignore[arg-type]  # `_turn_origins` gives turn ids


def _turn_origins(step: int | None, kind: EdgeKind, view: PromptContext) -> list[Origin]:
    """Return the turns behind an origin noted by the game: the turn of `step`, or all turns in the prompt."""
    if step is not None:
        turn = view.turns[step]
        return [Origin(turn.id, "self" if kind == "told" and turn.agent == view.agent else kind)]
    origins = [Origin(turn.id, "told") for turn in _unmarked(view.new_turns)]
    if view.own_turns and view.agent in view.info["hears"]:
        origins.append(Origin(_unmarked(view.own_turns)[-1].id, "self"))
    return origins
