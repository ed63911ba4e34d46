"""What the gateway costs beyond the engine: time of a call, time within a long dialogue, memory, and a step of a loop.

    python tests/bench/gateway.py [--out FILE] [--calls 2000] [--step] [--repeats 3]

`calls`: milliseconds between the request of a program, once encoded, and its answer, with 1,000 words of history;
everything from the socket to the recorded turn is in it, the program's client too. With one call at a time, and for
calls per second with 64, the engine answers at once. For the milliseconds of 64 calls at once it answers after 100 to
300 ms, which are subtracted: if it answered at once, each call would wait for the 63 others. These milliseconds hold
the wait for other calls, because server, router and client serve them one after the other. The 64 callers of this
measurement begin evenly within the first 200 ms; `burst` has the milliseconds of 64 calls that begin in one moment, the
last of which waits for all others. `service` is without any wait: CPU milliseconds of a call in the server's process
(server, router and recorded turn) and in the client's.
`dialogue`: median milliseconds of a call at turns 200 and 2,000 of one dialogue whose history the client sends whole,
and CPU milliseconds of the server's process, which other work on the machine changes less.
`memory`: growth of the resident set with 1,000 open calls. `step`: seconds, and CPU seconds of all processes, of a
training step of `team_arithmetic.yaml` as a loop (`programs/loop.yaml`) and natively, with small models (`--step`);
`apart` is the loop with its programs on a core of their own, which shows what sharing a core with the gateway costs.
All but the memory and the calls one at a time is repeated, a loop's step in turn with a native one, because the speed
of a shared processor changes; figures are medians over the repeats.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from _bench import ROOT, parser, report, silent

import marl
from marl.core.types import Completion, CompletionFailure, Deal, Request, Ticket
from marl.engines.program.settings import Program
from marl.games.team.settings import TeamConfig
from marl.host.garbage_collection import tune_garbage_collection
from marl.protocols import WeightlessEngine
from marl.roles.programs import CallerRole, ProgramRole
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator

PROGRAM = """
import asyncio, json, os, time
from urllib.parse import urlsplit

ADDRESS, KEY = urlsplit(os.environ["OPENAI_BASE_URL"]), os.environ["OPENAI_API_KEY"]

async def connect():
    return await asyncio.open_connection(ADDRESS.hostname, ADDRESS.port, limit=1 << 24)

def encoded(messages):
    body = f'{{"messages": {messages}, "model": "solver"}}'.encode()
    head = f"POST /v1/chat/completions HTTP/1.1\\r\\nHost: {ADDRESS.netloc}\\r\\nAuthorization: Bearer {KEY}\\r\\n"
    return f"{head}Content-Length: {len(body)}\\r\\n\\r\\n".encode() + body

async def send(writer, request):
    writer.write(request)
    await writer.drain()

async def receive(reader):
    head = await reader.readuntil(b"\\r\\n\\r\\n")
    length = next(int(l.split(b":")[1]) for l in head.split(b"\\r\\n") if l.lower().startswith(b"content-length"))
    return json.loads(await reader.readexactly(length))["choices"][0]["message"]["content"]

async def calls(count, at_once, begin_within_ms=0):
    times = []
    async def client(number):
        reader, writer = await connect()
        await asyncio.sleep(begin_within_ms / 1e3 * number / at_once)
        for call in range(count // at_once):
            chat = [{"role": ("user", "assistant")[turn % 2], "content": f"{number} {call} " + "word " * 50}
                    for turn in range(19)]
            request = encoded(json.dumps(chat))
            begin = time.perf_counter()
            await send(writer, request)
            answer = await receive(reader)
            engine_ms = float(answer.split()[-1])
            times.append(1e3 * (time.perf_counter() - begin) - engine_ms)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*map(client, range(at_once)))
    return {"ms": times, "seconds": time.perf_counter() - begin, "cpu_s": time.process_time() - begin_cpu}

async def dialogue(turns):
    reader, writer = await connect()
    chat, times = "[", []
    for turn in range(turns):
        chat += json.dumps({"role": "user", "content": f"question {turn} of this dialogue"})
        request = encoded(f"{chat}]")
        begin = time.perf_counter()
        await send(writer, request)
        answer = await receive(reader)
        times.append(1e3 * (time.perf_counter() - begin))
        chat += ", " + json.dumps({"role": "assistant", "content": answer}) + ", "
    return {"ms": times}

async def hold(count):
    streams = [await connect() for _ in range(count)]
    for number, (reader, writer) in enumerate(streams):
        await send(writer, encoded(json.dumps([{"role": "user", "content": f"{number} " + "word " * 1000}])))
    await asyncio.gather(*(receive(reader) for reader, _ in streams))
    return {}

async def main(task):
    mode, *numbers = os.environ["BENCH_MODE"].split()
    return await {"calls": calls, "dialogue": dialogue, "hold": hold}[mode](*map(int, numbers))
