"""`marl eval cross-play`: a real run's checkpoints, a model's folder, scenarios and scripted players meet."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from marl.commands.eval.cross_play import CrossPlayTournament
from marl.commands.eval.players import read_roster
from marl.runs.checkpoint import intact_checkpoint_steps as whole_steps
from marl.runs.run_folder import RunFolder
from tests.support.paths import SCENARIOS
from tests.support.run_processes import RunWorkspace


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, whole: RunWorkspace) -> None:
    monkeypatch.setenv("MARL_CACHE", str(whole.path / "cache"))


def test_all_kinds_of_players_meet_and_the_file_holds_what_the_table_shows(
    run: Any, whole: RunWorkspace, tmp_path: Path
) -> None:
    snapshot = shutil.copytree(
        RunFolder(whole.run).verified_policies_folder(8) / "actor", tmp_path / "league" / "actor" / "000008"
    )
    out = tmp_path / "cross.json"
    players = [f"{whole.run}@all", whole.path / "scenario.yaml", snapshot, "nash", "random"]
    status, said, complaint = run("eval", "cross-play", *players, "--episodes", 5, "--out", out)
    assert (status, complaint) == (0, "")
    written = json.loads(out.read_text(), parse_constant=pytest.fail)
    checkpoints = [f"{whole.run}@{step:06d}" for step in whole_steps(RunFolder(whole.run).checkpoints)]
    assert written["players"] == [*checkpoints, *map(str, players[1:])]
    assert all(name.rpartition("/")[2] in said for name in written["players"])
    assert (written["starts"], written["seed"], written["command"][:2]) == (2, 0, ["marl", "eval"])
    assert len(written["ratings"]) == len(written["equilibrium"]) == len(written["players"])
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    # The same weights in another folder play alike.
    last = written["players"].index(f"{whole.run}@000008")
    column = [row[-1] for row in written["matrix"]["mean"]]
    assert column[last] == column[written["players"].index(str(snapshot))]


def test_pairs_that_the_file_holds_are_not_played_again(run: Any, whole: RunWorkspace, tmp_path: Path) -> None:
    out = tmp_path / "cross.json"
    first = ("eval", "cross-play", whole.run, "nash", "random", "--budget", 12, "--out", out)
    assert run(*first)[0] == 0
    before = json.loads(out.read_text())
    key = next(iter(before["meetings"]))
    marked = before | {"meetings": before["meetings"] | {key: [[[7.0, -7.0], [7.0, -7.0]]] * 2}}
    out.write_text(json.dumps(marked))
    assert run(*first)[0] == 0
    after = json.loads(out.read_text())
    assert after["meetings"] == marked["meetings"]
    assert run(*first, "--seed", 1)[0] == 0
    assert json.loads(out.read_text())["meetings"].keys() == before["meetings"].keys()
    assert 7.0 not in [mean for row in json.loads(out.read_text())["matrix"]["mean"] for mean in row]


def test_what_was_played_before_an_interruption_is_kept(whole: RunWorkspace, tmp_path: Path) -> None:
    met = read_roster([str(whole.run), "nash", "random"])
    out = tmp_path / "cross.json"
    play = CrossPlayTournament.from_roster(met, episodes=2, budget=None, seed=0, out=out)

    def stopped(engines: Any) -> Any:
        if any(policy.startswith("random") for policy in engines):
            raise KeyboardInterrupt
        return play.tournament.build_simulator(engines)

    halted = CrossPlayTournament(type(play.tournament)(met.scenario, met.entrants, 1, 0, stopped), out)
    with pytest.raises(KeyboardInterrupt):
        halted()
    assert len(json.loads(out.read_text())["meetings"]) == 1
    assert len(play().episodes_by_pair) == 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nash", "random"], "nash random: nobody says what is played; name one of RUN, "),
        (["RUN", "nsh"], "nsh: no player of this name; choices: nash, random, RUN, RUN@STEP"),
        (["RUN"], "cross-play: 1 players and 2 seats that are played for; it takes two of both"),
        (["RUN", "RUN"], "given more than once"),
        (["RUN", "RUN@000099"], "checkpoint"),
        (["RUN", "random", "--policy", "critic"], "--policy critic: no such policy; choices: actor"),
        (["RUN", "random", "--budget", "1"], "--budget 1: 1 pairs play 2 episodes each at least, one for every seat"),
        (["RUN", "random", "--game", "nim"], "--game nim: no such game; the scenario has one game, without a name"),
        (["RUN", str(SCENARIOS / "nim_self_play.yaml")], "nim_self_play.yaml: it plays "),
        ([str(SCENARIOS / "two_games.yaml"), "random"], "--game: which of the games?"),
    ],
)
def test_what_is_wrong_is_said_with_the_choices_before_a_weight_is_loaded(
    run: Any, whole: RunWorkspace, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    monkeypatch.setattr("marl.commands.eval.players.restore_simulator", lambda *_: pytest.fail("weights were loaded"))
    status, said, complaint = run("eval", "cross-play", *[word.replace("RUN", str(whole.run)) for word in words])
    assert says in complaint
    assert (status > 0, said) == (True, "")


def test_exploitability_of_checkpoints_is_what_their_run_measured_and_mixtures_follow(
    run: Any, whole: RunWorkspace, tmp_path: Path
) -> None:
    out = tmp_path / "exact.json"
    status, said, complaint = run("eval", "exploitability", f"{whole.run}@all", "nash", "--out", out)
    assert (status, complaint) == (0, "")
    found = json.loads(out.read_text())["figures"]
    measured = {row["step"]: row.get("eval/nashconv") for row in RunFolder(whole.run).rows()}
    assert found[f"{whole.run}@000008"]["nashconv"] == pytest.approx(measured[8])
    assert found["nash"]["exploitability"] == pytest.approx(0, abs=1e-9)
    assert found["equilibrium of all"]["exploitability"] <= found[f"{whole.run}@000008"]["exploitability"]
    assert all(name in said for name in found)


def test_a_game_that_cannot_be_walked_has_no_exact_figures_and_options_of_one_measurement_are_refused(
    run: Any, whole: RunWorkspace
) -> None:
    status, _, complaint = run("eval", "exploitability", SCENARIOS / "taboo.yaml")
    assert status == 2
    assert "game 'taboo' is too large to be walked" in complaint
    assert "marl best-response RUN" in complaint
    status, _, complaint = run("eval", "cross-play", whole.run, "random", "--against", "nash")
    assert status == 2
    assert "No such option: --against" in complaint
