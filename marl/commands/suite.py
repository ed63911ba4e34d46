"""`marl eval --suite`: measure a model, a run or a scenario's policies on several tasks and games, and compare two."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from marl.commands.evaluate import trained, untrained
from marl.commands.simulators import untrained_policies
from marl.config import nearest
from marl.data_files import problems
from marl.errors import Writing
from marl.evaluation.suite import MEASURED, Suite, SuiteTest, own_table, plain_table
from marl.evaluation.suite_play import ProblemScores, SuiteTable, suite_figures, suite_gains
from marl.places import may_be_on_hub
from marl.protocols import Engine
from marl.runs.run_folder import environment
from marl.scenario.load import ScenarioError, differences, load, load_settings
from marl.scenario.schema import PolicyConfig, Scenario
from marl.text import read_json
from marl.training.build import sources
from marl.training.placement import build_engines, make_simulator, use_threads
from marl.training.restore import restore
from marl.types import Metrics

Played = Mapping[str, Sequence[ProblemScores]]
"""Test -> what came of each start."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """Policies that take a suite: a bare model, those of a run, or those that a scenario starts from."""

    target: str
    scenario: Scenario
    """Its own; for a bare model, that of the suite's first test."""
    checkpoint: int | None
    """Step of the run's checkpoint."""
    bare: bool
    """True for a model without a scenario."""
    engines: Callable[[], Mapping[str, Engine]]
    """Load the weights; policy -> its engine."""
    policy: str | None = None
    """Policy that speaks where a test has roles of its own. None: the only one that can."""

    def table(self, name: str, test: SuiteTest) -> SuiteTable:
        """Return a test with those who take it.

        Raises:
            ScenarioError: naming the test and what does not fit.
        """
        keeps_roles = not self.bare and not test.roles
        data = own_table(name, test, self.scenario) if keeps_roles else plain_table(name, test, self._settings())
        try:
            scenario = load(data, to_train=False)
        except ScenarioError as error:
            raise ScenarioError(f"tests.{name}: {error}") from error
        return SuiteTable(name, test, scenario, self._speakers() if keeps_roles else frozenset({MEASURED}))

    def tables(self, suite: Suite) -> list[SuiteTable]:
        """Return the suite's tests as `table` does; no weights are loaded."""
        return [self.table(name, test) for name, test in suite.tests.items()]

    def play(self, suite: Suite) -> Played:
        """Return what came of every start of the suite; what can be wrong is said before weights are loaded."""
        tables = self.tables(suite)
        use_threads(self.scenario.schedule.threads)
        engines = self.engines()
        return {table.name: table.play(suite, self._simulator(table, engines, suite.seed)) for table in tables}

    def _simulator(self, table: SuiteTable, engines: Mapping[str, Engine], seed: int) -> Any:
        scenario = table.scenario
        known = {MEASURED: engines[self._speaker()]} if MEASURED in table.measured else dict(engines)
        partners = {name: policy for name, policy in scenario.policies.items() if name not in known}
        return make_simulator(scenario, known | build_engines(partners, sources(scenario, partners)), seed)

    def _settings(self) -> dict[str, Any]:
        settings = self.scenario.policies[self._speaker()].model_dump(mode="json")
        return settings | {"learner": None, "update_every": 1, "alternate": None}

    def _speaker(self) -> str:
        """Return the policy that speaks where a test has roles of its own."""
        choices = self._speakers()
        if self.policy is None and len(choices) == 1:
            return next(iter(choices))
        if self.policy not in choices:
            why = f"no policy {self.policy!r} here" if self.policy else "several policies; say which one is measured"
            raise ScenarioError(f"--policy: {self.target}: {why}; {nearest(self.policy or '', choices)}")
        return self.policy

    def _speakers(self) -> frozenset[str]:
        """Return the policies that learn, or where none does, all that do not answer by rule."""
        if self.bare:
            return frozenset({MEASURED})
        policies = self.scenario.policies
        learners = frozenset(name for name, policy in policies.items() if policy.learner)
        return learners or frozenset(name for name, policy in policies.items() if not policy.engine.rule_bound)