"""


_ENGINE_S = 0.2
"""Mean time of an answer where the time beyond the engine is measured."""


class FixedEngine(WeightlessEngine):
    """Engine with fixed answers, about `delay_s` after a request, or as soon as `count` requests are open.

    The delays are spread evenly from half of `delay_s` to one and a half. The last word of an answer is its delay [ms].
    """

    def __init__(self, count: int = 1, delay_s: float = 0.0) -> None:
        self._count, self._delay_s = count, delay_s
        self._open: dict[Ticket, tuple[float, float]] = {}
        """Open request -> time at which it is due, and its delay [s]."""
        self.cpu_s: list[float] = []
        """CPU time of this process when each request arrived, in seconds."""
        self.resident = 0.0
        """Resident set of this process in MB when the last requests were answered."""

    def submit(self, ticket: Ticket, request: Request) -> None:
        delay_s = self._delay_s * (0.5 + 0.618034 * ticket % 1)
        self._open[ticket] = time.perf_counter() + delay_s, delay_s
        self.cpu_s.append(time.process_time())

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        if len(self._open) < self._count:
            return []
        if self._count > 1:
            self.resident = resident_mb()
        now = time.perf_counter()
        due = {ticket: delay_s for ticket, (due_s, delay_s) in self._open.items() if due_s <= now}
        self.cancel(due)
        texts = {ticket: f"answer {ticket} after {1e3 * delay_s:.3f}" for ticket, delay_s in due.items()}
        return [(ticket, Completion(text, (1,), (2,), (-0.5,), "stop")) for ticket, text in texts.items()]

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._open.pop(ticket, None)


def resident_mb() -> float:
    """Return the resident set of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def run_program(mode: str, engine: FixedEngine, history: str = "fresh") -> Mapping[str, Any]:
    """Return what the program measured of itself in one episode."""
    os.environ["BENCH_MODE"] = mode
    game = TeamConfig.model_validate(
        {"task": {"kind": "arithmetic"}, "stages": [{"role": "crew", "callers": {"solver": {}}}], "measures": {}}
    )
    roles = {
        "crew": ProgramRole(policy="program"),
        "solver": CallerRole.model_validate({"policy": "solver", "history": history}),
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "bench_program.py").write_text(PROGRAM)
        program = Program(call="bench_program:main", folder=Path(folder), workers=1).build(None)
        simulator = RolloutSimulator(game, RoleRequestBuilder(roles, 0), {"program": program, "solver": engine})
        # As in training: by default, each full collection stops all calls for 100 ms.
        tune_garbage_collection(serves_programs=True)
        [trajectory] = simulator.play([Deal("e", "e", 0, game.default_role_of_agent())])
        program.close()  # type: ignore[attr-defined]
    return json.loads(json.loads(trajectory.turns[-1].completion.text)["answer"] or "{}")


APART = """
import os, sys
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
sys.path.insert(0, PROGRAMS)
from arithmetic_loop import main
"""
"""Program of `programs/loop.yaml`, on the last core."""


def overrides_for_programs_apart(folder: Path) -> list[str]:
    """Write the program `APART` to `folder`, and return the overrides by which `programs/loop.yaml` runs it."""
    folder.mkdir()
    (folder / "apart.py").write_text(APART.replace("PROGRAMS", repr(str(ROOT / "scenarios" / "programs"))))
    return ["policies.program.engine.call=apart:main", f"policies.program.engine.folder={folder}"]


def step_cost(scenario: str, folder: Path, more_overrides: Sequence[str] = ()) -> dict[str, float]:
    """Return the median seconds of a training step of `scenario`, and the CPU seconds of a step with all processes.

    The CPU time is the difference between a run of ten steps and one of two, so start and warm-up are not in it.
    """
    overrides = ["evaluate.every=1000", "evaluate.held_out=1", "checkpoint.trajectories=0", *more_overrides]
    for policy in ("planner", "solver", "critic"):
        overrides += [f"policies.{policy}.model.warm_up.steps=100", f"policies.{policy}.model.warm_up.episodes=512"]
    cpu_s: dict[int, float] = {}
    # The first run fills the cache of the models that are warmed up.
    for steps in (1, 2, 10):
        before = cpu_seconds()
        with silent():
            scenario_of_run = marl.load(ROOT / "scenarios" / scenario, [*overrides, f"schedule.steps={steps}"])
            marl.train(scenario_of_run, folder / str(steps))
        cpu_s[steps] = cpu_seconds() - before
    rows = map(json.loads, (folder / "10" / "metrics.jsonl").read_text().splitlines())
    seconds = statistics.median([row["time/step"] for row in rows if "time/step" in row][1:])
    return {"s": seconds, "CPU s": (cpu_s[10] - cpu_s[2]) / 8}


