"""What must fit together in a scenario, checked before a weight is loaded. Every message names the field, the value
and the choices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from marl.config import nearest

if TYPE_CHECKING:
    from marl.scenario import CreditRule, Scenario


def check(scenario: Scenario) -> None:
    """Raises:
    ValueError: naming everything that does not fit, a line each.
    """
    problems = [
        *_references(scenario),
        *_seats(scenario),
        *_weights(scenario),
        *_learning(scenario),
        *_credit(scenario),
        *_evaluation(scenario),
    ]
    if problems:
        raise ValueError("\n".join(problems))


def _unknown(field: str, name: str, what: str, choices: Iterable[str]) -> str:
    return f"{field}: no {what} {name!r}; {nearest(name, choices)}"


def _references(scenario: Scenario) -> Iterator[str]:
    for agent, role in scenario.seats.items():
        if role not in scenario.roles:
            yield _unknown(f"seats.{agent}", role, "role", scenario.roles)
    for name, role in scenario.roles.items():
        if role.policy not in scenario.policies:
            yield _unknown(f"roles.{name}.policy", role.policy, "policy", scenario.policies)
        if name not in scenario.seats.values():
            yield f"roles.{name}: no seat uses this role; seats: {dict(scenario.seats)}"
    for name in scenario.policies.keys() - {role.policy for role in scenario.roles.values()}:
        yield f"policies.{name}: no role speaks with this policy; roles: {', '.join(scenario.roles)}"
    for name in scenario.credit.roles.keys() - scenario.roles.keys():
        yield _unknown("credit.roles", name, "role", scenario.roles)


def _seats(scenario: Scenario) -> Iterator[str]:
    agents = list(scenario.game.build().possible_agents)
    for agent in agents:
        if agent not in scenario.seats:
            yield f"seats: agent {agent!r} of game {scenario.game.kind!r} has no role; agents: {', '.join(agents)}"
    for agent in scenario.seats:
        if agent not in agents:
            yield _unknown("seats", agent, f"agent in game {scenario.game.kind!r}", agents)
    if scenario.schedule.rotate_seats and len(set(scenario.seats.values())) < 2:
        yield "schedule.rotate_seats: true, but all seats have the same role; give them different ones or drop it"


def _weights(scenario: Scenario) -> Iterator[str]:
    for name, policy in scenario.policies.items():
        engine = policy.engine
        if engine.speaks_for_models and policy.model is None:
            yield f"policies.{name}.model: engine {engine.kind!r} needs a model: a folder, a hub name or {{kind: tiny}}"
        if not engine.speaks_for_models and policy.model is not None:
            yield f"policies.{name}.model: engine {engine.kind!r} has no use for a model; remove it"
        if not engine.speaks_for_models and policy.learner is not None:
            yield (
                f"policies.{name}.learner: {policy.learner.kind!r} on a policy that cannot learn: engine "
                f"{engine.kind!r} has no weights; remove the learner, or use an engine with a model (transformers)"
            )


def _learning(scenario: Scenario) -> Iterator[str]:
    learning = {name: policy.learner for name, policy in scenario.policies.items() if policy.learner}
    if not learning:
        yield f"policies: nothing to train: give one of {', '.join(scenario.policies)} a learner"
    trained = {role.policy for role in scenario.roles.values() if role.trainable}
    for name in learning.keys() - trained:
        yield f"policies.{name}.learner: no role with `trainable: true` speaks with this policy"
    for name, role in scenario.roles.items():
        learner = learning.get(role.policy)
        if learner and role.trainable and role.sampling.temperature == 0:
            yield f"roles.{name}.sampling.temperature: 0 always says the same, so there is nothing to learn from"
        if learner and role.trainable and not learner.corrects(role.sampling):
            yield (
                f"roles.{name}.sampling: top_p {role.sampling.top_p:g} and top_k {role.sampling.top_k} cut tokens off, "
                f"and policies.{role.policy}.learner would see other probabilities; set its `truncated: recompute`, "
                "or top_p: 1 and top_k: 0"
            )


def _rules(scenario: Scenario) -> Iterator[tuple[str, CreditRule]]:
    yield "credit", scenario.credit
    yield from ((f"credit.roles.{name}", rule) for name, rule in scenario.credit.roles.items())


def _credit(scenario: Scenario) -> Iterator[str]:
    learners = [policy.learner for policy in scenario.policies.values() if policy.learner]
    if not any(learner.judged for learner in learners):
        return
    for field, rule in _rules(scenario):
        if rule.baseline.compares and scenario.schedule.group_size < 2:
            yield (
                f"schedule.group_size: 1, but {field}.baseline {rule.baseline.kind!r} compares episodes with the same "
                "start; use 2 or more, or another baseline (role_average, none)"
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
            yield _unknown("evaluate.against", name, f"opponent for game {game.kind!r}", opponents)