def contestant(
    target: str,
    suite: Suite,
    overrides: Sequence[str] = (),
    *,
    step: int | None = None,
    best: bool = False,
    policy: str | None = None,
) -> Contestant:
    """Return who is measured: a scenario's file, a run's folder, a model's folder, or a model's name on the hub.

    Overrides are those of the scenario (`policies.actor.model=...`), or of a bare model's policy (`model.dtype=...`).

    Raises:
        ScenarioError: if there is nothing of that name, or an option does not fit it.
    """
    path = Path(target)
    if (path / "scenario.yaml").is_file():
        run = trained(path, overrides, step, best=best)
        engines = partial(_restored, path, run.checkpoint)
        return Contestant(target, run.scenario, run.checkpoint, False, engines, policy)
    if path.is_file():
        scenario = untrained(path, overrides, step, best=best).scenario
        return Contestant(target, scenario, None, False, lambda: untrained_policies(scenario).engines, policy)
    if not path.exists() and not may_be_on_hub(target):
        raise ScenarioError(f"{target}: no run, no scenario, and neither a model's folder nor its name on the hub")
    if step is not None or best:
        raise ScenarioError(f"{'--best' if best else f'--step {step}'} names a checkpoint, and {target} is no run")
    return _bare_model(target, suite, overrides)


def _restored(run: Path, step: int | None) -> Mapping[str, Engine]:
    return restore(run, step)[1].engines


def _bare_model(target: str, suite: Suite, overrides: Sequence[str]) -> Contestant:
    name, test = next(iter(suite.tests.items()))
    data = plain_table(name, test, {"model": {"kind": "pretrained", "path": target}})
    scenario = load(data, [f"policies.{MEASURED}.{override}" for override in overrides], to_train=False)
    policies: dict[str, PolicyConfig] = {MEASURED: scenario.policies[MEASURED]}
    return Contestant(target, scenario, None, True, lambda: build_engines(policies, sources(scenario, policies)))


def play_against(target: str, suite: Suite, policy: str | None) -> Played:
    """Return the scores of what is compared with: of a file of figures as it holds them, else played now.

    Raises:
        ScenarioError: as `contestant` and `recorded`.
    """
    if target.endswith(".json"):
        return recorded(Path(target), suite)
    return contestant(target, suite, policy=policy).play(suite)


def recorded(file: Path, suite: Suite) -> Played:
    """Return what a file of an earlier measurement (`--out`) holds.

    Raises:
        ScenarioError: if it is no such file, or was measured on another suite.
    """
    try:
        data = read_json(file.read_text(encoding="utf-8"))
        known = Suite.model_validate(data["suite"])
        played = TypeAdapter(dict[str, list[ProblemScores]]).validate_python(data["answers"])
    except (OSError, KeyError, TypeError, ValidationError, ValueError) as error:
        why = problems(error) if isinstance(error, ValueError) else repr(error)
        raise ScenarioError(
            f"--against {file}: not figures of a suite, as `marl eval --suite --out` writes ({why})"
        ) from error
    if changed := differences(_posed(known), _posed(suite)):
        raise ScenarioError(f"--against {file}: measured on another suite: {'; '.join(changed[:3])}")
    return played


def _posed(suite: Suite) -> dict[str, Any]:
    """Return what decides which problems are posed and how answers are scored."""
    return suite.model_dump(mode="json", include={"tests", "problems", "seed"})


def read_suite(file: Path) -> Suite:
    """Return the suite in a YAML file; it raises ScenarioError naming file, field, value and choices."""
    return load_settings(file, Suite)


def figures_of(suite: Suite, played: Played, before: Played | None) -> Metrics:
    """Return the figures of a suite, and with `before` what was gained since."""
    gains = suite_gains(suite, before, played) if before is not None else {}
    return suite_figures(suite, played) | gains


def write_suite_figures(file: Path, suite: Suite, measured: Contestant, played: Played, metrics: Metrics) -> None:
    """Write figures as JSON, with each episode's score, so that others can be compared with them later."""
    result = {
        "measured": measured.target,
        "checkpoint": measured.checkpoint,
        "figures": {name: value if math.isfinite(value) else None for name, value in metrics.items()},
        **environment(measured.scenario),
        "seed": suite.seed,
        "suite": suite.model_dump(mode="json"),
        "answers": {name: [asdict(problem) for problem in played[name]] for name in played},
    }
    with Writing(file):
        file.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
