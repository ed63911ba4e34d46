"""Play with temporary policies: weights that are loaded for some episodes and removed afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marl.core.graph import Trajectory
from marl.core.types import Deal
from marl.protocols import AddedPlayer, Simulator


def play_with_temporary_policies(
    deals: Sequence[Deal], temporary_policies: Mapping[str, AddedPlayer], max_loaded_policies: int, simulator: Simulator
) -> tuple[list[Trajectory], int]:
    """Return the episodes of `deals`, in order, and the number of times that a temporary policy was loaded.

    Args:
        deals: deals whose `policies` may name temporary policies.
        temporary_policies: name of a temporary policy -> its weights.
        max_loaded_policies: maximum number of temporary policies in memory at the same time.
        simulator: simulator that plays the episodes.
    """
    # Deals with equal sets of temporary policies share a round.
    deals_by_names: dict[frozenset[str], list[Deal]] = {}
    for deal in deals:
        names = temporary_policies.keys() & deal.policies.values()
        deals_by_names.setdefault(frozenset(names), []).append(deal)
    rounds: list[tuple[dict[str, AddedPlayer], list[Deal]]] = []
    for names, same_deals in deals_by_names.items():
        if not rounds or len(rounds[-1][0].keys() | names) > max_loaded_policies:
            rounds.append(({}, []))
        round_players, round_deals = rounds[-1]
        for name in sorted(names):
            round_players[name] = temporary_policies[name]
        round_deals += same_deals
    played: dict[str, Trajectory] = {}
    loads = 0
    # Policies are removed after each round, because samples could depend on which other policies are loaded.
    for round_players, round_deals in rounds:
        loads += len(round_players)
        added: list[str] = []
        try:
            for name, player in round_players.items():
                simulator.add_policy(name, player)
                added.append(name)
            for trajectory in simulator.play(round_deals):
                played[trajectory.id] = trajectory
        finally:
            # `added` leaves out the policy whose loading failed, as well as those after it.
            for name in added:
                simulator.remove_policy(name)
    return [played[deal.episode] for deal in deals if deal.episode in played], loads
