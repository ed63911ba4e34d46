"""What all roles share: instructions and prompt as jinja2 templates, and what of the past a prompt holds."""

from __future__ import annotations

from functools import lru_cache

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import PrivateAttr, field_validator

from marl.protocols import RoleConfig, View
from marl.types import Message

# Scenario files are shared, so their templates run in a sandbox; an unknown name is an error, not an empty string.
_environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=False)


@lru_cache(maxsize=256)
def _uses(source: str) -> frozenset[str]:
    """The names that a template reads."""
    return frozenset(meta.find_undeclared_variables(_environment.parse(source)))


@lru_cache(maxsize=256)
def _template(source: str) -> Template:
    return _environment.from_string(source)


class BaseRole(RoleConfig):
    """Speaks in one system message (`instructions`) and one user message (`prompt`), both jinja2 templates.

    They may use `observation`, `agent`, `legal` (moves or none), `attempt` (refused answers so far) and `heard` (a
    list of `agent` and `text`: what was said, and can be heard, since this agent's last turn).
    """

    instructions: str = ""
    prompt: str = "{{ observation }}"
    _said: dict[tuple[str, str, tuple[str, ...] | None, int, bool], tuple[Message, ...]] = PrivateAttr(
        default_factory=dict
    )

    @field_validator("instructions", "prompt")
    @classmethod
    def _compiles(cls, source: str) -> str:
        try:
            _template(source)
        except TemplateSyntaxError as error:
            raise ValueError(f"not a jinja2 template: {error.message} (line {error.lineno})") from error
        return source

    def messages(self, view: View) -> tuple[Message, ...]:
        goes_on = self.history == "append" and bool(view.mine)
        if "heard" in _uses(self.prompt) | _uses(self.instructions):
            return self._render(view, goes_on)
        # What depends on few facts only is the same prompt again and again in a small game.
        key = (view.agent, view.observation["text"], view.info["legal"], view.info["attempt"], goes_on)
        known = self._said.get(key)
        if known is None:
            if len(self._said) > 4096:
                self._said.clear()
            known = self._said[key] = self._render(view, goes_on)
        return known

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

    def _render(self, view: View, goes_on: bool) -> tuple[Message, ...]:
        facts = {
            "observation": view.observation["text"],
            "agent": view.agent,
            "legal": view.info["legal"],
            "attempt": view.info["attempt"],
            "heard": [{"agent": turn.agent, "text": turn.completion.text} for turn in view.unread],
        }
        user = Message("user", _template(self.prompt).render(facts))
        if goes_on:
            return (user,)
        system = _template(self.instructions).render(facts)
        return (Message("system", system), user) if system else (user,)
