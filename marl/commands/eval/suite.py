"""`marl eval suite`: measure a model, a run or a scenario's policies on several tasks and games, and compare two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from marl.commands.eval.evaluate import policies_of_run, policies_of_scenario
from marl.commands.eval.output import finite_or_null, write_figures_file
from marl.core.config import choices_hint
from marl.core.types import Metrics
from marl.evaluation.suite import MEASURED_POLICY, Suite, SuiteTest, scenario_with_own_roles, scenario_with_test_roles
from marl.evaluation.suite_play import ProblemScores, SuiteTestRun
from marl.host.data_files import summarize_error
from marl.host.outside import parse_json
from marl.host.paths import is_possible_hub_name
from marl.protocols import Engine
from marl.runs.run_folder import environment
from marl.scenario.load import ScenarioError, differences, load, load_settings
from marl.scenario.schema import Scenario
from marl.training.build import prepare_models
from marl.training.placement import build_engines, make_simulator, use_threads

SuiteScores = Mapping[str, Sequence[ProblemScores]]
"""Test -> scores of each of its problems."""


@dataclass(frozen=True, slots=True)
class SuitePlayer:
    """Policies that are measured on a suite: a bare model, a run's policies, or a scenario's untrained ones."""

    target: str
    scenario: Scenario
    """Scenario of the policies; for a bare model, the scenario of the suite's first test."""
    checkpoint: int | None
    """Step of the run's checkpoint, or None if `target` is no run."""
    bare: bool
    """True for a model without a scenario."""
    load_engines: Callable[[], Mapping[str, Engine]]
    """Load the weights and return policy -> engine."""
    policy: str | None = None
    """Policy that speaks in tests with roles of their own, or None for the only possible one."""

    def table(self, name: str, test: SuiteTest) -> SuiteTestRun:
        """Return the test `name` with these policies in its seats. No weights are loaded.

        Raises:
            ScenarioError: if the test does not fit; names the test.
        """
        keeps_roles = not self.bare and not test.roles
        if keeps_roles:
            data = scenario_with_own_roles(name, test, self.scenario)
        else:
            settings = self.scenario.policies[self._speaker()].model_dump(mode="json")
            settings |= {"learner": None, "update_every": 1, "alternate": None}
            data = scenario_with_test_roles(name, test, settings)
        try:
            scenario = load(data, to_train=False)
        except ScenarioError as error:
            raise ScenarioError(f"tests.{name}: {error}") from error
        return SuiteTestRun(name, test, scenario, self._speakers() if keeps_roles else frozenset({MEASURED_POLICY}))

    def tables(self, suite: Suite) -> list[SuiteTestRun]:
        """Return every test of `suite` with these policies in its seats. No weights are loaded."""
        return [self.table(name, test) for name, test in suite.tests.items()]

    def play(self, suite: Suite) -> SuiteScores:
        """Return the scores of every problem of `suite`; a test that does not fit is refused before weights load."""
        tables = self.tables(suite)
        # Sums depend on the number of threads in their last bits, so it is set before anything is computed.
        use_threads(self.scenario.schedule.threads)
        engines = self.load_engines()
        scores = {}
        for table in tables:
            scenario = table.scenario
            own_roles = MEASURED_POLICY in table.measured
            test_engines = {MEASURED_POLICY: engines[self._speaker()]} if own_roles else dict(engines)
            partners = {name: policy for name, policy in scenario.policies.items() if name not in test_engines}
            test_engines |= build_engines(partners, prepare_models(scenario, partners))
            scores[table.name] = table.play(suite, make_simulator(scenario, test_engines, suite.seed))
        return scores

    def _speaker(self) -> str:
        """Return the evaluated policy for tests with roles of their own."""
        choices = self._speakers()
        if self.policy is None and len(choices) == 1:
            return next(iter(choices))
        if self.policy not in choices:
            why = f"no policy {self.policy!r} here" if self.policy else "several policies; say which one is measured"
            raise ScenarioError(f"--policy: {self.target}: {why}; {choices_hint(self.policy or '', choices)}")
        return self.policy

    def _speakers(self) -> frozenset[str]:
        """Return the policies with a learner, or all policies without a rule-based engine if none has a learner."""
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

    Overrides change the scenario (`policies.actor.model=...`), or the policy of a bare model (`model.dtype=...`).

    Raises:
        ScenarioError: if `target` does not exist, or an option does not apply to it.
    """
    path = Path(target)
    is_run = (path / "scenario.yaml").is_file()
    if is_run or path.is_file():
        measured = (policies_of_run if is_run else policies_of_scenario)(path, overrides, step, best=best)

        def load_engines() -> Mapping[str, Engine]:
            return measured.load_simulator().engines

        return SuitePlayer(target, measured.scenario, measured.checkpoint, False, load_engines, policy)
    if not path.exists() and not is_possible_hub_name(target):
        raise ScenarioError(f"{target}: no run, no scenario, and neither a model's folder nor its name on the hub")
    if step is not None or best:
        raise ScenarioError(f"{'--best' if best else f'--step {step}'} names a checkpoint, and {target} is no run")
    name, test = next(iter(suite.tests.items()))
    data = scenario_with_test_roles(name, test, {"model": {"kind": "pretrained", "path": target}})
    scenario = load(data, [f"policies.{MEASURED_POLICY}.{override}" for override in overrides], to_train=False)
    policies = {MEASURED_POLICY: scenario.policies[MEASURED_POLICY]}
    return SuitePlayer(
        target, scenario, None, True, lambda: build_engines(policies, prepare_models(scenario, policies))
    )


def read_scores(file: Path, suite: Suite) -> SuiteScores:
    """Return the scores in a file of figures that `marl eval suite --out` wrote earlier.

    Raises:
        ScenarioError: if the file is of another kind, or its problems or seed differ from those of `suite`.
    """
    try:
        data = parse_json(file.read_text(encoding="utf-8"))
        recorded_suite = Suite.model_validate(data["suite"])
        scores = TypeAdapter(dict[str, list[ProblemScores]]).validate_python(data["answers"])
    except (OSError, KeyError, TypeError, ValidationError, ValueError) as error:
        why = summarize_error(error) if isinstance(error, ValueError) else repr(error)
        raise ScenarioError(
            f"--against {file}: not figures of a suite, as `marl eval suite --out` writes ({why})"
        ) from error
    # Other settings, such as the number of samples, may differ: they change neither problems nor scoring.
    compared = {"tests", "problems", "seed"}
    before = recorded_suite.model_dump(mode="json", include=compared)
    now = suite.model_dump(mode="json", include=compared)
    if changed := differences(before, now):
        raise ScenarioError(f"--against {file}: measured on another suite: {'; '.join(changed[:3])}")
    return scores


def read_suite(file: Path) -> Suite:
    """Return the suite in a YAML file.

    Raises:
        ScenarioError: if the suite is faulty; names file, field, value and choices.
    """
    return load_settings(file, Suite)


def write_suite_figures(file: Path, suite: Suite, player: SuitePlayer, scores: SuiteScores, metrics: Metrics) -> None:
    """Write the metrics as JSON with the score of every episode, so that later measurements can compare with them."""
    content = {
        "measured": player.target,
        "checkpoint": player.checkpoint,
        "figures": finite_or_null(metrics),
        **environment(player.scenario),
        "seed": suite.seed,
        "suite": suite.model_dump(mode="json"),
        "answers": {name: [asdict(problem) for problem in problems] for name, problems in scores.items()},
    }
    write_figures_file(file, content)
