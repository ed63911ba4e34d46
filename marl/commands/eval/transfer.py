"""`marl eval transfer`: a run's policies measured in other scenarios, before and after training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from marl.commands.eval.evaluate import EvaluatedPolicies
from marl.commands.eval.output import finite_or_null, write_figures_file
from marl.core.config import shorten
from marl.core.types import Metrics
from marl.rollout.simulator import RolloutSimulator
from marl.runs.run_folder import RunFolder, environment
from marl.scenario.load import ScenarioError, load
from marl.scenario.schema import PolicyConfig, Scenario
from marl.training.build import prepare_models
from marl.training.placement import Sources, build_engines, make_simulator, use_threads
from marl.training.restore import saved_policies

Measure = Callable[[EvaluatedPolicies], Metrics]


@dataclass(frozen=True, slots=True)
class TransferResult:
    """Metrics of one scenario with a run's initial policies, and with its policies at a checkpoint."""

    target: Path
    scenario: Scenario
    before: Metrics
    after: Metrics


@dataclass(frozen=True, slots=True)
class _RunWeights:
    """A run's policies at one time, without learners, and the sources of their weights."""

    policies: Mapping[str, PolicyConfig]
    sources: Sources

    def simulator(self, scenario: Scenario, speakers: Mapping[str, str]) -> RolloutSimulator:
        """Return the simulator of `scenario`, with the policies in `speakers` replaced by policies of the run."""
        policies, own_policies = {}, {}
        for name, policy in scenario.policies.items():
            if name in speakers:
                model = self.policies[speakers[name]].model
            else:
                model = policy.model
                own_policies[name] = policy
            policies[name] = policy.model_copy(update={"learner": None, "model": model})
        sources = {**prepare_models(scenario, own_policies)}
        for name, run_policy in speakers.items():
            sources[name] = self.sources[run_policy]
        use_threads(scenario.schedule.threads)
        return make_simulator(scenario, build_engines(policies, sources))


def measure_transfers(
    measured: EvaluatedPolicies, run: Path, targets: Sequence[Path], measure: Measure
) -> list[TransferResult]:
    """Return the metrics of every scenario in `targets` with a run's policies in the seats of its learning policies.

    A learning policy of a scenario is replaced by the run's policy of the same name, or else by the only policy that
    the run trained. All other policies stay the scenario's own.

    Raises:
        ScenarioError: if `run` is no run, a scenario is faulty, or a learning policy has no counterpart in the run.
    """
    if measured.checkpoint is None:
        raise ScenarioError(f"transfer {targets[0]}: {run} is a scenario; give the folder of a run that was trained")
    scenarios = {target: load(target) for target in targets}
    speakers = {target: _speakers(measured.scenario, target, scenario) for target, scenario in scenarios.items()}
    # Without learners no optimizer state and no critic is loaded.
    initial = {name: policy.model_copy(update={"learner": None}) for name, policy in measured.scenario.policies.items()}
    folder = RunFolder(run).policies_folder(measured.checkpoint)
    trained = saved_policies(measured.scenario, folder, learn=False)
    initial_weights = _RunWeights(initial, prepare_models(measured.scenario, initial))
    trained_weights = _RunWeights(trained, prepare_models(measured.scenario, trained))
    results = []
    for target in targets:
        scenario = scenarios[target]
        metrics = []
        for weights in (initial_weights, trained_weights):
            load_simulator = partial(weights.simulator, scenario, speakers[target])
            metrics.append(measure(EvaluatedPolicies(scenario, None, load_simulator)))
        results.append(TransferResult(target, scenario, *metrics))
    return results


def _speakers(run: Scenario, target: Path, scenario: Scenario) -> dict[str, str]:
    """Return a map from each learning policy of `scenario` to the policy of the run that replaces it."""
    trained = [name for name, policy in run.policies.items() if policy.learner and policy.learner.publishes]
    speakers = {}
    for name, policy in scenario.policies.items():
        if not policy.learner:
            continue
        if name not in trained and len(trained) != 1:
            raise ScenarioError(
                f"transfer {target}: policies.{name} learns there, but the run trained no policy of this name; it "
                f"trained {', '.join(trained) or 'none'}"
            )
        speakers[name] = name if name in trained else trained[0]
    return speakers


def render_transfers(results: Sequence[TransferResult]) -> str:
    """Return a table of every metric before and after training, with the interval after training."""
    rows = [("scenario", "figure", "before", "after", "")]
    for result in results:
        scenario = shorten(result.target.stem, 30)
        for name, after in result.after.items():
            # Bounds stand in the interval's column; metrics of single roles would drown the table.
            if name not in result.before or name.endswith(("_low", "_high", "/episodes")) or "/role/" in name:
                continue
            low, high = result.after.get(f"{name}_low", math.nan), result.after.get(f"{name}_high", math.nan)
            interval = "" if math.isnan(low) else f"[{low:.4f}, {high:.4f}]"
            rows.append((scenario, name, f"{result.before[name]:.4f}", f"{after:.4f}", interval))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for scenario, name, before, after, interval in rows:
        figures = f"{before.rjust(widths[2])}  {after.rjust(widths[3])}  {interval}"
        lines.append(f"{scenario.ljust(widths[0])}  {name.ljust(widths[1])}  {figures}".rstrip())
    return "\n".join(lines)


def write_transfers(file: Path, run: Path, measured: EvaluatedPolicies, results: Sequence[TransferResult]) -> None:
    """Write the metrics as JSON, with checkpoint, seed, versions and scenarios."""
    tables = {}
    for result in results:
        tables[str(result.target)] = {
            "before": finite_or_null(result.before),
            "after": finite_or_null(result.after),
            "scenario": result.scenario.model_dump(mode="json"),
        }
    content = {"measured": str(run), "checkpoint": measured.checkpoint, **environment(measured.scenario)}
    write_figures_file(file, {**content, "transfer": tables})
