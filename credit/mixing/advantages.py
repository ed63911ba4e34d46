"""COMA's counterfactual advantages, of tensors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def counterfactual(taken: Tensor, others: Tensor, chances: Tensor) -> Tensor:
    """Q(s, a) - sum over a' of pi(a') Q(s, (a_-i, a')) (COMA, arXiv 1705.08926, equation 4).

    Args:
        taken: [...] Q of what was done.
        others: [..., K] Q with one agent's action replaced by each that it could have taken.
        chances: [..., K] how likely it is to take each; 0 for those that are not open. They sum to 1.
    """
    return taken - (others * chances).sum(-1)


def joint_advantages(q: Tensor, policies: Sequence[Tensor]) -> list[Tensor]:
    """For each agent, its advantage in every cell of a table of joint actions.

    Args:
        q: one dimension for each agent: what each joint action is worth.
        policies: for each agent, how likely each of its actions is.
    """
    return [
        counterfactual(q.movedim(agent, -1), q.movedim(agent, -1)[..., None, :], policy).movedim(-1, agent)
        for agent, policy in enumerate(policies)
    ]
