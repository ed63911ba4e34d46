"""Figures of turn search for a team on held-out starts, compared with play without search and with best-of-n."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from marl.core.config import choices_hint
from marl.core.graph import Trajectory
from marl.core.statistics import confidence_interval, paired_bootstrap_interval
from marl.core.types import Metrics
from marl.engines.reward_model.settings import RewardModelConfig
from marl.engines.workers.settings import Verifiers
from marl.evaluation.held_out import held_out_deals, mean_return_metrics, metric_with_interval
from marl.metrics.trajectory_metrics import measure_values_by_name
from marl.protocols import EngineConfig
from marl.rollout.base import BaseSimulator
from marl.scenario.schema import Scenario
from marl.search.rollout_ratings import RETURNS, RolloutRater
from marl.search.settings import TurnSearchSettings
from marl.search.turn_search import TurnSearch, TurnSearchResult

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
eval/search/MEASURE | the game's | mean of a measure of the rollouts that a search over turns chooses on held-out
    starts (`marl eval run --search`)
eval/search/return/AGENT | reward | mean return of a seat in them
eval/search/tokens, prompt_tokens | tokens a problem | sampled for the rollouts that ended within the budget; read
    as their prompts, each counted whole
eval/search/discarded_tokens | tokens a problem | sampled for the rollouts that had not ended when the budget was
    spent
eval/search/rollouts, episodes | rollouts a problem; problems | that ended within the budget; that were searched
eval/search/rating | the rating's | mean rating of the chosen rollouts, of those that have one
eval/search/oracle | 0 or 1 | the rating is what the game pays, or a check that knows the right answer
eval/search/first/... | as `eval/search/...` | measures and returns of the same starts without search
eval/search/best_of_n/... | as `eval/search/...` | the same for that rule, with the same rating and budget
eval/search/over_first/MEASURE, over_best_of_n/MEASURE | the game's | how much more the search reaches than these;
    intervals by bootstrap of pairs
"""

SCOPE = "eval/search"


def turn_search_setting_errors(scenario: Scenario, search: TurnSearchSettings) -> list[str]:
    """Return an error for each search setting that contradicts the scenario."""
    seated, rating = sorted(set(scenario.seats.values())), RolloutRater(search.by)
    problems: list[str] = []
    for role in search.roles:
        if role not in seated:
            problems.append(f"roles: no seat has the role {role!r}; {choices_hint(role, seated)}")
    if (rater := rating.rating_role) in search.roles:
        problems.append(f"roles: {rater!r} rates rollouts, so its own turns are not searched; leave it out")
    if not scenario.game.held_out_reset_options(1):
        problems.append(f"rule: {search.rule} is measured on held-out starts, and {scenario.game.kind!r} has none")
    by = f"by: {rating.by!r}"
    if rating.by == RETURNS:
        return problems
    if not rater:
        choices = [RETURNS]
        for role in seated:
            choices += [f"{role}.{score}" for score in _score_names(_engine_of_role(scenario, role))]
        problems.append(f"{by} must be ROLE.score, ROLE.CHECK or {RETURNS}; choices: {', '.join(choices)}")
    elif rater not in seated:
        problems.append(f"{by}: no seat has the role {rater!r}; {choices_hint(rater, seated)}")
    elif rating.score_name not in (scores := _score_names(_engine_of_role(scenario, rater))):
        problems.append(f"{by}: {rater!r} gives no such score; {choices_hint(rating.score_name, scores)}")
    return problems


def _engine_of_role(scenario: Scenario, role: str) -> EngineConfig:
    """Return the engine settings of a role's policy."""
    return scenario.policies[scenario.roles[role].policy].engine


def _score_names(engine: EngineConfig) -> list[str]:
    """Return the names of the scores that an engine's answers may contain."""
    match engine:
        case Verifiers():
            return list(engine.checks)
        case RewardModelConfig():
            return [engine.name]
        case _:
            return ["score"]


def rating_needs_gold_answer(scenario: Scenario, rating_source: str) -> bool:
    """Return True if the rating `rating_source` needs the right answer, which is unknown at test time.

    This holds for the game's returns and for checks that compare with the gold answer.
    """
    rating = RolloutRater(rating_source)
    if rating.by == RETURNS:
        return True
    engine = _engine_of_role(scenario, rating.rating_role)
    return isinstance(engine, Verifiers) and engine.checks[rating.score_name].checks_correctness


def turn_search_metrics(
    scenario: Scenario, simulator: BaseSimulator, search: TurnSearchSettings, episodes: int
) -> Metrics:
    """Return metrics of the rollouts that a search chooses on held-out starts.

    Metrics under `first` are from play without search on the same starts. Metrics under `best_of_n` are from best-of-n
    with the same token budget and rating.

    Raises:
        ValueError: if the rating role gives no score of the rating's name.
    """
    simulator = simulator.variant(simulator.casting)
    searcher = TurnSearch(simulator)
    firsts = simulator.play(held_out_deals(scenario, simulator.casting.seed, episodes))
    results = searcher(firsts, search)
    metrics = _search_metrics(SCOPE, results) | {
        f"{SCOPE}/oracle": float(rating_needs_gold_answer(scenario, search.by))
    }
    compared = {"first": firsts}
    if search.rule != "best_of_n":
        plain = TurnSearchSettings.model_validate(
            search.model_dump(include={"by", "tokens", "verdicts"}, exclude_defaults=True) | {"rule": "best_of_n"}
        )
        best_of_n = searcher(firsts, plain)
        metrics |= _search_metrics(f"{SCOPE}/best_of_n", best_of_n)
        compared["best_of_n"] = [result.chosen_rollout for result in best_of_n]
    metrics |= _rollout_metrics(f"{SCOPE}/first", firsts)
    gained = measure_values_by_name([result.chosen_rollout for result in results])
    for name, rollouts in compared.items():
        measures = measure_values_by_name(rollouts)
        for measure, values in gained.items():
            # Two searches are compared rollout by rollout, so each rollout must have the measure.
            if len(measures.get(measure, ())) == len(values) == len(results):
                bounds = paired_bootstrap_interval(measures[measure], values)
                metrics |= metric_with_interval(f"{SCOPE}/over_{name}/{measure}", bounds)
    return metrics


def _search_metrics(metric_prefix: str, results: Sequence[TurnSearchResult]) -> Metrics:
    """Return the game's measures of the chosen rollouts with intervals, and the mean cost of a problem's search."""
    chosen = [result.chosen_rollout for result in results]
    metrics = {f"{metric_prefix}/episodes": float(len(results))} | _rollout_metrics(metric_prefix, chosen)
    costs: dict[str, list[float]] = defaultdict(list)
    for result in results:
        costs["rollouts"].append(len(result.rollouts))
        costs["tokens"].append(result.sampled_tokens)
        costs["prompt_tokens"].append(result.prompt_tokens)
        costs["discarded_tokens"].append(result.discarded_tokens)
        if result.chosen_rating is not None:
            costs["rating"].append(result.chosen_rating)
    for name, numbers in costs.items():
        metrics[f"{metric_prefix}/{name}"] = fmean(numbers)
    return metrics


def _rollout_metrics(metric_prefix: str, rollouts: Sequence[Trajectory]) -> Metrics:
    """Return the game's measures of `rollouts` with intervals, and mean returns."""
    metrics: Metrics = {}
    for name, values in measure_values_by_name(rollouts).items():
        metrics |= metric_with_interval(f"{metric_prefix}/{name}", confidence_interval(values))
    return metrics | mean_return_metrics(rollouts, f"{metric_prefix}/return/")
