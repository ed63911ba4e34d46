"""`marl eval transfer`: a run's policies measured in other scenarios, before and after training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers.models import WordLevel

from marl.commands.eval.evaluate import EvaluatedPolicies
from marl.commands.eval.output import replace_nonfinite_by_none, write_json_results
from marl.core.config import shorten
from marl.core.types import Metrics, Turn
from marl.models.q_network import QNetworkModel
from marl.protocols import ModelConfig, ModelSource
from marl.rollout.simulator import RolloutSimulator
from marl.runs.run_folder import RunFolder, describe_environment
from marl.scenario.load import ScenarioError, load
from marl.scenario.schema import PolicyConfig, Scenario
from marl.training.build import prepare_models
from marl.training.placement import ModelSources, build_engines, set_torch_threads, simulator_from_engines
from marl.training.restore import policies_with_saved_weights
from marl.training.warm_up import random_play

_RANDOM_EPISODES = 32
"""Number of random episodes of each game whose answers a transferred model must be able to write."""
Measure = Callable[[EvaluatedPolicies], Metrics]
"""Function that plays episodes with policies, and returns the metrics of the policies."""


@dataclass(frozen=True, slots=True)
class TransferResult:
    """Metrics of one scenario with a run's initial policies, and with its policies at a checkpoint."""

    target: Path
    """File of the scenario in which the policies were measured."""
    scenario: Scenario
    before: Metrics
    """Metrics with the run's initial policies."""
    after: Metrics
    """Metrics with the run's policies at the checkpoint."""


@dataclass(frozen=True, slots=True)
class _RunPoliciesWithModelSources:
    """Policies of a run before or after training, without learners, and where to load their weights from."""

    policies: Mapping[str, PolicyConfig]
    sources: ModelSources

    def simulator_with_run_policies(
        self, scenario: Scenario, run_policy_by_policy: Mapping[str, str]
    ) -> RolloutSimulator:
        """Return a simulator of `scenario`. `run_policy_by_policy` maps policies of `scenario` to policies of the
        run."""
        policies, own_policies = {}, {}
        for name, policy in scenario.policies.items():
            if name in run_policy_by_policy:
                model = self.policies[run_policy_by_policy[name]].model
            else:
                model = policy.model
                own_policies[name] = policy
            policies[name] = policy.model_copy(update={"learner": None, "model": model})
        sources = {**prepare_models(scenario, own_policies)}
        for name, run_policy in run_policy_by_policy.items():
            sources[name] = self.sources[run_policy]
        set_torch_threads(scenario.schedule.threads)
        return simulator_from_engines(scenario, build_engines(policies, sources))


def measure_transfers(
    run_policies: EvaluatedPolicies,
    run: Path,
    scenario_files: Sequence[Path],
    overrides: Sequence[str],
    measure_metrics: Measure,
) -> list[TransferResult]:
    """Return the metrics of every scenario in `scenario_files` with a run's policies in the seats of its learning
    policies.

    `overrides` (`dotted.path=value`) change every scenario. A learning policy of a scenario is replaced by the run's
    policy of the same name, or else by the only policy that the run trained. All other policies stay the scenario's
    own.

    Raises:
        ScenarioError: if `run` is no run, a scenario is faulty, a learning policy has no counterpart in the run, or the
            counterpart's model is of another family, or lacks the words of most answers or a move.
    """
    if run_policies.checkpoint is None:
        raise ScenarioError(
            f"transfer {scenario_files[0]}: {run} is a scenario; give the folder of a run that was trained"
        )
    scenarios = {target: load(target, overrides) for target in scenario_files}
    trained_names = []
    for name, policy in run_policies.scenario.policies.items():
        if policy.learner and policy.learner.publishes:
            trained_names.append(name)
    # For each target scenario: learning policy -> trained policy of the run that takes its place.
    replacements: dict[Path, dict[str, str]] = {target: {} for target in scenario_files}
    for target, scenario in scenarios.items():
        for name in [name for name, policy in scenario.policies.items() if policy.learner]:
            if name not in trained_names and len(trained_names) != 1:
                raise ScenarioError(
                    f"transfer {target}: policies.{name} learns there, but the run trained no policy of this name; it "
                    f"trained {', '.join(trained_names) or 'none'}"
                )
            replacements[target][name] = name if name in trained_names else trained_names[0]
    # `learner: None` prevents loading of optimizer states and critics.
    initial = {
        name: policy.model_copy(update={"learner": None}) for name, policy in run_policies.scenario.policies.items()
    }
    folder = RunFolder(run).verified_policies_folder(run_policies.checkpoint)
    trained = policies_with_saved_weights(run_policies.scenario, folder, keep_learners=False)
    initial_weights = _RunPoliciesWithModelSources(initial, prepare_models(run_policies.scenario, initial))
    trained_weights = _RunPoliciesWithModelSources(trained, prepare_models(run_policies.scenario, trained))
    for target, scenario in scenarios.items():
        for name, run_policy in replacements[target].items():
            model, source = trained[run_policy].model, trained_weights.sources[run_policy]
            problem = _model_problem(scenario, name, model, source) if model and source else None
            if problem:
                raise ScenarioError(f"transfer {target}: policies.{name}: the run's policy {run_policy!r} {problem}")
    results = []
    for target in scenario_files:
        scenario = scenarios[target]
        metrics = []
        for weights in (initial_weights, trained_weights):
            load_simulator = partial(weights.simulator_with_run_policies, scenario, replacements[target])
            metrics.append(measure_metrics(EvaluatedPolicies(scenario, None, load_simulator)))
        results.append(TransferResult(target, scenario, *metrics))
    return results


