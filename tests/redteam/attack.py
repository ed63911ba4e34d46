"""Searches for texts that a grader pays although they do not state the right answer.

    python tests/redteam/attack.py [KIND ...] [--tries 100000] [--seed 0] [--out FILE] [--findings FILE]

The figures are the numbers of tries and of texts that were paid rightly, wrongly or debatably, and the findings. A try
is one verdict of the real verifier in a worker process that is killed when it hangs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

from _bench import commit, parser, report
from attack_search import FAULTS, Search, Target, as_json, dump

KINDS = {
    "countdown_expression": ("countdown_targets",),
    "unit_tests": ("program_targets",),
    "json": ("json_targets",),
    "pattern": ("text_targets",),
    "exact": ("text_targets",),
    "choice": ("text_targets",),
    "numeric": ("number_targets",),
    "math": ("number_targets", "formula_targets"),
}
"""Kind of verifier -> modules with puzzles for it."""
_PROGRAMS = 2000
"""Most tries against `unit_tests`: a verdict on a program starts a sandbox, which takes a hundred times as long."""


def targets(kind: str) -> list[Target]:
    """Return the families of puzzles that attack verifiers of one kind."""
    return [target for name in KINDS[kind] for target in import_module(name).targets(kind)]


def main() -> None:
    arguments = _arguments()
    figures = _earlier(arguments.out)
    for kind in arguments.kinds or KINDS:
        started = time.perf_counter()
        search = attack(kind, arguments.tries, arguments.seed)
        figures[kind] = _figures(search, time.perf_counter() - started)
        if arguments.findings:
            arguments.findings.write_text(dump([*search.findings.values(), *search.missed.values()]))
        # Written after each kind: all of them take the better part of an hour.
        report(figures, arguments.out, seeds=[arguments.seed], tries=arguments.tries, tries_of_programs=_PROGRAMS)


def _earlier(out: Path | None) -> dict[str, Any]:
    """Return the figures that the report holds already: those of other kinds stay."""
    return json.loads(out.read_text())["figures"] if out is not None and out.is_file() else {}


def attack(kind: str, tries: int, seed: int) -> Search:
    """Return a finished search against the verifiers of one kind."""
    if not targets(kind):
        raise SystemExit(f"{kind}: no such verifier is installed")
    search = Search(targets(kind), seed)
    search.run(min(tries, _PROGRAMS) if kind == "unit_tests" else tries)
    return search


def _figures(search: Search, seconds: float) -> dict[str, Any]:
    findings = list(search.findings.values())
    return {
        "commit": commit(),
        "tries": search.counts["tries"],
        "paid": {name: search.counts[f"{name}, paid"] for name in ("right", "open", "wrong")},
        "not paid": {name: search.counts[f"{name}, not paid"] for name in ("right", "open", "wrong")},
        "faults": {name: search.counts[name] for name in FAULTS},
        "findings": [as_json(finding) for finding in findings[:10]],
        "seconds": round(seconds),
    }


def _arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("kinds", nargs="*", metavar="KIND", help=f"kinds of verifiers; default: {', '.join(KINDS)}")
    made.add_argument("--tries", type=int, default=100_000)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--findings", type=Path, help="write all findings here, and right answers that were refused")
    return made.parse_args()


if __name__ == "__main__":
    main()
