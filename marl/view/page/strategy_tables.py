"""Tables of a run's recorded strategies: move probabilities per information state, for the newest policy, the
average policy and the game's reference players."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from marl.evaluation.average_policy import AveragePolicy
from marl.evaluation.game_tree import InformationState, Strategy, build_game_tree
from marl.rollout.casting import RoleRequestBuilder
from marl.runs.run_folder import RunFolder
from marl.runs.strategies import StrategyRow
from marl.scenario.schema import Scenario
from marl.view.page.reference_players import (
    Probabilities,
    reference_move_probabilities,
    render_information_state_if_possible,
)

Recorded = Sequence[tuple[int, Sequence[StrategyRow]]]
"""(step, rows of the recorded strategies) of each evaluation."""
MAX_AVERAGED_STATES = 2000
"""Maximum number of information states for an average policy, because it requires a walk over the game tree."""


class StrategyTables:
    """Tables of one run's recorded strategies."""

    def __init__(self, home: RunFolder, scenario: Scenario | None) -> None:
        """`scenario`: None if it cannot be loaded; tables then lack the average policy and reference players."""
        self._home = home
        self._views: Mapping[str, Any] = scenario.scenario_by_game() if scenario else {}
        self._table = lru_cache(maxsize=4)(self._build_strategy_table)

    def strategy_table(self, step: int | None) -> dict[str, Any]:
        """Return the strategies measured by the evaluation at `step` (None: the newest).

        Raises:
            ValueError: if no strategies were recorded at `step`, or a file is damaged.
            RunFolderError: if a symbolic link leads out of the run's folder.
        """
        folder = self._home.path / "strategies"
        return self._table(step, folder.stat().st_mtime_ns if folder.is_dir() else 0)

    def _build_strategy_table(self, step: int | None, modified_ns: int) -> dict[str, Any]:
        """Return the table of `step`. `modified_ns`, the folder's modification time, is part of the cache's key."""
        recorded = list(self._home.iter_strategies())
        steps = [number for number, _ in recorded]
        if not steps:
            return {"steps": [], "step": None, "averaged": 0, "problem": "", "count": 0, "states": []}
        step = steps[-1] if step is None else step
        if step not in steps:
            raise ValueError(f"no strategies of step {step}; there are: {', '.join(map(str, steps))}")
        averages, averaged, problem = self._average_strategy_by_game(recorded[: steps.index(step) + 1])
        states: list[dict[str, Any]] = []
        for row in recorded[steps.index(step)][1]:
            game = view.game if (view := self._views.get(row.game)) else None
            players = reference_move_probabilities(game, row.state, row.moves)
            information_state = InformationState(row.agent, row.state, row.attempt)
            states.append(
                {
                    **{"game": row.game, "agent": row.agent, "state": row.state, "attempt": row.attempt},
                    **{"moves": list(row.moves), "newest": row.moves},
                    "average": averages.get(row.game, {}).get(information_state),
                    "reference": players,
                    "distance": _total_variation_from_first_player(row.moves, players),
                    "drawing": render_information_state_if_possible(game, row.state),
                }
            )
        figures = {"averaged": averaged, "problem": problem, "count": len(states)}
        return {"steps": steps, "step": step, **figures, "states": states}

    def _average_strategy_by_game(self, recorded_evaluations: Recorded) -> tuple[dict[str, Strategy], int, str]:
        """Return (game -> average strategy, number of averaged evaluations, reason for a missing average or "")."""
        averages: dict[str, Strategy] = {}
        averaged = 0
        if (states := len(recorded_evaluations[-1][1])) > MAX_AVERAGED_STATES:
            return {}, 0, f"{states:,} information states are too many for this page (limit {MAX_AVERAGED_STATES:,})"
        for name, view in self._views.items():
            if not view.evaluate.average:
                continue
            try:
                tree = build_game_tree(view.game, RoleRequestBuilder(view.roles, view.schedule.seed), view.seats)
                average = AveragePolicy(tree, view.evaluate.average, view.schedule.steps)
                for step, rows in recorded_evaluations:
                    strategy: dict[InformationState, Mapping[str, float]] = {}
                    for row in rows:
                        if row.game == name:
                            strategy[InformationState(row.agent, row.state, row.attempt)] = row.moves
                    if strategy:
                        average.add_evaluation(step, strategy)
            except ValueError as error:  # the game's settings have changed since the strategies were recorded
                return {}, 0, str(error)
            if average.count:
                averages[name], averaged = average.mean_strategy(), average.count
        return averages, averaged, ""


def _total_variation_from_first_player(
    move_probabilities: Mapping[str, float], probabilities_by_player: Probabilities
) -> float | None:
    """Return the total variation distance between `move_probabilities` and the first reference player, or None without
    a player.

    Probability missing to 1 counts as a move that the reference player never makes.
    """
    if not probabilities_by_player:
        return None
    reference = next(iter(probabilities_by_player.values()))
    missing = max(0.0, 1 - sum(move_probabilities.values()))
    return (missing + sum(abs(chance - reference.get(move, 0.0)) for move, chance in move_probabilities.items())) / 2
