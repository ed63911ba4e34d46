"""Checks of what must fit together in a scenario, made before a weight is loaded.

Every message names the field, the value and the choices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from marl.config import nearest
from marl.protocols import Speaker

if TYPE_CHECKING:
    from marl.config import Component
    from marl.protocols import LearnerConfig, RoleConfig
    from marl.scenario.schema import CreditRule, Scenario


def check(scenario: Scenario) -> None:
    """Check that the parts of a scenario fit together.

    Raises:
        ValueError: naming everything that does not fit, a line each.
    """
    about_parts = (_references, _seats, _speakers, _weights, _remote, _learning, _updates, _credit)
    about_measuring = (_evaluation, _held_out, _best, _alarms)
    problems = [problem for find in (*about_parts, *about_measuring) for problem in find(scenario)]
    if problems:
        raise ValueError("\n".join(problems))


def absent(scenario: Scenario) -> list[str]:
    """Return a message for each file, folder and package that the scenario needs and that is not there."""
    parts: dict[str, Component] = {"game": scenario.game, "experience": scenario.experience}
    parts |= {f"roles.{name}": role for name, role in scenario.roles.items()}
    for field, rule in _rules(scenario).items():
        parts |= {f"{field}.assign": rule.assign, f"{field}.baseline": rule.baseline}
    for name, policy in scenario.policies.items():
        parts |= {f"policies.{name}.model": policy.model} if policy.model else {}
        parts |= {f"policies.{name}.learner": policy.learner} if policy.learner else {}
        parts[f"policies.{name}.engine"] = policy.engine
    lacking = [f"{field}.{problem}" for field, part in parts.items() for problem in part.missing()]
    return lacking + [
        f"track: {name!r} is not installed; pip install 'marl-llm[tracking]', or remove it"
        for name in scenario.track
        if find_spec(name) is None
    ]


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


def _unknown(field: str, name: str, noun: str, choices: Iterable[str]) -> str:
    return f"{field}: no {noun} {name!r}; {nearest(name, choices)}"


def _references(scenario: Scenario) -> Iterator[str]:
    for agent, role in scenario.seats.items():
        if role not in scenario.roles:
            yield _unknown(f"seats.{agent}", role, "role", scenario.roles)
    for name, role in scenario.roles.items():
        if role.policy not in scenario.policies:
            yield _unknown(f"roles.{name}.policy", role.policy, "policy", scenario.policies)
        if name not in scenario.seats.values():
            yield f"roles.{name}: no seat uses this role; seats: {dict(scenario.seats)}"
    used = {role.policy for role in scenario.roles.values()}
    for name in (name for name in scenario.policies if name not in used):
        yield f"policies.{name}: no role speaks with this policy; roles: {', '.join(scenario.roles)}"
    for name in (name for name in scenario.credit.roles if name not in scenario.roles):
        yield _unknown(f"credit.roles.{name}", name, "role", scenario.roles)


def _seats(scenario: Scenario) -> Iterator[str]:
    try:
        agents = list(scenario.game.build().possible_agents)
    except ValueError as error:
        yield f"game: {error}"
        return
    for agent in agents:
        if agent not in scenario.seats:
            yield f"seats.{agent}: missing: game {scenario.game.kind!r} has the agents {', '.join(agents)}"
    for agent in scenario.seats:
        if agent not in agents:
            yield f"seats.{agent}: game {scenario.game.kind!r} has no such agent; {nearest(agent, agents)}"
    if scenario.schedule.rotate_seats and len(set(scenario.seats.values())) < 2:
        yield "schedule.rotate_seats: true, but all seats have the same role; give them different ones or drop it"


def _speakers(scenario: Scenario) -> Iterator[str]:
    for name, role in scenario.roles.items():
        if "" in role.sampling.stop:
            yield f"roles.{name}.sampling.stop: '' ends every answer before its first token; remove it"
    speakers = {
        agent: Speaker(role, policy.engine, policy.model)
        for agent, name in scenario.seats.items()
        if (role := scenario.roles.get(name)) and (policy := scenario.policies.get(role.policy))
    }
    if speakers.keys() == scenario.seats.keys():  # else `_references` names those who are missing
        yield from (f"game.{problem}" for problem in scenario.game.conflicts(speakers))


def _weights(scenario: Scenario) -> Iterator[str]:
    for name, policy in scenario.policies.items():
        engine = policy.engine
        if engine.needs_model and policy.model is None:
            yield f"policies.{name}.model: engine {engine.kind!r} needs a model: a folder, a hub name or {{kind: tiny}}"
        if not engine.needs_model and policy.model is not None:
            yield f"policies.{name}.model: engine {engine.kind!r} has no use for a model; remove it"
        if not engine.needs_model and policy.learner is not None:
            yield (
                f"policies.{name}.learner: {policy.learner.kind!r} on a policy that cannot learn: engine "
                f"{engine.kind!r} has no weights; remove the learner, or use an engine with a model (transformers)"
            )


def _remote(scenario: Scenario) -> Iterator[str]:
    deadline_s, evaluate = scenario.schedule.deadline_s, scenario.evaluate
    for name, policy in scenario.policies.items():
        engine = policy.engine
        if engine.max_wait_s > deadline_s:
            yield (
                f"schedule.deadline_s: {deadline_s:g} s, but policies.{name}.engine may take {engine.max_wait_s:g} s "
                "with all its retries; give more, or the engine a smaller timeout_s or fewer retries"
            )
        if not engine.token_level and (evaluate.nashconv or evaluate.optimal):
            yield (
                f"evaluate.{'nashconv' if evaluate.nashconv else 'optimal'}: engine {engine.kind!r} of policies.{name} "
                "cannot say how likely a move is; measure `against` instead"
            )
    for name, role in scenario.roles.items():
        speaker = scenario.policies.get(role.policy)
        if speaker and not speaker.engine.token_level and role.sampling.thinking_tokens is not None:
            yield (
                f"roles.{name}.sampling.thinking_tokens: {role.sampling.thinking_tokens}, but engine "
                f"{speaker.engine.kind!r} of policies.{role.policy} cannot limit thoughts; remove it: fields of the "
                "endpoint's own, such as reasoning_effort, stand in engine.extra"
            )
        if speaker and not speaker.engine.token_level and role.history != "fresh":
            yield (
                f"roles.{name}.history: {role.history!r}, but engine {speaker.engine.kind!r} of "
                f"policies.{role.policy} cannot continue token ids; use 'fresh'"
            )


def _lacks_peers(scenario: Scenario) -> bool:
    """Return True if every episode is the only one from its start."""
    return scenario.schedule.group_size < 2 and not scenario.experience.siblings


def _learning(scenario: Scenario) -> Iterator[str]:
    if not any(policy.learner for policy in scenario.policies.values()):
        yield f"policies: nothing to train: give one of {', '.join(scenario.policies)} a learner"
    for name, policy in scenario.policies.items():
        roles = [role for role in scenario.roles.values() if role.policy == name]
        if policy.learner and roles and not any(role.trainable for role in roles):
            yield f"policies.{name}.learner: no role with `trainable: true` speaks with this policy"
    for name, role, learner in scenario.learning_roles():
        yield from _sampling(f"roles.{name}.sampling", role, learner)
        if learner.compares and _lacks_peers(scenario):
            yield (
                f"schedule.group_size: 1, but policies.{role.policy}.learner {learner.kind!r} compares episodes with "
                "the same start; use 2 or more"
            )
    conflicts = scenario.experience.conflicts(scenario.seats, scenario.schedule.group_size)
    yield from (f"experience.{message}" for message in conflicts)


def _updates(scenario: Scenario) -> Iterator[str]:
    steps = scenario.schedule.steps
    for name, policy in scenario.policies.items():
        if policy.learner and not policy.updates(steps):
            yield (
                f"policies.{name}: never learns in schedule.steps {steps}: update_every {policy.update_every}, "
                f"alternate {policy.alternate or 'null'}; choose fewer steps an update, or an earlier start"
            )
        if policy.learner is None and (policy.update_every > 1 or policy.alternate):
            field = "update_every" if policy.update_every > 1 else "alternate"
            yield f"policies.{name}.{field}: a policy without a learner has no updates; give it one, or remove this"


def _sampling(field: str, role: RoleConfig, learner: LearnerConfig) -> Iterator[str]:
    sampling = role.sampling
    if learner.uses_credit and sampling.temperature == 0:
        yield f"{field}.temperature: 0 always says the same, so there is nothing to learn from; use more, such as 1"
    elif not learner.supports(sampling):
        yield (
            f"{field}: top_p {sampling.top_p:g} and top_k {sampling.top_k} cut tokens off, and "
            f"policies.{role.policy}.learner would see other probabilities; set its `truncated: recompute`, "
            "or top_p: 1 and top_k: 0"
        )


def _rule_of(scenario: Scenario, role: str) -> tuple[str, CreditRule]:
    """Return the field and the rule that judges a role."""
    rules = scenario.credit.roles
    return (f"credit.roles.{role}", rules[role]) if role in rules else ("credit", scenario.credit)


def _learnt_rules(scenario: Scenario) -> dict[str, CreditRule]:
    """Return field -> rule, for the rules that a learner learns by. Imitation has none; a default may be unused."""
    return dict(_rule_of(scenario, role) for role in scenario.credited_roles())


def _rules(scenario: Scenario) -> dict[str, CreditRule]:
    """Return field -> rule, for the rules that a learner learns by and those that are compared with them."""
    compared = {f"credit.compare.{name}": rule for name, rule in scenario.credit.compare.items()}
    return learnt | compared if (learnt := _learnt_rules(scenario)) else {}


def _credit(scenario: Scenario) -> Iterator[str]:
    for field, rule in _rules(scenario).items():
        baseline = rule.baseline
        if baseline.compares and _lacks_peers(scenario):
            yield (
                f"schedule.group_size: 1, but {field}.baseline {baseline.kind!r} compares episodes with the same "
                "start; use 2 or more, or another baseline (role_average, none)"
            )
        if baseline.by_name:
            yield from _by_name(field, rule)
        yield from _unreadable(scenario, field, rule)
    for role, learner in scenario.credited_roles().items():
        field, rule = _rule_of(scenario, role)
        if unused := sorted(learner.credit_needs - rule.assign.needs - rule.baseline.needs):
            yield (
                f"{field}: {rule.assign.kind!r} and {rule.baseline.kind!r} look at no {', '.join(unused)}, but "
                f"learner {learner.kind!r} of role {role!r} learns from what comes of them; choose an assign (gae, "
                "chain_gae) or a baseline (value) with `values: learner`, or another learner"
            )


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
        if lacks := sorted((rule.assign.needs | rule.baseline.needs) - learner.readable):
            yield (
                f"{field}: {rule.assign.kind!r} and {rule.baseline.kind!r} need {', '.join(lacks)} of what role "
                f"{role!r} says, but {reads}"
            )
        if rule.kl and (lacks := sorted(rule.kl.needs - learner.readable)):
            yield (
                f"{field}.kl: needs {', '.join(lacks)} of what role {role!r} says, but {reads}; give "
                f"policies.{scenario.roles[role].policy}.learner a `reference` ({{coefficient: 0}} keeps it out of the "
                "loss)"
            )


def _evaluation(scenario: Scenario) -> Iterator[str]:
    game, evaluate = scenario.game, scenario.evaluate
    if evaluate.nashconv and game.starts() is None:
        yield f"evaluate.nashconv: game {game.kind!r} does not export its deals; measure `against` instead"
    for name, role in scenario.roles.items():
        if (evaluate.nashconv or evaluate.optimal) and role.history != "fresh":
            yield f"roles.{name}.history: {role.history!r}, but exact evaluation asks each question alone; use 'fresh'"
    if evaluate.optimal and not game.positions():
        yield f"evaluate.optimal: game {game.kind!r} does not know its optimal moves; measure `against` instead"
    opponents = {"random", *game.opponents()}
    for name in evaluate.against:
        if name not in opponents:
            yield f"evaluate.against.{name}: no such opponent in game {game.kind!r}; {nearest(name, opponents)}"


def _held_out(scenario: Scenario) -> Iterator[str]:
    game, evaluate = scenario.game, scenario.evaluate
    if evaluate.held_out:
        try:
            count = len(game.held_out(evaluate.held_out))
        except ValueError:
            return  # `_seats` reports a game that cannot be built
        if count < evaluate.held_out:
            starts = f"{count} starts" if count else "no starts"
            yield f"evaluate.held_out: {evaluate.held_out}, but game {game.kind!r} holds {starts} out of training"
    elif evaluate.greedy:
        yield "evaluate.greedy: true, but nothing is held out to be played so; give evaluate.held_out"


def _best(scenario: Scenario) -> Iterator[str]:
    evaluate, name = scenario.evaluate, scenario.evaluate.best_by
    if name is None:
        if evaluate.patience:
            yield f"evaluate.patience: {evaluate.patience}, but nothing says what is best; give evaluate.keep_best"
        return
    known = list(_measured(scenario))
    if not any(name == figure or (figure.endswith("/") and name.startswith(figure)) for figure in known):
        shown = [f"{figure}..." if figure.endswith("/") else figure for figure in known]
        choices = nearest(name, shown) if shown else "nothing is evaluated; give evaluate.held_out"
        yield f"evaluate.keep_best: nothing measures {name!r}; {choices}"


def _measured(scenario: Scenario) -> Iterator[str]:
    """Yield the names of what is evaluated; one that ends with a slash stands for all that begin with it."""
    evaluate, agents = scenario.evaluate, tuple(scenario.seats)
    measures = scenario.game.measured()
    scopes = {"held_out": evaluate.held_out, "held_out_greedy": evaluate.greedy}
    below = [*(measures or ()), *(f"return/{agent}" for agent in agents), *(f"role/{role}/" for role in scenario.roles)]
    for scope in (f"eval/{name}/" for name, enabled in scopes.items() if enabled):
        yield from [scope] if measures is None else (f"{scope}{name}" for name in below)
    if evaluate.optimal:
        yield "eval/optimal"
    if evaluate.nashconv:
        yield from ("eval/nashconv", *(f"eval/value/{agent}" for agent in agents))
    if evaluate.optimal or evaluate.nashconv:
        yield "eval/legal_mass"
    for opponent in evaluate.against:
        places = (f"eval/{opponent}", *(f"eval/{opponent}/{agent}" for agent in agents))
        yield from (f"{place}/{figure}" for place in places for figure in ("mean", "win", "draw", "loss"))


def _alarms(scenario: Scenario) -> Iterator[str]:
    alarms = scenario.alarms
    if alarms is None:
        return
    for name in alarms.roles:
        if name not in scenario.roles:
            yield _unknown(f"alarms.roles.{name}", name, "role", scenario.roles)
    thresholds = [limits for role in scenario.roles if (limits := alarms.of_role(role))]
    for kind in alarms.stop:
        if all(limits.limit(kind) is None for limits in thresholds):
            yield f"alarms.stop: {kind!r}, but this alarm is off for every role; give alarms.{kind} a threshold"
