"""Rules that fit networks, in runs with models: what they read, what they cost, what a checkpoint keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl.core.state import load_state, save_state
from marl.core.types import Credit, Metrics
from marl.scenario.schema import Scenario
from marl.training.build import build
from marl.training.run import Run
from tests.support.run_processes import kuhn_scenario
from tests.support.small_team_scenarios import small_scenario

VDN = "marl.credit.assign.value_decomposition:Vdn"
QMIX = "marl.credit.assign.value_decomposition:Qmix"
COMA = "marl.credit.assign.value_decomposition:Coma"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, made: Path) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))


def judged(run: Run) -> tuple[Credit, Metrics]:
    """One step, without learning."""
    played = run.experience.gather(run.step, run.deals, run.simulator)
    readings = run.read(played)
    assert all(reading.hidden is not None for reading in readings.values())
    judgement = run.credit_stage(run.evidence(played, readings))
    taught = {turn.id for t in played for turn in t.turns if turn.role != "verifier"}
    assert set(judgement.earned) == taught
    assert set(readings) <= taught
    run.step += 1
    return judgement.earned, judgement.metrics


@pytest.mark.parametrize("kind", [QMIX, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (VDN, COMA))])
def test_a_team_is_judged_by_its_models_own_states(kind: str, tmp_path: Path) -> None:
    scenario = small_scenario("team_arithmetic", f"credit.assign={{kind: '{kind}'}}")
    run, again = build(scenario), build(scenario)
    judged(run)
    save_state(tmp_path, run.credit_stage.state_dict())
    again.credit_stage.load_state_dict(load_state(tmp_path))
    earned, metrics = judged(run)
    # The same step from a checkpoint: the same credit, bit for bit.
    again.step = 1
    assert judged(again)[0] == earned
    name = kind.partition(":")[2].lower()
    assert {f"credit/{name}/{figure}" for figure in ("loss", "explained", "explained_ahead")} <= set(metrics)
    assert len(set(earned.values())) > 10


def test_listed_moves_are_weighed_by_the_models_own_probabilities() -> None:
    assign = {"kind": COMA, "teams": [["player_0"], ["player_1"]]}
    scenario = Scenario.model_validate(kuhn_scenario(credit={"assign": assign, "baseline": {"kind": "none"}}))
    run = build(scenario)
    earned, _ = judged(run)
    assert run.simulator.tokens["credit"] > 0
    assert len(set(earned.values())) > 10
