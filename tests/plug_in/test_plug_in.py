"""A user's own parts, in a package of their own, are parts like ours."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

import marl
from marl.core.graph import read_trajectories
from marl.core.state import load_state
from marl.core.types import Metrics
from marl.evaluation.game_tree import GameTree, Strategy, best_response_return, build_game_tree, expected_returns
from marl.rollout.casting import RoleRequestBuilder
from marl.scenario.load import validate
from tests.support.run_processes import RunWorkspace, SignalTrigger, outcome, train_to_end

HERE = Path(__file__).parent
COINS: dict[str, Any] = {
    "game": {"kind": "outside.coins:MatchingCoins"},
    "seats": {"even": "speaker", "odd": "other"},
    "roles": {
        "speaker": {"kind": "outside.coins:Terse", "policy": "learner"},
        "other": {"kind": "player", "policy": "frozen"},
    },
    "policies": {
        "learner": {
            "model": {"kind": "outside.softmax:TableModel"},
            "engine": {"kind": "outside.softmax:Softmax"},
            "learner": {"kind": "outside.softmax:Reinforce", "lr": 4.0},
        },
        "frozen": {"engine": {"kind": "random"}},
    },
    "credit": {"assign": {"kind": "outside.coins:Last"}, "baseline": {"kind": "group", "std": False}},
    "schedule": {"steps": 2, "groups": 2, "group_size": 4},
}
KUHN: dict[str, Any] = COINS | {
    "game": {"kind": "kuhn_poker"},
    "seats": {"player_0": "speaker", "player_1": "other"},
    "credit": {"assign": {"kind": "outcome"}, "baseline": {"kind": "group", "std": False}},
    "schedule": {"steps": 40, "groups": 32, "group_size": 8, "seed": 1},
    "checkpoint": {"every": 40, "trajectories": 0.1},
}
LEARNER = COINS["policies"]["learner"]
SPELLING: dict[str, Any] = {
    "game": {
        "kind": "team",
        "task": {"kind": "outside.letters:Successors"},
        "stages": [
            {"role": "speller", "legal": [*"abcdefghi"]},
            {"role": "verifier", "verifies": "speller", "scores": ["near"]},
        ],
        "rewards": {"speller": {"near": "own.near"}},
        "measures": {"success": "speller.near == 1"},
    },
    "roles": {
        "speller": {"kind": "outside.letters:Speller", "policy": "learner"},
        "verifier": {"kind": "verifier", "policy": "checker"},
    },
    "policies": {
        "learner": LEARNER,
        "checker": {"engine": {"kind": "verifiers", "checks": {"near": {"kind": "outside.letters:Near"}}}},
    },
    "credit": COINS["credit"],
    "schedule": {"steps": 15, "groups": 16, "group_size": 8},
    "checkpoint": {"every": 15, "trajectories": 1.0},
}
ENTRY_POINTS = """
[marl.games]
matching_coins = outside.coins:MatchingCoins
[marl.tasks]
successors = outside.letters:Successors
[marl.verifiers]
near = outside.letters:Near
[marl.roles]
terse = outside.coins:Terse
speller = outside.letters:Speller
[marl.credit]
last = outside.coins:Last
curious = outside.curious:Curious
[marl.engines]
softmax = outside.softmax:Softmax
[marl.models]
table = outside.softmax:TableModel
[marl.trainers]
table_reinforce = outside.softmax:Reinforce
[marl.losses]
leaky = outside.losses:Leaky
"""


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)


def command(*words: object, path: Path = HERE, cwd: Path = HERE) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own that can import `outside`."""
    environment = os.environ | {"PYTHONPATH": f"{HERE}{os.pathsep}{path}"}
    return subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, env=environment, cwd=cwd, check=False
    )


