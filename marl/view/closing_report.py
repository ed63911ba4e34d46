"""Report of a run, printed when the run ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

from marl.evaluation.evaluate import MIN_LEGAL_MASS, is_computed_from_move_probabilities
from marl.metrics.alarms import alarm_subject, is_alarm_metric
from marl.metrics.trajectory_metrics import held_out_metric_names, metric_names_in_all_games
from marl.protocols import LearnerConfig
from marl.runs.best_checkpoint import BestEvaluationTracker
from marl.runs.checkpoint import intact_checkpoint_steps
from marl.runs.run_folder import RunFolder
from marl.scenario.schema import EvaluationSettings
from marl.view.credit_warnings import conservation_warning
from marl.view.curves import Curve, text_chart
from marl.view.forecast_quality import ForecastQuality, forecast_qualities
from marl.view.role_worth import RoleCorrections, is_correction_metric, role_corrections
from marl.view.run_groups import metric_values

_TITLES = {
    "eval/nashconv": "NashConv",
    "eval/average/nashconv": "NashConv of the average policy",
    "eval/pool/nashconv": "NashConv of the pool, all members alike",
    "eval/meta/nashconv": "NashConv of the pool's meta-strategy",
    "eval/optimal": "Probability of an optimal move",
    "eval/random/win": "Wins against random",
    "eval/minimax/draw": "Draws against minimax",
}
_TO_THE_END = ", to the end"
_ROLE_FIGURES = {"illegal": "illegal moves", "tokens": "tokens a turn", "entropy": "entropy"}
"""Metric of a role -> name in the report."""
_BIASED_T = 4.0
"""Absolute t value of the stopping bias above which chance is an unlikely explanation."""
Row = Mapping[str, Any]


def closing_report(
    run_folder: RunFolder,
    is_finished: bool,
    evaluation_settings: EvaluationSettings | None = None,
    credited_roles: Mapping[str, LearnerConfig] | None = None,
) -> str:
    """Return the report of a run: the main metric's curve, metrics, roles, credit, the best checkpoint and alarms.

    Each metric is shown at the first step and at the end (mean over the last tenth of the steps). `credited_roles`:
    role that learns from credit -> its learner; their credit is shown (default: that of all roles with credit).
    """
    rows = list(run_folder.rows())
    titles = title_by_evaluation_metric(chain.from_iterable(rows))
    curves: dict[str, Curve] = {}
    for name in titles:
        curves[name] = [(row["step"], row[name]) for row in rows if name in row]
    lines: list[str] = []
    if not is_finished and not rows:
        lines.append("stopped before the first step")
    elif not is_finished:
        step, checkpoints = rows[-1]["step"], intact_checkpoint_steps(run_folder.checkpoints)
        notice = f"stopped at step {step}, before the first checkpoint: `{run_folder.resume_command}` begins anew"
        if checkpoints:
            newest = checkpoints[-1]
            again = "" if newest == step else f" from checkpoint {newest:06d} (the steps after it are done again)"
            notice = f"stopped at step {step}; go on{again} with: {run_folder.resume_command}"
        lines.append(notice)
    if curves and len(main_curve := next(iter(curves.values()))) > 1:
        lines += ["", f"{next(iter(titles.values()))}, by step", text_chart(main_curve), ""]
    lines += _evaluation_lines(rows, curves, titles)
    lines += _correction_lines(rows)
    lines += _forecast_lines(rows)
    lines += _role_report_lines(rows)
    lines += _teacher_lines(rows)
    lines += _credit_diagnostic_lines(rows, credited_roles)
    best = BestEvaluationTracker.from_rows(evaluation_settings or EvaluationSettings(), rows)
    # With a single evaluation there is no best step to name.
    if best.step is not None and best.metric and len(metric_values(rows, best.metric)) > 1:
        checkpoint = run_folder.checkpoints / f"{best.step:06d}"
        location = "its checkpoint is not kept" if best.step else "before training"
        if checkpoint.is_dir():
            location = str(checkpoint)
        lines.append(f"best {best.metric} {best.value:.3f} at step {best.step}: {location}")
        if best.out_of_patience:
            lines.append(best.stop_message)
    alarms = list(alarm_lines(rows))
    lines += alarms
    ending = f"run folder: {run_folder.path}"
    if any(line.endswith(_TO_THE_END) for line in alarms):
        ending = (
            f"WARNING alarms held to the end, so this run has probably not learned what it should: look at its "
            f"dialogues first: marl show {run_folder.path}"
        )
    return "\n".join([*lines, ending])


def title_by_evaluation_metric(metric_names: Iterable[str]) -> dict[str, str]:
    """Return metric -> title for the metrics of evaluations, in the order of the report."""
    names = [name for name in dict.fromkeys(metric_names) if name.startswith("eval/")]
    titles: dict[str, str] = {}
    for figure, title in _TITLES.items():
        for name in metric_names_in_all_games([figure], names):
            titles[name] = title if name == figure else f"{name.split('/')[1]}: {title}"
    for name in held_out_metric_names(names):
        *game, scope, measure = name.split("/")[1:]
        titles[name] = f"{measure} on held-out starts" + (", greedy" if scope.endswith("greedy") else "")
        titles[name] = ": ".join([*game, titles[name]])
    return titles


def _evaluation_lines(
    rows: Sequence[Row], curve_by_metric: Mapping[str, Curve], title_by_metric: Mapping[str, str]
) -> Iterator[str]:
    """Yield a line for each metric of evaluations, at the first step and at the end."""
    last = _rows_of_last_tenth(rows)
    metrics = set(chain.from_iterable(rows))
    for name, curve in curve_by_metric.items():
        # `_correction_lines` reports these.
        if is_correction_metric(name, metrics):
            continue
        title, note = title_by_metric[name], ""
        if is_computed_from_move_probabilities(name):
            note = _legal_mass_note(rows, f"{name.rpartition('/')[0]}/legal_mass")
        elif lows := metric_values(rows, f"{name}_low"):
            high = metric_values(rows, f"{name}_high")[-1]
            note = f" (95 % interval of the last evaluation [{lows[-1]:.3f}, {high:.3f}])"
        if len(curve) == 1:
            yield f"{title} {curve[0][1]:.3f} at step {curve[0][0]}, measured once: nothing to compare it with{note}"
            continue
        # A stopped run may have no evaluation in its last tenth of steps; then its last value is reported.
        end = fmean(metric_values(last, name) or [curve[-1][1]])
        late = "" if metric_values(last, name) else f" at step {curve[-1][0]}"
        yield f"{title} {curve[0][1]:.3f} -> {end:.3f}{late}{note}"


def _legal_mass_note(rows: Sequence[Row], metric: str) -> str:
    """Return the legal mass of the reported evaluations in brackets, or "" if it is unknown.

    The note says so if the legal mass is too small for exact figures to count.
    """
    # Without an evaluation in the last tenth of the steps, the last one is reported.
    masses = metric_values(_rows_of_last_tenth(rows), metric) or metric_values(rows, metric)[-1:]
    if not masses:
        return ""
    note, lowest = f"legal mass {fmean(masses):.3f}", min(masses)
    if lowest < MIN_LEGAL_MASS:
        note += f", at the lowest {lowest:.3f}" if len(masses) > 1 else ""
        note += f": below {MIN_LEGAL_MASS} the figure does not count"
    return f" ({note})"


def _correction_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each role of a team that follows another verified role, from the newest held-out episodes."""
    newest: dict[str, RoleCorrections] = {}
    for row in rows:
        newest |= role_corrections(row)
    for found in newest.values():
        yield (
            f"role {found.role} corrected {found.fixed} of {found.wrong} wrong answers and spoilt {found.spoilt} of "
            f"{found.right} right answers of the role before it on held-out starts (step {found.step})"
        )


