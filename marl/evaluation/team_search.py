"""Figures of search over the turns of a team: held-out starts, beside play without search and best-of-n."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from marl.config import nearest
from marl.engines.reward_model.settings import RewardSeat
from marl.engines.workers.settings import Verifiers
from marl.evaluation.held_out import held_out_deals
from marl.graph import Trajectory
from marl.metrics.summaries import game_measures
from marl.protocols import EngineConfig
from marl.rollout.base import BaseSimulator
from marl.scenario.schema import Scenario
from marl.search.ratings import RETURNS, CourseRating
from marl.search.settings import TurnSearchSettings
from marl.search.team_play import TeamSearch, TurnSearchResult
from marl.statistics import interval, paired_bootstrap
from marl.types import Metrics

SCOPE = "eval/search"


def search_problems(scenario: Scenario, search: TurnSearchSettings) -> list[str]:
    """Return a message for each setting of a search that contradicts a scenario."""
    seated = sorted(set(scenario.seats.values()))
    problems = [
        f"roles: no seat has the role {role!r}; {nearest(role, seated)}" for role in search.roles if role not in seated
    ]
    rating = CourseRating(search.by)
    if rating.role in search.roles:
        problems.append(f"roles: {rating.role!r} rates courses, so its own turns are not searched; leave it out")
    if not scenario.game.held_out(1):
        problems.append(f"rule: {search.rule} is measured on held-out starts, and {scenario.game.kind!r} has none")
    return [*problems, *_rating_problems(scenario, rating, seated)]


def _rating_problems(scenario: Scenario, rating: CourseRating, seated: Sequence[str]) -> Iterable[str]:
    if rating.by == RETURNS:
        return
    if not rating.role:
        choices = ", ".join([RETURNS, *_known_ratings(scenario, seated)])
        yield f"by: {rating.by!r} must be ROLE.score, ROLE.CHECK or {RETURNS}; choices: {choices}"
    elif rating.role not in seated:
        yield f"by: {rating.by!r}: no seat has the role {rating.role!r}; {nearest(rating.role, seated)}"
    elif rating.score not in (known := _scores_of(_engine_of(scenario, rating.role))):
        yield f"by: {rating.by!r}: {rating.role!r} gives no such score; {nearest(rating.score, known)}"


def _known_ratings(scenario: Scenario, seated: Sequence[str]) -> list[str]:
    return [f"{role}.{score}" for role in seated for score in _scores_of(_engine_of(scenario, role))]


def _engine_of(scenario: Scenario, role: str) -> EngineConfig:
    return scenario.policies[scenario.roles[role].policy].engine


def _scores_of(engine: EngineConfig) -> list[str]:
    """Return the names of the scores that a speaker gives."""
    match engine:
        case Verifiers():
            return list(engine.checks)
        case RewardSeat():
            return [engine.name]
        case _:
            return ["score"]


def is_oracle(scenario: Scenario, by: str) -> bool:
    """Return True for a rating that nobody has at test time: the game's, or a check that knows the right answer."""
    rating = CourseRating(by)
    if rating.by == RETURNS:
        return True
    engine = _engine_of(scenario, rating.role)
    return isinstance(engine, Verifiers) and engine.checks[rating.score].grades


def team_search_figures(
    scenario: Scenario, simulator: BaseSimulator, search: TurnSearchSettings, episodes: int
) -> Metrics:
    """Return figures of the courses that a search chooses on held-out starts.

    `first`: of the same starts without search. `best_of_n`: of that rule, with as many tokens and the same rating.

    Raises:
        ValueError: if the rating role gives no score of that name.
    """
    table = simulator.variant(simulator.casting)
    searcher = TeamSearch(table)
    firsts = table.play(held_out_deals(scenario, table.casting.seed, episodes))
    results = searcher(firsts, search)
    metrics = _figures(SCOPE, results) | {f"{SCOPE}/oracle": float(is_oracle(scenario, search.by))}
    compared = {"first": firsts}
    if search.rule != "best_of_n":
        plain = TurnSearchSettings.model_validate(
            search.model_dump(include={"by", "tokens", "verdicts"}, exclude_defaults=True) | {"rule": "best_of_n"}
        )
        whole = searcher(firsts, plain)
        metrics |= _figures(f"{SCOPE}/best_of_n", whole)
        compared["best_of_n"] = [result.chosen for result in whole]
    metrics |= _measures(f"{SCOPE}/first", firsts)
    for name, courses in compared.items():
        metrics |= _gains(f"{SCOPE}/over_{name}", courses, [result.chosen for result in results])
    return metrics


def _figures(scope: str, results: Sequence[TurnSearchResult]) -> Metrics:
    """Return measures of chosen courses with intervals, and what it took to choose them, means over problems."""
    chosen = [result.chosen for result in results]
    ratings = [rating for result in results if (rating := result.rating) is not None]
    costs = {
        "courses": fmean(len(result.courses) for result in results),
        "tokens": fmean(result.tokens for result in results),
        "prompt_tokens": fmean(result.prompt_tokens for result in results),
        "discarded_tokens": fmean(result.discarded_tokens for result in results),
        **({"rating": fmean(ratings)} if ratings else {}),
    }
    of_costs = {f"{scope}/{name}": value for name, value in costs.items()}
    return {f"{scope}/episodes": float(len(results))} | _measures(scope, chosen) | of_costs


def _measures(scope: str, courses: Sequence[Trajectory]) -> Metrics:
    """Return the game's measures of courses with their intervals, and mean returns."""
    metrics: Metrics = {}
    for name, values in game_measures(courses).items():
        metrics |= _bounded(f"{scope}/{name}", interval(values))
    agents = {agent: None for course in courses for agent in course.deal.seats}
    returns = {agent: fmean(course.returns.get(agent, 0.0) for course in courses) for agent in agents}
    return metrics | {f"{scope}/return/{agent}": value for agent, value in returns.items()}


def _gains(scope: str, before: Sequence[Trajectory], after: Sequence[Trajectory]) -> Metrics:
    """Return by how much the game's measures grew, with intervals for pairs of courses of one problem."""
    metrics: Metrics = {}
    old, new = game_measures(before), game_measures(after)
    for name in new:
        if len(old.get(name, ())) == len(new[name]) == len(after):
            metrics |= _bounded(f"{scope}/{name}", paired_bootstrap(old[name], new[name]))
    return metrics


def _bounded(name: str, bounds: tuple[float, float, float]) -> Metrics:
    low, value, high = bounds
    return {name: value} | ({f"{name}_low": low, f"{name}_high": high} if math.isfinite(low) else {})
