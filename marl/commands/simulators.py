"""Simulators of commands that play a scenario's game without training."""

from __future__ import annotations

from marl.engines.scripted import Random
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import Scenario
from marl.training.build import prepare_models
from marl.training.placement import build_engines, set_torch_threads, simulator_from_engines


def untrained_simulator(scenario: Scenario) -> RolloutSimulator:
    """Return the simulator of `scenario` with its policies before the first training step."""
    set_torch_threads(scenario.schedule.threads)
    # `learner: None` prevents building of optimizers and critics.
    policies = {name: policy.model_copy(update={"learner": None}) for name, policy in scenario.policies.items()}
    return simulator_from_engines(scenario, build_engines(policies, prepare_models(scenario, policies)))


def simulator_with_random_players(scenario: Scenario) -> RolloutSimulator:
    """Return the simulator of `scenario` with random players in all seats except those of rule-based policies."""
    players = dict.fromkeys(scenario.policies, Random().build(None))
    return simulator_from_engines(scenario, players | scenario.build_rule_based_engines())