def _forecast_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each forecast with its Brier skill and correlation in the first and the newest evaluation."""
    evaluations: dict[str, list[ForecastQuality]] = defaultdict(list)
    for row in rows:
        for prefix, quality in forecast_qualities(row).items():
            evaluations[prefix].append(quality)
    for first, *later in evaluations.values():
        last, figures = later[-1] if later else first, list[str]()
        for words, before, after in (
            ("Brier skill", first.brier_skill, last.brier_skill),
            ("correlation", first.correlation, last.correlation),
        ):
            if after is not None:
                change = f"{before:.3f} -> " if later and before is not None else ""
                figures.append(f"{words} {change}{after:.3f}")
        where, measured = last.scope.removeprefix("eval/"), ", ".join(figures) or "all outcomes were equal"
        yield f"forecast {last.name} ({where}): {measured} (step {last.step})"


def _role_report_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each role of a model: rewards and statistics, at the first step and at the end."""
    rewards: dict[str, list[str]] = defaultdict(list)
    model_roles: set[str] = set()
    for name in dict.fromkeys(chain.from_iterable(rows)):
        if name.startswith("role/"):
            role, _, figure = name.removeprefix("role/").partition("/")
            if figure.startswith("reward/"):
                rewards[role].append(figure)
            # Only roles played by a model have the metric `entropy`, and only these get a line.
            if name.endswith("/entropy"):
                model_roles.add(role)
    for role in sorted(model_roles):
        changes: list[str] = []
        for figure in (*rewards[role], *_ROLE_FIGURES):
            name = f"role/{role}/{figure}"
            if (end := _mean_over_last_tenth(rows, name)) is not None:
                first, *later = metric_values(rows, name)
                words = _ROLE_FIGURES.get(figure) or f"paid for {figure.removeprefix('reward/')}"
                changes.append(f"{words} {first:.3g}" + (f" -> {end:.3g}" if later else ""))
        yield f"role {role}: {', '.join(changes)}"


