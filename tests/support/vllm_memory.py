"""Memory that a vLLM engine takes, measured in a process of its own: JSON of `Measurement` in, bytes out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, TypedDict

from marl.config import Sampling
from marl.engines.vllm.settings import VLLM
from marl.models.adapter import Adapter
from marl.models.pretrained import Pretrained
from marl.protocols import ModelContext
from marl.types import Message, Request


class Measurement(TypedDict):
    """An engine, and what it is asked."""

    model: str
    """Folder of the model."""
    small: str
    """Folder of a tiny model, which is sampled from first: libraries that it loads do not count."""
    rank: int | None
    """Rank of an adapter on the model; None: without."""
    engine: dict[str, Any]
    """Settings of vLLM."""
    requests: int
    letters: int
    """Letters of a prompt."""


def measured(given: Measurement) -> float:
    """Bytes of the greatest resident set while an engine starts and samples, less those before."""
    child = subprocess.run(
        [sys.executable, __file__], input=json.dumps(given), capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
    return float(child.stdout.splitlines()[-1])


def _sampled(folder: str, given: Measurement) -> Any:
    """An engine that has answered."""
    base, settings = Pretrained(path=folder), VLLM(**given["engine"])
    context = ModelContext("actor", lambda seed: (), lambda made, warm_up: made)
    if given["rank"]:
        engine = settings.build_shared({"actor": Adapter(base=base, rank=given["rank"]).prepare(context)})
    else:
        engine = settings.build(base.prepare(context))
    for ticket in range(given["requests"]):
        message = Message("user", str(ticket).ljust(given["letters"], "x"))
        engine.submit(ticket, Request("actor", (message,), Sampling(max_tokens=8), seed=ticket))
    answers = 0
    while answers < given["requests"]:
        answers += len(engine.step(1.0))
    return engine


def _status(name: str) -> float:
    """Return a figure of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _main() -> None:
    given: Measurement = json.load(sys.stdin)
    first = _sampled(given["small"], given)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the greatest resident set
    second = _sampled(given["model"], given)
    print(_status("VmHWM") - before)
    first.close()
    second.close()


if __name__ == "__main__":
    _main()
