"""Figures of what each role of a team is worth: corrections of earlier answers, and plays without the role."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from marl.core.errors import RunFolderError
from marl.runs.run_folder import RESULTS_WITHOUT_ROLES
from marl.runs.symlinks import path_within

CORRECTIONS = ("_fixes", "_breaks")
"""Ends of the metrics of a role's corrections, from the evaluations of teams."""
_WORTH = re.compile(r"(eval/(?:[^/]+/)?)worth/([^/]+)/([^/]+)")
_MAX_BYTES = 10_000_000
"""Maximum size of a results file that is read."""


@dataclass(frozen=True, slots=True)
class RoleCorrections:
    """What a role made of the answers of the verified role before it, in the episodes of one evaluation."""

    scope: str
    """Scope of the metrics, such as `eval/held_out` or `eval/GAME/held_out`."""
    role: str
    step: int
    fixed: int
    """Number of wrong answers that the role corrected."""
    wrong: int
    """Number of wrong answers before it."""
    spoilt: int
    """Number of right answers that the role replaced by wrong ones."""
    right: int
    """Number of right answers before it."""


@dataclass(frozen=True, slots=True)
class MeasureWithoutRole:
    """Means of a measure over the same held-out starts with and without a role."""

    scope: str
    """Scope of the metrics: `eval/`, or `eval/GAME/` in a run with several games."""
    role: str
    measure: str
    checkpoint: int | None
    """Step of the checkpoint that played, or None if it is unknown."""
    episodes: float | None
    """Number of held-out starts."""
    present: float | None
    """Mean with the role."""
    absent: float | None
    """Mean without the role."""
    worth: float
    """`present` minus `absent`."""
    low: float | None
    """Lower bound of the paired 95 % interval of `worth`, or None if there is none; likewise `high`."""
    high: float | None


@dataclass(frozen=True, slots=True)
class _EvalResults:
    """Fields of a file that `marl eval --out` wrote, as far as the page shows them."""

    figures: dict[str, float | None]
    """Metric -> value, or None if it is infinite or NaN."""
    checkpoint: int | None = None


_RESULTS = TypeAdapter(_EvalResults)


def is_correction_metric(metric: str, metrics: Collection[str]) -> bool:
    """Return True if `metric` measures corrections of a role, such as `eval/held_out/critic_fixes`.

    A game may have a measure with such a name, too, such as `bug_fixes`; `metrics` (names of a row) has no turns of a
    role `bug`.
    """
    # Most names fail this test, which is fast: the page reads all rows of long runs.
    if not metric.endswith(CORRECTIONS):
        return False
    scope, _, role = metric.rpartition("_")[0].rpartition("/")
    return f"{scope}/role/{role}/turns" in metrics


def role_corrections(row: Mapping[str, Any]) -> dict[str, RoleCorrections]:
    """Return the corrections in one row of metrics, by scope and role, such as `eval/held_out/critic`."""
    found: dict[str, RoleCorrections] = {}
    for name in row:
        if not is_correction_metric(name, row) or "/held_out/" not in name:
            continue
        scope_and_role = name.rpartition("_")[0]
        scope, _, role = scope_and_role.rpartition("/")
        counts: list[int] = []
        for metric in (f"{scope_and_role}{end}" for end in CORRECTIONS):
            episodes = row.get(f"{metric}_episodes", row[f"{scope}/episodes"]) if metric in row else 0
            counts += [round(row.get(metric, 0.0) * episodes), round(episodes)]
        found[scope_and_role] = RoleCorrections(scope, role, row["step"], *counts)
    return found


def measures_without_roles(run: Path, corrections: Iterable[RoleCorrections] = ()) -> list[MeasureWithoutRole]:
    """Return the results of `marl eval RUN --without ROLE` in the run's folder, ordered by role.

    Files that cannot be read are left out, and measures of `corrections` and of the role's own: without the role, its
    answer is that of the role before it.
    """
    measured: list[MeasureWithoutRole] = []
    correcting = {each.role for each in corrections}
    for name in sorted(file.name for file in (run / RESULTS_WITHOUT_ROLES).glob("*.json")):
        try:
            file = path_within(run, RESULTS_WITHOUT_ROLES, name)
            if file.stat().st_size <= _MAX_BYTES:
                measured += _measures_in(_RESULTS.validate_json(file.read_bytes()), correcting)
        except (OSError, ValueError, RunFolderError):
            continue
    return measured


def _measures_in(results: _EvalResults, correcting: Collection[str]) -> Iterator[MeasureWithoutRole]:
    """Yield the measures in the results of one play without a role, but not those of the roles in `correcting`."""
    figures = results.figures
    for name, worth in figures.items():
        found = _WORTH.fullmatch(name)
        # An interval's bounds have names like measures, but their values without the role do not exist.
        if found is None or worth is None or f"{found[1]}without/{found[2]}/{found[3]}" not in figures:
            continue
        scope, role, measure = found.groups()
        if f"{name}_low" not in figures and measure.endswith(("_low", "_high")):
            continue
        if measure.endswith(CORRECTIONS) and measure.rpartition("_")[0] in {role, *correcting}:
            continue
        yield MeasureWithoutRole(
            *(scope, role, measure, results.checkpoint, figures.get(f"{scope}held_out/episodes")),
            present=figures.get(f"{scope}held_out/{measure}"),
            absent=figures[f"{scope}without/{role}/{measure}"],
            worth=worth,
            low=figures.get(f"{name}_low"),
            high=figures.get(f"{name}_high"),
        )
