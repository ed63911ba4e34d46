"""Jinja2 templates that are filled in many thousand times a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Template
from jinja2.runtime import Context


class CompiledTemplate:
    """A template that is filled in fast.

    `Template.render` copies the environment's globals for every call, which costs more than most of our templates do;
    here they are copied once.
    """

    def __init__(self, template: Template) -> None:
        self._template, self._globals = template, dict(template.globals)

    def render(self, facts: Mapping[str, Any]) -> str:
        """Return the text, like `Template.render`.

        Raises:
            jinja2.TemplateError: for names that are undefined or not allowed.
        """
        return self.run(facts)[0]

    def run(self, facts: Mapping[str, Any]) -> tuple[str, Context]:
        """Return the text, and the context with the variables that the template has set."""
        context = self._template.new_context({**self._globals, **facts}, shared=True)
        return "".join(self._template.root_render_func(context)), context
