"""Whoever says how to go about a problem."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from roles.answer import AnsweringRole
from roles.base import TemplateText


class Planner(AnsweringRole):
    """Says how to solve a problem; the plan is all that it says."""

    kind: str = "planner"
    instructions: TemplateText = "{% extends 'planner.jinja2' %}"
    answer: Literal["tag", "boxed", "bracket", "json", "code", "last_line", "whole"] = "whole"
    tag: str = Field(default="plan", pattern=r"^[A-Za-z][\w-]*$")
