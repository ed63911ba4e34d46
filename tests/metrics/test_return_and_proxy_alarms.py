"""Alarms about returns that fall, metrics that move apart, and updates that go too far."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from marl.core.types import Advantage, Credit
from marl.metrics.alarms import Alarm, AlarmMonitor, ProxyMonitor, WatchedRole
from marl.protocols import AssignConfig, Evidence
from marl.scenario.alarms import AlarmSettings
from marl.scenario.load import ScenarioError, validate
from marl.view.closing_report import alarm_lines
from tests.support.run_processes import metric_lines
from tests.support.solver_critic_game import RecordingMonitor, policies, quiz_scenario, train_in_process


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, made: Path) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))


def settings(**fields: Any) -> AlarmSettings:
    return AlarmSettings.model_validate(fields)


def raised(watch: AlarmMonitor, returns: Iterable[float], spread: float) -> list[tuple[int, Alarm]]:
    """The alarms of steps with these mean returns, with the index of the step."""
    alarms: list[tuple[int, Alarm]] = []
    for step, value in enumerate(returns):
        row = {"role/solver/turns": 64.0, "role/solver/return": value, "role/solver/reward_std": spread}
        alarms += [(step, alarm) for alarm in watch(row)[1]]
    return alarms


def test_a_mean_return_of_ten_steps_half_a_standard_deviation_below_its_best_is_an_alarm() -> None:
    # Best mean of ten steps: 5. With 0 from step 10 on, the mean after k such steps is 5 - k / 2, which is below
    # 5 - .5 * 4 from k = 5 (step 14) on; the third such step is step 16.
    watch = AlarmMonitor(settings(patience=3), {"solver": WatchedRole(True)})
    [(step, alarm)] = raised(watch, [5.0] * 10 + [0.0] * 20, spread=4.0)
    assert step == 16
    assert alarm.message("") == (
        "ALARM role solver: its mean return over ten steps is 1.5, far below its best (return_fell 0.5 standard "
        "deviations below 5) for 3 steps"
    )


def test_a_return_that_rises_or_wavers_by_less_than_the_spread_is_quiet() -> None:
    for returns in ([0.1 * step for step in range(40)], [0.5 + 0.4 * (step % 2) for step in range(40)]):
        assert not raised(AlarmMonitor(settings(), {"solver": WatchedRole(True)}), returns, spread=0.5)
    falls = [1.0] * 10 + [0.0] * 20
    assert raised(AlarmMonitor(settings(), {"solver": WatchedRole(True)}), falls, spread=0.5)
    assert not raised(AlarmMonitor(settings(return_fell=None), {"solver": WatchedRole(True)}), falls, spread=0.5)
    assert not raised(AlarmMonitor(settings(), {"solver": WatchedRole(False)}), falls, spread=0.5), "it does not learn"
    rival = {"solver": WatchedRole(True, may_return_fall=True)}
    assert not raised(AlarmMonitor(settings(), rival), falls, spread=0.5)


def test_returns_that_differ_between_steps_alone_are_quiet() -> None:
    # With one episode a step, or one start a step that its episodes solve alike, the deviation within a step is 0.
    draws = random.Random(0)
    returns = [draws.gauss(0, 1) for _ in range(60)]
    kinds = {alarm.kind for _, alarm in raised(AlarmMonitor(settings(), {"solver": WatchedRole(True)}), returns, 0.0)}
    assert kinds == {"reward"}
    watch = AlarmMonitor(settings(reward=None), {"solver": WatchedRole(True)})
    # The deviation of all episodes of ten steps is 1, so a mean of 2 below the best is a fall.
    [(_, alarm)] = raised(watch, [2.0, 4.0] * 10 + [0.0, 2.0] * 10, 0.0)
    assert alarm.kind == "return_fell"


def test_returns_of_two_trained_roles_of_a_zero_sum_game_are_not_watched() -> None:
    text = """
    game: {kind: kuhn_poker}
    seats: {player_0: one, player_1: two}
    roles: {one: {kind: player, policy: a, sampling: {max_tokens: 6}}, two: {kind: player, policy: b}}
    policies: {a: {model: {kind: tiny}, learner: grpo}, b: {model: {kind: tiny}, learner: grpo}}
    schedule: {steps: 1, groups: 1, group_size: 2}
    """
    scenario = validate(yaml.safe_load(text))
    row = {"role/one/turns": 64.0, "role/one/reward_std": 0.5}
    falls = [row | {"role/one/return": value} for value in [1.0] * 10 + [-1.0] * 20]
    watch = AlarmMonitor.from_scenario(scenario)
    assert "return_fell" not in {alarm.kind for step in falls for alarm in watch(step)[1]}
    changed = scenario.policies | {"b": scenario.policies["b"].model_copy(update={"learner": None})}
    watch = AlarmMonitor.from_scenario(scenario.model_copy(update={"policies": changed}))
    assert "return_fell" in {alarm.kind for step in falls for alarm in watch(step)[1]}


RIVALS = """
games:
  rivals: {game: {kind: kuhn_poker}, seats: {player_0: one, player_1: two}}
  friends:
    game: {kind: repeated_matrix, table: [[[1, 1], [0, 0]], [[0, 0], [1, 1]]], moves: [[tea, cake], [tea, cake]]}
    seats: {player_0: one, player_1: two}
