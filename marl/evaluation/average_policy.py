"""Average policy of a run: the mixture of the strategies measured at its evaluations."""

from __future__ import annotations

from marl.core.types import Metrics
from marl.evaluation.game_tree import GameTree, Strategy, legal_mass, nash_conv
from marl.evaluation.mixtures import RunningMixture
from marl.scenario.games import Averaging


class AveragePolicy:
    """Mixture of the strategies from the evaluations in the last part of a run of `steps` steps."""

    def __init__(self, tree: GameTree, settings: Averaging, steps: int) -> None:
        self._tree, self._settings = tree, settings
        self._mixture = RunningMixture(tree)
        self._first = (1 - settings.last) * steps
        self._newest: int | None = None
        self.count = 0
        """Number of evaluations in the mixture."""

    def take(self, step: int, strategy: Strategy) -> None:
        """Add the strategy of the evaluation at `step`. Evaluations must be added in the order of their steps.

        Raises:
            ValueError: if the strategy does not cover exactly the information states of the game.
        """
        if strategy.keys() != self._tree.requests.keys():
            raise ValueError(f"the strategy of step {step} is one for another game: its situations differ")
        # An evaluation that is handed in a second time counts once.
        if step >= self._first and (self._newest is None or step > self._newest):
            self._mixture.add(strategy, 1.0 if self._settings.weights == "uniform" else step + 1.0)
            self._newest = step
            self.count += 1

    def strategy(self) -> Strategy:
        """Return the mixture of the evaluations added so far.

        Raises:
            ValueError: if no evaluation in the last part of the run was added yet.
        """
        return self._mixture.strategy()

    def metrics(self) -> Metrics:
        """Return NashConv and the mean legal mass of the mixture, or no metrics before the first evaluation."""
        if self._newest is None:
            return {}
        strategy = self._mixture.strategy()
        return {
            "eval/average/nashconv": nash_conv(self._tree, strategy),
            "eval/average/legal_mass": legal_mass(strategy),
        }
