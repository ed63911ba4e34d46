"""Derivation of one turn's advantage from rewards, assembled from the step's credit record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from marl.core.graph import Trajectory
from marl.core.types import Reward, Turn, TurnId
from marl.credit_stage.records import CreditRecord, CreditRuleSettingsRecord, TurnCreditRecord
from marl.scenario.schema import Scenario


@dataclass(frozen=True, slots=True)
class AdvantageDerivation:
    """Advantage of one turn with every input of its calculation."""

    record: TurnCreditRecord
    """Recorded credit of the turn."""
    rule: CreditRuleSettingsRecord
    """Credit rule that was applied to the turn."""
    rewards: tuple[Reward, ...]
    """Rewards of the episode to the agents that share rewards with the turn's agent."""
    like: str | None
    """Criterion by which the turn's peers were chosen, such as `start`, or None without peers."""
    peers: tuple[TurnCreditRecord, ...] | None
    """Other turns of the comparison group, or None if the turn had none."""


def describe_update_from_turn(
    turn: Turn, trajectory: Trajectory, scenario: Scenario | None, step: int, metrics: Mapping[str, float]
) -> str:
    """Return a remark on whether a policy was updated with `turn`, a turn of `trajectory` with credit.

    `metrics` is the row of metrics of `step`. The remark is "" if the row is missing and nothing else forbids learning
    from the turn. `scenario` is the run's, or None if it cannot be loaded.
    """
    if scenario and (reason := _reason_no_learner_trains_on(turn, trajectory, scenario)):
        return f"no learner trains on this turn: {reason}"
    if not metrics:
        return ""
    policy = turn.request.policy
    # The metric `samples` of a policy exists only in steps that updated its learner.
    was_updated = f"policy/{policy}/samples" in metrics
    return f"policy {policy} was {'updated with it' if was_updated else 'not updated'} in step {step}"


def _reason_no_learner_trains_on(turn: Turn, trajectory: Trajectory, scenario: Scenario) -> str:
    """Return the reason for which no learner trains on `turn`, or "" if the scenario lets one train on it."""
    role = scenario.roles.get(turn.role)
    if role is None:
        return ""
    if turn.role in trajectory.deal.policies:
        return f"role {turn.role!r} was played by {trajectory.deal.policies[turn.role]!r} instead of its own policy"
    if not role.trainable:
        return f"role {turn.role!r} has trainable: false"
    policy = scenario.policies.get(role.policy)
    return f"policy {role.policy!r} has no learner" if policy and policy.learner is None else ""


def derive_advantage(
    turn_credit: TurnCreditRecord,
    credit_record: CreditRecord,
    trajectory: Trajectory,
    credit_by_turn: Mapping[TurnId, TurnCreditRecord],
) -> AdvantageDerivation:
    """Return the derivation of the advantage in `turn_credit`, the recorded credit of a turn of `trajectory`.

    `credit_record` is the credit record of the step, and `credit_by_turn` is its `record.turns()`, which callers
    already have.
    """
    pool = set(turn_credit.pool) or {turn_credit.agent}
    group = None if turn_credit.group is None else credit_record.groups[turn_credit.group]
    return AdvantageDerivation(
        turn_credit,
        credit_record.rules[turn_credit.rule],
        tuple(reward for reward in trajectory.rewards if reward.agent in pool),
        group.like if group else None,
        tuple(credit_by_turn[turn] for turn in group.turns if turn != turn_credit.turn and turn in credit_by_turn)
        if group
        else None,
    )


def reason_without_credit(scenario: Scenario, turn: Turn) -> str:
    """Return the reason, as text, for which the credit record has no advantage for `turn`."""
    role = scenario.roles.get(turn.role)
    if role is None or role.policy not in scenario.policies:
        return f"role {turn.role!r} is not the scenario's"
    if scenario.policies[role.policy].engine.is_rule_based:
        return f"role {turn.role!r} answers by rule"
    return "the rule gave it no entry: it is no fair sample, or could not be judged"
