"""Average policy of a run: the mixture of the strategies measured at its evaluations."""

from __future__ import annotations

from marl.core.types import Metrics
from marl.evaluation.game_tree import GameTree, Strategy, mean_legal_move_probability, nash_conv
from marl.evaluation.mixtures import RunningStrategyMixture
from marl.scenario.games import AveragePolicySettings

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
eval/average/nashconv | reward | the same of the average policy: one of the evaluated policies of the run's last
    part, drawn before every episode (`evaluate.average`); exact
eval/average/legal_mass | probability | `eval/legal_mass` of the average policy
"""


class AveragePolicy:
    """Mixture of the strategies from the evaluations in the last part of a run of `steps` steps."""

    def __init__(self, tree: GameTree, settings: AveragePolicySettings, steps: int) -> None:
        self._tree, self._settings = tree, settings
        self._mixture = RunningStrategyMixture(tree)
        self._first_step = (1 - settings.last) * steps
        self._newest_step: int | None = None
        self.count = 0
        """Number of evaluations in the mixture."""

    def add_evaluation(self, step: int, strategy: Strategy) -> None:
        """Add the strategy measured at training step `step`. Evaluations must be added in the order of their steps.

        Raises:
            ValueError: if the strategy does not cover exactly the information states of the game.
        """
        if strategy.keys() != self._tree.requests.keys():
            raise ValueError(f"the strategy of step {step} is one for another game: its situations differ")
        # An evaluation that is repeated after a killed run counts once.
        if step >= self._first_step and (self._newest_step is None or step > self._newest_step):
            self._mixture.add_strategy(strategy, 1.0 if self._settings.weights == "uniform" else step + 1.0)
            self._newest_step = step
            self.count += 1

    def mean_strategy(self) -> Strategy:
        """Return the mixture of the evaluations added so far.

        Raises:
            ValueError: if no evaluation in the last part of the run was added yet.
        """
        return self._mixture.mean_strategy()

    def metrics(self) -> Metrics:
        """Return NashConv and the mean legal mass of the mixture, or no metrics before the first evaluation."""
        if self._newest_step is None:
            return {}
        strategy = self._mixture.mean_strategy()
        return {
            "eval/average/nashconv": nash_conv(self._tree, strategy),
            "eval/average/legal_mass": mean_legal_move_probability(strategy),
        }