def named(scenario: dict[str, Any]) -> str:
    """The scenario with the names of the entry points instead of import paths."""
    short = {line.split(" = ")[1]: line.split(" = ")[0] for line in ENTRY_POINTS.split("\n") if " = " in line}
    text = yaml.safe_dump(scenario)
    for path, name in short.items():
        text = text.replace(path, name)
    return text


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder that holds what pip would have written for a package with entry points."""
    folder = tmp_path / "site" / "outside-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder.parent


def test_parts_are_found_by_import_path(tmp_path: Path) -> None:
    (tmp_path / "coins.yaml").write_text(yaml.safe_dump(COINS))
    assert marl.load(tmp_path / "coins.yaml").game.kind == "outside.coins:MatchingCoins"


def test_a_part_beside_the_command_is_found_by_import_path(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from outside.coins import MatchingCoins as Mine\n")
    (tmp_path / "coins.yaml").write_text(yaml.safe_dump(COINS | {"game": {"kind": "mine:Mine"}}))
    code = (
        "import sys; sys.path.remove(''); sys.argv = ['marl', 'check', 'coins.yaml', '--trust']; "
        "from marl.commands.cli import main; main()"
    )
    done = command("-c", code, cwd=tmp_path)
    assert done.stdout.startswith("coins.yaml: fine; game mine:Mine, trains learner\n"), done.stderr
    assert f"imports mine:Mine from {tmp_path / 'mine.py'} (game.kind)\n" in done.stdout


@pytest.mark.one_in(3)
def test_installed_parts_are_listed_checked_and_in_the_schema(tmp_path: Path, installed: Path) -> None:
    (tmp_path / "coins.yaml").write_text(named(COINS))
    checked = command("-m", "marl", "check", tmp_path / "coins.yaml", path=installed)
    assert "fine; game matching_coins, trains learner\n" in checked.stdout, checked.stderr
    listed = command("-m", "marl", "list", path=installed).stdout
    for line in (line for line in ENTRY_POINTS.split("\n") if " = " in line):
        assert f" {line.split(' = ')[0]} " in listed
    assert "Two players show a coin each; the first one wins if they match." in listed
    assert '"matching_coins"' in command("-m", "marl", "schema", path=installed).stdout


def test_a_plug_in_that_cannot_be_imported_is_listed_as_unusable_and_harms_nothing(installed: Path) -> None:
    file = installed / "outside-1.0.dist-info" / "entry_points.txt"
    file.write_text("[marl.games]\nlost = not_there.games:Lost\n")
    listed = command("-m", "marl", "list", "games", path=installed)
    assert "unusable: kind 'lost': no module 'not_there' to import" in listed.stdout
    assert "kuhn_poker" in listed.stdout
    assert command("-m", "marl", "schema", path=installed).returncode == 0


def test_a_command_from_outside_is_a_subcommand_and_is_imported_when_it_is_needed(installed: Path) -> None:
    file = installed / "outside-1.0.dist-info" / "entry_points.txt"
    file.write_text("[marl.commands]\ntoss = outside.command:toss\nlost = not_there.commands:lost\n")
    assert command("-m", "marl", "toss", "heads", "heads", path=installed).stdout == "even\n"
    wrong = command("-m", "marl", "toss", "heads", "edge", path=installed)
    assert (wrong.returncode, wrong.stderr) == (2, "marl: no coin shows 'edge'; choices: heads, tails\n")
    help_text = command("-m", "marl", "--help", path=installed).stdout
    for line in ("toss", "Say who wins when these coins are shown.", "credit-check", "Unusable: No module named"):
        assert line in help_text
    lost = command("-m", "marl", "lost", path=installed)
    assert lost.stderr == "marl: command 'lost' is unusable: No module named 'not_there'\n"
    code = "import sys, marl.commands.cli; print([name for name in ('outside', 'torch') if name in sys.modules])"
    assert command("-c", code, path=installed).stdout == "[]\n"


def test_two_packages_that_claim_one_name_are_both_named(tmp_path: Path, installed: Path) -> None:
    file = installed / "outside-1.0.dist-info" / "entry_points.txt"
    file.write_text("[marl.games]\nkuhn_poker = outside.coins:MatchingCoins\n")
    (tmp_path / "kuhn.yaml").write_text(yaml.safe_dump(KUHN))
    done = command("-m", "marl", "check", tmp_path / "kuhn.yaml", path=installed)
    claims = "marl.games.kuhn_poker:KuhnPokerConfig, outside.coins:MatchingCoins"
    assert f"game.kind: kind 'kuhn_poker': two installed packages claim this name; choices: {claims}" in done.stderr


def test_parts_are_registered_from_python(tmp_path: Path) -> None:
    (tmp_path / "coins.yaml").write_text(named(COINS | {"game": {"kind": "matching_coins"}}))
    code = f"""
