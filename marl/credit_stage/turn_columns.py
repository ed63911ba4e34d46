"""The turns of a step as columns, so that diagnostics are computed on arrays instead of turn by turn."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from marl.core.graph import Trajectory
from marl.core.types import TurnId

_Value = TypeVar("_Value", bound=Hashable)


class TurnColumns:
    """Columns with one number for each turn of a step, in playing order.

    A turn that several forks share is one row. It *occurs* in each of these episodes.
    """

    def __init__(self, trajectories: Sequence[Trajectory]) -> None:
        self.trajectories = trajectories
        occurring = [turn for trajectory in trajectories for turn in trajectory.turns]
        turns = {turn.id: turn for turn in occurring}
        self.turns = list(turns.values())
        self.row: dict[TurnId, int] = dict(zip(turns, range(len(turns)), strict=True))
        """Id of a turn -> its row, the index of the turn in every column."""
        self.role_names, self.role = number_distinct([turn.role for turn in self.turns])
        """`role_names`: the roles of the turns; `role`: index in `role_names` of each turn's role."""
        self.agent_names, self.agent = number_distinct([turn.agent for turn in self.turns])
        """`agent_names`: the agents of the turns; `agent`: index in `agent_names` of each turn's agent."""
        lengths = [len(trajectory.turns) for trajectory in trajectories]
        self.occurrence_episode = np.repeat(np.arange(len(lengths)), np.array(lengths, dtype=int))
        """Index in `trajectories` of the episode of each occurrence."""
        self.occurrence_row = np.arange(len(turns))
        """Row of the turn of each occurrence."""
        self.episode = self.occurrence_episode
        """Index in `trajectories` of the first episode of each turn."""
        if len(turns) < len(occurring):
            self.occurrence_row = self.rows([turn.id for turn in occurring])
            self.episode = np.empty(len(turns), dtype=int)
            # If one row is assigned several times, the last value remains: in reversed order, the first episode.
            self.episode[self.occurrence_row[::-1]] = self.occurrence_episode[::-1]

    def rows(self, turns: Iterable[TurnId]) -> np.ndarray:
        """Return the row of each of `turns`."""
        return np.array(list(map(self.row.__getitem__, turns)), dtype=int)

    def sum_by_episode_and_agent(self, amounts: np.ndarray) -> np.ndarray:
        """Return the sums [episodes, agents] of `amounts`, a column, over the turns of each agent in each episode."""
        shape = len(self.trajectories), len(self.agent_names)
        sums = np.bincount(self._occurrence_seat(), amounts[self.occurrence_row], minlength=shape[0] * shape[1])
        return sums.reshape(shape)

    def continuation_rate(self) -> np.ndarray:
        """Return a column: the share of the turn's episodes in which its agent has a further turn after it."""
        seat, order = self._occurrence_seat(), np.arange(len(self.occurrence_row))
        last = np.zeros(len(self.trajectories) * len(self.agent_names), dtype=int)
        # If one seat is assigned several times, the last value remains.
        last[seat] = order
        return np.bincount(self.occurrence_row, last[seat] != order) / np.bincount(self.occurrence_row)

    def _occurrence_seat(self) -> np.ndarray:
        """Return a number for each occurrence, equal for the turns of one agent in one episode."""
        return self.occurrence_episode * len(self.agent_names) + self.agent[self.occurrence_row]


def number_distinct(values: Sequence[_Value]) -> tuple[list[_Value], np.ndarray]:
    """Return the distinct `values` in order of first appearance, and the index among them of each value."""
    distinct = list(dict.fromkeys(values))
    index = dict(zip(distinct, range(len(distinct)), strict=True))
    return distinct, np.array(list(map(index.__getitem__, values)), dtype=int)


def number_combinations(*columns: np.ndarray) -> np.ndarray:
    """Return a number from 0 for each row, equal for rows that are equal in all `columns` (numbers from 0)."""
    combined = np.zeros(len(columns[0]), dtype=int)
    for column in columns:
        combined = combined * (column.max(initial=0) + 1) + column
    return np.unique(combined, return_inverse=True)[1]


def groups_with_differences(groups: np.ndarray, values: np.ndarray, group_count: int) -> np.ndarray:
    """Return for each of the groups 0 to `group_count - 1`: True if its `values` (whole numbers) are not all equal."""
    first = np.zeros(group_count, dtype=int)
    # If one group is assigned several times, the last value remains: in reversed order, the first one.
    first[groups[::-1]] = values[::-1]
    return np.bincount(groups, values != first[groups], minlength=group_count) > 0
