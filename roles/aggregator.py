"""Whoever makes one answer of several."""

from __future__ import annotations

from roles.answer import AnsweringRole
from roles.base import TemplateText


class Aggregator(AnsweringRole):
    """Reads several answers, numbered, and gives one: the best of them, a summary, or a better one."""

    kind: str = "aggregator"
    instructions: TemplateText = "{% extends 'aggregator.jinja2' %}"
    prompt: TemplateText = "{% extends 'candidates.jinja2' %}"
