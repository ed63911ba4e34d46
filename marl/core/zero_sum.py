"""Nash equilibrium of a two-player zero-sum matrix game, by linear programming."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Mixture = NDArray[np.float64]
"""Mixed strategy: the probability of each action, with the sum 1."""


class MatrixEquilibrium(NamedTuple):
    """Nash equilibrium of a two-player zero-sum matrix game in mixed strategies: no player gains by deviating."""

    row: Mixture
    """Mixed strategy of the row player."""
    column: Mixture
    """Mixed strategy of the column player."""
    value: float
    """Value of the game: expected payoff of the row player, and expected loss of the column player."""


def nash_equilibrium(payoffs: ArrayLike) -> MatrixEquilibrium:
    """Return a Nash equilibrium of a matrix game. `payoffs[i, j]` is paid by the column player to the row player.

    A linear programme maximises the minimum over columns of the row player's expected payoff (von Neumann 1928; Dantzig
    1951). If there are several equilibria, the solver returns an equilibrium at a vertex, always the same.

    Raises:
        ValueError: if `payoffs` is no matrix, has no row or column, or holds a number that is not finite.
    """
    matrix = np.asarray(payoffs, dtype=np.float64)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(f"payoffs: shape {matrix.shape}; a matrix with a row and a column at least is needed")
    if not np.isfinite(matrix).all():
        raise ValueError("payoffs: not all are finite numbers")
    row, value = _maximin_strategy(matrix)
    column, _ = _maximin_strategy(-matrix.T)
    return MatrixEquilibrium(row, column, value)


def _maximin_strategy(matrix: NDArray[np.float64]) -> tuple[Mixture, float]:
    """Return the mixture of rows with the largest minimum expected payoff over columns, and this payoff."""
    from scipy.optimize import linprog

    rows, columns = matrix.shape
    # The solver's tolerances are absolute, so payoffs are scaled to [-1, 1].
    scale = float(np.abs(matrix).max()) or 1.0
    # The linear programme maximises its last variable, the minimum expected payoff; the others are the mixture.
    worst = np.eye(1, rows + 1, rows).ravel()
    solution = linprog(
        -worst,
        A_ub=np.hstack([-matrix.T / scale, np.ones((columns, 1))]),
        b_ub=np.zeros(columns),
        A_eq=[1.0 - worst],
        b_eq=[1.0],
        bounds=[(0.0, 1.0)] * rows + [(None, None)],
        method="highs-ds",
    )
    # Every finite matrix game has an equilibrium, so a failure is a failure of the solver.
    if not solution.success:
        raise ArithmeticError(f"no equilibrium of a {rows} x {columns} matrix: {solution.message}")
    # Within the solver's tolerance, probabilities may be negative, and their sum may differ from 1.
    mixture = np.clip(solution.x[:rows], 0.0, None)
    return mixture / mixture.sum(), float(solution.x[rows] * scale)
