"""Derivation of one turn's advantage from rewards, assembled from the step's credit record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from marl.core.graph import Trajectory
from marl.core.types import Reward, Turn, TurnId
from marl.credit_stage.records import CreditRecord, RuleRecord, TurnCreditRecord
from marl.scenario.schema import Scenario


@dataclass(frozen=True, slots=True)
class CreditChain:
    """Advantage of one turn with every input of its calculation."""

    record: TurnCreditRecord
    rule: RuleRecord
    rewards: tuple[Reward, ...]
    """Rewards of the episode to all agents in the turn's pool."""
    like: str | None
    """Property shared by the turn and its peers, or None without a comparison group."""
    peers: tuple[TurnCreditRecord, ...] | None
    """Other turns of the comparison group, or None if the turn had none."""


def credit_chain(
    chain: TurnCreditRecord, record: CreditRecord, trajectory: Trajectory, chains: Mapping[TurnId, TurnCreditRecord]
) -> CreditChain:
    """Return the derivation of one turn's credit. `chains` is `record.turns()`, which callers already hold."""
    pool = set(chain.pool) or {chain.agent}
    group = None if chain.group is None else record.groups[chain.group]
    return CreditChain(
        chain,
        record.rules[chain.rule],
        tuple(reward for reward in trajectory.rewards if reward.agent in pool),
        group.like if group else None,
        tuple(chains[turn] for turn in group.turns if turn != chain.turn and turn in chains) if group else None,
    )


def reason_without_credit(scenario: Scenario, turn: Turn) -> str:
    """Return the reason for a turn's missing advantage."""
    role = scenario.roles.get(turn.role)
    if role is None or role.policy not in scenario.policies:
        return f"role {turn.role!r} is not the scenario's"
    if scenario.policies[role.policy].engine.is_rule_based:
        return f"role {turn.role!r} answers by rule"
    return "the rule gave it no entry: it is no fair sample, or could not be judged"
