"""Whoever solves a problem."""

from __future__ import annotations

from roles.answer import AnsweringRole
from roles.base import TemplateText


class Solver(AnsweringRole):
    """Answers a question, in tags, a box, brackets, JSON, code or as it stands."""

    kind: str = "solver"
    instructions: TemplateText = "{% extends 'solver.jinja2' %}"
