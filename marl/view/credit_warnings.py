"""Warnings about the credit of a run, for the report at its end and for the page."""

from __future__ import annotations

from marl.view.number_format import format_metric_value

_CONSERVED = (0.5, 1.5)
"""Range of credit divided by reward without a warning (1: credit adds up to the reward)."""


def conservation_warning(role: str, credit_to_reward_ratio: float) -> str | None:
    """Return a warning if the credit of `role` is far from adding up to the reward, else None."""
    if _CONSERVED[0] <= credit_to_reward_ratio <= _CONSERVED[1]:
        return None
    meaning = "a part of the reward is credited to no turn, or with the opposite sign"
    if credit_to_reward_ratio > 1:
        meaning = (
            "each reward is credited several times, as by rules that pay every turn in full (`outcome`, `uniform`): "
            "an agent with more turns counts more"
        )
    return f"role {role}: its credit is {format_metric_value(credit_to_reward_ratio)} times its reward: {meaning}"
