"""Checks of a scenario's section `alarms`, and the roles whose returns the alarm `return_fell` watches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from marl.core.config import choices_hint
from marl.experience.datasets import AnswerDataset
from marl.experience.league.pool import POOL, SELF
from marl.experience.league.settings import League
from marl.experience.recorded import RecordedEpisodes

if TYPE_CHECKING:
    from marl.scenario.alarms import AlarmKind, AlarmSettings
    from marl.scenario.schema import Scenario


def roles_with_watched_return(scenario: Scenario) -> dict[str, set[str]]:
    """Return game ("" if there is only one) -> trained roles whose return falls there only if they get worse.

    Two kinds of return fall though no role gets worse. In a zero-sum game, the returns of all trained roles are left
    out if several of them play it, or if a league's player meets itself or its pool, since what one wins another
    loses. Recorded play is read in order, epoch after epoch, so its returns fall when the next epoch begins.
    """
    experience, trained = scenario.experience, {name for name, _, _ in scenario.learning_roles()}
    is_recorded = isinstance(experience, RecordedEpisodes | AnswerDataset)
    opponents: set[str] = set()
    for player in experience.players.values() if isinstance(experience, League) else ():
        opponents |= {name for name, weight in player.opponents.items() if weight}
    watched: dict[str, set[str]] = {}
    for game, view in scenario.scenario_by_game().items():
        seated: set[str] = set()
        for seating in experience.seatings(view.seats):
            seated |= trained.intersection(seating.values())
        has_rivals = view.game.is_zero_sum() and (len(seated) > 1 or not opponents.isdisjoint((SELF, POOL)))
        watched[game] = set[str]() if is_recorded or has_rivals else seated
    return watched


def alarm_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each unknown role with thresholds, and for each `alarms.stop` that is never raised."""
    alarms = scenario.alarms
    if alarms is None:
        return
    for name in alarms.roles:
        if name not in scenario.roles:
            yield f"alarms.roles.{name}: no role {name!r}; {choices_hint(name, scenario.roles)}"
    for kind in alarms.stop:
        if problem := _reason_why_never_raised(scenario, alarms, kind):
            yield f"alarms.stop: {kind!r}, but {problem}"


def _reason_why_never_raised(scenario: Scenario, alarms: AlarmSettings, kind: AlarmKind) -> str:
    """Return the reason why the alarm `kind` is never raised, and a remedy, or "" if it may be raised."""
    if kind == "samples":
        return ""
    if kind == "proxy":
        return "" if alarms.proxy else "alarms.proxy names no metrics; give a pair such as {rises: A, falls: B}"
    if kind == "kl" and alarms.kl is not None:
        learners = [policy.learner for policy in scenario.policies.values() if policy.learner]
        if any(learner.has_several_optimizer_steps for learner in learners):
            return ""
        return "every update takes one optimizer step; give a learner more epochs"
    on: set[str] = set()
    for name in scenario.roles:
        limits = alarms.alarm_thresholds_of_role(name)
        if limits and limits.alarm_threshold(kind) is not None:
            on.add(name)
    if not on:
        field = "reward" if kind == "credit" else kind
        return f"this alarm is off for every role; give alarms.{field} a threshold"
    shown = ", ".join(sorted(on))
    if kind in ("reward", "credit") and on.isdisjoint(scenario.credited_roles()):
        return f"no learner of its roles ({shown}) uses credit; choose others, such as return_fell"
    if kind == "return_fell" and on.isdisjoint(set[str]().union(*roles_with_watched_return(scenario).values())):
        return (
            f"no return of its roles ({shown}) is watched: it watches trained roles, unless they play recorded games "
            "or a zero-sum game against learning rivals, where one's gain is the other's loss; choose others, such as "
            "constant"
        )
    return ""
