"""Checks that the credit rules of a scenario fit its learners, games and seats, and notes for the scenario's author."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from marl.core.graph import Trajectory
from marl.core.types import Deal
from marl.protocols import AssignConfig, Evidence

if TYPE_CHECKING:
    from marl.scenario.schema import CreditRule, Scenario


def credit_notes(scenario: Scenario) -> Iterator[str]:
    """Yield a note for each combination of settings that is valid but may surprise the scenario's author."""
    yield from _thinking_limit_notes(scenario)
    yield from _penalties_without_learner_notes(scenario)
    for field, rule in _trained_credit_rules_by_field(scenario).items():
        if rule.assign.credit_depends_on_reward_time and rule.baseline.compares_agent_episodes_instead_of_turns:
            yield (
                f"{field}: {rule.assign.kind!r} gives an agent's turns different worths and {rule.baseline.kind!r} "
                "compares whole episodes, which pays for going on or for stopping where agents decide how often they "
                "speak; `like: prompt` and `rloo` do not (credit/ROLE/stopping_bias watches it)"
            )
    # `posed_to`: roles that may work on problems posed by other roles in the same episode.
    posed_to: set[str] = set()
    for view in scenario.scenario_by_game().values():
        if view.game:
            posed_to |= {view.seats[agent] for agent in view.game.agents_working_on_posed_problems()}
    learners = scenario.credited_roles()
    for role in learners:
        field, rule = _setting_path_and_credit_rule(scenario, role)
        if role in posed_to and dict(rule.baseline).get("like") == "start":
            yield (
                f"{field}.baseline.like: 'start', but role {role!r} works on problems that others pose in the episode, "
                "so that turns on easier problems are compared with turns on harder ones (credit/ROLE/purity watches "
                f"it); give credit.roles.{role} a rule of its own with a baseline `like: problem`, or with `task_role` "
                "where hardly two turns work on the same problem"
            )
    kind = scenario.experience.kind
    if not scenario.experience.off_policy:
        return
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


def _thinking_limit_notes(scenario: Scenario) -> Iterator[str]:
    """Yield a note for each limit of thoughts that changes nothing."""
    for name, role in scenario.roles.items():
        limit, max_tokens = role.sampling.thinking_tokens, role.sampling.max_tokens
        policy = scenario.policies.get(role.policy)
        field = f"roles.{name}.sampling.thinking_tokens: {limit} has no effect"
        if limit is None or policy is None:
            continue
        if policy.engine.token_level and not policy.engine.needs_model:
            yield f"{field}: engine {policy.engine.kind!r} of policies.{role.policy} does not think; remove it"
        elif limit >= max_tokens:
            yield f"{field}: answers end after sampling.max_tokens: {max_tokens}; give fewer, or more max_tokens"


def _penalties_without_learner_notes(scenario: Scenario) -> Iterator[str]:
    """Yield a note for each penalty of the default rule that is only measured, because no learner uses credit.

    A KL penalty is not even measured without a learner that reads the reference, so `credit_errors` refuses it.
    """
    learners = {learner.kind for _, _, learner in scenario.learning_roles()}
    if not learners or scenario.credited_roles():
        return
    for name, penalty in (("overlong", scenario.credit.overlong), ("token_cost", scenario.credit.token_cost)):
        if penalty:
            kinds = ", ".join(map(repr, sorted(learners)))
            yield f"credit.{name}: is measured, but changes no weights, because no learner here ({kinds}) uses credit"


