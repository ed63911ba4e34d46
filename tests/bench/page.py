"""The page of a run with 100,000 recorded episodes: first view, one episode, filters, memory; and the size of a report.

`marl view` runs as a process of its own and is asked over HTTP, as a browser asks. The run is made of hands of Kuhn
poker (tests/support/recorded_runs.py), repeated under other names; its index is built while the first view is measured,
and then again from the finished index.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import psutil
import zstandard
from _bench import ROOT, parser, report, spread

sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT)]

from marl.view.page.assets import LIBRARIES, MODULES, STYLES  # noqa: E402
from tests.support.recorded_runs import kuhn_run  # noqa: E402 (found on the path above)

EPISODES_A_STEP = 8
ASKED = 200
"""Episodes that are opened, at random."""


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=1000)
    options.add_argument("--times", type=int, default=13, help="how often the eight hands of a step are repeated")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MARL_CACHE"] = f"{folder}/cache"
        run = Path(folder) / "run"
        enlarge(kuhn_run(run, steps=1), chosen.steps, chosen.times)
        figures = {
            "episodes": chosen.steps * chosen.times * EPISODES_A_STEP,
            **measure(run, chosen.steps, chosen.times),
        }
    report(figures, chosen.out, seeds=[0], steps=chosen.steps, episodes_a_step=chosen.times * EPISODES_A_STEP)


def enlarge(run: Path, steps: int, times: int) -> None:
    """Write the run's one step again and again, under the names that later steps and groups have."""
    for kind in ("trajectories", "credit"):
        first = zstandard.ZstdDecompressor().decompressobj().decompress((run / kind / "000001.jsonl.zst").read_bytes())
        head, lines = first.split(b"\n", 1) if kind == "credit" else (b"", first)
        for step in range(1, steps + 1):
            copies = [renamed(lines, step, copy) for copy in range(times)]
            heads = [renamed(head, step, 0) + b"\n"] if head else []
            packed = zstandard.ZstdCompressor().compress(b"".join([*heads, *copies]))
            (run / kind / f"{step:06d}.jsonl.zst").write_bytes(packed)
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    row.pop("crc32", None)
    row |= {f"policy/actor/figure_{i}": 0.5 for i in range(60)}
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row | {'step': step})}\n" for step in range(1, steps + 1)))


def renamed(lines: bytes, step: int, copy: int) -> bytes:
    """Return lines in which the groups 0 and 1 of step 1 have the names of a later step's groups."""
    for group in (1, 0):
        lines = lines.replace(b"000001.%d" % group, b"%06d.%d" % (step, 2 * copy + group))
    return lines


class Asking:
    """A client of the page, with its token."""

    def __init__(self, address: str) -> None:
        url = urlsplit(address)
        self._connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=120)
        self._headers = {"Authorization": f"Bearer {url.query.removeprefix('token=')}"}

    def __call__(self, path: str, **query: object) -> bytes:
        self._connection.request("GET", f"{path}?{urlencode(query)}" if query else path, headers=self._headers)
        response = self._connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        return body


@contextmanager
def served(run: Path) -> Iterator[tuple[Asking, psutil.Process, float]]:
    """Yield a client of `marl view`, its process, and the seconds until it said its address."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "marl", "view", str(run), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout
        address = process.stdout.readline().split()[0]
        yield Asking(address), psutil.Process(process.pid), time.perf_counter() - started
        process.terminate()


def timed(task: Callable[[], object]) -> float:
    started = time.perf_counter()
    task()
    return time.perf_counter() - started


def first_view(ask: Asking) -> float:
    """Return the seconds for all that a browser asks for before it shows runs and curves."""

    def view() -> None:
        for name in ("/", *(f"/static/{name}" for name in (*STYLES, *LIBRARIES, *MODULES))):
            ask(name)
        for path, query in (("runs", {}), ("curves", {"by": "", "band": ""}), ("settings", {})):
            ask(f"/api/{path}", **query)

    return timed(view)


def measure(run: Path, steps: int, times: int) -> dict[str, object]:
    with served(run) as (ask, process, started):
        began = time.perf_counter()
        cold = first_view(ask)
        listed = timed(lambda: ask("/api/episodes"))
        while json.loads(ask("/api/episodes", limit=1))["index"]["indexed"] < steps:
            time.sleep(1)
        built = time.perf_counter() - began
        peak_while_built = peak_mib(process)
    with served(run) as (ask, process, again):
        warm = first_view(ask)
        figures = {"first_view_s": round(warm, 3), "first_view_while_index_is_built_s": round(cold, 3)}
        figures |= {"first_list_while_index_is_built_s": round(listed, 3), "index_built_s": round(built, 1)}
        figures |= {"start_s": round(again, 2), "first_start_s": round(started, 2)}
        figures |= {"episode_s": spread(list(episodes(ask, steps, times)), 4), **filters(ask)}
        figures |= {"peak_mib": peak_mib(process), "peak_while_index_is_built_mib": peak_while_built}
    size = sum(file.stat().st_size for file in (run.parent / "cache" / "page").iterdir())
    return {**figures, "index_mib": round(size / 2**20, 1), "report_mb": report_size(run)}


def episodes(ask: Asking, steps: int, times: int) -> Iterator[float]:
    rng = random.Random(0)
    for _ in range(ASKED):
        step = rng.randint(1, steps)
        name = f"{step:06d}.{rng.randrange(2 * times)}.{rng.randrange(4)}"
        yield timed(lambda step=step, name=name: ask("/api/episode", step=step, episode=name))


def filters(ask: Asking) -> dict[str, float]:
    """Return the seconds for the first 50 matches of some filters."""
    queries = {
        "all_s": {},
        "search_s": {"text": "bet call"},
        "best_s": {"order": "best", "figure": "agent/player_0"},
        "steps_and_figure_s": {"first": 400, "last": 600, "figure": "measure/chips", "low": 2},
        "last_page_s": {"offset": 100_000},
    }
    return {
        f"list_{name}": round(timed(lambda query=query: ask("/api/episodes", **query)), 3)
        for name, query in queries.items()
    }


def peak_mib(process: psutil.Process) -> float:
    """Return the greatest memory that a process has held."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return round(int(status.partition("VmHWM:")[2].split()[0]) / 1024, 1)


def report_size(run: Path) -> float:
    """Return the size of the run's report, with the episodes that it holds by default."""
    file = run.parent / "report.html"
    subprocess.run(
        [sys.executable, "-m", "marl", "report", str(run), "--out", str(file)],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    return round(file.stat().st_size / 1e6, 2)


if __name__ == "__main__":
    main()
