"""The ways of three users with an installed wheel, in a folder that has its own games, roles, credit and trainers.

Own questions in a CSV file; self-play of an own game with an own role, credit rule and loss; one trained role of a
team. Each command is typed once, with fewer and smaller steps than a user would take.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.plug_in.test_wheel import FOLDERS, wheel  # noqa: F401 (a fixture)
from tests.support.readme_blocks import write_modules

pytestmark = [pytest.mark.slow, pytest.mark.one_in(2)]
HOMES = {
    "my_game": "games",
    "my_environment": "games",
    "my_verifier": "games",
    "my_role": "roles",
    "my_credit": "credit",
    "my_loss": "trainers",
}
"""Module of CONTRIBUTING.md -> folder in which the user keeps it."""
SELF_PLAY = """
game: {kind: games.my_environment:RockPaperScissorsConfig}
seats: {left: player, right: player}
roles:
  player: {kind: roles.my_role:Shouter, policy: actor, sampling: {max_tokens: 6}}
policies:
  actor:
    model: {kind: tiny, warm_up: {steps: 20}}
    learner: {kind: grpo, lr: 1.0e-3, loss: {kind: trainers.my_loss:SimplePolicyOptimization}}
credit: {assign: {kind: credit.my_credit:EqualShares}, baseline: {kind: role_average}}
schedule: {steps: 2, groups: 4, group_size: 4, threads: 1}
checkpoint: {trajectories: 1}
"""
ONE_SEAT = """
game: {kind: games.my_environment:RockPaperScissorsConfig}
seats: {left: student, right: teacher}
roles:
  student: {kind: player, policy: student, sampling: {max_tokens: 6}}
  teacher: {kind: player, policy: teacher, sampling: {max_tokens: 6}}
policies:
  student: {model: &trained {kind: trained, run: self, policy: actor}, learner: {kind: grpo, lr: 1.0e-3}}
  teacher: {model: *trained}
schedule: {steps: 2, groups: 4, group_size: 4, threads: 1}
"""
SCRIPT = """
import marl
from games.my_game import MeetConfig

env = marl.env("games.my_game:MeetConfig")
env.reset(seed=0)
print(env.observe(env.agent_selection)["text"])
print(marl.__file__)

if __name__ == "__main__":
    scenario = marl.load("self.yaml", ["schedule.steps=1"])
    marl.train(scenario, "runs/python", on_step=lambda step, metrics: print("step", step, len(metrics) > 0))