def credit_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each credit rule whose groups, `assign`, `baseline`, penalties or learners do not fit."""
    for field, rule in credit_rules(scenario).items():
        assign, baseline = rule.assign, rule.baseline
        if baseline.needs_groups and every_group_has_one_episode(scenario):
            yield (
                f"schedule.group_size: 1, but {field}.baseline {baseline.kind!r} compares episodes with the same "
                "start; use 2 or more, or another baseline (role_average, none)"
            )
        if baseline.uses_reward_names and assign.build() is not assign:
            yield (
                f"{field}.baseline: {baseline.kind!r} asks what each named reward alone would earn, which "
                f"{field}.assign {assign.kind!r} cannot tell, as it learns from what it is asked; choose an assign "
                "without a state (outcome, flow, ...) or another baseline"
            )
        for name, penalty in (("kl", rule.kl), ("overlong", rule.overlong), ("token_cost", rule.token_cost)):
            if penalty and baseline.uses_reward_names:
                yield (
                    f"{field}.{name}: {field}.baseline {baseline.kind!r} compares what each named reward alone would "
                    "earn, and what tokens are charged is none of them; choose another baseline, or remove this"
                )
        yield from _uncomputable_field_errors(scenario, field, rule)
        yield from _overlong_penalty_errors(scenario, field, rule)
    yield from _errors_of_rules_without_learner(scenario)
    for role, learner in scenario.credited_roles().items():
        field, rule = _setting_path_and_credit_rule(scenario, role)
        if unused := sorted(
            learner.required_credit_fields - rule.assign.needed_reading_fields - rule.baseline.needed_reading_fields
        ):
            yield (
                f"{field}: {rule.assign.kind!r} and {rule.baseline.kind!r} look at no {', '.join(unused)}, but "
                f"learner {learner.kind!r} of role {role!r} learns from what comes of them; choose an assign (gae, "
                "chain_gae) or a baseline (value) with `values: learner`, or another learner"
            )


def zero_sum_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each rule that sums the rewards of all agents of a zero-sum game, because the sum is 0."""
    game, seats = scenario.game, scenario.seats
    try:
        all_agents = set(game.build().possible_agents) if game.is_zero_sum() else None
    except ValueError:
        # `_seat_errors` reports a game that cannot be built.
        return
    if all_agents != seats.keys():
        # `_seat_errors` reports missing and surplus seats.
        return
    # Suggested teams: the agents of each role, or single agents if there is only one role.
    has_one_role = len(set(seats.values())) == 1
    team_members: dict[str, list[str]] = {}
    for agent, role in seats.items():
        team_members.setdefault(agent if has_one_role else role, []).append(agent)
    teams = ", ".join([f"[{', '.join(members)}]" for members in team_members.values()])
    before_play = Trajectory(Deal("", "", 0, seats), "")
    evidence = Evidence((), game.kind, rule_based_roles=scenario.rule_based_roles)
    for field, rule in credit_rules(scenario).items():
        for half, plugin, instead in (("assign", rule.assign, "outcome"), ("baseline", rule.baseline, "group")):
            try:
                if isinstance(plugin, AssignConfig):
                    pools = [agents for agents, _ in plugin.agent_groups_with_shared_reward(before_play, evidence)]
                else:
                    pools = plugin.agent_groups_with_combined_earnings(before_play, evidence)
            except ValueError as error:
                # The settings of the credit rule name agents that the game lacks.
                yield f"{field}.{half}.{error}"
                continue
            if all_agents in pools:
                yield (
                    f"{field}.{half}: {plugin.kind!r} adds up what all agents are paid, and in the zero-sum game "
                    f"{game.kind!r} that is always 0, so that nothing is learnt; give it `teams: [{teams}]`, or choose "
                    f"{instead!r}, which judges each agent by what it is paid itself"
                )


def _uncomputable_field_errors(scenario: Scenario, field: str, rule: CreditRule) -> Iterator[str]:
    """Yield an error for each role whose learner cannot compute a field of `Reading` that credit rule `rule` needs."""
    learners = scenario.credited_roles()
    for role in roles_credited_by_rule(scenario, field):
        learner = learners[role]
        reads = f"its learner {learner.kind!r} reads {', '.join(sorted(learner.computable_reading_fields))}"
        remedy = (
            f"; give policies.{scenario.roles[role].policy}.learner a `reference` ({{coefficient: 0}} keeps it out of "
            "the loss)"
        )
        needed = rule.assign.needed_reading_fields | rule.baseline.needed_reading_fields
        if lacks := sorted(needed - learner.computable_reading_fields):
            yield (
                f"{field}: {rule.assign.kind!r} and {rule.baseline.kind!r} need {', '.join(lacks)} of what role "
                f"{role!r} says, but {reads}{remedy if lacks == ['reference'] else ''}"
            )
        if rule.kl and (lacks := sorted(rule.kl.needed_reading_fields - learner.computable_reading_fields)):
            yield f"{field}.kl: needs {', '.join(lacks)} of what role {role!r} says, but {reads}{remedy}"


