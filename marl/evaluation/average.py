"""The average policy of a run: the mixture of the policies at its evaluations."""

from __future__ import annotations

from marl.evaluation.game_tree import GameTree, Strategy, legal_mass, nash_conv
from marl.evaluation.mixtures import RunningMixture
from marl.scenario.games import Averaging
from marl.types import Metrics


class AveragePolicy:
    """Averages the strategies of the evaluations in the last part of a run of `steps`."""

    def __init__(self, tree: GameTree, settings: Averaging, steps: int) -> None:
        self._tree, self._settings = tree, settings
        self._mixture = RunningMixture(tree)
        self._first = (1 - settings.last) * steps
        self._newest: int | None = None
        self.count = 0
        """Number of evaluations in the average."""

    def take(self, step: int, strategy: Strategy) -> None:
        """Add the strategy of an evaluation, once; evaluations come in the order of their steps.

        Raises:
            ValueError: if it does not say what to do in each situation of the game.
        """
        if strategy.keys() != self._tree.requests.keys():
            raise ValueError(f"the strategy of step {step} is one for another game: its situations differ")
        if step >= self._first and (self._newest is None or step > self._newest):
            self._mixture.add(strategy, 1.0 if self._settings.weights == "uniform" else step + 1.0)
            self._newest = step
            self.count += 1

    def strategy(self) -> Strategy:
        """Return the average so far.

        Raises:
            ValueError: if no evaluation was in the last part of the run yet.
        """
        return self._mixture.strategy()

    def metrics(self) -> Metrics:
        """Return NashConv and the mean legal mass of the average so far; nothing before its first evaluation."""
        if self._newest is None:
            return {}
        strategy = self._mixture.strategy()
        return {
            "eval/average/nashconv": nash_conv(self._tree, strategy),
            "eval/average/legal_mass": legal_mass(strategy),
        }
