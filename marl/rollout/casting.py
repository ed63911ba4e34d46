"""Roles by name, and the requests that they make of their policies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from marl.answer_text import public_text
from marl.protocols import RoleConfig, Tool, View
from marl.text import well_formed
from marl.types import Message, Request, Turn


class RoleCasting:
    """Roles by name, and the seed of everything that they sample."""

    def __init__(self, roles: Mapping[str, RoleConfig], seed: int) -> None:
        self.roles, self.seed = roles, seed
        self._options: dict[tuple[str, tuple[str, ...]], dict[str, str]] = {}

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

    def request(self, role: str, view: View, seed: int) -> Request:
        """Return the request that `role` makes of its policy in the situation `view`.

        Observations may hold texts from outside: lone surrogates, which no file and no tokenizer takes, are replaced.
        """
        speaker = self.roles[role]
        return Request(
            policy=speaker.policy,
            messages=_well_formed(speaker.messages(view)),
            sampling=speaker.sampling,
            seed=seed,
            options=self.options(role, view.info["legal"]),
            state=well_formed(view.info["state"]),
            continues=speaker.continues(view),
            examples=tuple([well_formed(speaker.phrase(move)) for move in view.info.get("examples", ())]),
            tools=_schemas(speaker.tools) if speaker.tools else (),
        )


def _greedy(role: RoleConfig) -> RoleConfig:
    return role.model_copy(update={"sampling": role.sampling.model_copy(update={"temperature": 0.0})})


def _well_formed(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    if all(message.content.isascii() for message in messages):
        return messages  # the usual case; equal prompts stay one object
    return tuple([Message(message.role, well_formed(message.content)) for message in messages])


def _schemas(tools: tuple[Tool, ...]) -> tuple[str, ...]:
    return tuple(json.dumps({"type": "function", "function": tool.model_dump(mode="json")}) for tool in tools)
