"""Checks of credit: whether rules, learners, games and seats fit together, and what an author should know of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import TYPE_CHECKING

from marl.protocols import AssignConfig, Evidence
from marl.types import Deal

if TYPE_CHECKING:
    from marl.protocols import BaselineConfig
    from marl.scenario.schema import CreditRule, Scenario


def notes(scenario: Scenario) -> Iterator[str]:
    """Yield a line for each combination that is no error, but that an author should know of."""
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
    """Yield a line for each limit of thoughts that never ends one."""
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
    """Return the roles that may work on problems which others posed in the same episode."""
    views = scenario.by_game().values()
    return {view.seats[agent] for view in views if view.game for agent in view.game.posed_to()}


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
        if baseline.compares and lacks_peers(scenario):
            yield (
                f"schedule.group_size: 1, but {field}.baseline {baseline.kind!r} compares episodes with the same "
                "start; use 2 or more, or another baseline (role_average, none)"
            )
        if baseline.by_name:
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
    """Yield a message for each rule that adds up the rewards of all agents of a zero-sum game."""
    try:
        everybody = set(scenario.game.build().possible_agents) if scenario.game.is_zero_sum() else None
    except ValueError:
        return  # `_seats` reports a game that cannot be built ...
    if everybody != scenario.seats.keys():
        return  # ... and seats that are missing, or too many
    teams = ", ".join(f"[{', '.join(team)}]" for team in _opposing_teams(scenario.seats))
    parts = [
        (f"{field}.{half}", part, instead)
        for field, rule in credit_rules(scenario).items()
        for half, part, instead in (("assign", rule.assign, "outcome"), ("baseline", rule.baseline, "group"))
    ]
    for field, part, instead in parts:
        try:
            pools = _pools(scenario, part)
        except ValueError as error:
            yield f"{field}.{error}"
            continue
        if everybody in pools:
            yield (
                f"{field}: {part.kind!r} adds up what all agents are paid, and in the zero-sum game "
                f"{scenario.game.kind!r} that is always 0, so that nothing is learnt; give it `teams: [{teams}]`, or "
                f"choose {instead!r}, which judges each agent by what it is paid itself"
            )


def _pools(scenario: Scenario, part: AssignConfig | BaselineConfig) -> list[Set[str]]:
    """Return the groups of agents whose rewards half a credit rule adds up.

    Raises:
        ValueError: if it names agents that the game does not have.
    """
    from marl.graph import Trajectory  # here, as networkx takes a tenth of a second

    before_play = Trajectory(Deal("", "", 0, scenario.seats), "")
    evidence = Evidence((), scenario.game.kind, rules=scenario.rule_roles)
    if isinstance(part, AssignConfig):
        return [agents for agents, _ in part.reward_pools(before_play, evidence)]
    return [*part.joint_agents(before_play, evidence)]


def _opposing_teams(seats: Mapping[str, str]) -> list[list[str]]:
    """Return teams that probably play against one another: the agents of a role, or each alone where all have one."""
    teams: dict[str, list[str]] = {}
    alone = len(set(seats.values())) == 1
    for agent, role in seats.items():
        teams.setdefault(agent if alone else role, []).append(agent)
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
    for name in (name for name, penalty in penalties.items() if penalty):
        yield (
            f"{field}.{name}: {field}.baseline {baseline.kind!r} compares what each named reward alone would earn, and "
            "what tokens are charged is none of them; choose another baseline, or remove this"
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
    """Yield a message for each rule that no learner learns by and that needs what none of them reads.

    Such a rule judges every step all the same: the default one beside rules of roles, or any where all imitate.
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
    """Return field -> rule, for every rule that judges the steps."""
    credit = scenario.credit
    roles = {f"credit.roles.{role}": rule for role, rule in credit.roles.items()}
    return {"credit": credit, **roles, **{f"credit.compare.{name}": rule for name, rule in credit.compare.items()}}


def lacks_peers(scenario: Scenario) -> bool:
    """Return True if every episode is the only one from its start."""
    return scenario.schedule.group_size < 2 and not scenario.experience.siblings


def _rule_of(scenario: Scenario, role: str) -> tuple[str, CreditRule]:
    """Return the field and the rule that judges a role."""
    rules = scenario.credit.roles
    return (f"credit.roles.{role}", rules[role]) if role in rules else ("credit", scenario.credit)


def _learnt_rules(scenario: Scenario) -> dict[str, CreditRule]:
    """Return field -> rule, for the rules that a learner learns by. Imitation has none; a default may be unused."""
    return dict(_rule_of(scenario, role) for role in scenario.credited_roles())


def credit_rules(scenario: Scenario) -> dict[str, CreditRule]:
    """Return field -> rule, for the rules that a learner learns by and those that are compared with them."""
    compared = {f"credit.compare.{name}": rule for name, rule in scenario.credit.compare.items()}
    return learnt | compared if (learnt := _learnt_rules(scenario)) else {}
