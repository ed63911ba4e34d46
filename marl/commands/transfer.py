"""`marl eval RUN --transfer SCENARIO`: a run's policies measured in other scenarios, before and after training."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from marl.commands.evaluate import MeasuredPolicies
from marl.config import cut
from marl.errors import Writing
from marl.rollout.simulator import RolloutSimulator
from marl.runs.run_folder import RunFolder, environment
from marl.scenario.load import ScenarioError, load
from marl.scenario.schema import PolicyConfig, Scenario
from marl.training.build import sources
from marl.training.placement import Sources, build_engines, make_simulator, use_threads
from marl.training.restore import saved_policies
from marl.types import Metrics

Measure = Callable[[MeasuredPolicies], Metrics]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Figures of one scenario, by a run's policies as they began and as they are at a checkpoint."""

    target: Path
    scenario: Scenario
    before: Metrics
    after: Metrics


@dataclass(frozen=True, slots=True)
class _Weights:
    """Policies of a run at some time, without learners, and where their weights lie."""

    policies: Mapping[str, PolicyConfig]
    sources: Sources

    @classmethod
    def of(cls, scenario: Scenario, policies: Mapping[str, PolicyConfig]) -> _Weights:
        return cls(policies, sources(scenario, policies))

    def simulator(self, scenario: Scenario, speakers: Mapping[str, str]) -> RolloutSimulator:
        """Return the simulator of another scenario in which these weights speak (its policy -> the run's)."""
        unchanged = {name: policy for name, policy in scenario.policies.items() if name not in speakers}
        policies = {
            name: policy.model_copy(update={"learner": None, "model": self._model(name, policy, speakers)})
            for name, policy in scenario.policies.items()
        }
        places = {**sources(scenario, unchanged), **{name: self.sources[source] for name, source in speakers.items()}}
        use_threads(scenario.schedule.threads)
        return make_simulator(scenario, build_engines(policies, places))

    def _model(self, name: str, policy: PolicyConfig, speakers: Mapping[str, str]) -> object:
        return self.policies[speakers[name]].model if name in speakers else policy.model


def transfers(measured: MeasuredPolicies, run: Path, targets: Sequence[Path], measure: Measure) -> list[Transfer]:
    """Return what `measure` tells of each scenario in `targets` with the policies of a run in its learning seats.

    A policy of a scenario that learns there is spoken for by the run's policy of the same name, or by the only one that
    the run trained; all others stay the scenario's own.

    Raises:
        ScenarioError: if no run was given, a scenario is faulty, or a policy has no counterpart in the run.
    """
    if measured.checkpoint is None:
        raise ScenarioError(f"--transfer {targets[0]}: {run} is a scenario; give the folder of a run that was trained")
    scenarios = {target: load(target) for target in targets}
    speakers = {target: _speakers(measured.scenario, target, scenario) for target, scenario in scenarios.items()}
    folder = RunFolder(run).policies(measured.checkpoint)
    began = {name: policy.model_copy(update={"learner": None}) for name, policy in measured.scenario.policies.items()}
    ended = saved_policies(measured.scenario, folder, learn=False)
    weights = [_Weights.of(measured.scenario, policies) for policies in (began, ended)]

    def figures(target: Path, at: _Weights) -> Metrics:
        policies = MeasuredPolicies(scenarios[target], None, lambda: at.simulator(scenarios[target], speakers[target]))
        return measure(policies)

    return [Transfer(target, scenarios[target], *(figures(target, at) for at in weights)) for target in targets]


def _speakers(run: Scenario, target: Path, scenario: Scenario) -> dict[str, str]:
    """Return policy of `scenario` -> policy of the run that speaks for it."""
    learnt = [name for name, policy in run.policies.items() if policy.learner and policy.learner.publishes]
    speakers = {}
    for name in (name for name, policy in scenario.policies.items() if policy.learner):
        if name not in learnt and len(learnt) != 1:
            raise ScenarioError(
                f"--transfer {target}: policies.{name} learns there, but the run trained no policy of this name; it "
                f"trained {', '.join(learnt) or 'none'}"
            )
        speakers[name] = name if name in learnt else learnt[0]
    return speakers


def render_transfers(results: Sequence[Transfer]) -> str:
    """Return a table: scenario, figure, its value before and after training, and the interval after."""
    rows = [("scenario", "figure", "before", "after", "")]
    for result in results:
        for name, before, after in _compared(result):
            low, high = (result.after.get(f"{name}{end}", math.nan) for end in ("_low", "_high"))
            interval = "" if math.isnan(low) else f"[{low:.4f}, {high:.4f}]"
            rows.append((cut(result.target.stem, 30), name, f"{before:.4f}", f"{after:.4f}", interval))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        f"{place.ljust(widths[0])}  {name.ljust(widths[1])}  {before.rjust(widths[2])}  {after.rjust(widths[3])}  "
        f"{interval}".rstrip()
        for place, name, before, after, interval in rows
    )


def _compared(result: Transfer) -> Iterator[tuple[str, float, float]]:
    """Yield (figure, before, after); bounds of intervals and figures of single roles are left out."""
    for name, after in result.after.items():
        if name in result.before and not name.endswith(("_low", "_high", "/episodes")) and "/role/" not in name:
            yield name, result.before[name], after


def write_transfers(file: Path, run: Path, measured: MeasuredPolicies, results: Sequence[Transfer]) -> None:
    """Write figures as JSON with all that they depend on; a bound that is not finite is null."""
    tables = {
        str(result.target): {
            "before": _finite(result.before),
            "after": _finite(result.after),
            "scenario": result.scenario.model_dump(mode="json"),
        }
        for result in results
    }
    whole = {"measured": str(run), "checkpoint": measured.checkpoint, **environment(measured.scenario)}
    with Writing(file):
        file.write_text(json.dumps({**whole, "transfer": tables}, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}
