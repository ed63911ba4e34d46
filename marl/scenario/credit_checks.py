"""Checks that credit rules, learners, games and seats fit together, and notes for the scenario's author."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import TYPE_CHECKING

from marl.core.graph import Trajectory
from marl.core.types import Deal
from marl.protocols import AssignConfig, BaselineConfig, Evidence

if TYPE_CHECKING:
    from marl.scenario.schema import CreditRule, Scenario


def credit_notes(scenario: Scenario) -> Iterator[str]:
    """Yield a note for each combination that is valid but may surprise the scenario's author."""
    yield from _idle_thought_limits(scenario)
    for field, rule in _learnt_rules(scenario).items():
        if rule.assign.by_turn and rule.baseline.by_episode:
            yield (
                f"{field}: {rule.assign.kind!r} gives an agent's turns different worths and {rule.baseline.kind!r} "
                "compares whole episodes, which pays for going on or for stopping where agents decide how often they "
                "speak; `like: prompt` and `rloo` do not (credit/ROLE/stopping_bias watches it)"
            )
    posed_to = _posed_to(scenario)
    for role in scenario.credited_roles():
        field, rule = _rule_of(scenario, role)
        if role in posed_to and dict(rule.baseline).get("like") == "start":
            yield (
                f"{field}.baseline.like: 'start', but role {role!r} works on problems that others pose in the episode, "
                "so that turns on easier problems are compared with turns on harder ones (credit/ROLE/purity watches "
                f"it); give credit.roles.{role} a rule of its own with a baseline `like: problem`, or with `task_role` "
                "where hardly two turns work on the same problem"
            )

    if scenario.experience.off_policy:
        yield from _off_policy(scenario)


def _idle_thought_limits(scenario: Scenario) -> Iterator[str]:
    """Yield a note for each `thinking_tokens` that never takes effect."""
    for name, role in scenario.roles.items():
        limit, longest = role.sampling.thinking_tokens, role.sampling.max_tokens
        policy = scenario.policies.get(role.policy)
        field = f"roles.{name}.sampling.thinking_tokens: {limit} has no effect"
        if limit is None or policy is None:
            continue
        if policy.engine.token_level and not policy.engine.needs_model:
            yield f"{field}: engine {policy.engine.kind!r} of policies.{role.policy} does not think; remove it"
        elif limit >= longest:
            yield f"{field}: answers end after sampling.max_tokens: {longest}; give fewer, or more max_tokens"


def _posed_to(scenario: Scenario) -> set[str]:
    """Return the roles allowed to work on problems posed by other roles in the same episode."""
    roles: set[str] = set()
    for view in scenario.by_game().values():
        if view.game:
            roles |= {view.seats[agent] for agent in view.game.posed_problem_agents()}
    return roles


def _off_policy(scenario: Scenario) -> Iterator[str]:
    kind, learners = scenario.experience.kind, scenario.credited_roles()
    if learners:
        yield (
            f"experience: nothing is known of the log-probabilities of those who said what {kind!r} holds, so ratios, "
            "kl_sampler and the fidelity check compare this run's own sampler with its learner, no more"
        )
    for role, learner in learners.items():
        if not learner.off_policy:
            yield (
                f"policies.{scenario.roles[role].policy}.learner: {learner.kind!r} learns from {kind!r} as if its "
                "policy had said all of it, without a correction; learners that are meant for it: awr, dpo, sft"
            )


def credit_problems(scenario: Scenario) -> Iterator[str]:
    for field, rule in credit_rules(scenario).items():
        baseline = rule.baseline
        if baseline.needs_groups and lacks_peers(scenario):
            yield (
                f"schedule.group_size: 1, but {field}.baseline {baseline.kind!r} compares episodes with the same "
                "start; use 2 or more, or another baseline (role_average, none)"
            )
        if baseline.uses_reward_names:
            yield from _by_name(field, rule)
        yield from _unreadable(scenario, field, rule)
    yield from _read_by_nobody(scenario)
    for role, learner in scenario.credited_roles().items():
        field, rule = _rule_of(scenario, role)
        if unused := sorted(learner.credit_needs - rule.assign.needs - rule.baseline.needs):
            yield (
                f"{field}: {rule.assign.kind!r} and {rule.baseline.kind!r} look at no {', '.join(unused)}, but "
                f"learner {learner.kind!r} of role {role!r} learns from what comes of them; choose an assign (gae, "
                "chain_gae) or a baseline (value) with `values: learner`, or another learner"
            )


def zero_sum_problems(scenario: Scenario) -> Iterator[str]:
    """Yield a message for each rule that sums the rewards of all agents of a zero-sum game, a constant 0."""
    try:
        all_agents = set(scenario.game.build().possible_agents) if scenario.game.is_zero_sum() else None
    except ValueError:
        return  # `_seats` reports a game that cannot be built ...
    if all_agents != scenario.seats.keys():
        return  # ... and seats that are missing, or too many
    teams = ", ".join(f"[{', '.join(team)}]" for team in _opposing_teams(scenario.seats))
    parts: list[tuple[str, AssignConfig | BaselineConfig, str]] = []
    for field, rule in credit_rules(scenario).items():
        parts.append((f"{field}.assign", rule.assign, "outcome"))
        parts.append((f"{field}.baseline", rule.baseline, "group"))
    for field, part, instead in parts:
        try:
            pools = _pools(scenario, part)
        except ValueError as error:
            yield f"{field}.{error}"
            continue
        if all_agents in pools:
            yield (
                f"{field}: {part.kind!r} adds up what all agents are paid, and in the zero-sum game "
                f"{scenario.game.kind!r} that is always 0, so that nothing is learnt; give it `teams: [{teams}]`, or "
                f"choose {instead!r}, which judges each agent by what it is paid itself"
            )


