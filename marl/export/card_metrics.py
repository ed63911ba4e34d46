"""First and last values of a run's metrics for its model card, up to the exported step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from marl.evaluation.evaluate import MIN_LEGAL_MASS, is_reliable_given_legal_mass

MAX_METRICS = 40
"""Maximum number of evaluation metrics on a card."""
_OMITTED_METRIC_SUFFIXES = ("_low", "_high", "/episodes")


def metric_table_rows(
    metrics_rows: Sequence[Mapping[str, Any]], step: int, roles: Sequence[str]
) -> Iterator[tuple[str, ...]]:
    """Yield a table row (name, first value, last value, 95 % interval or remark) for each metric measured up to `step`.

    The metrics are those of evaluations, the mean returns, and the answer statistics of `roles`.
    """
    metrics_rows = [row for row in metrics_rows if row["step"] <= step]
    # Metric -> the rows that have a value for it; metrics are ordered by their first row.
    measured: dict[str, list[Mapping[str, Any]]] = {}
    for row in metrics_rows:
        for name in row:
            measured.setdefault(name, []).append(row)
    role_metrics = [f"role/{role}/{figure}" for role, figure in product(roles, ("illegal", "cut", "tokens"))]
    evaluations = [
        name for name in measured if name.startswith("eval/") and not name.endswith(_OMITTED_METRIC_SUFFIXES)
    ]
    # General metrics have fewer parts in their names. Sorting by this number makes the limit cut specific metrics.
    chosen = sorted(evaluations, key=lambda name: name.count("/"))[:MAX_METRICS]
    chosen += [name for name in measured if name.startswith("episode/return/")]
    chosen += [name for name in measured if name in role_metrics]
    for name in chosen:
        first, last = measured[name][0], measured[name][-1]
        low, high = last.get(f"{name}_low"), last.get(f"{name}_high")
        if low is not None and high is not None:
            remark = f"{low:.4g} to {high:.4g}"
        else:
            remark = (
                "" if is_reliable_given_legal_mass(last, name) else f"does not count: legal mass below {MIN_LEGAL_MASS}"
            )
        last_value = f"{last[name]:.4g} (step {last['step']})" if last["step"] != first["step"] else "measured once"
        yield name, f"{first[name]:.4g} (step {first['step']})", last_value, remark
