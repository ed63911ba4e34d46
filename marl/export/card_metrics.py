"""First and last values of a run's metrics for its model card, up to the exported step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marl.evaluation.evaluate import LEGAL_MASS, is_reliable

MAX_METRICS = 40
"""Maximum number of evaluation metrics on a card."""
_BOUNDS_AND_SIZES = ("_low", "_high", "/episodes")


def metric_table(rows: Sequence[Mapping[str, Any]], step: int, roles: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield a table row (name, first value, last value, 95 % interval or remark) for each metric measured up to `step`.

    The metrics are those of evaluations, the mean returns, and the answer statistics of `roles`.
    """
    rows = [row for row in rows if row["step"] <= step]
    names = dict.fromkeys(name for row in rows for name in row)
    evaluations = [name for name in names if name.startswith("eval/") and not name.endswith(_BOUNDS_AND_SIZES)]
    # Names with fewer parts are more general, so the limit cuts the most specific metrics.
    chosen = sorted(evaluations, key=lambda name: name.count("/"))[:MAX_METRICS]
    chosen += [name for name in names if name.startswith("episode/return/")]
    role_metrics = {f"role/{role}/{figure}" for role in roles for figure in ("illegal", "cut", "tokens")}
    chosen += [name for name in names if name in role_metrics]
    for name in chosen:
        measured = [row for row in rows if name in row]
        first, last = measured[0], measured[-1]
        low, high = last.get(f"{name}_low"), last.get(f"{name}_high")
        if low is not None and high is not None:
            remark = f"{low:.4g} to {high:.4g}"
        else:
            remark = "" if is_reliable(last, name) else f"does not count: legal mass below {LEGAL_MASS}"
        last_value = f"{last[name]:.4g} (step {last['step']})" if last["step"] != first["step"] else "measured once"
        yield name, f"{first[name]:.4g} (step {first['step']})", last_value, remark
