"""Play with temporary policies: weights that are loaded for some episodes and removed afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from marl.core.graph import Trajectory
from marl.core.types import Deal
from marl.protocols import AddedPlayer, Simulator

Round = tuple[dict[str, AddedPlayer], list[Deal]]
"""Temporary policies that are in memory together, and the deals played meanwhile."""


def play_with_temporary_policies(
    deals: Sequence[Deal], players: Mapping[str, AddedPlayer], resident: int, simulator: Simulator
) -> tuple[list[Trajectory], int]:
    """Return the episodes of `deals`, in order, and the number of times that a temporary policy was loaded.

    Args:
        deals: deals whose `policies` may name temporary policies.
        players: name -> temporary policy.
        resident: maximum number of temporary policies in memory at the same time.
        simulator: simulator that plays the episodes.
    """
    played: dict[str, Trajectory] = {}
    loads = 0
    # Every policy is removed after its round, so that later samples do not depend on the policies loaded before.
    for round_players, round_deals in _rounds(deals, players, resident):
        loads += len(round_players)
        with _added_policies(round_players, simulator):
            played |= {trajectory.id: trajectory for trajectory in simulator.play(round_deals)}
    return [played[deal.episode] for deal in deals if deal.episode in played], loads


def _rounds(deals: Sequence[Deal], players: Mapping[str, AddedPlayer], resident: int) -> list[Round]:
    """Return rounds of deals; deals with the same temporary policies are in one round."""
    together: dict[frozenset[str], list[Deal]] = {}
    for deal in deals:
        names = frozenset(name for name in deal.policies.values() if name in players)
        together.setdefault(names, []).append(deal)
    rounds: list[Round] = []
    for names, same_deals in together.items():
        if not rounds or len(rounds[-1][0].keys() | names) > resident:
            rounds.append(({}, []))
        round_players, round_deals = rounds[-1]
        round_players |= {name: players[name] for name in sorted(names)}
        round_deals += same_deals
    return rounds


@contextmanager
def _added_policies(players: Mapping[str, AddedPlayer], simulator: Simulator) -> Iterator[None]:
    """Add policies to the simulator for the body of a `with` statement."""
    added: list[str] = []
    try:
        for name, player in players.items():
            simulator.add_policy(name, player)
            added.append(name)
        yield
    finally:
        # If adding a policy failed, only the policies before it are there to be removed.
        for name in added:
            simulator.remove_policy(name)
