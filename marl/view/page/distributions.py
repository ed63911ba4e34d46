"""Distributions of advantages, answer lengths and token entropies in the recorded steps, by role."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from marl.core.graph import Trajectory
from marl.credit_stage.records import CreditRecord
from marl.runs.run_folder import RunFolder
from marl.view.colours import colours_by_name

MAX_STEPS = 30
"""Maximum number of recorded steps that are read; more are thinned evenly."""
_LEVELS = (0.5, 0.05, 0.95, 0.25, 0.75)
"""Levels of the quantiles of a point, in its order."""
_QUANTITIES = {
    "advantage": ("advantage of a turn", "advantages of the credited turns"),
    "length": ("tokens", "lengths of the sampled answers, end token included"),
    "entropy": ("nats a token", "entropies of the tokens, of those turns whose update recorded them"),
}
"""Quantity -> its unit and its description."""


class StepDistributions:
    """Reader of the distributions of one run, which keeps those of the steps that it has read."""

    def __init__(self, home: RunFolder) -> None:
        self._home = home
        self._quantiles = lru_cache(maxsize=4 * MAX_STEPS)(self._quantiles_of_step)

    def panels(self, colours: Mapping[str, str]) -> dict[str, Any]:
        """Return a panel for each quantity with data, and a line for each role.

        A point is [step, median, 5 % and 95 % quantile, 1, 25 % and 75 % quantile]. `colours`: role -> colour.

        Raises:
            RunFolderError, ValueError: if a step cannot be read.
        """
        stamps = self._home.trajectory_file_stamp_by_step()
        recorded = sorted(stamps)
        every = 1
        while len(recorded) > MAX_STEPS * every:
            every *= 2  # by powers of two, steps that were read stay among the chosen ones while the run grows
        steps = sorted({*recorded[::every], *recorded[-1:]})
        points: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
        for step in steps:
            has_credit = self._home.has_credit_record(step)
            for quantity, by_role in self._quantiles(step, stamps[step], has_credit).items():
                for role, (median, low, high, quartile, upper) in by_role.items():
                    points[quantity][role].append([step, median, low, high, 1, quartile, upper])
        panels: list[dict[str, Any]] = []
        for quantity, (unit, meaning) in _QUANTITIES.items():
            known = colours_by_name(points[quantity]) | dict(colours)
            lines: list[dict[str, Any]] = []
            for role, of_role in points[quantity].items():
                lines.append({"name": role, "points": of_role, "colour": known[role], "dash": (), "runs": []})
            if lines:
                panels.append({"metric": quantity, "unit": unit, "meaning": meaning, "lines": lines})
        return {"panels": panels, "read": len(steps), "recorded": len(recorded)}

    def _quantiles_of_step(
        self, step: int, stamp: str, has_credit: bool
    ) -> Mapping[str, Mapping[str, Sequence[float]]]:
        """Return quantity -> role -> quantiles. `stamp` and `has_credit` change with the files."""
        record = self._home.read_credit_of_step(step) if has_credit else None
        return quantiles_by_role(self._home.load_trajectories(step), record)


def quantiles_by_role(
    trajectories: Iterable[Trajectory], record: CreditRecord | None
) -> dict[str, dict[str, list[float]]]:
    """Return quantity -> role -> the quantiles at `_LEVELS` of a step's turns or tokens.

    Advantages are those of credited turns, lengths those of sampled answers, in tokens with the end token, and
    entropies those of the tokens of which the update recorded them.
    """
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if turn.completion.token_ids:
                values["length"][turn.role].append(len(turn.completion.token_ids))
    for credit in record.turns().values() if record else ():
        values["advantage"][credit.role].append(credit.advantage)
        values["entropy"][credit.role] += credit.token_entropy
    quantiles: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for quantity, by_role in values.items():
        for role, numbers in sorted(by_role.items()):
            finite = np.asarray(numbers)[np.isfinite(numbers)]
            if finite.size:
                quantiles[quantity][role] = np.quantile(finite, _LEVELS).tolist()
    return quantiles
