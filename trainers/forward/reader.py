"""What a learner's model says of turns without learning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from marl.types import Reading, Turn
from trainers.batching.batches import Batch
from trainers.batching.planner import Planner
from trainers.batching.rows import Row, distribution
from trainers.forward.token_outputs import said
from trainers.objectives.objective import Objective

LOGPROBS = frozenset({"logprobs"})
ENDS = frozenset({"hidden", "values"})
"""What needs states at the ends of texts: `next_value` is that after the last token."""


class Reader:
    """Reads turns with the weights as they are; equal turns once.

    `logprobs`: of the completions' tokens under their sampling distribution. `hidden`: the last layer's states [2, H],
    float32, at the last token of the prompt and of the completion. All else the objective reads.
    """

    def __init__(self, model: Any, objective: Objective, plan: Planner) -> None:
        self._model, self._objective, self._plan = model, objective, plan

    @torch.no_grad()
    def __call__(self, turns: Sequence[Turn], wanted: frozenset[str]) -> list[Reading]:
        """A reading of each turn; an empty one of a turn without tokens."""
        rows = {_identity(row): row for turn in reversed(turns) if (row := _turn_row(turn)).token_ids}
        training = self._model.training
        self._model.eval()
        found = dict(self._readings(list(reversed(rows.values())), wanted))
        self._model.train(training)
        return [found.get(_identity(_turn_row(turn)), Reading(())) for turn in turns]

    def _readings(self, rows: list[Row], wanted: frozenset[str]) -> Iterator[tuple[Any, Reading]]:
        for chunk, batch in self._plan.batches(rows, ends=bool(wanted & ENDS)):
            table = self._table(batch, wanted)
            for index, row in enumerate(chunk):
                fields = {name: _of(values[index], row) for name, values in table.items()}
                yield _identity(row), Reading(**fields)

    def _table(self, batch: Batch, wanted: frozenset[str]) -> Mapping[str, Any]:
        """Field of `Reading` -> a value of each row."""
        spoken = said(self._model, batch)
        table: dict[str, Any] = {"logprobs": spoken.logprobs_BT.tolist()}
        if "hidden" in wanted and spoken.states.ends_B2H is not None:
            table["hidden"] = spoken.states.ends_B2H.float().cpu()
        return table | {name: t.tolist() for name, t in self._objective.read(spoken, batch, wanted).items()}


def _of(values: Any, row: Row) -> Any:
    """A row's own: of a list, as many numbers as it has tokens."""
    return values if isinstance(values, float | Tensor) else tuple(values[: len(row.token_ids)])


def _turn_row(turn: Turn) -> Row:
    return Row(turn.completion.prompt_ids, turn.completion.token_ids, turn.request.sampling)


def _identity(row: Row) -> Any:
    return row.prompt_ids, row.token_ids, distribution(row.sampling)
