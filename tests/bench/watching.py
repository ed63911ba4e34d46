"""`marl top` on a run with 100,000 rows: the first look, a look after another row, and the memory it takes.

Times are of the processor, as a loaded machine makes others meaningless. A look reads what was added and draws it.
"""

from __future__ import annotations

import io
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _bench import ROOT, parser, report, spread
from rich.console import Console

sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT)]

from marl.view.run_dashboard import TerminalSize, render_dashboard  # noqa: E402
from marl.view.run_follower import RunFollower  # noqa: E402
from tests.support.recorded_runs import kuhn_run  # noqa: E402 (found on the path above)

LOOKS = 50


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=100_000)
    options.add_argument("--figures", type=int, default=60, help="metrics of a row")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(kuhn_run(Path(folder) / "run", steps=1), chosen.rows, chosen.figures)
    report(figures, chosen.out, seeds=[0], rows=chosen.rows, figures_a_row=chosen.figures)


def measure(run: Path, rows: int, many: int) -> dict[str, Any]:
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    row.pop("crc32", None)
    row |= {f"policy/actor/figure_{i}": 0.123456789 * i for i in range(many)}
    with (run / "metrics.jsonl").open("w") as file:
        file.writelines(f"{json.dumps(row | {'step': step})}\n" for step in range(1, rows + 1))
    size = (run / "metrics.jsonl").stat().st_size
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    watch = RunFollower(run)
    first_s, later_s = cpu_s(lambda: look(watch)), []
    for step in range(rows + 1, rows + 1 + LOOKS):
        with (run / "metrics.jsonl").open("a") as file:
            file.write(f"{json.dumps(row | {'step': step})}\n")
        later_s.append(cpu_s(lambda: look(watch)))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    figures = {"metrics_mib": round(size / 2**20, 1), "first_look_cpu_s": round(first_s, 3)}
    return figures | {"later_look_cpu_s": spread(later_s, 4), "memory_mib": round(grown / 2**10, 1)}


def look(watch: RunFollower) -> None:
    Console(file=io.StringIO(), width=120, force_terminal=True).print(
        render_dashboard(watch.read_run_snapshot(), TerminalSize(120, 50))
    )


def cpu_s(task: Callable[[], object]) -> float:
    """Return the processor's time of one call, in seconds."""
    started = time.process_time()
    task()
    return time.process_time() - started


if __name__ == "__main__":
    main()
