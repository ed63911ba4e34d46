"""Figures of turn search for a team on held-out starts, compared with play without search and with best-of-n."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from marl.core.config import choices_hint
from marl.core.graph import Trajectory
from marl.core.statistics import interval, paired_bootstrap
from marl.core.types import Metrics
from marl.engines.reward_model.settings import RewardModelConfig
from marl.engines.workers.settings import Verifiers
from marl.evaluation.held_out import held_out_deals, mean_returns, with_bounds
from marl.metrics.trajectory_metrics import game_measures
from marl.protocols import EngineConfig
from marl.rollout.base import BaseSimulator
from marl.scenario.schema import Scenario
from marl.search.rollout_ratings import RETURNS, RolloutRating
from marl.search.settings import TurnSearchSettings
from marl.search.turn_search import TurnSearch, TurnSearchResult

SCOPE = "eval/search"


def search_problems(scenario: Scenario, search: TurnSearchSettings) -> list[str]:
    """Return a message for each search setting that contradicts the scenario."""
    seated = sorted(set(scenario.seats.values()))
    problems = [
        f"roles: no seat has the role {role!r}; {choices_hint(role, seated)}"
        for role in search.roles
        if role not in seated
    ]
    rating = RolloutRating(search.by)
    if rating.role in search.roles:
        problems.append(f"roles: {rating.role!r} rates rollouts, so its own turns are not searched; leave it out")
    if not scenario.game.held_out(1):
        problems.append(f"rule: {search.rule} is measured on held-out starts, and {scenario.game.kind!r} has none")
    return [*problems, *_rating_problems(scenario, rating, seated)]


def _rating_problems(scenario: Scenario, rating: RolloutRating, seated: Sequence[str]) -> Iterable[str]:
    """Yield a message if `rating` names a role without a seat, or a score that the role does not give."""
    if rating.by == RETURNS:
        return
    if not rating.role:
        choices = [RETURNS]
        for role in seated:
            choices += [f"{role}.{score}" for score in _score_names(_engine_of(scenario, role))]
        yield f"by: {rating.by!r} must be ROLE.score, ROLE.CHECK or {RETURNS}; choices: {', '.join(choices)}"
    elif rating.role not in seated:
        yield f"by: {rating.by!r}: no seat has the role {rating.role!r}; {choices_hint(rating.role, seated)}"
    elif rating.score not in (scores := _score_names(_engine_of(scenario, rating.role))):
        yield f"by: {rating.by!r}: {rating.role!r} gives no such score; {choices_hint(rating.score, scores)}"


def _engine_of(scenario: Scenario, role: str) -> EngineConfig:
    return scenario.policies[scenario.roles[role].policy].engine


def _score_names(engine: EngineConfig) -> list[str]:
    """Return the names of the scores in the answers of an engine."""
    match engine:
        case Verifiers():
            return list(engine.checks)
        case RewardModelConfig():
            return [engine.name]
        case _:
            return ["score"]


def is_oracle(scenario: Scenario, by: str) -> bool:
    """Return True if the rating `by` needs the right answer, so that it does not exist at test time.

    This holds for the game's returns and for checks that compare with the gold answer.
    """
    rating = RolloutRating(by)
    if rating.by == RETURNS:
        return True
    engine = _engine_of(scenario, rating.role)
    return isinstance(engine, Verifiers) and engine.checks[rating.score].checks_correctness


def team_search_figures(
    scenario: Scenario, simulator: BaseSimulator, search: TurnSearchSettings, episodes: int
) -> Metrics:
    """Return figures of the rollouts that a search chooses on held-out starts.

    Metrics under `first` are from play without search on the same starts. Metrics under `best_of_n` are from best-of-n
    with the same token budget and rating.

    Raises:
        ValueError: if the rating role gives no score of the rating's name.
    """
    simulator = simulator.variant(simulator.casting)
    searcher = TurnSearch(simulator)
    firsts = simulator.play(held_out_deals(scenario, simulator.casting.seed, episodes))
    results = searcher(firsts, search)
    metrics = _figures(SCOPE, results) | {f"{SCOPE}/oracle": float(is_oracle(scenario, search.by))}
    compared = {"first": firsts}
    if search.rule != "best_of_n":
        plain = TurnSearchSettings.model_validate(
            search.model_dump(include={"by", "tokens", "verdicts"}, exclude_defaults=True) | {"rule": "best_of_n"}
        )
        best_of_n = searcher(firsts, plain)
        metrics |= _figures(f"{SCOPE}/best_of_n", best_of_n)
        compared["best_of_n"] = [result.chosen for result in best_of_n]
    metrics |= _measures(f"{SCOPE}/first", firsts)
    for name, rollouts in compared.items():
        metrics |= _gains(f"{SCOPE}/over_{name}", rollouts, [result.chosen for result in results])
    return metrics


def _figures(scope: str, results: Sequence[TurnSearchResult]) -> Metrics:
    """Return measures of the chosen rollouts with intervals, and the mean cost of the search per problem."""
    chosen = [result.chosen for result in results]
    ratings = [rating for result in results if (rating := result.rating) is not None]
    costs = {
        "rollouts": fmean(len(result.rollouts) for result in results),
        "tokens": fmean(result.tokens for result in results),
        "prompt_tokens": fmean(result.prompt_tokens for result in results),
        "discarded_tokens": fmean(result.discarded_tokens for result in results),
        **({"rating": fmean(ratings)} if ratings else {}),
    }
    of_costs = {f"{scope}/{name}": value for name, value in costs.items()}
    return {f"{scope}/episodes": float(len(results))} | _measures(scope, chosen) | of_costs


def _measures(scope: str, rollouts: Sequence[Trajectory]) -> Metrics:
    """Return the game's measures of `rollouts` with intervals, and mean returns."""
    metrics: Metrics = {}
    for name, values in game_measures(rollouts).items():
        metrics |= with_bounds(f"{scope}/{name}", interval(values))
    return metrics | mean_returns(rollouts, f"{scope}/return/")


def _gains(scope: str, before: Sequence[Trajectory], after: Sequence[Trajectory]) -> Metrics:
    """Return the growth of the game's measures from `before` to `after`, with intervals over paired rollouts."""
    metrics: Metrics = {}
    old, new = game_measures(before), game_measures(after)
    for name in new:
        # Values can be paired by their position only if every rollout has the measure.
        if len(old.get(name, ())) == len(new[name]) == len(after):
            metrics |= with_bounds(f"{scope}/{name}", paired_bootstrap(old[name], new[name]))
    return metrics
