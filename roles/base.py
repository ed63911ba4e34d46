"""What all roles share: instructions and prompt as jinja2 templates, and what of the past a prompt holds."""

from __future__ import annotations

from functools import lru_cache

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import field_validator

from marl.config import nearest
from marl.protocols import RoleConfig, View
from marl.types import Message

# Scenario files are shared, so their templates run in a sandbox; an unknown name is an error, not an empty string.
_environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=False)

_FACTS = ("observation", "agent", "legal", "attempt", "heard")
"""What a template may use."""
_Seen = tuple[str, str, tuple[str, ...] | None, int]
_Heard = tuple[tuple[str, str], ...]


@lru_cache(maxsize=256)
def _uses(source: str) -> frozenset[str]:
    """The names that a template reads."""
    return frozenset(meta.find_undeclared_variables(_environment.parse(source)))


@lru_cache(maxsize=256)
def _template(source: str) -> Template:
    return _environment.from_string(source)


@lru_cache(maxsize=256)
def _hears(instructions: str, prompt: str) -> bool:
    return "heard" in _uses(instructions) | _uses(prompt)


def _render(instructions: str, prompt: str, goes_on: bool, seen: _Seen, heard: _Heard) -> tuple[Message, ...]:
    agent, observation, legal, attempt = seen
    facts = {
        "observation": observation,
        "agent": agent,
        "legal": legal,
        "attempt": attempt,
        "heard": [{"agent": speaker, "text": text} for speaker, text in heard],
    }
    user = Message("user", _template(prompt).render(facts))
    system = "" if goes_on else _template(instructions).render(facts)
    return (Message("system", system), user) if system else (user,)


@lru_cache(maxsize=4096)
def _known(instructions: str, prompt: str, goes_on: bool, seen: _Seen) -> tuple[Message, ...]:
    """What depends on few facts only is the same prompt again and again in a small game."""
    return _render(instructions, prompt, goes_on, seen, ())


class BaseRole(RoleConfig):
    """Speaks in one system message (`instructions`) and one user message (`prompt`), both jinja2 templates.

    They may use `observation`, `agent`, `legal` (moves or none), `attempt` (refused answers so far) and `heard` (a
    list of `agent` and `text`: what was said, and can be heard, since this agent's last turn).
    """

    instructions: str = ""
    prompt: str = "{{ observation }}"

    @field_validator("instructions", "prompt")
    @classmethod
    def _compiles(cls, source: str) -> str:
        try:
            _template(source)
        except TemplateSyntaxError as error:
            raise ValueError(f"not a jinja2 template: {error.message} (line {error.lineno})") from error
        if unknown := sorted(_uses(source) - {*_FACTS, *_environment.globals}):
            raise ValueError(f"the template uses {unknown[0]!r}, which does not exist; {nearest(unknown[0], _FACTS)}")
        return source

    def messages(self, view: View) -> tuple[Message, ...]:
        goes_on = self.history == "append" and bool(view.mine)
        seen = (view.agent, view.observation["text"], view.info["legal"], view.info["attempt"])
        if _hears(self.instructions, self.prompt):
            heard = tuple((turn.agent, turn.completion.text) for turn in view.unread)
            return _render(self.instructions, self.prompt, goes_on, seen, heard)
        return _known(self.instructions, self.prompt, goes_on, seen)

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