def _model_problem(scenario: Scenario, policy: str, model: ModelConfig, source: ModelSource) -> str | None:
    """Return why the model of a run cannot answer for `policy` of `scenario`, or None if it can."""
    own_model = scenario.policies[policy].model
    if own_model and own_model.family != model.family:
        return f"is {model.family}, but the scenario's policy is {own_model.family}"
    if isinstance(model, QNetworkModel):
        moves = {move for turn in _turns_of_random_play(scenario, policy) for move in turn.request.options or ()}
        unknown = sorted(moves - {*model.actions})
        return f"has no action {unknown[0]!r}; it has {', '.join(model.actions)}" if unknown else None
    answers = {turn.completion.text for turn in _turns_of_random_play(scenario, policy)}
    return _unknown_words_problem(answers, source.tokenizer())


def _turns_of_random_play(scenario: Scenario, policy: str) -> list[Turn]:
    """Return the turns for which `policy` would answer, in random play."""
    roles = {name for name, role in scenario.roles.items() if role.policy == policy}
    trajectories = random_play(scenario, _RANDOM_EPISODES, scenario.schedule.seed)
    return [turn for trajectory in trajectories for turn in trajectory.turns if turn.role in roles]


def _unknown_words_problem(answers: Set[str], tokenizer: Any) -> str | None:
    """Return why a model with `tokenizer` cannot give most of `answers`, or None if it can.

    Only a vocabulary of whole words lacks any; others spell unknown words.
    """
    if not isinstance(tokenizer.backend_tokenizer.model, WordLevel):
        return None
    unknown = [
        text for text in sorted(answers) if tokenizer.unk_token_id in tokenizer.encode(text, add_special_tokens=False)
    ]
    if 2 * len(unknown) <= len(answers):
        return None
    listed = ", ".join(shorten(repr(text), 30) for text in unknown[:3])
    return (
        f"has a vocabulary without words of {len(unknown)} of {len(answers)} answers there, such as {listed}, so its "
        "figures would say nothing; train it with model.words: [all words of both scenarios], or vocabulary: bytes"
    )


def render_transfers(results: Sequence[TransferResult]) -> str:
    """Return a table of every metric before and after training, with the interval after training."""
    rows = [("scenario", "figure", "before", "after", "")]
    for result in results:
        scenario = shorten(result.target.stem, 30)
        for name, after in result.after.items():
            # Bounds of intervals are shown in their own column, and metrics of single roles are left out for brevity.
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
    """Write the metrics of all transfers to `file` as JSON, with checkpoint, seed, versions and scenarios."""
    tables = {}
    for result in results:
        tables[str(result.target)] = {
            "before": replace_nonfinite_by_none(result.before),
            "after": replace_nonfinite_by_none(result.after),
            "scenario": result.scenario.model_dump(mode="json"),
        }
    content = {"measured": str(run), "checkpoint": measured.checkpoint, **describe_environment(measured.scenario)}
    write_json_results(file, {**content, "transfer": tables})
