"""Rules of credit in a run: a solver, a critic and a verifier, from the scenario to new weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_teams import small

import marl
from marl.graph import Trajectory, read_trajectories
from marl.state import load_state

EASY = "game.task={kind: arithmetic, numbers: [1, 6], train: 8, held_out: 4}"
PROCESS = (
    "credit.assign={kind: process, rewards: [agreement], combine: prime_released, weights: {form: 0.5}, "
    "verifiers: {checks: {right: {kind: exact}, form: {kind: format, requires: ['^.']}}, workers: 1}}"
)
TRAJECTORY = (
    "credit.assign={kind: trajectory, agents: {solver: 2, critic: 1}, calls: {kind: vdn}, tokens: surprise, "
    "discount: 0.9}"
)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, made: Path) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))


def trained(rule: str, folder: Path) -> tuple[dict[str, Any], list[Trajectory]]:
    """Metrics and episodes of the last step."""
    scenario = small("solver_critic", EASY, rule, "credit.baseline={kind: none}")
    assert marl.train(scenario, folder)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return rows[-1], list(read_trajectories(folder / "trajectories" / "000002.jsonl.zst"))


def test_process_rewards_are_what_the_table_and_the_checks_say(tmp_path: Path) -> None:
    row, episodes = trained(PROCESS, tmp_path)
    turns = [turn for t in episodes for turn in t.turns]
    said = [turn for turn in turns if turn.role != "verifier"]
    right = [json.loads(turn.completion.text)["scores"]["correct"] for turn in turns if turn.role == "verifier"]
    paid = [reward.value for t in episodes for reward in t.rewards if reward.name == "agreement"]
    assert 0 < sum(right) < len(right)
    # The seat judges each of the solver's answers; a critic's yes or no is never the right answer.
    assert row["credit/process/right"] == pytest.approx(sum(right) / len(said))
    assert row["credit/process/agreement"] == pytest.approx(sum(paid) / len(said))
    assert row["credit/process/form"] == pytest.approx(sum(bool(turn.completion.text) for turn in said) / len(said))
    assert row["credit/process_failed"] == 0


def test_learnt_weights_go_on_from_a_checkpoint_and_credit_sums_to_what_was_paid(tmp_path: Path) -> None:
    row, _ = trained(TRAJECTORY, tmp_path)
    assert row["credit/solver/conservation"] == pytest.approx(1.0)
    assert row["credit/vdn/loss"] > 0
    [folder] = (tmp_path / "checkpoints").iterdir()
    state = load_state(folder / "state")
    assert list(state["judge"]["default"]["assign"]) == ["calls"]
