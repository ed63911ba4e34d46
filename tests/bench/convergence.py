"""Which self-play converges: NashConv of the last policy and of the average one, for a softmax table without a model.

The updates are those of the scenarios (policy gradient on outcomes less the mean of episodes with the same deal, Adam,
KL terms), applied to one logit for each move of each situation, so that a run takes seconds and shows the method, not
the model. NashConv is exact, of the games of `scenarios/{kuhn,leduc,liars_dice}_self_play.yaml`. The average policy is
the mixture of the evaluations in the last half.

- `plain`: policy gradient alone
- `moving magnet`: KL to the policy of up to 200 updates ago and to that of up to 10 (`magnet`, `proximal`)
- `R-NaD`: the transformed reward of `credit.assign.rnad`, its reference replaced every 200 updates (2206.15378)
- `fixed magnet`: magnetic mirror descent (2206.05825) towards the uniform policy, the coefficient annealed linearly
- `fixed magnet, root`: the same with step size and coefficient falling as 1 / sqrt(t)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from _bench import ROOT, parser, report

import marl
from marl.evaluation.game_tree import GameTree, GameTreeNode, Strategy, build_game_tree, nash_conv
from marl.evaluation.mixtures import RunningStrategyMixture
from marl.rollout.casting import RoleRequestBuilder
from marl.view.curve_data import CurvePoint
from marl.view.pictures import save_curves

SCALES = {"kuhn": 0.5, "leduc": 0.15, "liars_dice": 1.0}
"""Game -> factor of its rewards."""
EPISODES = 256
LR, LR_END = 0.02, 0.001
EVALUATIONS = 10


@dataclass(frozen=True)
class Method:
    """What is beside the policy gradient."""

    magnet: float = 0.0
    magnet_end: float | None = None
    refresh: int | None = None
    """Updates between copies into magnet and reference. None: they stay uniform."""
    proximal: float = 0.0
    eta: float = 0.0
    """Price of a nat in R-NaD's transformed reward."""
    root: float | None = None
    """Updates after which step size and coefficient have fallen to 1 / sqrt(2). None: they fall linearly."""

    def rates(self, done: float, update: int) -> tuple[float, float]:
        """Return step size and magnet coefficient after this share of the run."""
        if self.root:
            falling = 1 / sqrt(1 + update / self.root)
            return LR * falling, self.magnet * falling
        end = self.magnet if self.magnet_end is None else self.magnet_end
        return LR + (LR_END - LR) * done, self.magnet + (end - self.magnet) * done


METHODS = {
    "plain": Method(),
    "moving magnet": Method(magnet=0.15, refresh=200, proximal=1.0),
    "R-NaD": Method(eta=0.15, refresh=200),
    "fixed magnet": Method(magnet=0.1, magnet_end=0.01),
    "fixed magnet, root": Method(magnet=0.1, root=100.0),
}
Turns = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Of the turns at one depth: episode, situation, move."""


class Table:
    """A two-player zero-sum game as arrays, in which many episodes are played at once."""

    def __init__(self, tree: GameTree) -> None:
        self.tree, self._situations = tree, list(tree.requests)
        self._moves = [list(request.options or ()) for request in tree.requests.values()]
        self.legal = np.zeros((len(self._moves), max(map(len, self._moves))), bool)
        for row, moves in enumerate(self._moves):
            self.legal[row, : len(moves)] = True
        self.signs = np.array([1.0 if s.agent == tree.agents[0] else -1.0 for s in self._situations])
        """Situation -> sign with which the first player's return is its agent's."""
        self._rows = {situation: row for row, situation in enumerate(self._situations)}
        self._at: list[int] = []
        self._next: list[list[int]] = []
        self._paid: list[float] = []
        self._roots = np.array([self._add(node, 0.0) for _, node in tree.roots])
        self._chances = np.array([chance for chance, _ in tree.roots])
        self._at_N, self._next_NA, self._paid_N = np.array(self._at), np.array(self._next), np.array(self._paid)

    def _add(self, node: GameTreeNode, paid: float) -> int:
        index, paid = len(self._at), paid + node.rewards.get(self.tree.agents[0], 0.0)
        self._at.append(-1 if node.situation is None else self._rows[node.situation])
        self._paid.append(paid)
        self._next.append([0] * self.legal.shape[1])
        for move, child in enumerate(node.moves.values()):
            self._next[index][move] = self._add(child, paid)
        return index

    def play(self, policy_SA: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, list[Turns]]:
        """Return the deals, the first player's returns, and the turns by depth."""
        roots = rng.choice(self._roots, EPISODES, p=self._chances)
        nodes, depths, below_SA = roots.copy(), [], policy_SA.cumsum(1)[:, :-1]
        while (live := np.nonzero(self._at_N[nodes] >= 0)[0]).size:
            rows = self._at_N[nodes[live]]
            moves = (rng.random((len(live), 1)) >= below_SA[rows]).sum(1)
            moves = np.minimum(moves, self.legal[rows].sum(1) - 1)
            nodes[live] = self._next_NA[nodes[live], moves]
            depths.append((live, rows, moves))
        return roots, self._paid_N[nodes], depths

    def strategy(self, policy_SA: np.ndarray) -> Strategy:
        rows = zip(self._situations, self._moves, policy_SA.tolist(), strict=True)
        return {situation: dict(zip(moves, row, strict=False)) for situation, moves, row in rows}

    def softmax(self, logits_SA: np.ndarray) -> np.ndarray:
        powers = np.exp(logits_SA - logits_SA.max(1, keepdims=True)) * self.legal
        return powers / powers.sum(1, keepdims=True)


