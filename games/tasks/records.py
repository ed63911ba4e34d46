"""Records task: several records with one value each, and a question for some of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from string import ascii_lowercase
from typing import Any, Self

from pydantic import Field, model_validator

from marl.core.seeds import hash_to_seed
from marl.core.types import Problem
from marl.games.tasks.base import (
    GeneratedTask,
    LazyProblem,
    TrainAndHeldOutProblems,
    first_distinct_wrong_answers,
)


class RecordsTask(GeneratedTask):
    """Questions about records `a3 b5 c7`, each for the values of some records: `c asks for a c` -> `a3 c7`.

    The question does not contain the records. A game deals one record to each agent (`communication` with `evidence:
    split`), so that the agent with record c needs messages from the other agents.
    """

    kind: str = "records"
    records: int = Field(default=3, ge=2, le=len(ascii_lowercase))
    """Number of records in a problem, named a, b, c, ..."""
    values: int = Field(default=10, ge=2, le=10_000)
    """Number of possible values of a record: 0, 1, 2, ..."""
    needs: tuple[int, int] | None = None
    """Minimum and maximum number of records in a question, including the record of the agent that asks. The number is
    drawn uniformly (default: from 1 to `records`)."""

    unseen: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of the questions, such as `c asks for a c`, that only held-out problems contain; all held-out problems
    then contain such a question. 0: held-out problems contain other values, and any question."""
    unseen_rotations: bool = False
    """True: `unseen` is a fraction of groups of questions that are equal up to a rotation of the records, such as `a
    asks for a c` and `b asks for b d`, and a group is held out as a whole. False: of single questions."""

    @model_validator(mode="after")
    def _check_needed_record_count(self) -> Self:
        low, high = self.needed_record_count_range
        if not 1 <= low <= high <= self.records:
            raise ValueError(
                f"needs: {[low, high]} is no range; choices: [low, high] with 1 <= low <= high <= {self.records}"
            )
        return self

    @property
    def needed_record_count_range(self) -> tuple[int, int]:
        """Minimum and maximum number of records in a question, from `needs` or its default."""
        return self.needs or (1, self.records)

    @property
    def secret_fact_names(self) -> frozenset[str]:
        return frozenset({"evidence"})

    @property
    def max_draws(self) -> int:
        return 1_200_000 // self.records

    @property
    def no_problem_fits_message(self) -> str:
        return (
            f"unseen: {self.unseen} and seed: {self.seed} leave one split without a question; choices: a fraction "
            "nearer to 0.5, another seed, or more records"
        )

    def train_and_held_out_problems(self) -> TrainAndHeldOutProblems:
        if not self.unseen:
            return super().train_and_held_out_problems()
        seed = hash_to_seed(self.kind, self.seed)
        train = self.draw_distinct_problems(self.train, seed, lambda draft: not self._is_unseen(draft))
        return train, self.draw_distinct_problems(self.held_out, seed, self._is_unseen)

    def _is_unseen(self, draft: LazyProblem) -> bool:
        """Return True if only held-out problems may contain the question of `draft`, by a hash of the question."""
        question = draft.key.partition(" : ")[0]
        if self.unseen_rotations:
            question = self._question_asked_by_first_record(question)
        return hash_to_seed("unseen", self.seed, question) < self.unseen * 2**64

    def _question_asked_by_first_record(self, question: str) -> str:
        """Return `question` after the rotation of the records' names that makes `a` ask: `b asks for b d` gives `a asks
        for a c`."""
        respondent, *needs = question.replace(" asks for", "").split()
        names = ascii_lowercase[: self.records]
        distances = sorted((names.index(name) - names.index(respondent)) % self.records for name in needs)
        return f"{names[0]} asks for {' '.join(names[distance] for distance in distances)}"

    def draw_problem(self, rng: random.Random) -> LazyProblem:
        names = ascii_lowercase[: self.records]
        values = [rng.randrange(self.values) for _ in names]
        respondent = rng.choice(names)
        other_names = names.replace(respondent, "")
        needs = sorted([respondent, *rng.sample(other_names, rng.randint(*self.needed_record_count_range) - 1)])
        parts = dict(zip(names, map("{}{}".format, names, values), strict=True))
        evidence = {"parts": parts, "needs": needs, "respondent": respondent}
        question = f"{respondent} asks for {' '.join(needs)}"
        key = f"{question} : {' '.join(parts.values())}"
        return LazyProblem(key, len(needs), partial(_build_problem, key, question, evidence, self.values))


def _build_problem(key: str, question: str, evidence: dict[str, Any], value_count: int) -> Problem:
    """Return the problem; each of its wrong answers has one wrong value."""
    right: Sequence[str] = [evidence["parts"][name] for name in evidence["needs"]]
    candidates = list[str]()
    for offset in (1, 2, 3):
        for index, record in enumerate(right):
            candidate = list(right)
            candidate[index] = f"{record[0]}{(int(record[1:]) + offset) % value_count}"
            candidates.append(" ".join(candidate))
    answer = " ".join(right)
    return Problem(key, question, answer, first_distinct_wrong_answers(candidates, answer), {"evidence": evidence})
