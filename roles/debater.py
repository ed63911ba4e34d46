"""Whoever argues for an answer."""

from __future__ import annotations

from roles.answer import AnsweringRole
from roles.base import TemplateText


class Debater(AnsweringRole):
    """Answers a question in rounds, each time with the others' answers at hand."""

    kind: str = "debater"
    instructions: TemplateText = "{% extends 'debater.jinja2' %}"
