"""`marl play` refuses wrong options before weights are loaded, and a run without checkpoints."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

import marl
from marl.commands import play
from marl.commands.play import PlayOptions
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.training.restore import restore_simulator

SCENARIOS = Path(__file__).parents[2] / "scenarios"


@pytest.mark.parametrize(
    ("scenario", "options", "message"),
    [
        ("kuhn_self_play", PlayOptions(seat="player_9"), "--as player_9: no such seat; did you mean 'player_0'"),
        ("kuhn_self_play", PlayOptions(game="nim"), "--game nim: no such game; this scenario has one game"),
        ("two_games", PlayOptions(game="nin"), "--game nin: no such game; did you mean 'nim'"),
        ("two_games", PlayOptions(seat="player_0"), "--as player_0: in which of kuhn, nim"),
    ],
)
def test_wrong_options_are_refused_before_weights_are_loaded(
    scenario: str, options: PlayOptions, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_no_weights(*_: object) -> None:
        pytest.fail("weights were loaded")

    monkeypatch.setattr(play, "untrained_simulator", load_no_weights)
    with pytest.raises(ScenarioError, match=message):
        play.play_game(scenario=SCENARIOS / f"{scenario}.yaml", overrides=None, **asdict(options))


def test_a_run_without_checkpoints_has_no_weights_to_load(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run").create(marl.load(SCENARIOS / "kuhn_self_play.yaml"))
    for step in (None, 0, 3):
        with pytest.raises(ScenarioError, match="this run has no checkpoint, so there are no weights to load"):
            restore_simulator(tmp_path / "run", step)