"""
SMALL = ("schedule.steps=2", "schedule.groups=2", "schedule.group_size=4", "checkpoint.trajectories=1")


class Desk:
    """The user's folder, and an environment in which the wheel is installed beside the libraries of this one."""

    def __init__(self, folder: Path, wheel_file: Path) -> None:
        self.home, self._programs = folder / "home", folder / "env" / "bin"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
        python = str(self._programs / "python")
        target = sysconfig.get_path("purelib", vars={"base": str(folder / "env")})
        # The path file adds the libraries alone: files of this kind among them, such as that of an editable marl, are
        # not read.
        Path(target, "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall", wheel_file], check=True
        )
        for name in FOLDERS:
            (self.home / name).mkdir(parents=True)
            (self.home / name / "__init__.py").touch()
        write_modules("CONTRIBUTING.md", self.home)
        for module, home in HOMES.items():
            (self.home / f"{module}.py").rename(self.home / home / f"{module}.py")
        rows = [f"{a} pears and {b} more : how many ?,{a + b}" for a in range(6) for b in range(6)]
        (self.home / "problems.csv").write_text("\n".join(["question,answer", *rows]) + "\n")
        unwanted = ("PYTHONPATH", "VIRTUAL_ENV")
        self._environment = {name: value for name, value in os.environ.items() if name not in unwanted}
        self._environment |= {"MARL_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}

    def type(self, program: str, *words: str) -> str:
        """Run a program of the environment in the user's folder; return its output after it ended well."""
        done = subprocess.run(
            [self._programs / program, *words],
            cwd=self.home,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{program} {' '.join(words)}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def marl(self, *words: str) -> str:
        """Type a command of marl."""
        return self.type("marl", *words)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Desk:  # noqa: F811
    return Desk(tmp_path_factory.mktemp("desk"), wheel)


def small_warm_up(*policies: str) -> list[str]:
    """Overrides that make the imitation before the first step short."""
    warm_up = "{steps: 5, episodes: 32, batch: 8}"
    return [f"policies.{name}.model.warm_up={warm_up}" for name in policies]


def test_own_questions_become_a_team_that_learns(desk: Desk) -> None:
    assert "36 rows, 7 held out; 'question' -> 'answer' (numbers)" in desk.marl("new", "team", "--data", "problems.csv")
    checked = desk.marl("check", "team.yaml")
    assert "team.yaml: fine; game team, trains planner, solver, critic" in checked
    trained = desk.marl(
        "train", "team.yaml", "--out", "runs/team", *SMALL, *small_warm_up("planner", "solver", "critic")
    )
    assert "run folder: runs/team" in trained
    shown = desk.marl("show", "runs/team", "--best", "--episodes", "1")
    # The command that `show` prints at its end is typed as it stands.
    why = re.search(r"^marl (why runs/team \S+)", shown, re.MULTILINE)
    assert why, shown
    assert "advantage" in desk.marl(*why[1].split())
    assert "eval/held_out/success" in desk.marl("eval", "runs/team", "--episodes", "4")


def test_an_own_game_role_credit_rule_and_loss_play_against_themselves(desk: Desk) -> None:
    (desk.home / "self.yaml").write_text(SELF_PLAY)
    checked = desk.marl("check", "self.yaml", "--trust")
    for module in ("games/my_environment", "roles/my_role", "credit/my_credit", "trainers/my_loss"):
        assert f"{desk.home}/{module}.py" in checked
    # Consent was given once.
    assert "run folder: runs/self" in desk.marl("train", "self.yaml", "--out", "runs/self")
    assert "eval/random/win" in desk.marl("eval", "runs/self", "--against", "random", "--episodes", "8")
    assert "going on from step 2" in desk.marl("train", "runs/self", "--resume", "auto", "schedule.steps=3")
    made = desk.marl("new", "self-play", "--game", "games.my_environment:RockPaperScissorsConfig", "--out", "own.yaml")
    assert "next, marl check own.yaml" in made
    assert "own.yaml: fine" in desk.marl("check", "own.yaml", "--quick")
    (desk.home / "use.py").write_text(SCRIPT)
    printed = desk.type("python", "use.py")
    assert "ann goes to [cafe] or [park]" in printed
    assert str(desk.home.parent / "env") in printed, "marl is that of the wheel"
    assert "step 1 True" in printed


def test_one_role_learns_and_the_others_stay_as_they_are(desk: Desk) -> None:
    desk.marl("new", "one-role", "--data", "problems.csv")
    assert "trains solver" in desk.marl("check", "one-role.yaml")
    warm_up = small_warm_up("planner", "solver", "critic")
    assert "run folder: runs/one" in desk.marl("train", "one-role.yaml", "--out", "runs/one", *SMALL, *warm_up)
    policies = desk.home / "runs" / "one" / "checkpoints" / "000002" / "policies"
    assert [folder.name for folder in policies.iterdir()] == ["solver"]
    assert "eval/held_out/success" in desk.marl("eval", "runs/one", "--episodes", "4")


def test_one_seat_of_an_own_game_learns_against_the_policy_of_another_run(desk: Desk) -> None:
    if not (desk.home / "runs" / "self").is_dir():
        (desk.home / "self.yaml").write_text(SELF_PLAY)
        desk.marl("train", "self.yaml", "--out", "runs/self", "--trust")
    before = {file: file.read_bytes() for file in (desk.home / "runs" / "self" / "checkpoints").rglob("*.safetensors")}
    (desk.home / "seat.yaml").write_text(ONE_SEAT)
    assert "trains student" in desk.marl("check", "seat.yaml", "--quick")
    trained = desk.marl("train", "seat.yaml", "--out", "runs/seat")
    assert "run folder: runs/seat" in trained
    # The tiny model is prompted as in its own run, by words that it knows.
    assert "<unk>" not in trained
    assert all(file.read_bytes() == content for file, content in before.items())
