"""Task whose problems are rows of a data set that a program written elsewhere holds."""

from __future__ import annotations

from functools import partial

from pydantic import Field

from marl.core.types import Problem
from marl.games.tasks.base import LazyProblem, TaskWithHeldOutSplit, TrainAndHeldOutProblems


class RowsTask(TaskWithHeldOutSplit):
    """Row numbers: the problem is the row of a data set that only a program knows, `{{ given.row }}`.

    The first rows are for training, and the rows after them are held out.
    """

    kind: str = "rows"
    train: int = Field(default=1000, ge=1, le=1_000_000)
    """Number of training rows, counted from row 0."""
    held_out: int = Field(default=200, ge=0, le=1_000_000)
    """Number of held-out rows, which follow the training rows."""

    def train_and_held_out_problems(self) -> TrainAndHeldOutProblems:
        rows = [LazyProblem(str(row), 0.0, partial(_row_problem, row)) for row in range(self.train + self.held_out)]
        return rows[: self.train], rows[self.train :]


def _row_problem(row: int) -> Problem:
    """Return the problem of row `row`, which has no known answer."""
    return Problem(str(row), f"row {row}", "", (), {"row": row})
