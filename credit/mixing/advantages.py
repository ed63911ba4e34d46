"""COMA's counterfactual advantages, of tensors."""

from __future__ import annotations

from torch import Tensor


def counterfactual(taken: Tensor, others: Tensor, chances: Tensor) -> Tensor:
    """Q(s, a) - sum over a' of pi(a') Q(s, (a_-i, a')) (COMA, arXiv 1705.08926, equation 4).

    Args:
        taken: [...] Q of what was done.
        others: [..., K] Q with one agent's action replaced by each that it could have taken.
        chances: [..., K] how likely it is to take each; 0 for those that are not open. They sum to 1.
    """
    return taken - (others * chances).sum(-1)
