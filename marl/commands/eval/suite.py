"""`marl eval suite`: measure a model, a run or a scenario's policies on several tasks and games, and compare two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from marl.commands.eval.evaluate import policies_of_run, policies_of_scenario
from marl.commands.eval.output import replace_nonfinite_by_none, write_json_results
from marl.core.config import choices_hint
from marl.core.types import Metrics
from marl.evaluation.suite import (
    MEASURED_POLICY,
    Suite,
    scenario_settings_with_own_roles,
    scenario_settings_with_test_roles,
)
from marl.evaluation.suite_play import EpisodeScoresOfProblem, SuiteTestRun
from marl.host.data_files import one_line_error_message
from marl.host.paths import is_possible_hub_name
from marl.host.untrusted_text import parse_json
from marl.protocols import Engine
from marl.runs.run_folder import describe_environment
from marl.scenario.load import ScenarioError, load, load_settings, setting_change_lines
from marl.scenario.schema import Scenario
from marl.training.build import prepare_models
from marl.training.placement import build_engines, set_torch_threads, simulator_from_engines

SuiteScores = Mapping[str, Sequence[EpisodeScoresOfProblem]]
"""Test -> scores of each of its problems."""


@dataclass(frozen=True, slots=True)
class SuitePlayer:
    """Policies to measure on a suite: a bare model, a run's policies, or a scenario's untrained policies."""

    target: str
    """Name of the policies on the command line: a path, or a model's name on the hub."""
    scenario: Scenario
    """Scenario of the policies, or for a bare model the scenario of the suite's first test."""
    checkpoint: int | None
    """Step of the run's checkpoint, or None if `target` is no run."""
    bare: bool
    """True if `target` is a model's folder or hub name instead of a run or scenario."""
    load_engines: Callable[[], Mapping[str, Engine]]
    """Function that loads the weights and returns policy -> engine."""
    policy: str | None = None
    """Policy that plays the tests that define their own roles, or None for the only measurable policy."""

    def assign_policies_to_tests(self, suite: Suite) -> list[SuiteTestRun]:
        """Return every test of `suite` with the policies of this player in its seats. No weights are loaded.

        Raises:
            ScenarioError: if the policies cannot play a test; the message names the test.
        """
        tests = []
        for name, test in suite.tests.items():
            keeps_roles = not self.bare and not test.roles
            if keeps_roles:
                data = scenario_settings_with_own_roles(name, test, self.scenario)
            else:
                settings = self.scenario.policies[self._measured_policy_name()].model_dump(mode="json")
                settings |= {"learner": None, "update_every": 1, "alternate": None}
                data = scenario_settings_with_test_roles(name, test, settings)
            try:
                scenario = load(data, to_train=False)
            except ScenarioError as error:
                raise ScenarioError(f"tests.{name}: {error}") from error
            measured = self._measurable_policies() if keeps_roles else frozenset({MEASURED_POLICY})
            tests.append(SuiteTestRun(name, test, scenario, measured))
        return tests

    def play_suite(self, suite: Suite) -> SuiteScores:
        """Play all tests of `suite`, and return test -> scores of each problem. Tests are validated before loading."""
        tests = self.assign_policies_to_tests(suite)
        # Sums depend in their last bits on the number of threads, so the number is set before any computation.
        set_torch_threads(self.scenario.schedule.threads)
        engines = self.load_engines()
        scores = {}
        for test in tests:
            scenario = test.scenario
            own_roles = MEASURED_POLICY in test.measured
            test_engines = {MEASURED_POLICY: engines[self._measured_policy_name()]} if own_roles else dict(engines)
            partners = {name: policy for name, policy in scenario.policies.items() if name not in test_engines}
            test_engines |= build_engines(partners, prepare_models(scenario, partners))
            scores[test.name] = test.play_test(suite, simulator_from_engines(scenario, test_engines, suite.seed))
        return scores

    def _measured_policy_name(self) -> str:
        """Return the name of the policy that plays the tests that define their own roles.

        Raises:
            ScenarioError: if `policy` cannot be measured, or is None although several policies can be.
        """
        choices = self._measurable_policies()
        if self.policy is None and len(choices) == 1:
            return next(iter(choices))
        if self.policy not in choices:
            why = f"no policy {self.policy!r} here" if self.policy else "several policies; say which one is measured"
            raise ScenarioError(f"--policy: {self.target}: {why}; {choices_hint(self.policy or '', choices)}")
        return self.policy

    def _measurable_policies(self) -> frozenset[str]:
        """Return the policies with a learner, or if there are none, all policies that are not rule-based."""
        if self.bare:
            return frozenset({MEASURED_POLICY})
        policies = self.scenario.policies
        learners = frozenset(name for name, policy in policies.items() if policy.learner)
        return learners or frozenset(name for name, policy in policies.items() if not policy.engine.is_rule_based)


