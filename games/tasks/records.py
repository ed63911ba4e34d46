"""Records task: each of several records holds a value, and a question asks for some of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from string import ascii_lowercase
from typing import Any, Self

from pydantic import Field, model_validator

from games.tasks.base import Draft, GeneratedTask, wrong_answers
from marl.types import Problem


class RecordsTask(GeneratedTask):
    """Records `a3 b5 c7` and a question that names one of them and all that it needs: `c asks for a c` -> `a3 c7`.

    The question does not hold the records: a game deals them out (`communication` with `evidence: split`), so that
    whoever holds the record that asks has to hear of the others.
    """

    kind: str = "records"
    records: int = Field(3, ge=2, le=len(ascii_lowercase))
    """Number of records; they are called a, b, c, ..."""
    values: int = Field(10, ge=2, le=10_000)
    """Number of values that a record may have: 0, 1, 2, ..."""
    needs: tuple[int, int] | None = None
    """Fewest and most records that a question asks for, the one that asks included; all numbers between are equally
    likely. Default: 1 to all of them."""

    @model_validator(mode="after")
    def _check_needs(self) -> Self:
        low, high = self.needs_range
        if not 1 <= low <= high <= self.records:
            raise ValueError(
                f"needs: {[low, high]} is no range; choices: [low, high] with 1 <= low <= high <= {self.records}"
            )
        return self

    @property
    def needs_range(self) -> tuple[int, int]:
        """Fewest and most records that a question asks for."""
        return self.needs or (1, self.records)

    @property
    def secret_facts(self) -> frozenset[str]:
        return frozenset({"evidence"})

    def draw(self, rng: random.Random) -> Draft:
        names = ascii_lowercase[: self.records]
        values = [rng.randrange(self.values) for _ in names]
        respondent = rng.choice(names)
        rest = [name for name in names if name != respondent]
        needs = sorted([respondent, *rng.sample(rest, rng.randint(*self.needs_range) - 1)])
        parts = {name: f"{name}{value}" for name, value in zip(names, values, strict=True)}
        evidence = {"parts": parts, "needs": needs, "respondent": respondent}
        question = f"{respondent} asks for {' '.join(needs)}"
        key = f"{question} : {' '.join(parts.values())}"
        return Draft(key, len(needs), partial(_write, key, question, evidence, self.values))


def _write(key: str, question: str, evidence: dict[str, Any], values: int) -> Problem:
    """Return the problem; its wrong answers have one wrong value."""
    right: Sequence[str] = [evidence["parts"][name] for name in evidence["needs"]]
    slips = [
        " ".join([*right[:place], f"{part[0]}{(int(part[1:]) + slip) % values}", *right[place + 1 :]])
        for slip in (1, 2, 3)
        for place, part in enumerate(right)
    ]
    answer = " ".join(right)
    return Problem(key, question, answer, wrong_answers(slips, answer), {"evidence": evidence})
