"""Best approximations of a team's return by sums and by monotone mixes of what its agents' moves add."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product

import numpy as np

Joint = tuple[str, ...]
"""A joint move: one for each agent."""
Table = Mapping[Joint, float]
"""Joint move -> a figure; every combination of the agents' moves has one."""


def menus(table: Table) -> list[list[str]]:
    """Each agent's moves."""
    return [sorted(set(moves)) for moves in zip(*table, strict=True)]


def additive(table: Table, chances: Table) -> dict[Joint, float]:
    """The sum of one number for each agent's move that is closest to `table`: least squares, weighted by `chances`."""
    joints, axes = list(table), menus(table)
    columns = [(agent, move) for agent, axis in enumerate(axes) for move in axis]
    design = np.array([[float(joint[agent] == move) for agent, move in columns] for joint in joints])
    root = np.sqrt([chances[joint] for joint in joints])
    goal = np.array([table[joint] for joint in joints])
    solution, *_ = np.linalg.lstsq(design * root[:, None], goal * root, rcond=None)
    return dict(zip(joints, (design @ solution).tolist(), strict=True))


def monotone(table: Table, chances: Table) -> dict[Joint, float]:
    """The table closest to `table`, by least squares weighted with `chances`, that rises with every agent's move, once
    these are put in the best order. It is what a monotonic mix of utilities can say at best, with any mixer.

    Every order is tried; for each, isotonic regression by its max-min formula (Robertson, Wright and Dykstra 1988).
    """
    joints, axes = list(table), menus(table)
    shape = tuple(map(len, axes))
    uppers = list(_upper_sets(shape))
    best, least = dict(table), float("inf")
    for orders in product(*(permutations(axis) for axis in axes)):
        places = [tuple(order.index(m) for order, m in zip(orders, joint, strict=True)) for joint in joints]
        goal, weight = np.zeros(shape), np.zeros(shape)
        for joint, place in zip(joints, places, strict=True):
            goal[place], weight[place] = table[joint], chances[joint]
        fitted = _isotonic(goal, weight, uppers)
        error = float((weight * (goal - fitted) ** 2).sum())
        if error < least - 1e-12:
            best, least = {j: float(fitted[p]) for j, p in zip(joints, places, strict=True)}, error
    return best


def _upper_sets(shape: Sequence[int]) -> Iterator[np.ndarray]:
    """Every set of cells that holds, with a cell, all that are greater: boolean arrays of this shape."""
    if not shape:
        yield from (np.array(False), np.array(True))
        return
    slices = list(_upper_sets(shape[1:]))

    def stacked(below: list[np.ndarray]) -> Iterator[np.ndarray]:
        if len(below) == shape[0]:
            yield np.stack(below)
            return
        for one in slices:
            if not below or bool((one | ~below[-1]).all()):
                yield from stacked([*below, one])

    yield from stacked([])


def _isotonic(goal: np.ndarray, weight: np.ndarray, uppers: Sequence[np.ndarray]) -> np.ndarray:
    """f(x) = max over upper sets U with x, min over lower sets L with x, of the weighted mean of goal in U and L."""
    inside = np.stack([upper.ravel() for upper in uppers])
    sums = (inside[:, None, :] & ~inside[None, :, :]) @ np.stack([(goal * weight).ravel(), weight.ravel()], 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = sums[..., 0] / sums[..., 1]
    fitted = []
    for cell in range(goal.size):
        own = means[inside[:, cell]][:, ~inside[:, cell]]
        fitted.append(np.nanmax(np.nanmin(own, axis=1)))
    return np.array(fitted).reshape(goal.shape)


def marginals(fitted: Table, chances: Table, joint: Joint) -> list[float]:
    """For each agent: the figure of the joint move, minus its mean over what this agent could have done instead."""
    found = []
    for agent in range(len(joint)):
        others = [j for j in fitted if j[:agent] + j[agent + 1 :] == joint[:agent] + joint[agent + 1 :]]
        odds = [sum(chance for j, chance in chances.items() if j[agent] == other[agent]) for other in others]
        found.append(fitted[joint] - sum(o * fitted[j] for o, j in zip(odds, others, strict=True)) / sum(odds))
    return found