roles: {one: {kind: player, policy: a, sampling: {max_tokens: 6}}, two: {kind: player, policy: b}}
policies: {a: {model: {kind: tiny}, learner: grpo}, b: {model: {kind: tiny}, learner: grpo}}
schedule: {steps: 1, groups: 2, group_size: 2}
alarms: {constant: null}
"""


def test_rivals_of_one_game_are_watched_in_a_game_that_they_win_together() -> None:
    data = yaml.safe_load(RIVALS)
    watch = AlarmMonitor.from_scenario(validate(data))
    row: dict[str, float] = {}
    for game in ("rivals", "friends"):
        row |= {f"game/{game}/role/one/turns": 64.0, f"game/{game}/role/one/reward_std": 0.5}
    falls: list[dict[str, float]] = []
    for value in [1.0] * 10 + [-1.0] * 20:
        falls.append(row | {f"game/{game}/role/one/return": value for game in ("rivals", "friends")})
    [alarm] = [alarm for step in falls for alarm in watch(step)[1]]
    assert (alarm.role, alarm.kind, alarm.game) == ("one", "return_fell", "friends")
    data["alarms"] |= {"stop": ["return_fell"]}
    assert validate(data)
    del data["games"]["friends"]
    with pytest.raises(ScenarioError, match=r"alarms.stop: 'return_fell', but no return of its roles \(one, two\)"):
        validate(data)


def test_a_player_whose_opponents_are_its_own_pool_may_earn_less_without_getting_worse() -> None:
    data = yaml.safe_load((Path(__file__).parents[2] / "scenarios" / "rps_league.yaml").read_text())
    data["alarms"] = {"constant": None, "reward": None}
    row = {"role/player/turns": 64.0, "role/player/reward_std": 0.5}
    falls = [row | {"role/player/return": value} for value in [1.0] * 10 + [-1.0] * 20]

    def kinds() -> list[str]:
        watch = AlarmMonitor.from_scenario(validate(data))
        return [alarm.kind for step in falls for alarm in watch(step)[1]]

    assert kinds() == []
    data["experience"]["players"] = {"player": {"opponents": {"random": 1}}}
    assert kinds() == ["return_fell"]


def test_a_role_whose_learner_uses_no_credit_is_watched_and_is_a_rival_as_any() -> None:
    row = {"role/player/turns": 64.0, "role/player/reward_std": 0.5}
    falls = [row | {"role/player/return": value} for value in [1.0] * 10 + [-1.0] * 20]
    data = yaml.safe_load((Path(__file__).parents[2] / "scenarios" / "two_step_q.yaml").read_text())
    watch = AlarmMonitor.from_scenario(validate(data | {"alarms": {}}))
    assert [alarm.kind for step in falls for alarm in watch(step)[1]] == ["return_fell"]
    data = yaml.safe_load((Path(__file__).parents[2] / "scenarios" / "tic_tac_toe_q.yaml").read_text())
    data["seats"]["player_1"] = "rival"
    data["roles"]["rival"] = data["roles"]["player"]
    watch = AlarmMonitor.from_scenario(validate(data | {"alarms": {}}))
    assert not any(watch(step)[1] for step in falls)


def test_returns_of_recorded_play_are_not_watched(tmp_path: Path) -> None:
    data = yaml.safe_load((Path(__file__).parents[2] / "scenarios" / "team_arithmetic.yaml").read_text())
    data["alarms"] = {"constant": None, "reward": None}
    row = {"role/solver/turns": 64.0, "role/solver/reward_std": 0.5}
    falls = [row | {"role/solver/return": value} for value in [1.0] * 10 + [-1.0] * 20]

    def kinds() -> list[str]:
        watch = AlarmMonitor.from_scenario(validate(data))
        return [alarm.kind for step in falls for alarm in watch(step)[1]]

    assert kinds() == ["return_fell"]
    recording = tmp_path / "play.jsonl.zst"
    recording.touch()
    data["experience"] = {"kind": "recorded", "path": str(recording)}
    for policy in data["policies"].values():
        if policy.get("learner"):
            policy["learner"] = {"kind": "sft"}
    assert kinds() == []


# --- proxy -----------------------------------------------------------------------------------------------------------

PAIR = {"rises": "eval/held_out/number", "falls": "eval/held_out/success"}


def evaluation(proxy: float, success: float, half_width: float = 0.05) -> dict[str, float]:
    row: dict[str, float] = {}
    for name, value in ((PAIR["rises"], proxy), (PAIR["falls"], success)):
        row |= {name: value, f"{name}_low": value - half_width, f"{name}_high": value + half_width}
    return row


def test_a_reward_that_rises_while_the_task_falls_beyond_both_intervals_is_an_alarm() -> None:
    watch = ProxyMonitor(settings(proxy=[PAIR], patience=2))
    steps = [(0.2, 0.6), (0.3, 0.58), (0.4, 0.45), (0.5, 0.4), (0.5, 0.6)]
    results = [watch(evaluation(*step)) for step in steps]
    # 0 to 2: .35 > .25 and .5 < .55. 1 to 3: still apart. 2 to 4: success has risen.
    assert [states for states, _ in results] == [
        {}, {}, {"alarm/number-success/proxy": 1.0}, {"alarm/number-success/proxy": 1.0},
        {"alarm/number-success/proxy": 0.0},
    ]  # fmt: skip
    [alarm] = [alarm for _, alarms in results for alarm in alarms]
    assert alarm.message("") == (
        "ALARM proxy number-success: eval/held_out/number rose to 0.4 and eval/held_out/success fell to 0.45 "
        "(proxy beyond both intervals) for 2 evaluations"
    )
    rows = [{"step": step, **states} for step, (states, _) in enumerate(results)]
    assert list(alarm_lines(rows)) == ["ALARM proxy number-success: proxy, in 2 steps from 2 to 3"]


def test_wide_intervals_and_steps_without_an_evaluation_raise_no_proxy_alarm() -> None:
    watch = ProxyMonitor(settings(proxy=[PAIR], patience=1))
    rows = [evaluation(0.2, 0.6, 0.2), {}, evaluation(0.4, 0.4, 0.2)]
    assert [watch(row) for row in rows] == [({}, [])] * 3
    assert watch(evaluation(0.9, 0.0, 0.1))[1]


def test_a_mean_of_one_episode_moves_by_chance_and_raises_no_proxy_alarm() -> None:
    watch = ProxyMonitor(settings(proxy=[PAIR], patience=1))
    for value in (0.2, 0.9):
        row = evaluation(0.0, 1 - value)
        without_bounds = {name: row[name] for name in row if not name.startswith(PAIR["rises"])}
        assert watch(without_bounds | {PAIR["rises"]: value}) == ({}, [])


def test_the_same_measures_of_two_games_are_two_pairs() -> None:
    data = yaml.safe_load((Path(__file__).parents[2] / "scenarios" / "two_games.yaml").read_text())
    data["games"]["kuhn"]["evaluate"] = {"against": {"random": 10}}
    pairs = [{"rises": f"eval/{game}/random/win", "falls": f"eval/{game}/random/draw"} for game in ("kuhn", "nim")]
    data["alarms"] = {"proxy": pairs, "patience": 1}
    watch = ProxyMonitor(validate(data).alarms)
    before = {metric: 0.5 for pair in pairs for metric in pair.values()}
    assert watch(before) == ({}, [])
    states, alarms = watch(before | {pairs[1]["rises"]: 0.75, pairs[1]["falls"]: 0.25})
    assert states == {"alarm/nim.random.win-nim.random.draw/proxy": 1.0}
    message = alarms[0].message("")
    assert message.startswith("ALARM proxy nim.random.win-nim.random.draw: eval/nim/random/win rose to 0.75 and eval/n")


WRONG = {
    "{proxy: [{rises: eval/held_out/succes, falls: eval/held_out/success}]}": "alarms.proxy.0.rises: no "
    "evaluation measures 'eval/held_out/succes' with an interval",
    "{proxy: [{rises: eval/held_out/role/critic/tokens, falls: eval/held_out/success}]}": "alarms.proxy.0.rises: no "
    "evaluation measures 'eval/held_out/role/critic/tokens' with an interval",
    "{stop: [proxy]}": "alarms.stop: 'proxy', but alarms.proxy names no metrics",
    "{roles: {solver: null, planner: null, critic: null}, stop: [return_fell]}": "alarms.stop: 'return_fell', but no "
    "return of its roles (verifier) is watched",
    "{kl: null, stop: [kl]}": "alarms.stop: 'kl', but this alarm is off",
    "{proxy: [{rises: eval/held_out/return/critic, falls: eval/held_out/success}]}": "alarms.proxy.0.rises: no "
    "evaluation measures 'eval/held_out/return/critic' with an interval",
    "{proxy: [{rises: eval/held_out/success}]}": "alarms.proxy.0.falls",
    "{proxy: [{rises: a/b, falls: a/c}, {rises: a/b, falls: a/c}]}": "alarms.proxy.1: the same metrics as those of "
    "alarms.proxy.0; remove one",
}


@pytest.mark.parametrize(("change", "message"), [*WRONG.items()], ids=[*WRONG])
def test_an_alarm_that_could_never_ring_is_named(change: str, message: str) -> None:
    data = yaml.safe_load((Path(__file__).parents[2] / "scenarios" / "team_arithmetic.yaml").read_text())
    data["alarms"] = yaml.safe_load(change)
    with pytest.raises(ScenarioError) as caught:
        validate(data)
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", ["reward", "credit"])
def test_a_run_without_learned_credit_cannot_be_ended_by_an_alarm_about_it(kind: str) -> None:
    data = yaml.safe_load((Path(__file__).parents[2] / "scenarios" / "two_step_q.yaml").read_text())
    data["alarms"] = {"stop": [kind]}
    with pytest.raises(ScenarioError, match=f"alarms.stop: '{kind}', but no learner of its roles .* uses credit"):
        validate(data)


def test_alarms_of_policies_may_end_a_run_whose_roles_are_not_watched() -> None:
    data = yaml.safe_load((Path(__file__).parents[2] / "scenarios" / "nim_self_play.yaml").read_text())
    data["alarms"] = {"roles": {"player": None}, "stop": ["samples", "kl"]}
    with pytest.raises(ScenarioError, match=r"alarms.stop: 'kl', but every update takes one optimizer step"):
        validate(data)
    data["policies"]["actor"]["learner"]["epochs"] = 2
    assert validate(data)


# --- runs ------------------------------------------------------------------------------------------------------------


class Opposite(AssignConfig):
    """Credits each turn with the negative return of its agent, so that a role learns to earn less."""

    kind: str = "opposite"

    def __call__(self, evidence: Evidence) -> Credit:
        credit: Credit = {}
        for trajectory in evidence.trajectories:
            credit |= {turn.id: Advantage(-trajectory.returns.get(turn.agent, 0.0)) for turn in trajectory.turns}
        return credit


@pytest.mark.slow
def test_a_run_whose_critic_unlearns_its_task_says_so(tmp_path: Path) -> None:
    learner = {"kind": "grpo", "lr": 2e-2}
    scenario = quiz_scenario(
        schedule={"steps": 40, "groups": 8, "group_size": 8, "threads": 1},
        policies=policies(solver={"learner": None}, critic={"learner": learner}),
        credit={"assign": {"kind": f"{__name__}:Opposite"}, "baseline": {"kind": "group", "std": False}},
        evaluate={"every": 2, "held_out": 6},
        alarms={"return_fell": 0.4, "patience": 3, "proxy": [PAIR], "constant": None, "reward": None},
    )
    voice = RecordingMonitor()
    assert train_in_process(tmp_path, scenario, voice)
    rows = [json.loads(line) for line in metric_lines(tmp_path)]
    assert rows[-1]["role/critic/return"] < 0.1 < rows[1]["role/critic/return"]
    [message] = [line for line in voice.messages if "return_fell" in line]
    assert message.startswith("ALARM role critic: its mean return over ten steps is ")
    assert any(row.get("alarm/critic/return_fell") for row in rows)
