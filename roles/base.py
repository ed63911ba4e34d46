"""What all roles share: instructions and prompt as jinja2 templates, and what of the past a prompt holds."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar

from jinja2 import TemplateError
from pydantic import BeforeValidator, WithJsonSchema, field_validator

from marl.config import nearest
from marl.protocols import RoleConfig, View
from marl.types import Message, Turn
from roles.templates import known_names, source_of, template, uses

_SETTLED = ("agent", "observation", "legal", "attempt", "continued", "tools")
_PAST = ("heard", "before", "mine", "last")

TemplateText = Annotated[
    str,
    BeforeValidator(source_of),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "properties": {"file": {"type": "string"}},
                    "required": ["file"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
"""A jinja2 template, or `{file: PATH}` of one."""

_Speech = tuple[str, str, tuple[str, ...]]
"""Instructions, prompt, and the names of the role's own settings that they may use."""
_Settled = tuple[Hashable, ...]


@lru_cache(maxsize=256)
def _remembers(instructions: str, prompt: str) -> bool:
    """Whether a prompt holds anything of what was said before."""
    return not (uses(instructions) | uses(prompt)).isdisjoint(_PAST)


def _render(speech: _Speech, settled: _Settled, past: dict[str, Any]) -> tuple[Message, ...]:
    instructions, prompt, own = speech
    facts: dict[str, Any] = {**dict(zip((*_SETTLED, *own), settled, strict=True)), **past}
    try:
        user = template(prompt).text(facts).strip("\n")
        system = "" if facts["continued"] else template(instructions).text(facts).strip("\n")
    except TemplateError as error:
        raise ValueError(f"a role's template cannot be filled in for {facts['agent']}: {error.message}") from error
    return (Message("system", system), Message("user", user)) if system else (Message("user", user),)


@lru_cache(maxsize=4096)
def _known(speech: _Speech, settled: _Settled) -> tuple[Message, ...]:
    """What depends on few facts only is the same prompt again and again in a small game."""
    return _render(speech, settled, {})


def _facts(turns: Sequence[Turn]) -> list[dict[str, str | None]]:
    return [
        {"agent": turn.agent, "role": turn.role, "text": turn.completion.text, "move": turn.action} for turn in turns
    ]


def _past(view: View) -> dict[str, Any]:
    mine = [turn.completion.text for turn in view.mine]
    return {
        "heard": _facts(view.unread),
        "before": _facts([turn for turn in view.read if turn.agent in view.info["hears"]]),
        "mine": mine,
        "last": mine[-1] if mine else None,
    }


class BaseRole(RoleConfig):
    """Speaks in one system message (`instructions`) and one user message (`prompt`), both jinja2 templates.

    A template is text, which may extend or include those in `roles/prompts`, or `{file: PATH}`. It may use

    - `observation`, `agent`, `legal` (moves or none), `attempt` (refused answers so far), `tools` (pairs of name and
      description), `continued` (whether the prompt goes on from this agent's last turn, which it need not repeat);
    - `heard`: what was said, and can be heard, since this agent's last turn: a list of `agent`, `role`, `text` and
      `move` (what was read from the text, or none); `before`: the same of what it had heard by then
      from those whom it still hears;
    - `mine`: the texts that this agent said; `last`: the latest of them, or none;
    - the role's own settings that it shows.
    """

    shown: ClassVar[tuple[str, ...]] = ()
    """Own settings that templates may use; their values must be hashable."""
    instructions: TemplateText = ""
    prompt: TemplateText = "{{ observation }}"

    @field_validator("instructions", "prompt")
    @classmethod
    def _works(cls, source: str) -> str:
        names = (*_SETTLED, *_PAST, *cls.shown)
        if unknown := sorted(uses(source) - {*names, *known_names()}):
            raise ValueError(f"the template uses {unknown[0]!r}, which does not exist; {nearest(unknown[0], names)}")
        return source

    def messages(self, view: View) -> tuple[Message, ...]:
        info = view.info
        tools = tuple([(tool.name, tool.description) for tool in self.tools]) if self.tools else ()
        goes_on = self.history == "append" and bool(view.mine)
        settled = (view.agent, view.observation["text"], info["legal"], info["attempt"], goes_on, tools)
        if self.shown:
            settled += tuple([getattr(self, name) for name in self.shown])
        speech = (self.instructions, self.prompt, self.shown)
        if _remembers(self.instructions, self.prompt):
            return _render(speech, settled, _past(view))
        return _known(speech, settled)

    def continues(self, view: View) -> tuple[int, ...]:
        if self.history == "fresh" or not view.mine:
            return ()
        last = view.mine[-1].completion
        return (*last.prompt_ids, *last.token_ids)

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        move = text.strip()
        return move if move and (legal is None or move in legal) else None

    def phrase(self, move: str) -> str:
        return move
