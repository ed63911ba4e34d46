"""Near misses of right answers, made by rule: wrong neighbours that are accepted, and right rewritings that are not.

    python tests/bench/redteam.py [--golds 2000] [--programs 60] [--seed 0] [--out FILE]

Every rule makes its share of the golds; `--programs` golds are functions, each of whose results is judged in a sandbox.
Times are processor time of one verdict, child processes included, and memory is the peak of the resident set.
"""

from __future__ import annotations

import resource
import statistics
import sys
from collections.abc import Iterable
from typing import Any

from _bench import ROOT, parser, report

sys.path.append(str(ROOT / "tests" / "redteam"))
from near_miss_programs import programs  # pyright: ignore[reportMissingImports]  it lies beside the rules
from near_miss_structures import STRUCTURES  # pyright: ignore[reportMissingImports]
from near_misses import RULES  # pyright: ignore[reportMissingImports]
from neighbourhoods import Judged, judged  # pyright: ignore[reportMissingImports]

_EXAMPLES = 3
"""Maximum number of faults of each kind that the report quotes for a rule."""


def summary(found: Iterable[Judged]) -> dict[str, Any]:
    """Return counts and times of verdicts, and examples of the faults."""
    verdicts = list(found)
    accepted = [verdict for verdict in verdicts if verdict.accepted and not verdict.right]
    rejected = [verdict for verdict in verdicts if verdict.right and not verdict.accepted]
    slowest = max(verdicts, key=lambda verdict: verdict.seconds)
    return {
        "golds": len({verdict.gold for verdict in verdicts}),
        "wrong": sum(not verdict.right for verdict in verdicts),
        "right": sum(verdict.right for verdict in verdicts),
        "false_accepts": len(accepted),
        "false_rejects": len(rejected),
        "unknown": sum(verdict.why.startswith("unknown: ") for verdict in verdicts),
        "median_ms": round(statistics.median([verdict.seconds for verdict in verdicts]) * 1e3, 2),
        "slowest_ms": round(slowest.seconds * 1e3, 1),
        "slowest": f"{slowest.gold} <- {slowest.answer}"[:200],
        "examples": [f"{one.gold} <- {one.answer}"[:200] for one in (*accepted[:_EXAMPLES], *rejected[:_EXAMPLES])],
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--golds", type=int, default=2000, help="golds of formulas, numbers, words and choices")
    options.add_argument("--programs", type=int, default=60, help="golds that are functions")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    rules = (*RULES, *STRUCTURES)
    found = {rule.__name__: list(judged(rule, -(-given.golds // len(rules)), given.seed)) for rule in rules}
    texts = [verdict for verdicts in found.values() for verdict in verdicts]
    if given.programs:
        found["programs"] = list(judged(programs, given.programs, given.seed))
    every = [verdict for verdicts in found.values() for verdict in verdicts]
    total = summary(every)
    figures = {
        "all": {key: value for key, value in total.items() if key not in ("golds", "examples")},
        "without_programs": {key: value for key, value in summary(texts).items() if key.endswith("_ms")},
        "false_reject_share": round(total["false_rejects"] / total["right"], 5),
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "rules": {name: summary(verdicts) for name, verdicts in found.items()},
    }
    report(figures, given.out, seeds=[given.seed], golds=given.golds, programs=given.programs)


if __name__ == "__main__":
    main()
