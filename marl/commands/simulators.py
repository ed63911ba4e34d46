"""Simulators of commands that play a scenario's game without training."""

from __future__ import annotations

from marl.engines.scripted import Random
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import Scenario
from marl.training.build import prepare_models
from marl.training.placement import build_engines, make_simulator, use_threads


def untrained_simulator(scenario: Scenario) -> RolloutSimulator:
    """Return the simulator of `scenario` with its policies before the first training step."""
    use_threads(scenario.schedule.threads)
    # Without learners neither optimizers nor critics are built.
    policies = {name: policy.model_copy(update={"learner": None}) for name, policy in scenario.policies.items()}
    return make_simulator(scenario, build_engines(policies, prepare_models(scenario, policies)))


def random_simulator(scenario: Scenario) -> RolloutSimulator:
    """Return the simulator of `scenario` with random players in every seat without a rule-based policy."""
    players = dict.fromkeys(scenario.policies, Random().build(None))
    return make_simulator(scenario, players | scenario.rule_engines())
