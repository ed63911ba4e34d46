"""The committed scenarios of teams, with models and schedules so small that they train in seconds."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from marl.scenario.load import load
from marl.scenario.schema import PolicyConfig, Scenario
from tests.support.paths import SCENARIOS

TEAMS = sorted(
    file.stem
    for file in SCENARIOS.glob("*.yaml")
    if yaml.safe_load(file.read_text()).get("game", {}).get("kind") == "team"
)
# Taught so little that some of what a model says cannot be read: rewards differ, so that there is something to learn.
_TINY = ("hidden=16", "layers=1", "warm_up.steps=40", "warm_up.episodes=128", "warm_up.batch=32", "warm_up.lr=0.01")


def small_scenario(name: str, *overrides: str, steps: int = 2, groups: int = 4, group_size: int = 4) -> Scenario:
    """A committed scenario, trained for a few steps with tiny models; nothing else about it changes."""
    file = SCENARIOS / f"{name}.yaml"
    schedule = (f"schedule.steps={steps}", f"schedule.groups={groups}", f"schedule.group_size={group_size}")
    measured = ("evaluate.held_out=4", f"checkpoint.every={steps}", "checkpoint.trajectories=1")
    policies = [change for policy in load(file).policies.items() for change in _smaller(*policy)]
    return load(file, [*schedule, *measured, *policies, *overrides])


def _smaller(name: str, policy: PolicyConfig) -> Iterator[str]:
    if policy.model is not None:
        base = "model.base" if policy.model.shared_base() else "model"
        yield from (f"policies.{name}.{base}.{field}" for field in _TINY)
    if policy.alternate is not None:
        # Those that take turns in a long run do so in a short one.
        yield f"policies.{name}.alternate={{period: 2, start: {int(policy.alternate.start > 0)}, steps: 1}}"
