"""Whoever poses problems."""

from __future__ import annotations

from pydantic import Field

from roles.answer import AnsweringRole
from roles.base import TemplateText


class Challenger(AnsweringRole):
    """Poses a problem for others to solve."""

    kind: str = "challenger"
    instructions: TemplateText = "{% extends 'challenger.jinja2' %}"
    tag: str = Field(default="question", pattern=r"^[A-Za-z][\w-]*$")
