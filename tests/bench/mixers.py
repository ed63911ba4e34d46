"""What credit by fitted networks costs: its share of a step's wall time, beyond what `read` takes.

    python tests/bench/mixers.py [--out FILE] [--steps 20] [--scenario team_arithmetic] [--kinds vdn qmix coma]

The scenario as it stands, without evaluation and checkpoints, one run for each kind and features (hidden states, which
`read` supplies, or texts alone). `judge_ms`: the whole judge stage, baseline and reports included, of the run's steps
after the first five; `outcome_ms`: the same of `outcome` credit, run beside. `share` is the median over steps of
(judge - outcome's median) / (step - read).
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from _bench import ROOT, parser, report, silent, spread

import marl

KINDS = {
    "vdn": "marl.credit.assign.value_decomposition:Vdn",
    "qmix": "marl.credit.assign.value_decomposition:Qmix",
    "coma": "marl.credit.assign.value_decomposition:Coma",
}
WARM = 5


def rows(scenario: str, steps: int, assign: str) -> list[dict[str, Any]]:
    """The metrics of each step after the first few."""
    changes = [
        f"schedule.steps={steps + WARM}",
        "evaluate={}",
        "checkpoint.trajectories=0",
        f"credit.assign={assign}",
    ]
    checked = marl.load(ROOT / "scenarios" / f"{scenario}.yaml", changes)
    with tempfile.TemporaryDirectory() as folder, silent():
        marl.train(checked, Path(folder))
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["step"] > WARM]


def milliseconds(found: list[dict[str, Any]], stage: str) -> list[float]:
    return [row[f"time/{stage}"] * 1e3 for row in found]


def figures(found: list[dict[str, Any]], plain_ms: float) -> dict[str, Any]:
    stages = {stage: milliseconds(found, stage) for stage in ("step", "read", "credit")}
    shares = [(j - plain_ms) / (s - r) for s, r, j in zip(*stages.values(), strict=True)]
    fit = {name: row for name, row in found[-1].items() if name.startswith("credit/") and "explained" in name}
    return {f"{stage}_ms": spread(values, 1) for stage, values in stages.items()} | {"share": spread(shares)} | fit


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--scenario", default="team_arithmetic")
    options.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    chosen = options.parse_args()
    plain = rows(chosen.scenario, chosen.steps, "outcome")
    plain_ms = statistics.median(milliseconds(plain, "credit"))
    found: dict[str, Any] = {"outcome": {f"{s}_ms": spread(milliseconds(plain, s), 1) for s in ("step", "credit")}}
    for kind in chosen.kinds:
        for features in ("hidden", "text"):
            assign = f"{{kind: '{KINDS[kind]}', features: {features}}}"
            found[f"{kind}/{features}"] = figures(rows(chosen.scenario, chosen.steps, assign), plain_ms)
    episodes = marl.load(ROOT / "scenarios" / f"{chosen.scenario}.yaml").schedule
    size = {"groups": episodes.groups, "group_size": episodes.group_size}
    report(found, chosen.out, seeds=[episodes.seed], steps=chosen.steps, scenario=chosen.scenario, **size)


if __name__ == "__main__":
    main()
