"""Tables of a run's recorded strategies: move probabilities per information state, for the newest policy, the
average policy and the game's reference players."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from marl.evaluation.average_policy import AveragePolicy
from marl.evaluation.game_tree import InformationState, Strategy, build_game_tree
from marl.rollout.casting import RoleCasting
from marl.runs.run_folder import RunFolder
from marl.runs.strategies import StrategyRow
from marl.scenario.schema import Scenario
from marl.view.page.reference_players import Probabilities, reference_probabilities, state_drawing

Recorded = Sequence[tuple[int, Sequence[StrategyRow]]]


MAX_AVERAGED_STATES = 2000
"""Maximum number of information states for an average policy, because it requires a walk over the game tree."""


class StrategyTables:
    """Tables of one run's recorded strategies."""

    def __init__(self, home: RunFolder, scenario: Scenario | None) -> None:
        """`scenario` is None if it cannot be loaded; then tables have no average policy and no reference players."""
        self._home = home
        self._views: Mapping[str, Any] = scenario.by_game() if scenario else {}
        self._table = lru_cache(maxsize=4)(self._read_table)

    def table(self, step: int | None) -> dict[str, Any]:
        """Return the strategies measured by the evaluation at `step` (None: the newest).

        Raises:
            ValueError: if no strategies were recorded at `step`, or a file is damaged.
            FolderError: if a symbolic link leads out of the run's folder.
        """
        folder = self._home.path / "strategies"
        return self._table(step, folder.stat().st_mtime_ns if folder.is_dir() else 0)

    def _read_table(self, step: int | None, stamp: int) -> dict[str, Any]:
        recorded = list(self._home.strategies())
        steps = [number for number, _ in recorded]
        if not steps:
            return {"steps": [], "step": None, "averaged": 0, "problem": "", "count": 0, "states": []}
        step = steps[-1] if step is None else step
        if step not in steps:
            raise ValueError(f"no strategies of step {step}; there are: {', '.join(map(str, steps))}")
        averages, averaged, problem = self._averages([evaluation for evaluation in recorded if evaluation[0] <= step])
        rows = [self._row(row, averages) for row in recorded[steps.index(step)][1]]
        return {
            "steps": steps,
            "step": step,
            "averaged": averaged,
            "problem": problem,
            "count": len(rows),
            "states": rows,
        }

    def _row(self, row: StrategyRow, averages: Mapping[str, Strategy]) -> dict[str, Any]:
        view = self._views.get(row.game)
        game = view.game if view else None
        players = reference_probabilities(game, row.state, row.moves)
        average = averages.get(row.game, {}).get(InformationState(row.agent, row.state, row.attempt))
        return {
            "game": row.game,
            "agent": row.agent,
            "state": row.state,
            "attempt": row.attempt,
            "moves": list(row.moves),
            "newest": row.moves,
            "average": average,
            "reference": players,
            "distance": _distance(row.moves, players),
            "drawing": state_drawing(game, row.state),
        }

    def _averages(self, recorded: Recorded) -> tuple[dict[str, Strategy], int, str]:
        """Return game -> average strategy, the number of averaged evaluations, and the reason if there is no
        average."""
        averages: dict[str, Strategy] = {}
        averaged = 0
        if (states := len(recorded[-1][1])) > MAX_AVERAGED_STATES:
            return {}, 0, f"{states:,} information states are too many for this page (limit {MAX_AVERAGED_STATES:,})"
        for name, view in self._views.items():
            if not view.evaluate.average:
                continue
            try:
                average = self._average(name, recorded)
            except ValueError as error:  # the game's settings changed after the strategies were recorded
                return {}, 0, str(error)
            if average.count:
                averages[name], averaged = average.strategy(), average.count
        return averages, averaged, ""

    def _average(self, name: str, recorded: Recorded) -> AveragePolicy:
        view = self._views[name]
        tree = build_game_tree(view.game, RoleCasting(view.roles, view.schedule.seed), view.seats)
        average = AveragePolicy(tree, view.evaluate.average, view.schedule.steps)
        for step, strategy in _of_game(recorded, name):
            average.take(step, strategy)
        return average


def _of_game(recorded: Recorded, name: str) -> Iterator[tuple[int, Strategy]]:
    for step, rows in recorded:
        strategy: dict[InformationState, dict[str, float]] = defaultdict(dict)
        for row in rows:
            if row.game == name:
                strategy[InformationState(row.agent, row.state, row.attempt)] = row.moves
        if strategy:
            yield step, strategy


def _distance(moves: Mapping[str, float], players: Probabilities) -> float | None:
    """Return the total variation distance between `moves` and the first reference player, or None without one.

    Probability missing to 1 counts as a move that the reference player never makes.
    """
    if not players:
        return None
    other = next(iter(players.values()))
    missing = max(0.0, 1 - sum(moves.values()))
    return (missing + sum(abs(chance - other.get(move, 0.0)) for move, chance in moves.items())) / 2
