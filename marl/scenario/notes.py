"""What a scenario's author should know, though it is no error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marl.scenario.schema import Scenario


def notes(scenario: Scenario) -> Iterator[str]:
    """A line each."""
    taught = [name for name, _, learner in scenario.taught() if learner.judged]
    rules = {"credit": scenario.credit} if set(taught) - scenario.credit.roles.keys() else {}
    rules |= {f"credit.roles.{name}": scenario.credit.roles[name] for name in taught if name in scenario.credit.roles}
    for field, rule in rules.items():
        if rule.assign.by_turn and rule.baseline.by_episode:
            yield (
                f"{field}: {rule.assign.kind!r} gives an agent's turns different worths and {rule.baseline.kind!r} "
                "compares whole episodes, which pays for going on or for stopping where agents decide how often they "
                "speak; `like: prompt` and `leave_one_out` do not (credit/ROLE/stopping_bias watches it)"
            )
