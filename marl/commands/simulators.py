"""Simulators for commands that play: a scenario's game, with its policies as they start out or with random players."""

from __future__ import annotations

from marl.engines.scripted import Random
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import Scenario
from marl.training.build import sources
from marl.training.placement import build_engines, make_simulator, use_threads


def untrained_policies(scenario: Scenario) -> RolloutSimulator:
    """Return a scenario's simulator with its policies as they are before the first step."""
    use_threads(scenario.schedule.threads)
    policies = {name: policy.model_copy(update={"learner": None}) for name, policy in scenario.policies.items()}
    return make_simulator(scenario, build_engines(policies, sources(scenario, policies)))


def random_players(scenario: Scenario) -> RolloutSimulator:
    """Return a scenario's simulator with random players in every seat but those that answer by rule."""
    players = dict.fromkeys(scenario.policies, Random().build(None))
    return make_simulator(scenario, players | scenario.rule_engines())
