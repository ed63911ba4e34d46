"""Records task: several records with one value each, and a question for some of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from string import ascii_lowercase
from typing import Any, Self

from pydantic import Field, model_validator

from marl.core.types import Problem
from marl.games.tasks.base import GeneratedTask, ProblemDraft, wrong_answers


class RecordsTask(GeneratedTask):
    """Records `a3 b5 c7` and a question from one record for several: `c asks for a c` -> `a3 c7`.

    The question does not contain the records. A game deals them out (`communication` with `evidence: split`), so that
    the agent with the asking record needs messages from the other agents.
    """

    kind: str = "records"
    records: int = Field(3, ge=2, le=len(ascii_lowercase))
    """Number of records, named a, b, c, ..."""
    values: int = Field(10, ge=2, le=10_000)
    """Number of possible values of a record: 0, 1, 2, ..."""
    needs: tuple[int, int] | None = None
    """Minimum and maximum number of records in a question, with the asking one; drawn uniformly (default: 1 to
    `records`)."""

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
        """Minimum and maximum number of records in a question."""
        return self.needs or (1, self.records)

    @property
    def secret_facts(self) -> frozenset[str]:
        return frozenset({"evidence"})

    def draw(self, rng: random.Random) -> ProblemDraft:
        names = ascii_lowercase[: self.records]
        values = [rng.randrange(self.values) for _ in names]
        respondent = rng.choice(names)
        other_names = [name for name in names if name != respondent]
        needs = sorted([respondent, *rng.sample(other_names, rng.randint(*self.needs_range) - 1)])
        parts = {name: f"{name}{value}" for name, value in zip(names, values, strict=True)}
        evidence = {"parts": parts, "needs": needs, "respondent": respondent}
        question = f"{respondent} asks for {' '.join(needs)}"
        key = f"{question} : {' '.join(parts.values())}"
        return ProblemDraft(key, len(needs), partial(_write, key, question, evidence, self.values))


def _write(key: str, question: str, evidence: dict[str, Any], values: int) -> Problem:
    """Return the problem; each of its wrong answers has one wrong value."""
    right: Sequence[str] = [evidence["parts"][name] for name in evidence["needs"]]
    candidates = list[str]()
    for offset in (1, 2, 3):
        for index, record in enumerate(right):
            wrong_record = f"{record[0]}{(int(record[1:]) + offset) % values}"
            candidates.append(" ".join([*right[:index], wrong_record, *right[index + 1 :]]))
    answer = " ".join(right)
    return Problem(key, question, answer, wrong_answers(candidates, answer), {"evidence": evidence})
