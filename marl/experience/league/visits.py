"""Play with guests: weights that are loaded for some episodes and go again, few at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from marl.protocols import Player, Simulator
from marl.types import Deal

if TYPE_CHECKING:
    from marl.graph import Trajectory

Round = tuple[dict[str, Player], list[Deal]]
"""Guests that are in memory together, and the episodes that are played meanwhile."""


def play_with_guests(
    deals: Sequence[Deal], guests: Mapping[str, Player], resident: int, simulator: Simulator
) -> tuple[list[Trajectory], int]:
    """Return the episodes of `deals`, in order, and how many guests were added for them.

    `guests`: those that deals name, of whom no more than `resident` are in memory at the same time. Episodes with the
    same guests are played together. Whoever is there during a round is gone after it, so that what is sampled later
    does not depend on who was.
    """
    played: dict[str, Trajectory] = {}
    rounds = _rounds(deals, guests, resident)
    for visitors, episodes in rounds:
        with _visiting(visitors, simulator):
            played |= {trajectory.id: trajectory for trajectory in simulator.play(episodes)}
    ordered = [played[deal.episode] for deal in deals if deal.episode in played]
    return ordered, sum(len(visitors) for visitors, _ in rounds)


def _rounds(deals: Sequence[Deal], guests: Mapping[str, Player], resident: int) -> list[Round]:
    together: dict[frozenset[str], list[Deal]] = {}
    for deal in deals:
        together.setdefault(frozenset(name for name in deal.policies.values() if name in guests), []).append(deal)
    rounds: list[Round] = []
    for names, episodes in together.items():
        if not rounds or len(rounds[-1][0].keys() | names) > resident:
            rounds.append(({}, []))
        visitors, planned = rounds[-1]
        visitors |= {name: guests[name] for name in sorted(names)}
        planned += episodes
    return rounds


@contextmanager
def _visiting(visitors: Mapping[str, Player], simulator: Simulator) -> Iterator[None]:
    """Let guests speak within this context."""
    added: list[str] = []
    try:
        for name, player in visitors.items():
            simulator.add_policy(name, player)
            added.append(name)
        yield
    finally:
        for name in added:
            simulator.remove_policy(name)
