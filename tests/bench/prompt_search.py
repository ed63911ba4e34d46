"""In how many plays are the known best instructions found, by the learner `prompt` and by the package `gepa`?

    python tests/bench/prompt_search.py [--seeds 0 1 2] [--gepa FOLDER] [--out FILE]

Both search the instructions of `scenarios/prompt_search.yaml` with the same writer, the same 64 starts and the same
player. A play is one episode. Ours counts the episodes of the training steps, whose turns the writer reads, and of all
searches, up to the step that adopts the best instructions. `gepa` (default settings: minibatches of 3, Pareto
selection of parents, the 64 starts as validation set) counts its metric calls, up to the validation of a candidate
with the best instructions. `--gepa`: folder of site-packages with `gepa`, if it is not installed here.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _bench import ROOT, parser, report, silent

from marl.core.config import Sampling
from marl.core.seeds import hash_to_seed
from marl.core.spending import SpendingLimit
from marl.evaluation.trials import ScenarioInstructionTrials
from marl.runs.run_folder import RunFolder
from marl.scenario.load import load
from marl.scenario.schema import Scenario
from marl.trainers.prompts.proposals import proposal_request, read_proposal
from marl.training.build import build
from marl.training.session import NewOrResumedRunStart, train_in_folder

NEEDED = {"initials", "reverse words", "join with -", "repeat twice"}
MOST_PLAYS = 4000
"""Number of plays after which `gepa` is stopped."""


def is_best(instructions: str) -> bool:
    """Return True if `instructions` reach the best score, which the scenario's first comment derives."""
    rules = set(instructions.split("; "))
    return rules >= NEEDED and "be brief" not in rules


def searched_by_marl(scenario: Scenario) -> dict[str, Any]:
    """Return the number of plays up to the adoption of the best instructions, or None, and the number of searches."""
    with tempfile.TemporaryDirectory() as folder, silent():
        train_in_folder(scenario, Path(folder) / "run", NewOrResumedRunStart(), [])
        rows = list(RunFolder(Path(folder) / "run").rows())[1:]
    played = 0
    for search, row in enumerate(rows, 1):
        played += int(row["episode/count"])
        # Only all four rules score 1 on 32 starts or more.
        if row.get("policy/editor/mean_score") == 1:
            return {"plays": played + int(row["policy/editor/trials"]), "searches": search}
    return {"plays": None, "searches": len(rows)}


class WriterAndEditor:
    """Adapter of `gepa` to the scenario's writer and editor."""

    def __init__(self, scenario: Scenario, starts: int) -> None:
        run = build(scenario)
        self._trials = ScenarioInstructionTrials(scenario, run.simulator, "editor", str)
        self._seed, self._starts, self._proposals = scenario.schedule.seed, starts, 0
        self.plays = 0
        self.found = False

    def evaluate(self, batch: Sequence[int], candidate: Mapping[str, str], capture_traces: bool = False) -> Any:
        """Play `batch`; called by `gepa`."""
        from gepa.core.adapter import EvaluationBatch  # pyright: ignore[reportMissingImports]  it is optional

        scores = [score or 0.0 for score in self._trials.play(dict(candidate), batch, SpendingLimit())]
        self.plays += len(batch)
        self.found |= len(batch) == self._starts and is_best(candidate["editor"])
        return EvaluationBatch(scores, scores, list(batch) if capture_traces else None)

    def make_reflective_dataset(self, candidate: Any, batch: Any, components: Sequence[str]) -> dict[str, Any]:
        """Return one record for each component; the scenario's writer reads the instructions alone."""
        return {name: [{"Feedback": str(score)} for score in batch.scores] for name in components}

    def propose_new_texts(
        self, candidate: Mapping[str, str], dataset: Any, components: Sequence[str]
    ) -> dict[str, str]:
        """Return the writer's proposal; called by `gepa`."""
        self._proposals += 1
        seed = hash_to_seed(self._seed, "gepa", self._proposals)
        request = proposal_request("writer", "editor", candidate["editor"], [], Sampling(), seed)
        (answer,) = self._trials.ask([request], SpendingLimit())
        return {"editor": read_proposal(getattr(answer, "text", "")) or candidate["editor"]}


def searched_by_gepa(scenario: Scenario, starts: int) -> dict[str, Any]:
    """Return the number of plays up to the validation of the best instructions, or None."""
    import gepa  # pyright: ignore[reportMissingImports]  it is optional

    adapter = WriterAndEditor(scenario, starts)
    with silent():
        gepa.optimize(
            seed_candidate={"editor": "Rules."},
            trainset=list(range(starts)),
            valset=list(range(starts)),
            adapter=adapter,
            max_metric_calls=MOST_PLAYS,
            stop_callbacks=lambda _: adapter.found,
            seed=scenario.schedule.seed,
        )
    return {"plays": adapter.plays if adapter.found else None, "proposals": adapter._proposals}


def main() -> None:
    """Measure all seeds."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--gepa", type=Path)
    given = options.parse_args()
    if given.gepa:
        sys.path.append(str(given.gepa))
    figures: dict[str, Any] = {}
    starts = 0
    for seed in given.seeds:
        scenario = load(ROOT / "scenarios" / "prompt_search.yaml", [f"schedule.seed={seed}", "evaluate={}"])
        starts = dict(scenario.policies["editor"].learner or ()).get("trials", 0)
        figures[str(seed)] = {"marl": searched_by_marl(scenario), "gepa": searched_by_gepa(scenario, starts)}
    report(figures, given.out, seeds=given.seeds, gepa=version("gepa"), starts=starts)


if __name__ == "__main__":
    main()
