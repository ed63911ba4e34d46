"""`marl export-data` of 100,000 recorded turns as Parquet, beside the loop that a user would write instead: read every
line of JSON and give all rows to `Dataset.from_list`.

Each way runs in a process of its own. Times are of the processor, memory is the peak of the process (`VmHWM`).
The loop writes fewer columns: turns and their credit records, no chats, no rewards, no table of episodes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zstandard
from _bench import ROOT, parser, report

sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT)]

COPIED = ("policy", "messages", "state")
"""Columns that the loop takes from a request."""
SAMPLED = ("text", "prompt_ids", "token_ids", "logprobs", "finish")
JUDGED = ("assigned", "earned", "baseline", "scale", "advantage")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=430)
    options.add_argument("--times", type=int, default=13, help="how often the eight hands of a step are repeated")
    options.add_argument("--one", nargs=3, metavar=("WAY", "RUN", "OUT"), help="measure one way, in this process")
    chosen = options.parse_args()
    if chosen.one:
        way, run, out = chosen.one
        print(json.dumps(measured(WAYS[way], Path(run), Path(out))))
        return
    with tempfile.TemporaryDirectory() as folder:
        figures = compared(Path(folder), chosen.steps, chosen.times)
    report(figures, chosen.out, seeds=[0], steps=chosen.steps, times=chosen.times)


def compared(folder: Path, steps: int, times: int) -> dict[str, Any]:
    """Return the figures of each way, for the whole run and for a tenth of it, and their ratios."""
    from page import enlarge

    from tests.support.recorded_runs import kuhn_run

    figures: dict[str, Any] = {}
    for name, many in (("tenth", steps // 10), ("whole", steps)):
        run = folder / name
        enlarge(kuhn_run(run, steps=1), many, times)
        figures[name] = {way: alone(way, run, folder / f"{name}-{way}") for way in WAYS}
    marl, loop = figures["whole"]["export_data"], figures["whole"]["from_list"]
    ratios = {name: round(marl[name] / loop[name], 3) for name in ("peak_mib", "cpu_s")}
    return figures | {"export_data_over_from_list": ratios}


def alone(way: str, run: Path, out: Path) -> dict[str, float]:
    """Return the figures of a way that runs in a process of its own."""
    command = [sys.executable, __file__, "--one", way, str(run), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measured(way: Callable[[Path, Path], int], run: Path, out: Path) -> dict[str, float]:
    started = time.process_time()
    rows = way(run, out)
    cpu_s = time.process_time() - started
    [peak] = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line]
    figures = {"rows": rows, "cpu_s": round(cpu_s, 2), "rows_a_cpu_s": round(rows / cpu_s)}
    return figures | {"peak_mib": round(int(peak) / 2**10, 1)}


def export_data(run: Path, out: Path) -> int:
    """Export as the command does; return the number of turns."""
    from marl.export.data_export import DataExportOptions
    from marl.export.data_export import export_data as export

    return export(run, out, DataExportOptions("parquet")).rows["turns.parquet"]


def from_list(run: Path, out: Path) -> int:
    """Read every line, give all rows to `Dataset.from_list`, and write them; return their number."""
    from datasets import Dataset

    rows = [row for file in sorted((run / "trajectories").iterdir()) for row in rows_of(file, run)]
    Dataset.from_list(rows).to_parquet(out)
    return len(rows)


def rows_of(file: Path, run: Path) -> Iterator[dict[str, Any]]:
    """Yield the turns of a step, each with what was judged of it."""
    _, *judged = lines(run / "credit" / file.name)
    records = {tuple(turn["turn"]): turn for line in judged for turn in line["turns"]}
    for episode in lines(file):
        for turn in episode["turns"]:
            request, completion, record = turn["request"], turn["completion"], records[tuple(turn["id"])]
            yield {
                **{"step": int(file.name[:6]), "episode": turn["id"][0], "turn": turn["id"][1]},
                **{"start": episode["start"], "agent": turn["agent"], "role": turn["role"], "action": turn["action"]},
                **{name: request[name] for name in COPIED},
                **{name: completion[name] for name in SAMPLED},
                **{name: record[name] for name in JUDGED},
            }


def lines(file: Path) -> list[Any]:
    """Return the values of a packed file of JSON lines."""
    data = zstandard.ZstdDecompressor().decompressobj().decompress(file.read_bytes())
    return [json.loads(line) for line in data.splitlines()]


WAYS = {"export_data": export_data, "from_list": from_list}

if __name__ == "__main__":
    main()