def _pools(scenario: Scenario, part: AssignConfig | BaselineConfig) -> list[Set[str]]:
    """Return the groups of agents whose rewards an assign rule or a baseline sums.

    Raises:
        ValueError: if the rule names agents that the game does not have.
    """
    before_play = Trajectory(Deal("", "", 0, scenario.seats), "")
    evidence = Evidence((), scenario.game.kind, rule_based_roles=scenario.rule_roles)
    if isinstance(part, AssignConfig):
        return [agents for agents, _ in part.reward_pools(before_play, evidence)]
    return [*part.joint_agents(before_play, evidence)]


def _opposing_teams(seats: Mapping[str, str]) -> list[list[str]]:
    """Return a suggestion for `teams`: the agents of each role, or single agents if all have the same role."""
    has_one_role = len(set(seats.values())) == 1
    teams: dict[str, list[str]] = {}
    for agent, role in seats.items():
        teams.setdefault(agent if has_one_role else role, []).append(agent)
    return list(teams.values())


def _by_name(field: str, rule: CreditRule) -> Iterator[str]:
    assign, baseline = rule.assign, rule.baseline
    if assign.build() is not assign:
        yield (
            f"{field}.baseline: {baseline.kind!r} asks what each named reward alone would earn, which "
            f"{field}.assign {assign.kind!r} cannot tell, as it learns from what it is asked; choose an assign "
            "without a state (outcome, flow, ...) or another baseline"
        )
    penalties = {"kl": rule.kl, "overlong": rule.overlong}
    for name, penalty in penalties.items():
        if penalty:
            yield (
                f"{field}.{name}: {field}.baseline {baseline.kind!r} compares what each named reward alone would earn, "
                "and what tokens are charged is none of them; choose another baseline, or remove this"
            )


def _unreadable(scenario: Scenario, field: str, rule: CreditRule) -> Iterator[str]:
    for role, learner in scenario.credited_roles().items():
        if not field.startswith("credit.compare.") and _rule_of(scenario, role)[1] is not rule:
            continue
        reads = f"its learner {learner.kind!r} reads {', '.join(sorted(learner.readable))}"
        remedy = (
            f"; give policies.{scenario.roles[role].policy}.learner a `reference` ({{coefficient: 0}} keeps it out of "
            "the loss)"
        )
        if lacks := sorted((rule.assign.needs | rule.baseline.needs) - learner.readable):
            yield (
                f"{field}: {rule.assign.kind!r} and {rule.baseline.kind!r} need {', '.join(lacks)} of what role "
                f"{role!r} says, but {reads}{remedy if lacks == ['reference'] else ''}"
            )
        if rule.kl and (lacks := sorted(rule.kl.needs - learner.readable)):
            yield f"{field}.kl: needs {', '.join(lacks)} of what role {role!r} says, but {reads}{remedy}"


def _read_by_nobody(scenario: Scenario) -> Iterator[str]:
    """Yield a message for each rule without learners whose needed fields no learner reads.

    The credit stage applies the rule in every step all the same. Examples are the default rule beside rules of all
    roles, and any rule where all learners imitate.
    """
    learners = [learner for _, _, learner in scenario.learning_roles()]
    read = frozenset[str]().union(*(learner.readable for learner in learners))
    kinds = ", ".join(sorted({repr(learner.kind) for learner in learners}))
    for field, rule in _all_rules(scenario).items():
        lacks = sorted((rule.assign.needs | rule.baseline.needs) - read)
        if learners and lacks and field not in credit_rules(scenario):
            yield (
                f"{field}: {rule.assign.kind!r} and {rule.baseline.kind!r} need {', '.join(lacks)}, which no learner "
                f"here reads ({kinds}), and nobody learns by this rule, though it judges every step; choose an assign "
                "and a baseline without values (outcome, group), `values: none`, or a learner with a critic"
            )


def _all_rules(scenario: Scenario) -> dict[str, CreditRule]:
    """Return field -> rule, for all rules of the scenario."""
    credit = scenario.credit
    roles = {f"credit.roles.{role}": rule for role, rule in credit.roles.items()}
    return {"credit": credit, **roles, **{f"credit.compare.{name}": rule for name, rule in credit.compare.items()}}


def lacks_peers(scenario: Scenario) -> bool:
    """Return True if every group has a single episode, so that no episode has peers to be compared with."""
    return scenario.schedule.group_size < 2 and not scenario.experience.plays_groups


def _rule_of(scenario: Scenario, role: str) -> tuple[str, CreditRule]:
    """Return (field, credit rule) of a role."""
    rules = scenario.credit.roles
    return (f"credit.roles.{role}", rules[role]) if role in rules else ("credit", scenario.credit)


def _learnt_rules(scenario: Scenario) -> dict[str, CreditRule]:
    """Return field -> rule, for rules with at least one learner that uses credit."""
    return dict(_rule_of(scenario, role) for role in scenario.credited_roles())


def credit_rules(scenario: Scenario) -> dict[str, CreditRule]:
    """Return field -> rule, for rules with a learner and rules in `credit.compare`; none if no learner uses credit."""
    compared = {f"credit.compare.{name}": rule for name, rule in scenario.credit.compare.items()}
    return learnt | compared if (learnt := _learnt_rules(scenario)) else {}
