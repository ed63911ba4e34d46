"""Signs that a role collapses, and who is told of them."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from marl.core.types import Completion, Credit, Turn
from marl.core.usage import RemoteUsage
from marl.engines.scripted import Random
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.metrics.alarms import AlarmMonitor, AlarmStopError, WatchedRole
from marl.metrics.collapse import collapse_metrics, group_turns_by_decision_kind, most_common_move
from marl.metrics.trajectory_metrics import summarize_trajectories
from marl.protocols import AssignConfig, Evidence
from marl.runs.run_folder import RunFolder
from marl.scenario.alarms import AlarmSettings, AlarmThresholds
from marl.scenario.load import ScenarioError, validate
from marl.scenario.schema import Scenario
from marl.view.closing_report import alarm_lines, closing_report
from marl.view.console import LineMonitor
from tests.support.handmade_episodes import make_episode
from tests.support.run_processes import metric_lines, outcome
from tests.support.small_games import FunctionEngine, PenniesConfig, make_deal, make_simulator, random_move
from tests.support.solver_critic_game import RecordingMonitor, quiz_scenario, train_in_process, train_until_crash


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, made: Path) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))


# --- signs -----------------------------------------------------------------------------------------------------------

BLANK = make_episode("e", "a").turns[0]


def turn(text: str, problem: str, move: str | None = "", legal: tuple[str, ...] | None = None, **fields: Any) -> Turn:
    """A turn in which a model said `text` about a problem; its move is the text unless another one is given."""
    options = dict(zip(legal, legal, strict=True)) if legal else None
    words = tuple(map(len, text.split()))
    completion = Completion(
        text, (1,), **({"token_ids": words, "logprobs": (-0.5,) * len(words)} | fields), finish="stop"
    )
    request = replace(BLANK.request, options=options)
    return replace(BLANK, request=request, completion=completion, action=text if move == "" else move, problem=problem)


YES_NO = ("yes", "no")


def test_constant_is_the_share_of_the_most_common_move_where_there_was_a_choice() -> None:
    turns = [turn("yes", f"{n}", legal=YES_NO) for n in range(3)] + [turn("no", "3", legal=YES_NO)]
    forced = [turn("pass", f"{n}", legal=("pass",)) for n in range(50)]
    unread = [turn("hm", f"{n}", None, legal=YES_NO) for n in range(9)]
    assert collapse_metrics(turns + forced + unread)["constant"] == 0.75
    assert most_common_move(turns) == "yes"
    assert most_common_move([]) == ""


ACTIONS = ("alone", "query", "verify")


def test_a_constant_choice_shows_though_the_answers_of_the_same_role_vary() -> None:
    answers = [turn(f"{n}", f"{n}") for n in range(64)]
    silent = [turn("alone", f"{n}", legal=ACTIONS) for n in range(63)] + [turn("query", "63", legal=ACTIONS)]
    assert collapse_metrics(answers + silent)["constant"] == 63 / 64
    assert most_common_move(answers + silent) == "alone"
    talking = [turn(ACTIONS[n % 3], f"{n}", legal=ACTIONS) for n in range(63)]
    assert collapse_metrics(answers + talking)["constant"] == 1 / 3
    assert collapse_metrics(answers + silent[:15])["constant"] == 1 / 64, "too few choices to tell"


def test_lists_that_share_a_move_are_one_kind_of_decision() -> None:
    first = [turn(f"{1 + n % 2}", f"{n}", legal=("1", "2")) for n in range(16)]
    second = [turn("3", f"{n}", legal=("2", "3")) for n in range(16)]
    other = [turn("fold", f"{n}", legal=("call", "fold")) for n in range(16)]
    assert group_turns_by_decision_kind([*first, *second, *other]) == [first + second, other]
    assert collapse_metrics(first + second)["constant"] == 0.5
    assert collapse_metrics(first + second + other)["constant"] == 1.0


def test_one_answer_to_one_question_is_no_constant_policy() -> None:
    assert "constant" not in collapse_metrics([turn("yes", "p", legal=YES_NO)] * 5)
    assert "repeated" not in collapse_metrics([turn("four", "p")] * 5)


def test_repeated_is_the_chance_that_answers_to_two_questions_are_equal() -> None:
    # Pairs of turns on different problems: 2 * 1 with p, q: (a, a), (b, a); all as ordered pairs.
    turns = [turn("a", "p"), turn("b", "p"), turn("a", "q")]
    assert collapse_metrics(turns)["repeated"] == 0.5
    assert collapse_metrics([turn("a", "p"), turn("a", "q"), turn("a", "r")])["repeated"] == 1.0
    assert collapse_metrics([turn("a", "p"), turn("a", "p"), turn("b", "q")])["repeated"] == 0.0


def test_distinct_2_is_that_of_li_and_others() -> None:
    # Bigrams of "a bb a bb" (tokens are lengths): 1 2, 2 1, 1 2; of "a bb": 1 2. Two differ of four.
    assert collapse_metrics([turn("a bb a bb", "p"), turn("a bb", "q")])["distinct2"] == 0.5
    assert "distinct2" not in collapse_metrics([turn("a", "p")])


def test_a_list_of_moves_says_nothing_about_how_varied_texts_are() -> None:
    assert collapse_metrics([turn("yes", "p", legal=YES_NO), turn("no", "q", legal=YES_NO)]).keys() == {
        "entropy",
        "constant",
    }


def test_entropy_is_the_surprise_per_sampled_token() -> None:
    turns = [turn("a b", "p", logprobs=(-1.0, -2.0)), turn("a", "p", logprobs=(0.0,))]
    assert collapse_metrics(turns)["entropy"] == 1.0
    greedily = turns[0].request.sampling.model_copy(update={"temperature": 0.0})
    greedy = [replace(each, request=replace(each.request, sampling=greedily)) for each in turns]
    assert "entropy" not in collapse_metrics(greedy)


def test_players_by_rule_show_no_signs_and_answers_from_outside_those_of_texts() -> None:
    game = KuhnPokerConfig()
    played = make_simulator(game, Random().build(None)).play([make_deal(f"{i}", game, i) for i in range(20)])
    assert collapse_metrics([t for trajectory in played for t in trajectory.turns]) == {}
    outside = {"prompt_ids": (), "token_ids": (), "logprobs": ()}
    turns = [turn("yes", f"{n}") for n in range(3)]
    remote = [replace(t, completion=replace(t.completion, **outside, usage=RemoteUsage(9, 1))) for t in turns]
    assert collapse_metrics(remote) == {"constant": 1.0, "repeated": 1.0}


def test_a_step_tells_the_signs_and_the_spread_of_returns_of_each_role() -> None:
    game = KuhnPokerConfig()
    metrics = summarize_trajectories(
        make_simulator(game, FunctionEngine(random_move)).play([make_deal(f"{i}", game, i) for i in range(50)])
    )
    assert metrics["role/player/entropy"] == 0.375
    assert 0.4 < metrics["role/player/constant"] < 0.7
    assert metrics["role/player/reward_std"] > 1
    alone = PenniesConfig()
    assert "role/player/constant" not in summarize_trajectories(
        make_simulator(alone, FunctionEngine(random_move)).play([make_deal("e", alone)])
    )


# --- alarms ----------------------------------------------------------------------------------------------------------


def alarms(**settings: Any) -> AlarmSettings:
    return AlarmSettings.model_validate(settings)


def watched(
    settings: AlarmSettings | None, *steps: float, figure: str = "constant", turns: int = 256
) -> list[list[str]]:
    """What is shouted, step by step, of a critic with this figure."""
    watch = AlarmMonitor(settings, {"critic": WatchedRole(True)})
    rows = [{"role/critic/turns": float(turns), f"role/critic/{figure}": value} for value in steps]
    return [[alarm.message("yes") for alarm in watch(row)[1]] for row in rows]


def test_an_alarm_is_raised_once_when_a_sign_was_bad_for_so_many_steps_in_a_row() -> None:
    messages = watched(alarms(patience=2, constant=0.9), 0.95, 0.5, 0.95, 0.9, 0.99, 0.1, 1.0, 1.0)
    assert [len(step) for step in messages] == [0, 0, 0, 1, 0, 0, 0, 1]
    assert messages[3] == [
        "ALARM role critic: says 'yes' in 90% of its choices (256 turns a step) (constant >= 0.9) for 2 steps"
    ]


def test_its_metric_is_1_while_it_holds_and_0_when_it_ends() -> None:
    watch = AlarmMonitor(alarms(patience=2, constant=0.9), {"critic": WatchedRole(True)})
    steps = [0.95, 0.95, 0.95, 0.5, 0.5]
    held = [watch({"role/critic/turns": 99.0, "role/critic/constant": value})[0] for value in steps]
    name = "alarm/critic/constant"
    assert held == [{}, {name: 1.0}, {name: 1.0}, {name: 0.0}, {}]


@pytest.mark.parametrize(
    ("figure", "good", "bad", "words"),
    [
        ("constant", 0.97, 0.98, "says 'yes' in 98% of its choices (256 turns a step) (constant >= 0.98)"),
        ("illegal", 0.4, 0.6, "60% of 256 turns a step cannot be read (unreadable >= 0.5)"),
        ("repeated", 0.5, 0.95, "repeats itself, whatever it is asked, with probability 0.95 (repeated >= 0.9)"),
        ("entropy", 0.01, 0.0005, "samples at 0.0005 nats a token (entropy <= 0.001)"),
        ("entropy", 2.0, 5.0, "samples at 5 nats a token (entropy >= 4)"),
        ("cut", 0.2, 1.0, "100% of 256 turns a step are cut off by max_tokens (cut >= 0.5)"),
        ("reward_std", 0.1, 0.0, "its returns are all the same (standard deviation 0) (reward <= 1e-06)"),
    ],
)
def test_every_kind_has_a_threshold_and_says_what_is_wrong(figure: str, good: float, bad: float, words: str) -> None:
    messages = watched(alarms(), *[good] * 9, *[bad] * 9, figure=figure)
    assert [step for step in messages if step] == [[f"ALARM role critic: {words} for 5 steps"]]
    assert messages[13], "the fifth bad step"


@pytest.mark.parametrize(
    ("figure", "start", "bad", "words"),
    [
        ("tokens", 40.0, 8.0, "says 8 tokens a turn (length <= 8)"),
        ("tokens", 40.0, 210.0, "says 210 tokens a turn (length >= 200)"),
        ("distinct2", 0.5, 0.05, "says few different things: distinct-2 is 0.05 (distinct <= 0.1)"),
    ],
)
def test_lengths_and_variety_are_compared_with_the_first_ten_steps(
    figure: str, start: float, bad: float, words: str
) -> None:
    assert not any(watched(alarms(), *[bad] * 30, figure=figure)), "there is nothing else to compare with"
    messages = watched(alarms(), *[start] * 10, *[bad] * 5, figure=figure)
    assert messages[-1] == [f"ALARM role critic: {words} for 5 steps"]


def test_players_by_rule_who_say_no_tokens_raise_no_alarm() -> None:
    assert not any(watched(alarms(), *[0.0] * 30, figure="tokens"))


def test_steps_with_few_turns_are_not_judged() -> None:
    assert not any(watched(alarms(), *[1.0] * 30, turns=15))
    assert any(watched(alarms(turns=15), *[1.0] * 30, turns=15))


def test_what_is_not_a_number_is_not_fine() -> None:
    assert any(watched(alarms(), *[math.nan] * 5, figure="entropy"))


def test_a_kind_a_role_or_all_can_be_off() -> None:
    bad = [1.0] * 30
    assert not any(watched(alarms(constant=None), *bad))
    assert not any(watched(alarms(roles={"critic": None}), *bad))
    assert not any(watched(None, *bad))
    watch = AlarmMonitor(alarms(), {"critic": WatchedRole(False)})
    for _ in range(30):
        assert watch({"role/critic/turns": 99.0, "role/critic/reward_std": 0.0}) == ({}, []), "it does not learn"


def test_a_role_inherits_what_its_own_thresholds_leave_out() -> None:
    settings = alarms(patience=3, constant=0.7, roles={"critic": {"constant": 0.9}})
    assert settings.alarm_thresholds_of_role("critic") == AlarmThresholds(patience=3, constant=0.9)
    assert settings.alarm_thresholds_of_role("solver") is settings
    assert AlarmSettings.model_validate(settings.model_dump(mode="json")) == settings


def test_credit_that_is_0_though_returns_differ_names_its_rule() -> None:
    watch = AlarmMonitor(alarms(patience=3), {"solver": WatchedRole(True, "my_rule / group")})
    row = {"role/solver/turns": 64.0, "role/solver/reward_std": 0.4}
    steps = [watch(row | {"credit/solver/nonzero": share})[1] for share in (0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0)]
    messages = [[alarm.message("") for alarm in raised] for raised in steps]
    assert messages == [[]] * 5 + [
        [
            "ALARM role solver: its credit (my_rule / group) is 0 or missing in all of 64 turns a step, though its "
            "returns differ (credit <= 0) for 3 steps"
        ],
        [],
    ]


def test_credit_that_is_0_because_all_returns_are_equal_is_one_alarm_and_not_two() -> None:
    watch = AlarmMonitor(alarms(patience=2), {"solver": WatchedRole(True)})
    row = {"role/solver/turns": 64.0, "role/solver/reward_std": 0.0, "credit/solver/nonzero": 0.0}
    assert [alarm.kind for _ in range(4) for alarm in watch(row)[1]] == ["reward"]
    for settings, learns in ((alarms(reward=None), True), (alarms(), False)):
        off = AlarmMonitor(settings, {"solver": WatchedRole(learns)})
        assert not any(off(row | {"role/solver/reward_std": 1.0})[1] for _ in range(30))


def test_a_role_that_is_paid_only_by_credit_is_not_said_to_have_nothing_to_learn_from() -> None:
    row = {"role/first/turns": 64.0, "role/first/reward_std": 0.0, "credit/first/nonzero": 0.9}
    watch = AlarmMonitor(alarms(patience=2), {"first": WatchedRole(True)})
    assert not any(watch(row)[1] for _ in range(9)), "a reward flows back to it"
    assert [alarm.kind for _ in range(4) for alarm in watch(row | {"role/first/reward/own": 1.0})[1]] == ["reward"]


def test_what_collapses_in_one_of_several_games_does_not_hide_behind_the_others() -> None:
    player, judge = WatchedRole(True), WatchedRole(False)
    games = {"kuhn": {"player": player}, "nim": {"player": player, "judge": judge}}
    watch = AlarmMonitor(alarms(patience=2), {}, games=games)
    row = {"role/player/constant": 0.6, "game/kuhn/role/player/constant": 1.0, "game/nim/role/player/constant": 0.4}
    row |= {f"{scope}role/player/turns": 64.0 for scope in ("", "game/kuhn/", "game/nim/")}
    assert watch(row) == ({}, [])
    holding, [alarm] = watch(row)
    assert holding == {"game/kuhn/alarm/player/constant": 1.0}
    said = "ALARM role player in game kuhn: says 'bet' in 100% of its choices (64 turns a step)"
    assert alarm.message("bet") == f"{said} (constant >= 0.98) for 2 steps"
    held = [{"step": step, **({} if step < 2 else holding)} for step in (1, 2, 3)]
    assert list(alarm_lines(held)) == ["ALARM role player in game kuhn: constant, in 2 steps from 2 to 3, to the end"]


@pytest.mark.parametrize("kind", ["credit", "samples"])
def test_alarms_without_a_threshold_may_end_the_run_as_well(kind: str) -> None:
    watch = AlarmMonitor(alarms(patience=1, stop=[kind]), {"actor": WatchedRole(True)}, policies=["actor"])
    row = {"role/actor/turns": 64.0, "role/actor/reward_std": 0.4, "credit/actor/nonzero": 0.0}
    raised = watch(row | {"policy/actor/samples": 0.0})[1]
    assert {alarm.kind: watch.ends_run(alarm) for alarm in raised} == {
        "credit": kind == "credit",
        "samples": kind == "samples",
    }


def test_a_policy_that_gets_no_sample_in_so_many_updates_is_named() -> None:
    watch = AlarmMonitor(alarms(patience=2), {}, policies=["actor"])
    updates: list[dict[str, float]] = [{"policy/actor/samples": 8.0}, {}, {"policy/actor/samples": 0.0}]
    assert [watch(row) for row in updates] == [({}, [])] * 3
    assert watch({}) == ({}, []), "it was not its turn to learn"
    holding, [alarm] = watch({"policy/actor/samples": 0.0})
    assert holding == {"alarm/actor/samples": 1.0}
    assert alarm.message("") == "ALARM policy actor: gets no sample to learn from (samples <= 0) for 2 updates"
    assert watch({"policy/actor/samples": 3.0}) == ({"alarm/actor/samples": 0.0}, [])
    assert AlarmMonitor(None, {}, policies=["actor"])(updates[2]) == ({}, [])


# --- runs ------------------------------------------------------------------------------------------------------------

JUMPY = {"turns": 1, "patience": 2, "constant": 0.5}
ONE_ALARM = {"roles": {"solver": None, "critic": {"reward": None, "unreadable": None}}}


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in metric_lines(folder)]


def test_an_alarm_is_loud_on_the_console_in_the_metrics_and_in_the_report(tmp_path: Path) -> None:
    screen = io.StringIO()
    assert train_in_process(tmp_path, quiz_scenario(alarms=JUMPY | ONE_ALARM), LineMonitor(Console(file=screen), 6))
    shouted = [line for line in screen.getvalue().splitlines() if line.startswith("ALARM role critic: says '")]
    assert len(shouted) == 1
    held = [row["step"] for row in lines(tmp_path) if row.get("alarm/critic/constant")]
    assert held == [2, 3, 4, 5, 6]
    report = closing_report(RunFolder(tmp_path), True)
    assert "ALARM role critic: constant, in 5 steps from 2 to 6, to the end" in report


@pytest.mark.slow
def test_streaks_outlive_a_crash(tmp_path: Path) -> None:
    scenario = quiz_scenario(alarms=JUMPY | {"patience": 4, "constant": 0.4}, checkpoint={"every": 1})
    voice = RecordingMonitor()
    assert train_in_process(tmp_path / "whole", scenario, voice)
    assert [row["step"] for row in lines(tmp_path / "whole") if row.get("alarm/critic/constant")] == [4, 5, 6]
    shouted = [line for line in voice.messages if "critic" in line and "constant" in line]
    for step, shouts in ((3, 1), (5, 0)):
        train_until_crash(tmp_path / f"{step}", scenario, after=step)
        voice = RecordingMonitor()
        assert train_in_process(tmp_path / f"{step}", scenario, voice, resume="auto")
        assert outcome(tmp_path / f"{step}") == outcome(tmp_path / "whole")
        assert [line for line in voice.messages if "critic" in line and "constant" in line] == shouted[:shouts]


def test_an_alarm_can_end_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    scenario = quiz_scenario(alarms=JUMPY | ONE_ALARM | {"stop": ["constant"]})
    with pytest.raises(
        AlarmStopError, match=r"stopped after step 2, with a checkpoint \(alarms.stop\): ALARM role critic"
    ):
        train_in_process(tmp_path, scenario)
    assert (tmp_path / "checkpoints" / "000002" / "manifest.json").is_file()
    assert train_in_process(tmp_path, scenario, resume="auto"), "whoever goes on all the same has been told"
    assert lines(tmp_path)[-1]["step"] == 6


@pytest.mark.one_in(3)
def test_a_critic_that_is_paid_for_saying_yes_collapses_and_the_alarm_catches_exactly_that(tmp_path: Path) -> None:
    voice = RecordingMonitor()
    schedule = {"steps": 60, "groups": 8, "group_size": 8, "threads": 1}
    learners = {"solver": {"learner": None}, "critic": {"learner": {"kind": "grpo", "lr": 2e-2}}}
    changed = {name: policy | learners[name] for name, policy in quiz_scenario()["policies"].items()}
    assert train_in_process(tmp_path, quiz_scenario(schedule=schedule, policies=changed, evaluate={}), voice)
    shouted = [line for line in voice.messages if line.startswith("ALARM")]
    assert shouted[0].startswith("ALARM role critic: says 'yes' in ")
    assert not [line for line in shouted if "role solver" in line]


class Silent(AssignConfig):
    """Judges no turn."""

    kind: str = "silent"

    def __call__(self, evidence: Evidence) -> Credit:
        return {}


def test_a_rule_that_judges_nothing_is_an_alarm_of_the_run(tmp_path: Path) -> None:
    voice = RecordingMonitor()
    silent = f"{__name__}:Silent"
    assert train_in_process(
        tmp_path, quiz_scenario(alarms={"turns": 1, "patience": 3}, credit={"assign": {"kind": silent}}), voice
    )
    shouted = [line for line in voice.messages if "(credit <= 0)" in line or "(samples <= 0)" in line]
    assert any(line.startswith("ALARM role solver: its credit (") and "silent" in line.lower() for line in shouted)
    assert any(line.startswith("ALARM policy solver: gets no sample") for line in shouted)


def checked(**settings: Any) -> Scenario:
    return validate(yaml.safe_load(yaml.safe_dump(quiz_scenario(alarms=settings))))


WRONG = {
    "roles: {critik: null}": "alarms.roles.critik: no role 'critik'; did you mean 'critic'? choices: critic, solver",
    "{constant: null, stop: [constant]}": "alarms.stop: 'constant', but this alarm is off for every role; give "
    "alarms.constant a threshold",
    "{reward: null, stop: [credit]}": "alarms.stop: 'credit', but this alarm is off for every role; give "
    "alarms.reward a threshold",
    "stop: [constnt]": "alarms.stop.0: unknown; did you mean 'constant'? choices: constant, credit, "
    "cut, distinct, entropy, faulty, kl, length, proxy, repeated, return_fell, reward, samples, unreadable (got "
    "'constnt')",
    "constant: 98": "alarms.constant: must be at most 1.0 (got 98)",
    "constant: false": "alarms.constant: must be a number (got False)",
    "roles: {critic: {constnt: 0.9}}": "alarms.roles.critic.constnt: unknown field 'constnt'; did you mean 'constant'",
    "entropy: [4, 1]": "alarms.entropy: [4.0, 1.0] is no range; give [low, high] with low < high",
}


@pytest.mark.parametrize(("change", "message"), [*WRONG.items()], ids=[*WRONG])
def test_a_wrong_threshold_is_named(change: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        checked(**yaml.safe_load(change))
    assert message in str(caught.value)
