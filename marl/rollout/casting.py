"""Who speaks how: roles by name, and the requests they make of their policies."""

from __future__ import annotations

import json
from collections.abc import Mapping

from marl.protocols import RoleConfig, Tool, View
from marl.types import Request


class Cast:
    """Who speaks how: roles by name, and the seed of everything they say."""

    def __init__(self, roles: Mapping[str, RoleConfig], seed: int) -> None:
        self.roles, self.seed = roles, seed
        self._options: dict[tuple[str, tuple[str, ...]], dict[str, str]] = {}

    def greedy(self) -> Cast:
        """The same roles, always saying what is most likely."""
        return Cast({name: _most_likely(role) for name, role in self.roles.items()}, self.seed)

    def options(self, role: str, legal: tuple[str, ...] | None) -> Mapping[str, str] | None:
        """Legal move -> the text with which `role` says it."""
        if legal is None:
            return None
        known = self._options.get((role, legal))
        if known is None:
            known = self._options[role, legal] = {move: self.roles[role].phrase(move) for move in legal}
        return known

    def request(self, role: str, view: View, seed: int) -> Request:
        """What `role` asks its policy in the situation `view`."""
        speaker = self.roles[role]
        return Request(
            policy=speaker.policy,
            messages=speaker.messages(view),
            sampling=speaker.sampling,
            seed=seed,
            options=self.options(role, view.info["legal"]),
            state=view.info["state"],
            continues=speaker.continues(view),
            examples=tuple([speaker.phrase(move) for move in view.info.get("examples", ())]),
            tools=_schemas(speaker.tools) if speaker.tools else (),
        )


def _most_likely(role: RoleConfig) -> RoleConfig:
    return role.model_copy(update={"sampling": role.sampling.model_copy(update={"temperature": 0.0})})


def _schemas(tools: tuple[Tool, ...]) -> tuple[str, ...]:
    return tuple(json.dumps({"type": "function", "function": tool.model_dump(mode="json")}) for tool in tools)
