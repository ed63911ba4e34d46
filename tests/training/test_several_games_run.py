"""Runs of one policy that plays several games."""

import json
from pathlib import Path
from typing import Any

import pytest

import marl
from marl.core.graph import Trajectory
from marl.metrics.trajectory_metrics import trajectories_by_game
from marl.runs.run_folder import RunFolder
from marl.scenario.load import validate
from marl.training.warm_up import random_play
from tests.support.run_processes import RunWorkspace, SignalTrigger, outcome, train_to_end
from tests.support.two_game_scenarios import SEATS, two_games, untrained_two_games

SHORT = {"steps": 2, "groups": 6, "group_size": 2, "threads": 1}


def trained(folder: Path, data: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a run."""
    marl.train(validate(data), folder)
    return list(RunFolder(folder).rows())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, made: Path) -> Path:
    """A short run of two games."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_CACHE", str(made))
        whole = tmp_path_factory.mktemp("two_games") / "run"
        trained(whole, untrained_two_games(schedule=SHORT, evaluate={"every": 2, "against": {"random": 2}}))
    return whole


def test_every_game_is_dealt_by_its_weight_and_every_episode_names_its_game(folder: Path) -> None:
    played = [trajectory for step in (1, 2) for trajectory in RunFolder(folder).load_trajectories(step)]
    assert {name: len(episodes) for name, episodes in trajectories_by_game(played).items()} == {"kuhn": 8, "nim": 16}
    assert all(trajectory.start.startswith(f"{trajectory.deal.game}/") for trajectory in played)


def test_figures_are_told_of_every_game(folder: Path) -> None:
    first, *_, last = RunFolder(folder).rows()
    assert {"eval/kuhn/nashconv", "eval/kuhn/legal_mass", "eval/nim/random/mean"} <= first.keys()
    assert not {"eval/nashconv", "eval/nim/nashconv", "eval/random/mean"} & first.keys()
    assert (last["game/kuhn/episode/count"], last["game/nim/episode/count"], last["episode/count"]) == (4, 8, 12)
    assert last["game/nim/credit/average/nim/player/player_0"] != last["game/kuhn/credit/average/kuhn/player/player_0"]
    turns = [last[f"{scope}role/player/turns"] for scope in ("game/kuhn/", "game/nim/", "")]
    assert turns[0] + turns[1] == turns[2]


def test_what_is_shown_of_an_episode_names_its_game(run: Any, folder: Path) -> None:
    assert "episode 000002.0.0 of nim" in run("show", folder)[1]
    assert "step 2, turn 000002.0.0:0 of nim: player_0" in run("why", folder, "000002.0.0:0")[1]


@pytest.mark.parametrize("rule", [[], ["--with", "outcome/none"]], ids=["recorded", "judged_again"])
def test_credit_is_shown_of_every_game(run: Any, folder: Path, rule: list[str]) -> None:
    status, said, complaint = run("credit", folder, *rule)
    assert status == 0, complaint
    # Another rule is told with the settings in which it differs.
    table = said.splitlines()
    while not table[0].startswith("game"):
        table.pop(0)
    headings, *lines, _ = table
    assert headings.split()[:3] == ["game", "role", "agent"]
    assert {line.split()[0] for line in lines} == {"kuhn", "nim"}
    last = [*RunFolder(folder).rows()][-1]
    for line in lines:
        game, role, _, *_, conserved, _, _ = line.split()
        assert float(conserved) == pytest.approx(last[f"game/{game}/credit/{role}/conservation"], rel=1e-3)


def test_a_game_among_several_is_played_as_it_would_be_alone(tmp_path: Path, made: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))
    whole = untrained_two_games(schedule=SHORT, evaluate={}, alarms=None)
    nim = {"game": {"kind": "nim"}, "seats": SEATS}
    alone = whole | nim
    del alone["games"]
    among, single = trained(tmp_path / "among", whole | {"games": {"it": nim}}), trained(tmp_path / "single", alone)
    for theirs, ours in zip(single, among, strict=True):
        same = {name for name in theirs if name.startswith(("role/", "policy/", "episode/"))}
        assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}


