"""What comparisons with peers leave of the return, exactly: baselines, critics and trees of candidates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from math import sqrt

import numpy as np

from credit.validation.estimands import Estimand, PerPlay
from credit.validation.world import Choice, History, PerTurn, Play, World
from marl.evaluation.game_tree import Situation

Key = Callable[[Choice], Hashable]
"""Choices with equal keys are compared, or have equal values."""


def compared(key: Key, *, std: bool = False) -> Estimand:
    """The return minus its mean over all turns with the same key, by default not divided by its deviation there."""

    def of(world: World) -> PerPlay:
        means, deviations = _moments(world, key)

        def turns(play: Play) -> PerTurn:
            gaps = [(play.worth - means[key(c)], deviations[key(c)]) for c in play.choices]
            return [gap if not std else gap / deviation if deviation > 1e-9 else 0.0 for gap, deviation in gaps]

        return turns

    return of


def start(choice: Choice) -> Hashable:
    """How the game began, and who speaks."""
    return choice.cell.history.start, choice.situation.agent


def prompt(choice: Choice) -> Hashable:
    """What the agent knows, as one question."""
    return choice.situation


def prompt_of_start(choice: Choice) -> Hashable:
    """The same in games that began alike."""
    return choice.cell.history.start, choice.situation


def everything(_: Choice) -> Hashable:
    """All turns alike."""
    return ""


def agent(choice: Choice) -> Hashable:
    """Who speaks."""
    return choice.situation.agent


def chained(lam: float) -> Estimand:
    """A_k = sum over l of lam^l delta_{k+l}, with delta_k = V_{k+1} - V_k, V of an agent's own question and the return
    after the last one; all turns of the team are one chain.
    """

    def of(world: World) -> PerPlay:
        means, _ = _moments(world, prompt)

        def turns(play: Play) -> PerTurn:
            values = [means[prompt(choice)] for choice in play.choices] + [play.worth]
            deltas = np.diff(values)
            return [float(deltas[k:] @ lam ** np.arange(len(deltas) - k)) for k in range(len(deltas))]

        return turns

    return of


def candidates(many: int) -> Estimand:
    """Q(h, a) minus its mean over the candidates of all turns that were asked the same, when `many` candidates are
    tried at each turn of a course and the one whose episode pays best is gone on with.
    """

    def of(world: World) -> PerPlay:
        seen: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
        for history, (situation, chance) in _trunks(world, many).items():
            seen[history.start, situation].append((world.value(history), chance))
        means = {key: sum(v * c for v, c in found) / sum(c for _, c in found) for key, found in seen.items()}

        def turns(play: Play) -> PerTurn:
            after = [choice.cell.history.then(choice.cell.move) for choice in play.choices]
            pairs = zip(play.choices, after, strict=True)
            return [world.value(h) - means.get(prompt_of_start(choice), 0.0) for choice, h in pairs]

        return turns

    return of


def greedy(world: World) -> PerPlay:
    """The return minus that of the game in which everybody does what is most likely."""
    best = {situation: max(moves, key=moves.__getitem__) for situation, moves in world.strategy.items()}

    def turns(play: Play) -> PerTurn:
        history = play.choices[0].cell.history
        there = world.expected(lambda situation, _: {best[situation]: 1.0}, history)
        return [play.worth - there] * len(play.choices)

    return turns


def _trunks(world: World, many: int) -> dict[History, tuple[Situation, float]]:
    """The histories that are gone on from in a tree of candidates: who is asked what there, and with which probability.

    The best of `many` pays r with probability F(r)^many - F(r-)^many; any of those that pay r is as likely to be it.
    """
    paid: dict[History, dict[float, dict[History, float]]] = defaultdict(dict)
    asked: dict[History, Situation] = {}
    reached: dict[History, float] = defaultdict(float)
    for play in world.plays:
        first = play.choices[0].cell.history
        reached[first] += play.chance
        for choice in play.choices:
            history, after = choice.cell.history, choice.cell.history.then(choice.cell.move)
            asked[history] = choice.situation
            alike = paid[history].setdefault(play.worth, defaultdict(float))
            alike[after] += play.chance
    for history in sorted(asked, key=lambda h: len(h.moves)):
        total, below = sum(sum(after.values()) for after in paid[history].values()), 0.0
        for worth in sorted(paid[history]):
            here = sum(paid[history][worth].values())
            best = ((below + here) / total) ** many - (below / total) ** many
            below += here
            for after, chance in paid[history][worth].items():
                reached[after] += reached[history] * best * chance / here
    return {history: (situation, reached[history]) for history, situation in asked.items()}


def _moments(world: World, key: Key) -> tuple[dict[Hashable, float], dict[Hashable, float]]:
    """Mean and deviation of the return over all turns with a key, each turn counting once."""
    sums: dict[Hashable, np.ndarray] = defaultdict(lambda: np.zeros(3))
    for play in world.plays:
        for choice in play.choices:
            sums[key(choice)] += play.chance * np.array([1.0, play.worth, play.worth**2])
    means = {name: float(total / mass) for name, (mass, total, _) in sums.items()}
    return means, {
        name: sqrt(max(float(squares / mass) - means[name] ** 2, 0.0)) for name, (mass, _, squares) in sums.items()
    }
