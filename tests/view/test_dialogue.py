"""`marl show`: recorded dialogues as text, from a run's folder alone."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from marl.core.graph import Trajectory, write_trajectories
from marl.core.types import Completion, EpisodeMeasuresAndNewStarts, Message, Reward, Turn
from marl.credit_stage.records import CreditRecord, EpisodeCreditRecord, TurnCreditRecord
from marl.runs.credit_records import write_credit_record
from marl.scenario.load import ScenarioError
from marl.view.dialogue import DialogueSelection, dialogue_lines
from tests.support.handmade_episodes import make_episode

STATE = json.dumps({"answer": "", "problem": {"question": "2 + 3", "answer": "5"}})
ALL = DialogueSelection()
SEATS = {"ann": "solver", "bob": "critic", "judge": "verifier"}


def quiz(name: str, said: str, paid: float = 0.0, readable: bool = True) -> Trajectory:
    """Ann answers, the judge grades her by rule, Bob comments."""
    trajectory = make_episode(name, ("ann", "judge", "bob"), [("ann", paid, 2)] if paid else [], seats=SEATS)
    answer, grade, comment = trajectory.turns
    verdict = json.dumps({"scores": {"correct": paid}, "why": {"correct": "" if paid else f"{said!r} is wrong"}})
    prompt = (Message("system", "Add."), Message("user", "2 + 3 is"))
    changed = {
        0: replace(
            answer,
            request=replace(answer.request, messages=prompt),
            completion=replace(answer.completion, text=said, versions=(4, 4)),
            action=said if readable else None,
        ),
        1: replace(
            grade,
            request=replace(grade.request, policy="checker", state=STATE),
            completion=Completion(verdict, (), (), (), "stop"),
        ),
        2: comment,
    }
    trajectory.turns = [replace(changed[i], problem="2+3") for i in range(3)]
    trajectory.rewards = [replace(reward, name="correct", cause="own.correct") for reward in trajectory.rewards]
    trajectory.findings = EpisodeMeasuresAndNewStarts({"success": paid})
    return trajectory


def judged(turn: Turn, advantage: float) -> TurnCreditRecord:
    chain = TurnCreditRecord(
        turn.id, turn.agent, turn.role, "actor", (4, 4), 0, (), 0.0, 1.0, {}, 1.0, 0.5, 1.0, None, 0.0
    )
    return replace(chain, advantage=advantage)


def run(folder: Path, *steps: list[Trajectory]) -> Path:
    folder.mkdir()
    (folder / "scenario.yaml").write_text("{}\n")
    for step, trajectories in enumerate(steps, 1):
        write_trajectories(folder / "trajectories" / f"{step * 10:06d}.jsonl.zst", trajectories)
    return folder


def text(folder: Path, selection: DialogueSelection = ALL) -> str:
    return "\n".join(line.plain for line in dialogue_lines(folder, selection))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    newest = [quiz("9.0", "5", 1.0), quiz("9.1", "six"), quiz("9.2", "??", readable=False), quiz("9.3", "five", 2.0)]
    folder = run(tmp_path / "run", [quiz("0.0", "old")], newest)
    first = newest[0]
    records = (EpisodeCreditRecord(first.id, (), (judged(first.turns[0], 0.25),)),)
    write_credit_record(folder / "credit" / "000020.jsonl.zst", CreditRecord((), (), records))
    return folder


def test_an_episode_is_shown_with_its_problem_its_turns_their_scores_and_what_was_earned(home: Path) -> None:
    assert text(home, DialogueSelection(episodes=1)).split("\n") == [
        f"{home}: step 20, 4 episodes; shown: 1",
        "",
        "episode 9.0  success 1",
        "  problem      2 + 3",
        "  answer       5",
        "  0 ann  role solver, policy actor, version 4",
        "    asked      2 + 3 is",
        "    said       5",
        "    read as    5",
        "    scored     correct = 1 by judge",
        "    earned     +1, advantage +0.25",
        "  2 bob  role critic, policy actor, version 0",
        "    reads      ann's turn 0 (heard), judge's 1 (heard)",
        "    asked      2",
        "    said       a",
        "    read as    a",
        "  reward       +1 correct to ann: own.correct",
        "",
        f"marl why {home} 9.0:0 explains an advantage; --whole shows everything",
    ]


def test_a_score_is_shown_with_its_reason_and_an_unreadable_answer_as_such(home: Path) -> None:
    shown = text(home, DialogueSelection(unreadable=True))
    assert shown.startswith(f"{home}: step 20, 4 episodes; 1 with unreadable turns; shown: 1\n")
    assert "scored     correct = 0 by judge: '??' is wrong" in shown
    assert "read as    nothing: no legal move could be read" in shown
    assert "bob" not in shown
    assert "reward       none was paid" in shown


@pytest.mark.parametrize(
    ("order", "names"),
    [("played", ["9.0", "9.1", "9.2"]), ("best", ["9.3", "9.0", "9.1"]), ("worst", ["9.1", "9.2", "9.0"])],
)
def test_episodes_are_shown_as_played_or_by_their_reward(home: Path, order: str, names: list[str]) -> None:
    shown = text(home, DialogueSelection(order=order))  # type: ignore[arg-type]
    assert re.findall(r"^episode (\S+)", shown, re.MULTILINE) == names


def test_a_role_is_shown_alone_and_orders_episodes_by_its_own_rewards(tmp_path: Path) -> None:
    mixed = [quiz("0.0", "5", 1.0), quiz("0.1", "6")]
    mixed[1].rewards = [Reward("bob", 3.0, ("0.1", 2))]
    folder = run(tmp_path / "run", mixed)
    shown = text(folder, DialogueSelection(role="solver", order="best", episodes=1))
    assert "best reward of role solver first" in shown
    assert "episode 0.0" in shown
    assert "bob" not in shown
    assert "judge" in text(folder, DialogueSelection(role="verifier", episodes=1)).split("\n")[5]


def test_a_step_can_be_chosen(home: Path) -> None:
    assert "said       old" in text(home, DialogueSelection(step=10))


def test_long_texts_are_cut_in_the_middle_unless_the_whole_is_wanted(tmp_path: Path) -> None:
    said = "begin " + "x" * 2000 + " end"
    folder = run(tmp_path / "run", [quiz("0.0", said)])
    shown = text(folder)
    assert "begin xxx" in shown
    assert "[... 1,410 characters ...]" in shown
    assert "xxx end" in shown
    assert max(map(len, shown.split("\n"))) < 700
    whole = text(folder, DialogueSelection(full=True))
    assert said in whole
    assert "    system     Add.\n    user       2 + 3 is\n" in whole
    assert '{"scores"' in whole


def test_what_a_model_wrote_passes_neither_for_markup_nor_for_a_label_of_ours(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", [quiz("0.0", "[red]x[/] \x1b[2J\n    earned     +9, advantage +9\n:boom:")])
    shown = text(folder)
    assert "said       [red]x[/] \\x1b[2J\n" in shown
    assert ":boom:" in shown
    assert not re.search(r"^    earned", shown, re.MULTILINE)
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, color_system="standard", width=40)
    for line in dialogue_lines(folder, DialogueSelection()):
        terminal.print(line, soft_wrap=True)
    coloured = screen.getvalue()
    assert "\x1b[36m[red]x[/] \\x1b[2J" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == shown + "\n"


def test_the_command_prints_the_same_into_a_pipe_and_loads_no_model(home: Path) -> None:
    code = (
        "import sys; from marl.commands.cli import main\n"
        "try: main()\nfinally: assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    words = ("show", str(home), "--worst", "--role", "solver", "--episodes", "2", "--whole")
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    selection = DialogueSelection(role="solver", order="worst", episodes=2, full=True)
    assert (done.stdout, done.stderr) == (text(home, selection) + "\n", "")


def test_what_cannot_be_shown_is_named_with_what_there_is(home: Path, tmp_path: Path) -> None:
    refusals = {
        DialogueSelection(
            step=12
        ): r"--step 12: no dialogues of this step .*; nearest: 10 and 20 \(2 recorded, from 10 to 20;",
        DialogueSelection(role="sovler"): "--role sovler: no such role .*; did you mean 'solver'",
    }
    for selection, message in refusals.items():
        with pytest.raises(ScenarioError, match=message):
            text(home, selection)
    shutil.rmtree(home / "trajectories")
    with pytest.raises(ScenarioError, match=r"no dialogues were recorded; the setting checkpoint\.trajectories"):
        text(home)
    with pytest.raises(ScenarioError, match="no run here"):
        text(tmp_path)


def test_nothing_that_matches_is_no_error(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", [quiz("0.0", "5", 1.0)])
    assert text(folder, DialogueSelection(unreadable=True)) == (
        f"{folder}: step 10, 1 episodes; 0 with unreadable turns; shown: 0"
    )


@pytest.mark.parametrize(
    "state", ["{", '{"problem": 5}', "[]", '{"problem": ' * 50_000, '{"problem": {"question": [1]}}']
)
def test_states_of_any_form_are_no_problem(state: str, tmp_path: Path) -> None:
    trajectory = quiz("0.0", "5", 1.0)
    request = replace(trajectory.turns[1].request, state=state)
    trajectory.turns[1] = replace(trajectory.turns[1], request=request)
    assert "scored     correct = 1 by judge" in text(run(tmp_path / "run", [trajectory]))