def test_a_game_of_weight_zero_is_measured_but_not_trained_on(tmp_path: Path, made: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))
    games = untrained_two_games()["games"]
    games["nim"]["weight"] = 0
    rows = trained(tmp_path / "run", untrained_two_games(games=games, schedule=SHORT))
    assert {"eval/kuhn/nashconv", "eval/nim/random/mean"} <= rows[-1].keys()
    assert rows[-1]["game/kuhn/episode/count"] == rows[-1]["episode/count"] == 12
    assert not [name for row in rows for name in row if name.startswith("game/nim/")]
    played = trajectories_by_game(random_play(validate(untrained_two_games(games=games)), 7, 0))
    assert len(played["nim"]) == 7, "a warm-up imitates it"


def test_warm_up_plays_every_game_as_often() -> None:
    played = trajectories_by_game(random_play(validate(untrained_two_games()), 7, 0))
    assert {name: len(episodes) for name, episodes in played.items()} == {"kuhn": 7, "nim": 7}


def test_the_dry_run_looks_at_every_game(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(untrained_two_games()))
    status, said, complaint = run("check", file)
    assert status == 0, complaint
    assert said.startswith(f"{file}: fine; games kuhn, nim, trains actor")
    assert "kuhn/player_0 ... nim/player_1 (4)" in said


def test_play_takes_turns_or_plays_the_game_that_is_named(run: Any, tmp_path: Path) -> None:
    from marl.core.graph import read_trajectories

    file, out = tmp_path / "mine.yaml", tmp_path / "played.jsonl.zst"
    file.write_text(json.dumps(untrained_two_games()))

    def games(*arguments: object) -> list[str]:
        assert run("play", file, "--random", "--episodes", 4, "--out", out, *arguments)[0] == 0
        played: list[Trajectory] = list(read_trajectories(out))
        return [trajectory.deal.game for trajectory in played]

    assert games() == ["kuhn", "nim", "kuhn", "nim"]
    assert games("--game", "nim") == ["nim"] * 4
    assert "--game nimm: no such game; did you mean 'nim'?" in run("play", file, "--random", "--game", "nimm")[2]
    assert "--as player_0: in which of kuhn, nim?" in run("play", file, "--random", "--as", "player_0")[2]


PATIENT = {"by": "learning_progress", "alpha": 0.5, "floor": 0.3}
KILLS = [
    SignalTrigger("call", "CreditStage.__call__", 2),
    SignalTrigger("open", "state/state.json", 1),
    SignalTrigger("call", "play_match", 3),
    SignalTrigger("call", "GameMix.update_from_step_metrics", 4),
    SignalTrigger("open", "metrics.jsonl", 3),
]


@pytest.mark.slow
def test_a_run_of_several_games_that_was_killed_is_the_run_that_was_not(tmp_path: Path) -> None:
    data = two_games(schedule={"steps": 7, "groups": 6, "group_size": 2, "threads": 1, "mix": PATIENT})
    for played, figure in zip(data["games"].values(), ("eval/random/mean", "episode/return/player_0"), strict=True):
        played |= {"progress": figure, "evaluate": {"against": {"random": 4}}}
    whole = train_to_end(tmp_path / "whole", data)
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "cache").symlink_to(whole.path / "cache")
    desk = RunWorkspace(tmp_path / "killed", whole.scenario)
    killed = [desk.train("--resume", "auto", kill=kill) for kill in KILLS]
    assert killed.count(-9) >= 4, desk.take_output()
    assert desk.train("--resume", "auto") == 0, desk.take_output()
    assert outcome(desk.run) == outcome(whole.run)
    shares = [row["game/nim/share"] for row in RunFolder(whole.run).rows()]
    assert len(set(shares)) > 2, "progress has changed the shares"
