"""Small functions to be written, with unit tests."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from pydantic import Field

from games.tasks.base import Draft, Generated, digest
from games.tasks.templates import FAMILIES, Parameters, written
from marl.seeds import seed_of
from marl.types import Problem

Name = Literal[
    "between", "letters", "multiples", "every", "select", "mask", "digits", "shift", "steps", "window", "recurrence"
]
_SHOWN = 2
"""Tests that the question shows; those who only know these are found out by the others."""


class Code(Generated):
    """Functions of one argument to be written in Python; the answer is source code.

    `facts`: `entry`, the function's name; `tests`, each a `call` and the `repr` of what it should give (`expect`);
    `shown`, how many of them the question tells.
    """

    kind: str = "code"
    families: tuple[Name, ...] = Field(tuple(FAMILIES), min_length=1)  # type: ignore[assignment]
    """What the functions do."""
    tests: int = Field(8, ge=4, le=12)
    """Per problem."""

    def draw(self, rng: random.Random) -> Draft:
        name = rng.choice(self.families)
        parameters = FAMILIES[name].draw(rng)
        key = f"{name} {digest(parameters)}"
        return Draft(key, FAMILIES[name].difficulty, partial(self._write, key, name, parameters))

    def _write(self, key: str, name: str, parameters: Parameters) -> Problem:
        asked, solution, wrong = written(FAMILIES[name], parameters)
        tests = self._tests(key, name, parameters)
        shown = "\n".join([f"{test['call']} == {test['expect']}" for test in tests[:_SHOWN]])
        question = f"Write a Python function f that {asked}\nExamples:\n{shown}"
        facts = {"entry": "f", "tests": tests, "shown": _SHOWN}
        return Problem(key, question, solution, (*wrong, "def f(x):\n    return None\n"), facts)

    def _tests(self, key: str, name: str, parameters: Parameters) -> list[Mapping[str, Any]]:
        """Different ones; the first tell the usual mistakes apart."""
        family = FAMILIES[name]
        inputs = [*family.edges(parameters), *family.inputs(random.Random(seed_of("tests", key)))]
        called = {repr(value): family.right(value, parameters) for value in inputs}
        return [{"call": f"f({value})", "expect": repr(right)} for value, right in list(called.items())[: self.tests]]
