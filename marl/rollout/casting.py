"""Roles by name, and the requests that they make of their policies."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import overload

from marl.answer_text import public_text
from marl.protocols import RoleConfig, Tool, View
from marl.protocols.roles import MarkedPrompt
from marl.provenance import NO_ORIGINS, Origin, Span, carry, merged, plain, swap_notes, taken
from marl.text import well_formed
from marl.types import EdgeKind, Mark, Message, Request, Turn, TurnId


class RoleCasting:
    """Roles by name, and the seed of everything that they sample."""

    def __init__(self, roles: Mapping[str, RoleConfig], seed: int) -> None:
        self.roles, self.seed = roles, seed
        self._options: dict[tuple[str, tuple[str, ...]], dict[str, str]] = {}
        self._toolboxes = frozenset(name for name, role in roles.items() if role.answers_calls)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle nothing that can be worked out again."""
        return RoleCasting, (self.roles, self.seed)

    def greedy(self) -> RoleCasting:
        """Return the same roles, sampling at temperature 0."""
        return RoleCasting({name: _greedy(role) for name, role in self.roles.items()}, self.seed)

    def options(self, role: str, legal: tuple[str, ...] | None) -> Mapping[str, str] | None:
        """Return legal move -> the text with which `role` says it; None if any text is a move."""
        if legal is None:
            return None
        known = self._options.get((role, legal))
        if known is None:
            known = self._options[role, legal] = {move: self.roles[role].phrase(move) for move in legal}
        return known

    def heard(self, turn: Turn) -> Turn:
        """Return a turn as others hear it: without the thoughts that its role hides."""
        text = turn.completion.text
        if self.roles[turn.role].thinking == "show" or (public := public_text(text)) == text:
            return turn
        return replace(turn, completion=replace(turn.completion, text=public))

    def marked(self, turns: Sequence[Turn], known: dict[TurnId, Turn], *, mine: bool = False) -> Sequence[Turn]:
        """Return turns with texts and moves that know from which turn they are.

        `known`: those that were marked before. `mine`: they are the reader's.
        """
        kinds: tuple[EdgeKind, EdgeKind] = ("self", "self") if mine else ("heard", "tool")
        return _MarkedTurns(turns, known, kinds, self._toolboxes) if turns else ()

    def request(self, role: str, view: View, seed: int) -> Request:
        """Return the request that `role` makes of its policy in the situation `view`.

        Observations may hold texts from outside: lone surrogates, which no file and no tokenizer takes, are replaced.
        """
        speaker = self.roles[role]
        prompt = _prompt(speaker, view)
        return Request(
            policy=speaker.policy,
            messages=prompt.texts,
            sampling=speaker.sampling,
            seed=seed,
            options=self.options(role, view.info["legal"]),
            state=well_formed(plain(view.info["state"])),
            continues=speaker.continues(view),
            examples=tuple([well_formed(speaker.phrase(move)) for move in view.info.get("examples", ())]),
            tools=_schemas(speaker.tools) if speaker.tools else (),
            marks=tuple(
                [mark for index, spans in enumerate(prompt.spans) if spans for mark in _marks(spans, index, view)]
            ),
        )


class _MarkedTurns(Sequence[Turn]):
    """Turns whose texts are marked when they are looked at, as most prompts look at few of them."""

    __slots__ = ("_kinds", "_known", "_toolboxes", "turns")

    def __init__(
        self,
        turns: Sequence[Turn],
        known: dict[TurnId, Turn],
        kinds: tuple[EdgeKind, EdgeKind],
        toolboxes: Collection[str],
    ) -> None:
        """`kinds`: of a turn, and of one that answers a tool call."""
        self.turns, self._known, self._kinds, self._toolboxes = turns, known, kinds, toolboxes

    def __len__(self) -> int:
        return len(self.turns)

    def __iter__(self) -> Iterator[Turn]:
        return map(self._mark, self.turns)

    @overload
    def __getitem__(self, place: int) -> Turn: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Turn]: ...
    def __getitem__(self, place: int | slice) -> Turn | Sequence[Turn]:
        if isinstance(place, slice):
            return _MarkedTurns(self.turns[place], self._known, self._kinds, self._toolboxes)
        return self._mark(self.turns[place])

    def _mark(self, turn: Turn) -> Turn:
        marked = self._known.get(turn.id)
        if marked is None:
            origins = frozenset([Origin(turn.id, self._kinds[turn.role in self._toolboxes])])
            completion = replace(turn.completion, text=carry(turn.completion.text, origins))
            action = turn.action and carry(turn.action, origins)
            marked = self._known[turn.id] = replace(turn, completion=completion, action=action)
        return marked


def _unmarked(turns: Sequence[Turn]) -> Sequence[Turn]:
    return turns.turns if isinstance(turns, _MarkedTurns) else turns


def _greedy(role: RoleConfig) -> RoleConfig:
    return role.model_copy(update={"sampling": role.sampling.model_copy(update={"temperature": 0.0})})


def _prompt(speaker: RoleConfig, view: View) -> MarkedPrompt:
    """Return the prompt of a role, all of it marked by what the role itself looked at to make it."""
    notes = swap_notes(NO_ORIGINS)
    try:
        messages, origins = speaker.messages(view), taken()
    finally:
        swap_notes(notes)
    if origins:
        return MarkedPrompt.of(Message(each.role, carry(each.content, origins)) for each in messages)
    return messages if isinstance(messages, MarkedPrompt) else MarkedPrompt.of(messages)


def _marks(spans: tuple[Span, ...], index: int, view: View) -> Iterator[Mark]:
    """Yield the parts of a message that were made from earlier turns, by beginning."""
    named: list[Span] = []
    for span in spans:
        begin, end, origin = span
        if isinstance(origin.source, tuple):
            named.append(span)
        else:
            named += [(begin, end, turn) for turn in _turns(origin.source, origin.kind, view)]
    for begin, end, (source, kind) in merged(named):
        yield Mark(source, kind, index, begin, end)  # type: ignore[arg-type]  # `_turns` names turns by their ids


def _turns(step: int | None, kind: EdgeKind, view: View) -> list[Origin]:
    """Return the turns, by their ids, that an origin of the game stands for."""
    if step is not None:
        turn = view.turns[step]
        return [Origin(turn.id, "self" if kind == "told" and turn.agent == view.agent else kind)]
    origins = [Origin(turn.id, "told") for turn in _unmarked(view.unread)]
    if view.mine and view.agent in view.info["hears"]:
        origins.append(Origin(_unmarked(view.mine)[-1].id, "self"))
    return origins


def _schemas(tools: tuple[Tool, ...]) -> tuple[str, ...]:
    return tuple(json.dumps({"type": "function", "function": tool.model_dump(mode="json")}) for tool in tools)