class SelfPlay:
    """One table of logits that plays both seats and learns."""

    def __init__(self, table: Table, method: Method, scale: float, seed: int) -> None:
        self._table, self._method, self._scale = table, method, scale
        self._rng = np.random.default_rng(seed)
        self._logits = np.zeros(table.legal.shape)
        self._moments = np.zeros((2, *table.legal.shape))
        self._magnet = self._proximal = self.policy
        self.turns = self.updates = 0

    @property
    def policy(self) -> np.ndarray:
        return self._table.softmax(self._logits)

    def update(self, done: float) -> None:
        """Play and learn once; `done`: share of the run that is over."""
        policy, table, method = self.policy, self._table, self._method
        deals, returns, depths = table.play(policy, self._rng)
        _, deal = np.unique(deals, return_inverse=True)
        means = np.bincount(deal, returns) / np.bincount(deal)
        gains, visits = self._gains(policy, (returns - means[deal]) * self._scale, depths)
        lr, magnet = method.rates(done, self.updates)
        pull = magnet * _kl_gradient(policy, self._magnet) + method.proximal * _kl_gradient(policy, self._proximal)
        gradient = gains - policy * gains.sum(1, keepdims=True) - visits[:, None] * pull
        self.updates += 1
        self._step(gradient / visits.sum(), lr)
        self.turns += int(visits.sum())
        if method.refresh and self.updates % method.refresh == 0:
            self._magnet = self.policy
        if self.updates % 10 == 0:
            self._proximal = self.policy

    def _gains(self, policy: np.ndarray, won: np.ndarray, depths: list[Turns]) -> tuple[np.ndarray, np.ndarray]:
        """Return [S, A], sums of what turns earned, and [S], their number; R-NaD pays from each turn on."""
        gains, visits = np.zeros(policy.shape), np.zeros(len(policy))
        ratios, paid = _log(policy) - _log(self._magnet), won.copy()
        for episodes, rows, moves in reversed(depths):
            signs = self._table.signs[rows]
            paid[episodes] -= self._method.eta * signs * ratios[rows, moves]
            np.add.at(gains, (rows, moves), signs * paid[episodes])
            np.add.at(visits, rows, 1.0)
        return gains, visits

    def _step(self, gradient: np.ndarray, lr: float) -> None:
        """Adam (1412.6980), upwards."""
        first, second = self._moments
        first += 0.1 * (gradient - first)
        second += 0.01 * (gradient**2 - second)
        unbiased = np.sqrt(second / (1 - 0.99**self.updates)) + 1e-8
        self._logits += lr * first / (1 - 0.9**self.updates) / unbiased


def _log(policy: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(policy, 1e-12))


def _kl_gradient(policy: np.ndarray, anchor: np.ndarray) -> np.ndarray:
    """Return [S, A], the gradient of KL(policy || anchor) by the logits."""
    ratios = _log(policy) - _log(anchor)
    return policy * (ratios - (policy * ratios).sum(1, keepdims=True))


def learn(table: Table, method: Method, scale: float, seed: int, steps: int) -> dict[str, Any]:
    """Train one seed; return its curve, the mean of the last two evaluations, and the average policy's NashConv."""
    player, average, curve = (
        SelfPlay(table, method, scale, seed),
        RunningStrategyMixture(table.tree),
        list[list[float]](),
    )
    for step in range(steps):
        player.update(step / steps)
        if (step + 1) % (steps // EVALUATIONS) == 0:
            strategy = table.strategy(player.policy)
            curve.append([player.turns, round(nash_conv(table.tree, strategy), 4)])
            if 2 * (step + 1) >= steps:
                average.add_strategy(strategy)
    last = (curve[-1][1] + curve[-2][1]) / 2
    return {"curve": curve, "last": round(last, 4), "average": round(nash_conv(table.tree, average.mean_strategy()), 4)}


def curves(methods: Mapping[str, Sequence[Mapping[str, Any]]], steps: int) -> dict[str, list[CurvePoint]]:
    """Return method -> NashConv at each evaluation: mean, least and greatest of the seeds."""
    drawn: dict[str, list[CurvePoint]] = {}
    for name, runs in methods.items():
        by_time = zip(*([value for _, value in run["curve"]] for run in runs), strict=True)
        every = steps // EVALUATIONS
        drawn[name] = [CurvePoint(every * nth, fmean(v), min(v), max(v)) for nth, v in enumerate(by_time, 1)]
    return drawn


def tabulated(game: str) -> Table:
    """Return the game of a scenario."""
    scenario = marl.load(ROOT / "scenarios" / f"{game}_self_play.yaml")
    return Table(build_game_tree(scenario.game, RoleRequestBuilder(scenario.roles, 0), scenario.seats))


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--games", nargs="+", choices=SCALES, default=list(SCALES))
    line.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    line.add_argument("--picture", type=Path, help="draw the curves, means over seeds, as a PNG")
    line.add_argument("--steps", type=int, default=1000, help=f"updates of {EPISODES} episodes each")
    given = line.parse_args()
    figures: dict[str, Any] = {}
    for game in given.games:
        table, scale = tabulated(game), SCALES[game]
        uniform = nash_conv(table.tree, table.strategy(table.softmax(np.zeros(table.legal.shape))))
        runs = {
            name: [learn(table, m, scale, seed, given.steps) for seed in given.seeds] for name, m in METHODS.items()
        }
        figures[game] = {"uniform": round(uniform, 4), "methods": runs}
    if given.picture:
        panels = {f"{game}: NashConv": curves(found["methods"], given.steps) for game, found in figures.items()}
        save_curves(given.picture, panels)
    report(figures, given.out, seeds=given.seeds, steps=given.steps, episodes=EPISODES)


if __name__ == "__main__":
    main()
