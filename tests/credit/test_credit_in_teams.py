"""Rules of credit in a run: a solver, a critic and a verifier, from the scenario to new weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import marl
from marl.core.graph import Trajectory, read_trajectories
from marl.core.state import load_state
from tests.support.small_team_scenarios import small_scenario

EASY = "game.task={kind: arithmetic, numbers: [1, 6], train: 8, held_out: 4}"
PROCESS = (
    "credit.assign={kind: process, rewards: [agreement], combine: prime_released, weights: {form: 0.5}, "
    "scores: {verifier: [correct, form]}}",
    "policies.checker.engine={kind: verifiers, workers: 1, checks: {correct: {kind: exact}, "
    "form: {kind: format, requires: ['^.']}}}",
)
TRAJECTORY = (
    "credit.assign={kind: trajectory, agents: {solver: 2, critic: 1}, calls: {kind: vdn}, tokens: surprise, "
    "discount: 0.9}",
)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, made: Path) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))


def trained(changes: Sequence[str], folder: Path) -> tuple[dict[str, Any], list[Trajectory]]:
    """Metrics and episodes of the last step."""
    scenario = small_scenario("solver_critic", EASY, *changes, "credit.baseline={kind: none}")
    assert marl.train(scenario, folder)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return rows[-1], list(read_trajectories(folder / "trajectories" / "000002.jsonl.zst"))


@pytest.mark.slow
def test_process_rewards_are_what_the_game_pays_and_what_the_verifier_scores(tmp_path: Path) -> None:
    row, episodes = trained(PROCESS, tmp_path)
    turns = [turn for t in episodes for turn in t.turns]
    players = [turn for turn in turns if turn.role != "verifier"]
    verdicts = [json.loads(turn.completion.text)["scores"] for turn in turns if turn.role == "verifier"]
    paid = [reward.value for t in episodes for reward in t.rewards if reward.name == "agreement"]
    assert 0 < sum(scores["correct"] for scores in verdicts) < len(verdicts)
    # The seat judges each of the solver's answers, and none of the critic's.
    for name in ("correct", "form"):
        expected = sum(scores[name] for scores in verdicts) / len(players)
        assert row[f"credit/process/{name}"] == pytest.approx(expected)
    assert row["credit/process/agreement"] == pytest.approx(sum(paid) / len(players))


def test_learnt_weights_go_on_from_a_checkpoint_and_credit_sums_to_what_was_paid(tmp_path: Path) -> None:
    row, _ = trained(TRAJECTORY, tmp_path)
    assert row["credit/solver/conservation"] == pytest.approx(1.0)
    assert row["credit/vdn/loss"] > 0
    [folder] = (tmp_path / "checkpoints").iterdir()
    state = load_state(folder / "state")
    assert list(state["credit"][""]["default"]["assign"]) == ["calls"]
