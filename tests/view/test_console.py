"""What a run says while it goes on: lines that fit, warm-up, sampled turns."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from marl.core.graph import Trajectory
from marl.core.types import Reward
from marl.runs.run_folder import RunFolder
from marl.view.console import MAX_LINE_LENGTH, LiveDashboard, WarmUpProgress, metrics_line
from marl.view.turn_examples import example_model_turn_lines
from tests.support.handmade_episodes import make_episode


@pytest.mark.parametrize("many", [0, 1, 5, 40])
@pytest.mark.parametrize("width", [5, 60, 190, 250])
def test_a_steps_line_has_at_most_200_characters_and_tells_how_many_figures_are_left_out(many: int, width: int) -> None:
    figures = {f"{index:03d}{'x' * width}": 0.123456 for index in range(many)}
    line = metrics_line("step 10/1000", figures)
    shown = sum(name in line for name in figures)
    assert len(line) <= MAX_LINE_LENGTH == 200
    assert line.endswith(f"  +{many - shown} more") == (shown < many)


def test_as_many_figures_are_shown_as_there_is_room_for() -> None:
    assert metrics_line("step 1/2", {"a": 1.0, "b": 0.5}) == "step 1/2  a 1  b 0.5"
    assert metrics_line("s", {"a" * 190: 1.0, "b": 2.0}) == "s  +2 more"


def test_a_warm_up_in_a_pipe_says_now_and_then_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marl.view.console._WARM_UP_S", 0.0)
    progress = WarmUpProgress("actor", 400)
    progress.log_metrics(120, {"policy/actor/loss": 1.2345, "episode/count": 3.0})
    progress.close()
    said = capsys.readouterr().err.splitlines()
    assert "400 steps (once; then cached)" in said[0]
    assert said[1:] == ["warm-up 120/400  loss 1.23"]


def test_a_quick_warm_up_says_nothing_more(capsys: pytest.CaptureFixture[str]) -> None:
    progress = WarmUpProgress("actor", 400)
    for step in range(400):
        progress.log_metrics(step, {"policy/actor/loss": 1.0})
    assert len(capsys.readouterr().err.splitlines()) == 1


def played(name: str, said: dict[str, str], *, read: str | None = "6", gold: str = "", paid: float = 0.0) -> Trajectory:
    """An episode in which agents, who are their own roles, say something; `by_rule` samples no tokens."""
    plain = make_episode(name, list(said), seats={agent: agent for agent in said})
    made = Trajectory(plain.deal, "")
    state = json.dumps({"problem": {"question": "2 x 3?", "answer": gold}}) if gold else ""
    for turn, (agent, text) in zip(plain.turns, said.items(), strict=True):
        ids = () if agent == "by_rule" else (1, 2)
        completion = replace(turn.completion, text=text, token_ids=ids, logprobs=(-0.5,) * len(ids))
        request = replace(turn.request, state=state)
        made.add(replace(turn, completion=completion, request=request, action=read), ())
    made.rewards.append(Reward(next(iter(said)), paid, plain.turns[0].id))
    return made


def test_a_turn_is_shown_with_who_said_what_and_what_it_was_read_as_expected_to_be_and_earned() -> None:
    lines = list(example_model_turn_lines([played("e", {"solver": "I think\nit is 6"}, gold="6", paid=1.0)]))
    assert lines == ["  solver: said 'I think it is 6', read as '6', expected '6', earned 1"]


def test_an_unreadable_turn_of_a_game_without_right_answers_is_shown_as_that() -> None:
    assert list(example_model_turn_lines([played("e", {"ann": "[check] bet"}, read=None, paid=-1.0)])) == [
        "  ann: said '[check] bet', read as nothing, earned -1"
    ]


def test_up_to_three_episodes_show_a_turn_each_of_different_roles_that_models_speak_for() -> None:
    team = [played(str(i), {"solver": "a", "critic": "b", "by_rule": "c"}) for i in range(5)]
    assert [line.split(":")[0].strip() for line in example_model_turn_lines(team)] == ["solver", "critic", "solver"]
    assert list(example_model_turn_lines([played("e", {"by_rule": "c"})])) == []


@pytest.mark.parametrize("episodes", [True, False])
def test_a_live_table_shows_a_sampled_episode_if_it_is_wanted(episodes: bool, tmp_path: Path) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, height=40)
    table = LiveDashboard(console, 3, "demo", episodes=episodes)
    table.begin(RunFolder(tmp_path))
    table.log_metrics(1, {"role/solver/turns": 1.0, "time/step": 2.0})
    table.log_episodes(1, [played("e", {"solver": "it is 6"}, paid=1.0)])
    table.close()
    last = screen.getvalue()[-1500:]
    assert "ETA 4 s" in last
    assert ("episode e, step 1: " in last) == episodes


def test_a_long_turn_is_cut_to_its_end_and_stays_on_one_short_line() -> None:
    text = "\n".join(["Let me see. "] * 1000) + "so 6"
    (line,) = example_model_turn_lines([played("e", {"solver": text}, read="y" * 10**5, gold="z" * 10**5)])
    assert "so 6'" in line
    assert "\n" not in line
    assert len(line) < 200
