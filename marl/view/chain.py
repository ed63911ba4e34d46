"""The chain from rewards to the advantage of one turn, put together from a step's judgement record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from marl.graph import Trajectory
from marl.judging.records import RuleRecord, StepRecord, TurnRecord
from marl.scenario.schema import Scenario
from marl.types import Reward, Turn, TurnId


@dataclass(frozen=True, slots=True)
class CreditChain:
    """The advantage of one turn, and all that it came from."""

    turn: TurnRecord
    rule: RuleRecord
    rewards: tuple[Reward, ...]
    """Rewards of the episode that went into it: those of all agents in its pool."""
    like: str | None
    """Property that its peers share with it."""
    peers: tuple[TurnRecord, ...] | None
    """Other turns that it was compared with; None: with none of this step."""


def credit_chain(
    chain: TurnRecord, record: StepRecord, trajectory: Trajectory, chains: Mapping[TurnId, TurnRecord]
) -> CreditChain:
    """Return the chain of a judged turn; `chains`: every turn of the step that was judged, `record.turns()`."""
    pool = set(chain.pool) or {chain.agent}
    group = None if chain.group is None else record.groups[chain.group]
    return CreditChain(
        chain,
        record.rules[chain.rule],
        tuple(reward for reward in trajectory.rewards if reward.agent in pool),
        group.like if group else None,
        tuple(chains[turn] for turn in group.turns if turn != chain.turn and turn in chains) if group else None,
    )


def not_judged(scenario: Scenario, turn: Turn) -> str:
    """Return why a turn has no advantage."""
    role = scenario.roles.get(turn.role)
    if role is None or role.policy not in scenario.policies:
        return f"role {turn.role!r} is not the scenario's"
    if scenario.policies[role.policy].engine.rule_bound:
        return f"role {turn.role!r} answers by rule"
    return "the rule gave it no entry: it is no fair sample, or could not be judged"
