"""Checks of a scenario's section `evaluate` before any weight is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from marl.core.config import choices_hint
from marl.experience.league.settings import League

if TYPE_CHECKING:
    from marl.scenario.schema import Scenario


def evaluation_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each evaluation that the game or a role does not support."""
    game, evaluate = scenario.game, scenario.evaluate
    if evaluate.nashconv and game.all_start_states() is None:
        yield f"evaluate.nashconv: game {game.kind!r} does not export its deals; measure `against` instead"
    if evaluate.population and not isinstance(scenario.experience, League):
        kind = scenario.experience.kind
        yield f"evaluate.population: experience {kind!r} has no pool; set experience.kind: league, or population: false"
    for name, role in scenario.roles.items():
        if (evaluate.nashconv or evaluate.optimal) and role.history != "fresh":
            yield f"roles.{name}.history: {role.history!r}, but exact evaluation asks each question alone; use 'fresh'"
    if evaluate.optimal and not game.evaluation_positions():
        yield f"evaluate.optimal: game {game.kind!r} does not know its optimal moves; measure `against` instead"
    opponents = {"random", *game.reference_players()}
    for name in evaluate.against:
        if name not in opponents:
            yield f"evaluate.against.{name}: no such opponent in game {game.kind!r}; {choices_hint(name, opponents)}"


def held_out_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error if the game has fewer held-out starts than an evaluation plays, and for each forecast that they
    cannot measure."""
    game, evaluate = scenario.game, scenario.evaluate
    if evaluate.held_out:
        try:
            count = len(game.held_out_reset_options(evaluate.held_out))
        except ValueError:
            return  # `checks._seat_errors` reports a game that cannot be built
        if count < evaluate.held_out:
            starts = f"{count} starts" if count else "no starts"
            yield f"evaluate.held_out: {evaluate.held_out}, but game {game.kind!r} holds {starts} out of training"
    elif evaluate.greedy:
        yield "evaluate.greedy: true, but nothing is held out to be played so; give evaluate.held_out"
    measures = game.measure_names()
    for name, forecast in evaluate.forecasts.items():
        if not evaluate.held_out:
            yield f"evaluate.forecasts.{name}: measured on held-out starts only; give evaluate.held_out"
        for field, measure in (("score", forecast.score), ("outcome", forecast.outcome)):
            if measures is not None and measure not in measures:
                hint = choices_hint(measure, measures)
                yield f"evaluate.forecasts.{name}.{field}: the game has no measure {measure!r}; {hint}"


def best_checkpoint_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error if no evaluation measures the metric `keep_best`, or if `patience` is set without `keep_best`."""
    evaluate, name = scenario.evaluate, scenario.evaluate.best_checkpoint_metric
    if name is None:
        if evaluate.patience:
            yield f"evaluate.patience: {evaluate.patience}, but nothing says what is best; give evaluate.keep_best"
        return
    metrics = _metrics_of_all_games(scenario)
    if not is_evaluation_metric(name, metrics):
        yield f"evaluate.keep_best: nothing measures {name!r}; {_metric_choices(name, metrics)}"


def proxy_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each metric of `alarms.proxy` that no evaluation measures with an interval or exactly."""
    pairs = scenario.alarms.proxy if scenario.alarms else ()
    metrics: list[str] = []
    for metric in _metrics_of_all_games(scenario) if pairs else ():
        # Returns, forecasts and statistics of a role's turns have no interval, so chance could move them.
        if not any(part in metric for part in ("/role/", "/return/", "/forecast/")):
            metrics.append(metric)
    for index, pair in enumerate(pairs):
        for field, name in (("rises", pair.rises), ("falls", pair.falls)):
            if not is_evaluation_metric(name, metrics):
                choices = _metric_choices(name, metrics)
                yield f"alarms.proxy.{index}.{field}: no evaluation measures {name!r} with an interval; {choices}"
        if pair.rises == pair.falls:
            yield f"alarms.proxy.{index}: rises and falls are the same metric {pair.rises!r}; give two"
        if pair in pairs[:index]:
            yield f"alarms.proxy.{index}: the same metrics as those of alarms.proxy.{pairs.index(pair)}; remove one"


def _metrics_of_all_games(scenario: Scenario) -> list[str]:
    metrics: list[str] = []
    for game, view in scenario.scenario_by_game().items():
        for metric in evaluation_metrics(view):
            metrics.append(metric.replace("eval/", f"eval/{game}/", 1) if game else metric)
    return metrics


def _metric_choices(name: str, metrics: Iterable[str]) -> str:
    shown = [f"{metric}..." if metric.endswith("/") else metric for metric in metrics]
    return choices_hint(name, shown) if shown else "nothing is evaluated; give evaluate.held_out"


def is_evaluation_metric(name: str, metrics: Iterable[str]) -> bool:
    """Return True if `name` is in `metrics`, or starts with a metric that ends with a slash."""
    return any(name == metric or (metric.endswith("/") and name.startswith(metric)) for metric in metrics)


def evaluation_metrics(scenario: Scenario) -> Iterator[str]:
    """Yield the names of evaluation metrics. A name that ends with a slash stands for all names with this prefix."""
    evaluate, agents = scenario.evaluate, tuple(scenario.seats)
    measures = scenario.game.measure_names()
    for scope, enabled in (("held_out", evaluate.held_out), ("held_out_greedy", evaluate.greedy)):
        if enabled and measures is None:
            yield f"eval/{scope}/"
        elif enabled and measures is not None:
            returns = [f"return/{agent}" for agent in agents]
            forecasts = [f"forecast/{name}/" for name in evaluate.forecasts]
            for name in (*measures, *returns, *(f"role/{role}/" for role in scenario.roles), *forecasts):
                yield f"eval/{scope}/{name}"
    if evaluate.optimal:
        yield "eval/optimal"
    if evaluate.nashconv:
        yield "eval/nashconv"
        for agent in agents:
            yield f"eval/value/{agent}"
    if evaluate.average:
        yield "eval/average/nashconv"
    if evaluate.population:
        yield "eval/pool/nashconv"
        yield "eval/meta/nashconv"
    if evaluate.optimal or evaluate.nashconv:
        yield "eval/legal_mass"
    for opponent in evaluate.against:
        for suffix in ("", *(f"/{agent}" for agent in agents)):
            for figure in ("mean", "win", "draw", "loss"):
                yield f"eval/{opponent}{suffix}/{figure}"