def _teacher_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each policy with a teacher: the divergence at the first update and at the end."""
    for name in sorted(set(chain.from_iterable(rows))):
        if name.startswith("policy/") and name.endswith("/kl_teacher"):
            first, *later = metric_values(rows, name)
            end = f" -> {_mean_over_last_tenth(rows, name):.3g}" if later else ""
            yield f"policy {name.split('/')[1]}: divergence from its teacher {first:.3g}{end} nats a token"


def _credit_diagnostic_lines(rows: Sequence[Row], credited_roles: Mapping[str, LearnerConfig] | None) -> Iterator[str]:
    """Yield each role's share of turns of advantage 0 at the end, and a warning for each bad credit diagnostic."""
    scopes: set[str] = set()
    for name in set(chain.from_iterable(rows)):
        if name.startswith(("credit/", "game/")) and name.endswith("/zero"):
            scopes.add(name.removesuffix("/zero"))
    for scope in sorted(scopes):
        *game, _, role = scope.removeprefix("game/").split("/")
        if credited_roles is not None and role not in credited_roles:
            continue
        other_terms = credited_roles[role].learns_from_zero_advantages_by if credited_roles else ()
        effect = f"taught only through {', '.join(other_terms)}" if other_terms else "taught nothing"
        role += f" in game {game[0]}" if game else ""
        zero = _mean_over_last_tenth(rows, f"{scope}/zero")
        if zero is not None:
            share = (
                f"{zero:.0%} of its turns got advantage 0 and {effect}" if zero else "none of its turns got advantage 0"
            )
            yield f"credit of role {role}: {share}"
        conservation = _mean_over_last_tenth(rows, f"{scope}/conservation")
        if conservation is not None and (warning := conservation_warning(role, conservation)):
            yield f"WARNING {warning}"
        if (pure := min(metric_values(rows, f"{scope}/purity"), default=1.0)) < 1:
            yield (
                f"WARNING role {role}: purity {pure:.3g} in the worst step: turns were compared that do not have in "
                "common what the baseline says, or that work on different problems which others posed (then compare by "
                "`like: problem`); if not even their starts are the same, start_state_key gives several one key"
            )
        if abs(t := _mean_over_last_tenth(rows, f"{scope}/stopping_bias_t") or 0.0) > _BIASED_T:
            yield (
                f"WARNING role {role}: stopping bias t {t:.3g}: of two turns that earned the same, the one after which "
                f"the agent went on is credited {'more' if t > 0 else 'less'}"
            )


def _rows_of_last_tenth(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the last tenth of the steps."""
    return [row for row in rows if row["step"] >= 0.9 * rows[-1]["step"]]


def _mean_over_last_tenth(rows: Sequence[Row], metric: str) -> float | None:
    """Return the mean of `metric` over the last tenth of the steps, or the last value, or None without values."""
    values = metric_values(_rows_of_last_tenth(rows), metric) or metric_values(rows, metric)[-1:]
    return fmean(values) if values else None


def alarm_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each alarm that was active in `rows`."""
    for name in sorted(filter(is_alarm_metric, set(chain.from_iterable(rows)))):
        *game, _, role, kind = name.removeprefix("game/").split("/")
        active_steps = [row["step"] for row in rows if row.get(name)]
        goes_on = _TO_THE_END if active_steps[-1] == rows[-1]["step"] else ""
        steps = f"step {active_steps[0]}"
        if len(active_steps) > 1:
            steps = f"{len(active_steps)} steps from {active_steps[0]} to {active_steps[-1]}"
        yield f"ALARM {alarm_subject(kind)} {role}{f' in game {game[0]}' if game else ''}: {kind}, in {steps}{goes_on}"
