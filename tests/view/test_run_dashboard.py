"""A run on a terminal: what is shown follows from its rows, fits the width, and obeys nobody."""

from __future__ import annotations

import io
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from marl.core.graph import Trajectory
from marl.core.types import Reward
from marl.runs.liveness import RunLiveness
from marl.view.run_dashboard import RunSnapshot, TerminalSize, render_dashboard
from marl.view.run_follower import RunFollower
from marl.view.throughput import measure_throughput
from tests.support.handmade_episodes import make_episode

NASTY = "\x1b]0;owned\x07\x1b[2J\x9b31m \u202egnp.exe \u2066x\r over [red]r[/]\n[/] :boom: \u4f60\u597d" + "z" * 300
OBEYED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def row(step: int, **more: float) -> dict[str, float]:
    return {
        **{"step": step, "episode/count": 64.0, "step/tokens": 1000.0 * step, "time/step": 0.5},
        **{"time/play": 0.4, "time/learn": 0.1, "time/record": 0.5, "role/solver/reward/correct": 0.25},
        **{"role/solver/reward/format": 0.5, "role/solver/turns": 64.0, "role/solver/tokens": 31.25},
        **{"role/solver/illegal": 0.125, "role/critic/turns": 3.0, "policy/actor/loss": 0.5, "policy/actor/lr": 1e-6},
        **{"policy/actor/kl_sampler": 2e-4, "policy/actor/kl_reference": 0.01, "policy/actor/entropy": 1.5},
        **{"episode/measure/success": 0.5, **more},
    }


def sampled(text: str) -> Trajectory:
    plain = make_episode("e", ["ann", "bob"], seats={"ann": "solver", "bob": "critic"})
    made = Trajectory(plain.deal, "")
    for turn, action in zip(plain.turns, ("six", None), strict=True):
        made.add(replace(turn, completion=replace(turn.completion, text=text), action=action), ())
    made.rewards.append(Reward("ann", 1.0, plain.turns[0].id))
    return made


def drawn(view: RunSnapshot, width: int = 100, height: int | None = None) -> list[str]:
    screen = io.StringIO()
    Console(file=screen, width=width).print(render_dashboard(view, TerminalSize(width, height)))
    return screen.getvalue().splitlines()


def test_progress_speed_and_time_left_follow_from_the_rows() -> None:
    speed = measure_throughput([row(step) for step in range(1, 11)])
    assert speed is not None
    assert (speed.step_s, speed.tokens_per_s, speed.episodes_per_s) == (1.0, 1000.0, 64.0)
    assert speed.time_shares == {"play": pytest.approx(0.4), "learn": pytest.approx(0.1), "record": 0.5}
    text = "\n".join(
        drawn(RunSnapshot("r", [row(step) for step in range(1, 11)], 100, RunLiveness("training", "here")))
    )
    assert "step 10/100  10%  ETA 1 min 30 s" in text
    assert "1,000 tokens/s  64 episodes/s  1 s a step" in text
    assert "play 40%  learn 10%  record 50%" in text
    assert measure_throughput([{"step": 1}]) is None


def test_a_run_that_has_ended_has_no_time_left() -> None:
    text = "\n".join(drawn(RunSnapshot("r", [row(3)], 100, RunLiveness("died", "process 7"))))
    assert "r  died" in text
    assert "process 7" in text
    assert "ETA" not in text


def test_roles_policies_figures_and_alarms_are_those_of_the_newest_row() -> None:
    rows = [row(1), row(2, **{"alarm/solver/cut": 1.0, "eval/nashconv": 0.5}), row(3, **{"alarm/solver/cut": 1.0})]
    lines = drawn(RunSnapshot("r", rows, None), 140)
    (solver,) = [line.split() for line in lines if line.startswith("solver ")]
    assert [solver[1], *solver[3:]] == ["+0.75", "64", "31.2", "12.5%"]
    (actor,) = [line.split() for line in lines if line.startswith("actor ")]
    assert actor[1:6] == ["0.5", "0.01", "0.0002", "1.5", "1e-06"]
    assert "ALARM alarm/solver/cut since step 2" in lines
    assert [line.split()[:3] for line in lines if line.startswith("eval/")] == [["eval/nashconv", "0.5", "2"]]
    assert not any(
        "ALARM" in line for line in drawn(RunSnapshot("r", [*rows, row(4, **{"alarm/solver/cut": 0.0})], None))
    )


@pytest.mark.parametrize("width", [20, *range(60, 201, 20)])
@pytest.mark.parametrize("height", [None, 12, 24])
def test_no_line_is_wider_than_the_terminal_and_no_text_is_obeyed(width: int, height: int | None) -> None:
    odd = {f"role/{NASTY}/turns": 1.0, f"alarm/{NASTY}/x": 1.0, f"episode/measure/{NASTY}": float("nan")}
    rows = [row(step, **odd) for step in range(1, 4)]
    for text in (NASTY, "plain", ""):
        view = RunSnapshot(NASTY, rows, 9, RunLiveness("failed", NASTY), (3, sampled(text)), NASTY)
        lines = drawn(view, width, height)
        assert max(map(cell_len, lines)) <= max(width, 40)
        assert not OBEYED.search("\n".join(lines))


def test_the_last_episode_shows_the_ends_of_answers_and_what_was_read() -> None:
    lines = drawn(RunSnapshot("r", [row(3)], 9, None, (3, sampled("so long\n" * 50 + "it is six"))), 60)
    assert "episode e, step 3: ann +1" in lines
    ann, bob = lines[-2:]
    assert ann.startswith("  ann: …")
    assert ann.endswith("it is six → six")
    assert bob.endswith("→ unreadable")


def test_a_low_terminal_shows_as_much_of_the_episode_as_there_is_room_for() -> None:
    view = RunSnapshot("r", [row(3)], 9, None, (3, sampled("yes")))
    assert len(drawn(view, 100, 60)) > len(drawn(view, 100, 17))
    assert not any("episode e" in line for line in drawn(view, 100, 10))


def test_ten_thousand_rows_are_looked_at_quickly(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text("schedule: {steps: 20000}\n")
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row(step)) + "\n" for step in range(1, 10_001)))
    watch = RunFollower(tmp_path)
    began = time.process_time()
    assert drawn(watch.read_run_snapshot())[0] == f"{tmp_path}  stopped"
    assert time.process_time() - began < 2