def _overlong_penalty_errors(scenario: Scenario, field: str, rule: CreditRule) -> Iterator[str]:
    """Yield an error if no answer can be so long that the overlong penalty of credit rule `rule` charges it."""
    limits = {role: scenario.roles[role].sampling.max_tokens for role in roles_credited_by_rule(scenario, field)}
    if rule.overlong is None or not limits:
        return
    longest, uncharged = max(limits.values()), rule.overlong.limit - rule.overlong.buffer
    if longest <= uncharged:
        yield (
            f"{field}.overlong.limit: {rule.overlong.limit} and buffer: {rule.overlong.buffer} charge answers of more "
            f"than {uncharged} tokens, but max_tokens ends those of {', '.join(limits)} after {longest}; choices: "
            f"limit - buffer below {longest}"
        )


def _errors_of_rules_without_learner(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each rule that no learner uses and that needs fields which no learner can compute, or has a
    KL penalty although no learner here uses credit.

    The credit stage applies such a rule in every step all the same. Examples are the default rule beside rules of all
    roles, and any rule if all learners imitate.
    """
    credit, learners = scenario.credit, [learner for _, _, learner in scenario.learning_roles()]
    learns_from_credit = bool(scenario.credited_roles())
    readable: set[str] = set()
    for learner in learners:
        readable |= learner.computable_reading_fields
    kinds = ", ".join(sorted({repr(learner.kind) for learner in learners}))
    rules: dict[str, CreditRule] = {"credit": credit}
    rules |= {f"credit.roles.{role}": rule for role, rule in credit.roles.items()}
    rules |= {f"credit.compare.{name}": rule for name, rule in credit.compare.items()}
    for field, rule in rules.items():
        if not learners or field in credit_rules(scenario):
            continue
        if rule.kl and not (learns_from_credit and rule.kl.needed_reading_fields <= readable):
            yield (
                f"{field}.kl: coefficient {rule.kl.coefficient:g} has no effect, because no learner here ({kinds}) "
                "learns by this rule; remove it, or choose a learner that uses credit (grpo, ppo, ...)"
            )
        if lacks := sorted((rule.assign.needed_reading_fields | rule.baseline.needed_reading_fields) - readable):
            yield (
                f"{field}: {rule.assign.kind!r} and {rule.baseline.kind!r} need {', '.join(lacks)}, which no learner "
                f"here reads ({kinds}), and nobody learns by this rule, though it judges every step; choose an assign "
                "and a baseline without values (outcome, group), `values: none`, or a learner with a critic"
            )


def every_group_has_one_episode(scenario: Scenario) -> bool:
    """Return True if every group has a single episode, so that no episode has peers to be compared with."""
    return scenario.schedule.group_size < 2 and not scenario.experience.plays_groups


def _setting_path_and_credit_rule(scenario: Scenario, role: str) -> tuple[str, CreditRule]:
    """Return (field, credit rule) of `role`: a rule of its own, or the default rule."""
    rules = scenario.credit.roles
    return (f"credit.roles.{role}", rules[role]) if role in rules else ("credit", scenario.credit)


def _trained_credit_rules_by_field(scenario: Scenario) -> dict[str, CreditRule]:
    """Return field -> credit rule, for the rules whose advantages at least one learner trains on."""
    return dict(_setting_path_and_credit_rule(scenario, role) for role in scenario.credited_roles())


def roles_credited_by_rule(scenario: Scenario, field: str) -> Iterator[str]:
    """Yield the roles with a learner whose turns the rule at `field` credits; a compared rule credits all of them."""
    for role in scenario.credited_roles():
        if field.startswith("credit.compare.") or _setting_path_and_credit_rule(scenario, role)[0] == field:
            yield role


def credit_rules(scenario: Scenario) -> dict[str, CreditRule]:
    """Return field -> rule, for rules with a learner and rules in `credit.compare`; {} if no learner uses credit."""
    rules = _trained_credit_rules_by_field(scenario)
    for name, rule in scenario.credit.compare.items() if rules else ():
        rules[f"credit.compare.{name}"] = rule
    return rules
