"""`marl credit RUN --with` the run's own rule, for shipped scenarios: the numbers that the run learned from."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import marl
from marl.credit_stage.records import CreditRecord
from marl.runs.run_folder import RunFolder
from marl.training.recompute_credit import CreditRecomputation
from tests.support.small_team_scenarios import small_scenario

STEP = 2
# The rules outcome, flow, gae (of tokens and of turns), graph_gae, rnad and process, and five baselines are among them.
NAMES = (
    *("kuhn_self_play", "nim_self_play", "liars_dice_self_play", "pspo_nim", "chain", "fork_join", "ppo_team"),
    *("debate", "prime", "tree_sampling"),
)


def without_token_figures(record: CreditRecord) -> CreditRecord:
    """Return the record without entropies and mismatches of tokens, which only an update computes."""
    episodes = []
    for episode in record.episodes:
        turns = [replace(turn, token_entropy=(), token_mismatch=()) for turn in episode.turns]
        episodes.append(replace(episode, turns=tuple(turns)))
    return replace(record, episodes=tuple(episodes))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_own_rule_of_a_shipped_scenario_gives_the_numbers_of_the_run_to_the_bit(name: str, tmp_path: Path) -> None:
    run, copy = tmp_path / "run", tmp_path / "without_credit_records"
    scenario = small_scenario(name, "evaluate={}", "checkpoint.every=1", "checkpoint.keep=5", steps=STEP, groups=2)
    assert marl.train(scenario, run)
    home = RunFolder(run)
    learned = home.read_credit_of_step(STEP)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    row = next(row for row in rows if row["step"] == STEP)
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("credit"))
    rule = f"{scenario.credit.assign.kind}/{scenario.credit.baseline.kind}"
    for folder in (run, copy):
        again = CreditRecomputation(folder, STEP)(rule)
        assert again.differences == ()
        assert without_token_figures(again.record) == without_token_figures(learned)
        assert again.metrics == {metric: row[metric] for metric in row if metric.startswith("credit/")}