import marl
from outside import coins, softmax
marl.register("matching_coins", coins.MatchingCoins)
marl.register("terse", coins.Terse)
marl.register("last", coins.Last)
marl.register("table", softmax.TableModel)
marl.register("softmax", softmax.Softmax)
marl.register("table_reinforce", softmax.Reinforce)
print(marl.load({str(tmp_path / "coins.yaml")!r}).policies["learner"].learner)
"""
    done = command("-c", code)
    assert done.stdout == "kind='table_reinforce' lr=4.0\n", done.stderr


def test_what_is_registered_must_be_a_part_and_must_not_hide_an_installed_one() -> None:
    from outside.coins import Coins, MatchingCoins

    with pytest.raises(ValueError, match="no subclass of GameConfig, RoleConfig"):
        marl.register("coins", Coins)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="games has a part of this name already"):
        marl.register("kuhn_poker", MatchingCoins)


def test_a_game_role_and_credit_rule_from_outside_train(tmp_path: Path) -> None:
    steps: list[tuple[int, Metrics]] = []
    assert marl.train(validate(COINS), tmp_path / "run", on_step=lambda step, metrics: steps.append((step, metrics)))
    assert [step for step, _ in steps] == [0, 1, 2]
    assert steps[-1][1]["policy/learner/samples"] == 8.0


def strategy(tree: GameTree, logits: dict[str, dict[str, float]]) -> Strategy:
    """player_0 plays the table, player_1 uniformly."""
    from outside.softmax import chances

    tables = {"player_0": logits, "player_1": {}}
    return {
        situation: chances(tables[situation.agent], situation.state, list(request.options or ()))
        for situation, request in tree.requests.items()
    }


@pytest.mark.slow
def test_a_tabular_learner_reaches_the_exact_best_response_to_a_frozen_uniform_player(tmp_path: Path) -> None:
    scenario = validate(KUHN)
    tree = build_game_tree(scenario.game, RoleRequestBuilder(scenario.roles, 0), scenario.seats)
    assert expected_returns(tree, strategy(tree, {}))["player_0"] == pytest.approx(0.125)
    assert best_response_return(tree, strategy(tree, {}), "player_0") == pytest.approx(0.5)
    steps: list[int] = []

    assert marl.train(scenario, tmp_path / "run", on_step=lambda step, _: steps.append(step))

    learnt = json.loads((tmp_path / "run/checkpoints/000040/policies/learner/table.json").read_text())
    assert expected_returns(tree, strategy(tree, learnt))["player_0"] == pytest.approx(0.5, abs=0.03)
    assert steps == list(range(41))
    *_, late = sorted((tmp_path / "run/trajectories").iterdir())
    frozen = [turn.completion for t in read_trajectories(late) for turn in t.turns if turn.role == "other"]
    assert {(output.logprobs, output.versions) for output in frozen} == {((math.log(0.5),), (0, 0))}
    assert not (tmp_path / "run/checkpoints/000040/policies/frozen").exists()


def test_a_credit_rule_from_outside_that_remembers_survives_a_kill(tmp_path: Path) -> None:
    curious = {"assign": {"kind": "outside.curious:Curious", "bonus": 0.5}, "baseline": {"kind": "none"}}
    scenario = KUHN | {"credit": curious, "schedule": {"steps": 4, "groups": 4, "group_size": 2}}
    whole = train_to_end(tmp_path / "whole", scenario | {"checkpoint": {"every": 2}})
    desk = RunWorkspace(tmp_path / "desk", whole.scenario)
    assert desk.train(kill=SignalTrigger("open", "metrics.jsonl", 4)) == -9, (
        "step 3 is done, and step 2 is the checkpoint"
    )
    assert desk.train("--resume", "auto") == 0, desk.take_output()
    assert outcome(desk.run) == outcome(whole.run)

    made = load_state(desk.run / "checkpoints/000004/state")["credit"][""]["default"]["assign"]["made"]
    played = [t for file in (desk.run / "trajectories").iterdir() for t in read_trajectories(file)]
    assert made == Counter(turn.action for trajectory in played for turn in trajectory.turns)
    assert sum(made.values()) > 4 * 4 * 2
    rule = validate(scenario).credit.assign
    assert rule.build().state_dict() == rule.state_dict() == {"made": {}}, "another run begins anew"


def test_a_loss_from_outside_trains_and_is_what_one_works_out_by_hand(tmp_path: Path) -> None:
    policy = {
        "model": {"kind": "tiny", "hidden": 16, "layers": 1},
        "learner": {"kind": "grpo", "lr": 1e-2, "loss": {"kind": "outside.losses:Leaky", "leak": 0.25}},
    }
    schedule = {"steps": 2, "groups": 4, "group_size": 8}
    scenario = COINS | {"policies": COINS["policies"] | {"learner": policy}, "schedule": schedule}
    history: list[Metrics] = []
    assert marl.train(
        validate(scenario | {"checkpoint": {"every": 2, "trajectories": 1.0}}),
        tmp_path / "run",
        on_step=lambda _, metrics: history.append(metrics),
    )

    first, *_ = sorted((tmp_path / "run/trajectories").iterdir())
    trajectories = list(read_trajectories(first))
    mean = sum(trajectory.returns["even"] for trajectory in trajectories) / len(trajectories)
    losses = []
    for trajectory in trajectories:
        (turn,) = (turn for turn in trajectory.turns if turn.agent == "even")
        advantage = trajectory.returns["even"] - mean
        weight = advantage if advantage > 0 else 0.25 * advantage
        losses += [-weight * logprob for logprob in turn.completion.logprobs]
    assert history[1]["policy/learner/policy_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert history[1]["policy/learner/rows"] == len(trajectories) == 32, "not known to be linear: nothing is merged"
    assert history[1]["policy/learner/grad_norm"] > 0


# --- in a team, with verifiers in processes of their own ---------------------------------------------------------

RIGHT = {"a": "b", "c": "d", "e": "f", "g": "h"}


def spelt(run: Path) -> dict[str, str]:
    """Problem -> the likeliest answer of the table that a run has learnt."""
    learnt = json.loads((run / "checkpoints/000015/policies/learner/table.json").read_text())
    return {state.split("\n")[1]: max(row, key=row.__getitem__) for state, row in learnt.items()}


def test_a_task_a_verifier_and_a_role_from_outside_train_in_a_team(tmp_path: Path) -> None:
    assert marl.train(validate(SPELLING), tmp_path)
    assert spelt(tmp_path) == RIGHT
    first, *_ = sorted((tmp_path / "trajectories").iterdir())
    worth = {0: 1.0, 1: 0.5}
    for trajectory in read_trajectories(first):
        output, verdict = trajectory.turns
        assert output.action is not None
        off = abs(ord(output.action) - ord(output.problem) - 1)
        assert trajectory.returns.get("speller", 0.0) == worth.get(off, 0.0)
        assert json.loads(verdict.completion.text)["why"] == {"near": f"{off} off"}


@pytest.mark.slow
def test_installed_tasks_verifiers_and_roles_train_in_a_team(tmp_path: Path, installed: Path) -> None:
    assert "outside" not in named(SPELLING)
    (tmp_path / "spelling.yaml").write_text(named(SPELLING))
    words = ("-m", "marl", "train", tmp_path / "spelling.yaml", "--out", tmp_path / "run")
    done = command(*words, path=installed)
    assert done.returncode == 0, done.stderr
    assert spelt(tmp_path / "run") == RIGHT


def test_a_verifier_beside_the_command_is_found_by_the_process_that_runs_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from outside.letters import Near\n\n\nclass Mine(Near): ...\n")
    (tmp_path / "spelling.yaml").write_text(yaml.safe_dump(SPELLING).replace("outside.letters:Near", "mine:Mine"))
    code = (
        "import sys; sys.path.remove(''); sys.argv = ['marl', 'check', 'spelling.yaml', '--graders', '--trust'];"
        "import marl.commands.cli; marl.commands.cli.main()"
    )
    done = command("-c", code, cwd=tmp_path)
    assert "spelling.yaml: graders: 16 verdicts as they must be\n" in done.stdout, done.stderr
