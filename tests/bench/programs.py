"""What programs written elsewhere learn, and what the native team learns with the same settings.

    python tests/bench/programs.py graph|agents_sdk|openai_client [--native] [--seeds 0 1 2] [--budget 1]
        [--python FILE] [--out FILE] [a.b=c]

`graph`, `agents_sdk` and `openai_client` are scenarios in scenarios/programs. `--native` trains the team without a
program: the workflow of `team_arithmetic.yaml` with the scenario's task, rewards, policies, schedule and evaluation,
and with the prompts that the program gives its agents. It is the same team for all three programs. All measures on
held-out problems are reported. `--python` is an interpreter that has the program's framework, such as
`.clients/bin/python` after `make clients`. Runs go to runs/learning/. `--budget 0.2` does a fifth of the steps (CI
does that with one seed).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import learning
from _bench import ROOT, parser, report

import marl
from marl.runs.run_folder import RunFolder
from marl.scenario.load import validate
from marl.scenario.schema import Scenario

PROGRAMS = ("graph", "agents_sdk", "openai_client")
PROMPTS = {
    "planner": "{{ observation }} last",
    "solver": "{{ observation }} last {{ heard[0].text }} missing",
    "critic": "{{ observation }} said {{ heard[0].text }} missing",
}
"""Agent -> its prompt in the programs."""


def program_scenario(program: str, seed: int, budget: float, overrides: list[str]) -> Scenario:
    """Return the program's scenario with a seed, and with a share of its steps."""
    file = ROOT / "scenarios" / "programs" / f"{program}.yaml"
    steps = max(1, round(marl.load(file, overrides).schedule.steps * budget))
    return marl.load(file, [*overrides, f"schedule.seed={seed}", f"schedule.steps={steps}"])


def native_scenario(scenario: Scenario) -> Scenario:
    """Return the native team with the settings of `scenario`, in which a program asks the agents."""
    data = marl.load(ROOT / "scenarios" / "team_arithmetic.yaml").model_dump(mode="json")
    settings = scenario.model_dump(mode="json")
    program_stage, *other_stages = settings["game"]["stages"]
    callers = program_stage["callers"]
    stages = [stage for stage in data["game"]["stages"] if stage["role"] in callers]
    for stage in stages:
        stage["examples"] = callers[stage["role"]]["examples"]
    roles = {name: role for name, role in settings["roles"].items() if name != program_stage["role"]}
    for name in callers:
        prompts = {"instructions": f"You are the {name}.", "prompt": PROMPTS[name]}
        roles[name] = data["roles"][name] | prompts | {"sampling": settings["roles"][name]["sampling"]}
    policies = {name: policy for name, policy in settings["policies"].items() if name != "program"}
    measures = {name: measure for name, measure in settings["game"]["measures"].items() if name != "failed"}
    shared = {"measures": measures, "task": settings["game"]["task"], "rewards": settings["game"]["rewards"]}
    game = data["game"] | shared | {"stages": [*stages, *other_stages]}
    data = {key: settings[key] for key in ("credit", "schedule", "evaluate", "checkpoint")}
    return validate(data | {"game": game, "roles": roles, "policies": policies}, "native team")


def learn(scenario: Scenario, run: Path) -> dict[str, Any]:
    """Train `scenario` in the folder `run`, and return its measures on held-out problems."""
    started = time.perf_counter()
    learning.whole_run(scenario, run)
    figures: dict[str, Any] = {"seed": scenario.schedule.seed, "steps": scenario.schedule.steps}
    figures["seconds"] = round(time.perf_counter() - started, 1)
    measures = learning.held_out(list(RunFolder(run).rows()))
    return figures | {name: round(value, 4) for name, value in measures.items()}


def main() -> None:
    line = parser(__doc__)
    line.add_argument("program", choices=PROGRAMS)
    line.add_argument("--native", action="store_true")
    line.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    line.add_argument("--budget", type=float, default=1.0)
    line.add_argument("--python", type=Path)
    line.add_argument("overrides", nargs="*")
    given = line.parse_intermixed_args()
    interpreter = [f"policies.program.engine.python={given.python}"] if given.python else []
    name = f"{given.program}_native" if given.native else given.program
    runs: list[dict[str, Any]] = []
    for seed in given.seeds:
        scenario = program_scenario(given.program, seed, given.budget, [*given.overrides, *interpreter])
        if given.native:
            scenario = native_scenario(scenario)
        runs.append(learn(scenario, learning.RUNS / f"program_{name}_{seed}"))
    report({"runs": runs}, given.out, seeds=given.seeds, scenario=f"programs/{given.program}", budget=given.budget)


if __name__ == "__main__":
    main()