def calls_at_once(count: int) -> dict[str, float]:
    """Return times and rates of `count` calls, 64 at a time."""
    beyond = run_program(f"calls {count} 64 {1e3 * _ENGINE_S:.0f}", FixedEngine(delay_s=_ENGINE_S))["ms"]
    burst = run_program("calls 64 64", FixedEngine(delay_s=_ENGINE_S))["ms"]
    engine = FixedEngine()
    measured = run_program(f"calls {count} 64", engine)
    server_cpu_s = (engine.cpu_s[-1] - engine.cpu_s[0]) / (len(engine.cpu_s) - 1)
    return {
        "p50 ms beyond the engine": percentile(beyond, 0.5),
        "p99 ms beyond the engine": percentile(beyond, 0.99),
        "burst, p50 ms": percentile(burst, 0.5),
        "burst, p99 ms": percentile(burst, 0.99),
        "calls/s": round(len(measured["ms"]) / measured["seconds"]),
        "service, CPU ms of the server": round(1e3 * server_cpu_s, 2),
        "service, CPU ms of the client": round(1e3 * measured["cpu_s"] / len(measured["ms"]), 2),
    }


def early_and_late_medians(times: list[float]) -> dict[str, float]:
    """Return the medians of `times` [ms], of a dialogue's calls, around turns 200 and 2,000, and their ratio."""
    at_200, at_2000 = statistics.median(times[150:250]), statistics.median(times[1950:2050])
    return {"turn 200 ms": at_200, "turn 2,000 ms": at_2000, "ratio": at_2000 / at_200}


def medians(repeats: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure over `repeats`, and the least and the greatest `ratio`."""
    ratios = [figures["ratio"] for figures in repeats]
    found = {name: statistics.median([figures[name] for figures in repeats]) for name in repeats[0]}
    found |= {"least ratio": min(ratios), "greatest ratio": max(ratios)}
    return {name: round(value, 2) for name, value in found.items()}


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its ended child processes, in seconds."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def percentile(values: list[float], share: float) -> float:
    """Return the value that `share` of `values` do not exceed."""
    return round(sorted(values)[min(int(share * len(values)), len(values) - 1)], 2)


def main() -> None:
    command_line = parser(__doc__)
    command_line.add_argument("--calls", type=int, default=2000)
    command_line.add_argument("--step", action="store_true")
    command_line.add_argument("--repeats", type=int, default=3, help="of the calls, the dialogues and the steps")
    arguments = command_line.parse_args()
    figures: dict[str, Any] = {}
    # First, because memory that an earlier episode frees would hide the growth.
    before = resident_mb()
    engine = FixedEngine(count=1000)
    run_program("hold 1000", engine)
    figures["1,000 open calls, MB"] = round(engine.resident - before, 1)
    alone = run_program("calls 200 1", FixedEngine())
    figures["calls, one at a time"] = {"p50 ms": percentile(alone["ms"], 0.5), "p99 ms": percentile(alone["ms"], 0.99)}
    repeats = [calls_at_once(arguments.calls) for _ in range(arguments.repeats)]
    for name in repeats[0]:
        values = sorted(figures_of_repeat[name] for figures_of_repeat in repeats)
        median, least, greatest = statistics.median(values), values[0], values[-1]
        figures[f"calls, 64 at once, {name}"] = {"median": median, "least": least, "greatest": greatest}
    for history in ("append", "fresh"):
        calls: list[dict[str, float]] = []
        cpu_times: list[dict[str, float]] = []
        for _ in range(arguments.repeats):
            engine = FixedEngine()
            calls.append(early_and_late_medians(run_program("dialogue 2050", engine, history)["ms"]))
            cpu_times.append(early_and_late_medians([1e3 * (end - begin) for begin, end in pairwise(engine.cpu_s)]))
        figures[f"dialogue, {history}"] = medians(calls)
        figures[f"dialogue, {history}, CPU of the server"] = medians(cpu_times)
    if arguments.step:
        pairs: dict[str, list[dict[str, float]]] = defaultdict(list)
        with tempfile.TemporaryDirectory() as folder:
            apart_overrides = overrides_for_programs_apart(Path(folder) / "program")
            for repeat in range(arguments.repeats):
                native = step_cost("team_arithmetic.yaml", Path(folder) / f"native{repeat}")
                loop = step_cost("programs/loop.yaml", Path(folder) / f"loop{repeat}")
                apart = step_cost("programs/loop.yaml", Path(folder) / f"apart{repeat}", apart_overrides)
                for unit in native:
                    for name, cost in (("", loop), (", apart", apart)):
                        values = {"native": native[unit], "loop": cost[unit], "ratio": cost[unit] / native[unit]}
                        pairs[f"step {unit}{name}"].append(values)
        figures |= {name: medians(values) for name, values in pairs.items()}
    report(figures, arguments.out, seeds=[0], calls=arguments.calls, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