def suite_player(
    target: str,
    suite: Suite,
    overrides: Sequence[str] = (),
    *,
    step: int | None = None,
    best: bool = False,
    policy: str | None = None,
) -> SuitePlayer:
    """Return the policies of `target`: a scenario file, a run's folder, a model's folder, or a model's hub name.

    `overrides` change the scenario (`policies.actor.model=...`), or the policy of a bare model (`model.dtype=...`).

    Raises:
        ScenarioError: if `target` does not exist, or an option does not apply to it.
    """
    path = Path(target)
    is_run = (path / "scenario.yaml").is_file()
    if is_run or path.is_file():
        measured = (policies_of_run if is_run else policies_of_scenario)(path, overrides, step, best=best)
        return SuitePlayer(
            target, measured.scenario, measured.checkpoint, False, lambda: measured.load_simulator().engines, policy
        )
    if not path.exists() and not is_possible_hub_name(target):
        raise ScenarioError(f"{target}: no run, no scenario, and neither a model's folder nor its name on the hub")
    if step is not None or best:
        raise ScenarioError(f"{'--best' if best else f'--step {step}'} names a checkpoint, and {target} is no run")
    name, test = next(iter(suite.tests.items()))
    data = scenario_settings_with_test_roles(name, test, {"model": {"kind": "pretrained", "path": target}})
    scenario = load(data, [f"policies.{MEASURED_POLICY}.{override}" for override in overrides], to_train=False)
    policies = {MEASURED_POLICY: scenario.policies[MEASURED_POLICY]}
    return SuitePlayer(
        target, scenario, None, True, lambda: build_engines(policies, prepare_models(scenario, policies))
    )


def read_suite_scores(file: Path, suite: Suite) -> SuiteScores:
    """Return the scores in a result file that `marl eval suite --out` wrote earlier.

    Raises:
        ScenarioError: if the file is of another kind, or `suite` has other problems or another seed.
    """
    try:
        data = parse_json(file.read_text(encoding="utf-8"))
        recorded_suite = Suite.model_validate(data["suite"])
        scores = TypeAdapter(dict[str, list[EpisodeScoresOfProblem]]).validate_python(data["answers"])
    except (OSError, KeyError, TypeError, ValidationError, ValueError) as error:
        why = one_line_error_message(error) if isinstance(error, ValueError) else repr(error)
        raise ScenarioError(
            f"--against {file}: not figures of a suite, as `marl eval suite --out` writes ({why})"
        ) from error
    # Only settings that decide problems or scores are compared; others, such as the number of samples, may differ.
    compared = {"tests", "problems", "seed"}
    before = recorded_suite.model_dump(mode="json", include=compared)
    now = suite.model_dump(mode="json", include=compared)
    if changed := setting_change_lines(before, now):
        raise ScenarioError(f"--against {file}: measured on another suite: {'; '.join(changed[:3])}")
    return scores


def read_suite(file: Path) -> Suite:
    """Return the suite in a YAML file.

    Raises:
        ScenarioError: if the suite is faulty; the message names file, field, value and choices.
    """
    return load_settings(file, Suite)


def write_suite_results(file: Path, suite: Suite, player: SuitePlayer, scores: SuiteScores, metrics: Metrics) -> None:
    """Write metrics and the scores of all episodes to `file` as JSON, so that later measurements can compare."""
    content = {
        "measured": player.target,
        "checkpoint": player.checkpoint,
        "figures": replace_nonfinite_by_none(metrics),
        **describe_environment(player.scenario),
        "seed": suite.seed,
        "suite": suite.model_dump(mode="json"),
        "answers": {name: [asdict(problem) for problem in problems] for name, problems in scores.items()},
    }
    write_json_results(file, content)
