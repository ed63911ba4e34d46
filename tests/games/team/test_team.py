"""The team game: workflows as data, played with real roles at a real table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from marl.core.graph import Trajectory
from marl.core.types import Fork, Request
from marl.games.team.settings import TeamConfig
from marl.games.team.workflow import StageReward
from marl.rollout.game_errors import GameError
from tests.support.addition_task import grade_answer, team_config, team_deal, team_simulator
from tests.support.small_games import FunctionEngine

PLAN = {"role": "planner", "examples": ["{{ given.left }}"]}
SOLVE = {"role": "solver", "hears": ["planner"], "examples": ["{{ answer }}", "{{ wrong[0] }}"]}
CHECK = {"role": "verifier", "verifies": "solver", "scores": ["correct"]}


def play(game: Any, say: Callable[[Request], str], **options: Any) -> Trajectory:
    """One episode on the problem 2 + 2, unless options say otherwise."""
    return team_simulator(game, say).play([team_deal(game, **options)])[0]


def moves(trajectory: Trajectory) -> list[tuple[str, str | None]]:
    return [(turn.agent, turn.action) for turn in trajectory.turns if turn.role != "verifier"]


def edges(trajectory: Trajectory) -> set[tuple[int, int]]:
    return {(u[1], v[1]) for u, v in trajectory.graph.edges}


def payments(trajectory: Trajectory) -> list[tuple[str, str, float, int]]:
    return [(reward.agent, reward.name, reward.value, reward.turn[1]) for reward in trajectory.rewards]


def test_a_planner_a_solver_and_its_verifier_speak_in_turn_and_the_graph_says_who_heard_whom() -> None:
    game = team_config(
        PLAN,
        SOLVE,
        CHECK,
        rewards={"solver": {"correct": "own.correct"}},
        measures={"success": "own"[:0] + "solver.correct"},
    )
    requests: list[str] = []

    def say(request: Request) -> str:
        requests.append(request.messages[-1].content)
        return "4"

    trajectory = play(game, say)
    assert requests == ["2 + 2", "2 + 2 | planner: 4"]
    assert [turn.agent for turn in trajectory.turns] == ["planner", "solver", "verifier"]
    assert edges(trajectory) == {(0, 1), (1, 2)}
    assert payments(trajectory) == [("solver", "correct", 1.0, 2)]
    assert trajectory.findings.measures == {"success": 1.0}
    assert {turn.problem for turn in trajectory.turns} == {"2 + 2"}


def test_agents_of_one_stage_are_asked_at_once_and_do_not_hear_each_other() -> None:
    once = {"repeat": 2, "until": "true", "stages": [{**SOLVE, "hears": ["solver"], "n": 3}]}
    game = team_config(once, CHECK, measures={"agreement": "agreement(solver.move)"})
    waiting: list[int] = []
    voice = FunctionEngine(lambda request: "4" if request.seed % 2 else "5")
    step = voice.step
    voice.step = lambda wait_s: (waiting.append(len(voice._open)), step(wait_s))[1]  # type: ignore[method-assign]
    trajectory = team_simulator(game, voice).play([team_deal(game)])[0]
    assert waiting == [3], "all three requests are in flight before the first is answered"
    assert edges(trajectory) == {(0, 3), (1, 4), (2, 5)}, "each verifier reads its own solver, solvers read nobody"
    assert [turn.agent for turn in trajectory.turns[3:]] == ["verifier_0", "verifier_1", "verifier_2"]


def test_debaters_hear_the_others_last_round() -> None:
    game = team_config({"repeat": 2, "stages": [{"role": "debater", "n": 2, "hears": ["debater"]}]})
    trajectory = play(game, lambda request: "4")
    assert [turn.agent for turn in trajectory.turns] == ["debater_0", "debater_1"] * 2
    assert edges(trajectory) == {(0, 3), (1, 2)}, "their prompts repeat nothing of their own"


def test_a_loop_ends_when_its_condition_holds() -> None:
    game = team_config(
        {"role": "solver"},
        {
            "repeat": 3,
            "until": "critic.move == 'yes'",
            "stages": [
                {"role": "critic", "hears": ["solver"], "legal": ["yes", "no"]},
                {"role": "solver", "hears": ["critic"], "when": "critic.move == 'no'"},
            ],
        },
    )
    answers = iter(["5", "no", "6", "no", "4", "yes"])
    assert moves(play(game, lambda request: next(answers))) == [
        *[("solver", "5"), ("critic", "no"), ("solver", "6"), ("critic", "no"), ("solver", "4"), ("critic", "yes")]
    ]


def test_a_plan_reaches_the_solver_only_under_its_condition() -> None:
    stages = (
        {"role": "planner"},
        {"role": "critic", "hears": ["planner"]},
        {"role": "solver", "hears": {"planner": "critic.readable and critic.score >= 0.3"}},
    )

    def prompt(score: str) -> str:
        prompts: list[str] = []

        def say(request: Request) -> str:
            prompts.append(request.messages[-1].content)
            return score

        play(team_config(*stages), say)
        return prompts[-1]

    assert prompt("0.3") == "2 + 2 | planner: 0.3"
    assert prompt("0.2") == "2 + 2"


def test_the_best_of_several_is_heard() -> None:
    game = team_config(
        {"role": "planner", "n": 3},
        {"role": "critic", "each": "planner"},
        {"role": "solver", "hears": {"planner": "it.index == best(critic.score)"}},
    )
    scores = iter(["a", "b", "c", "0.1", "0.9", "0.5", "done"])
    prompts: list[str] = []

    def say(request: Request) -> str:
        prompts.append(request.messages[-1].content)
        return next(scores)

    play(game, say)
    assert prompts[-1] == "2 + 2 | planner_1: b"


def test_rewards_are_paid_after_a_stage_to_those_it_is_about_and_at_the_end_to_all() -> None:
    game = team_config(
        {**SOLVE, "hears": [], "n": 2},
        CHECK,
        rewards={
            "solver": {
                "format": {"value": "0.1 * own.readable", "after": "solver"},
                "correct": {"value": "0.8 * own.correct", "after": "verifier"},
                "team": "0.1 * mean(solver.correct)",
            }
        },
    )
    answers = iter(["4", "5"])
    assert payments(play(game, lambda request: next(answers))) == [
        ("solver_0", "format", 0.1, 0),
        ("solver_1", "format", 0.1, 1),
        ("solver_0", "correct", 0.8, 2),
        ("solver_1", "team", 0.05, 3),
        ("solver_0", "team", 0.05, 3),
    ]


def test_progress_over_the_last_round_can_be_paid() -> None:
    game = team_config(
        {"repeat": 2, "stages": [{"role": "solver"}, CHECK]},
        rewards={"solver": {"progress": {"value": "own.correct - own.before.correct", "after": "verifier"}}},
    )
    answers = iter(["5", "4"])
    assert payments(play(game, lambda request: next(answers))) == [("solver", "progress", 1.0, 3)]


def test_a_critic_is_paid_for_calibration_against_the_verdict_on_its_own_solver() -> None:
    game = team_config(
        {"role": "solver", "n": 2},
        {"role": "critic", "each": "solver"},
        CHECK,
        rewards={"critic": {"brier": "own.readable * (1 - (own.score - own.of.correct) ** 2)"}},
    )
    answers = iter(["4", "5", "0.5", "0.25"])
    worth = [(agent, value) for agent, _, value, _ in payments(play(game, lambda request: next(answers)))]
    assert worth == [("critic_0", 0.75), ("critic_1", 1 - 0.0625)]


def test_a_posed_problem_is_worked_on_if_it_is_one_and_kept_if_the_critic_likes_it() -> None:
    game = team_config(
        {"role": "challenger", "poses": True, "tell": "pose one", "when": "split == 'train'"},
        {"role": "critic"},
        {"keep": "critic.readable and critic.score >= 0.7"},
        {"role": "solver"},
        CHECK,
        rewards={"challenger": {"posed": "own.posed"}},
    )

    def problems(posed: str, score: str) -> tuple[list[str], int]:
        answers = iter([posed, score, "4"])
        trajectory = play(game, lambda request: next(answers))
        return [turn.problem for turn in trajectory.turns[:3]], len(trajectory.findings.starts)

    assert problems("1 + 3", "0.9") == (["2 + 2", "1 + 3", "1 + 3"], 1)
    assert problems("1 + 3", "0.6") == (["2 + 2", "1 + 3", "2 + 2"], 0)
    assert problems("what?", "0.9") == (["2 + 2", "2 + 2", "2 + 2"], 0)


def test_a_kept_problem_can_be_dealt_again() -> None:
    poses = {"role": "challenger", "poses": True, "when": "split == 'train'"}
    game = team_config(poses, {"keep": "true"}, {"role": "solver"})
    start = play(game, lambda request: "1 + 3").findings.starts[0]
    assert play(team_config({"role": "solver"}), lambda request: "4", **{**start, "index": 0}).start == "1 + 3"


def test_an_unreadable_answer_is_asked_again_and_then_fails_without_ending_the_episode() -> None:
    game = team_config(
        {"role": "solver"}, CHECK, unreadable={"retry": 1, "penalty": 0.5}, measures={"right": "solver.correct"}
    )
    trajectory = play(game, lambda request: " ")
    assert [(turn.agent, turn.attempt, turn.action is None) for turn in trajectory.turns[:2]] == [
        ("solver", 0, True),
        ("solver", 1, True),
    ]
    assert payments(trajectory) == [("solver", "unreadable", -0.5, 1)]
    assert trajectory.findings.measures == {"right": 0.0}
    assert trajectory.end == "terminated"


def test_who_did_not_speak_is_neither_paid_nor_charged() -> None:
    game = team_config(
        {"role": "challenger", "poses": True, "when": "split == 'train'"},
        {"role": "solver", "n": 2},
        {"role": "verifier", "verifies": "solver", "scores": ["correct"], "when": "split == 'train'"},
        rewards={
            "challenger": {"posed": "own.posed - 0.5"},
            "solver": {"correct": "own.correct + 1"},
            "verifier": {"early": {"value": "1", "after": "solver"}, "late": "1"},
        },
    )

    def paid(**options: Any) -> set[tuple[str, str]]:
        return {(agent, name) for agent, name, _, _ in payments(play(game, lambda request: "4", **options))}

    solvers = {("solver_0", "correct"), ("solver_1", "correct")}
    assert paid(split="held_out") == solvers
    assert paid() == solvers | {("challenger", "posed"), ("verifier_0", "late"), ("verifier_1", "late")}


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ({"odd": "1 / (own.spoke - 1)"}, r"rewards\.solver\.odd: .* cannot be evaluated: ZeroDivisionError"),
        ({"odd": "1e308 * 10 * own.spoke"}, r"rewards\.solver\.odd: .* is inf, which is not a finite number"),
        ({"odd": "own.move"}, r"rewards\.solver\.odd: 'own.move' is '4', which is not a finite number"),
    ],
)
def test_a_reward_that_fails_in_play_is_named(rewards: dict[str, Any], message: str) -> None:
    game = team_config({"role": "solver"}, rewards={"solver": {"odd": "1"}}).model_copy(
        update={"rewards": {"solver": {name: StageReward(value=value) for name, value in rewards.items()}}}
    )
    with pytest.raises(GameError, match=message):
        play(game, lambda request: "4")


def test_the_best_of_several_leaves_out_what_could_not_be_read() -> None:
    game = team_config(
        {"role": "planner", "n": 3},
        {"role": "critic", "each": "planner"},
        measures={"best": "best(critic.score)", "voted": "voted(critic.move, critic.index)"},
    )

    def measured(*scores: str) -> Mapping[str, float]:
        answers = iter(["a", "b", "c", *scores])
        return play(game, lambda request: next(answers)).findings.measures

    assert measured(" ", "-1", "-0.5") == {"best": 2.0, "voted": 1.0}, "an unreadable score is not the 0 between them"
    assert measured(" ", "0", "0") == {"best": 1.0, "voted": 1.0}
    assert measured(" ", " ", " ") == {"best": 0.0, "voted": 0.0}


@pytest.mark.parametrize("verdict", ["", "nonsense", "3", '{"scores": 1}', "[" * 100_000])
def test_a_verdict_that_cannot_be_read_fails_the_answer(verdict: str) -> None:
    game = team_config({"role": "solver"}, CHECK, measures={"right": "solver.correct"}).build()
    game.reset(0, {"index": 7})
    game.step("4")
    game.step(verdict)
    assert game.episode_measures().measures == {"right": 0.0}


@pytest.mark.parametrize("score", ["NaN", "1e999", '"1"', "null", "[null]", "[[1]]", "[1, 1e999]"])
def test_a_verdict_whose_score_is_no_finite_number_is_named(score: str) -> None:
    game = team_config({"role": "solver"}, CHECK).build()
    game.reset(0, {"index": 7})
    game.step("4")
    with pytest.raises(ValueError, match=r"the verdict on solver: check 'correct': .* is no finite number"):
        game.step(f'{{"scores": {{"correct": {score}}}}}')


@pytest.mark.parametrize("move", ["1e999", "-1e999", "nan", "1e300"])
def test_no_number_that_is_said_can_break_a_reward(move: str) -> None:
    game = team_config({"role": "critic"}, rewards={"critic": {"square": "own.readable * own.score ** 2"}})
    assert abs(play(game, lambda request: move).returns.get("critic", 0.0)) <= 1e12


def test_what_is_told_can_never_use_the_answer() -> None:
    with pytest.raises(ValueError, match=r"stages.0.tell: .* uses 'answer', which does not exist here"):
        team_config({"role": "solver", "tell": "it is {{ answer }}"})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rewards": {"solver": {"c": "own.corect"}}}, "rewards.solver.c: 'own.corect' cannot be evaluated"),
        ({"rewards": {"solvr": {"c": "1"}}}, "rewards.solvr: no such role; did you mean 'solver'"),
        ({"rewards": {"solver": {"c": {"value": "1", "after": "x"}}}}, "rewards.solver.c.after: no stage 'x'"),
        (
            {"measures": {"s": "solvr.move"}},
            "measures.s: 'solvr.move' uses 'solvr', which does not exist here",
        ),
        ({"measures": {"s": "1 +"}}, "is not a valid jinja2 expression"),
        ({"measures": {"s": "''.__class__"}}, "measures.s"),
    ],
)
def test_a_wrong_expression_is_found_before_anything_is_played(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is compared)
        team_config({"role": "solver"}, CHECK, **wrong)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ({"role": "critic", "each": "solvr"}, "stage 'critic': each: no role 'solvr'; did you mean 'solver'"),
        ({"role": "critic", "hears": ["plan"]}, "stage 'critic': hears: no role 'plan'"),
        ({"role": "critic", "tools": "solver"}, "speaks in a stage itself"),
        ({"role": "solver", "n": 2}, "spoken by different agents in two places"),
        ({"role": "critic", "verifies": "solver"}, "scores and verifies belong together"),
        ({"role": "critic", "each": "solver", "n": 2}, "n: 2 has no effect"),
        ({"role": "critic", "examples": ["{{ oops }}"]}, "stages.1.examples.0"),
        ({"rol": "critic"}, "unknown field 'rol'"),
    ],
)
def test_a_wrong_stage_is_named(stage: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is compared)
        team_config({"role": "solver"}, stage)
    assert message in str(caught.value)


def test_random_play_chooses_among_the_examples() -> None:
    from marl.engines.scripted import Random

    game = team_config(SOLVE | {"hears": []}, CHECK)
    table = team_simulator(game, Random().build(None))
    trajectories = table.play([team_deal(game, str(i)) for i in range(40)])
    assert {turn.action for t in trajectories for turn in t.turns if turn.agent == "solver"} == {"4", "5"}


def test_no_example_that_is_made_from_the_right_answer_is_given_on_held_out_problems() -> None:
    settings = {
        "kind": "team",
        "task": {"kind": "arithmetic", "train": 20, "held_out": 5},
        "stages": [
            {"role": "solver", "examples": ["{{ answer }}", "{{ wrong[0] }}", "{{ given.steps }}", "{{ given }}"]}
        ],
    }
    settings["stages"][0]["examples"] += ["{{ given.left }}", "seven"]  # type: ignore[index]
    game = TeamConfig.model_validate(settings).build()
    game.reset(0)
    assert len(game.infos["solver"]["examples"]) == 6
    game.reset(0, {"split": "held_out", "index": 0})
    assert game.infos["solver"]["examples"] == (str(game.current_problem.facts["left"]), "seven")


def test_held_out_problems_are_never_dealt_in_training() -> None:
    game = team_config({"role": "solver"}).build()
    held_out = set()
    for options in team_config({"role": "solver"}).held_out_reset_options(100):
        game.reset(0, options)
        held_out.add(game.start_state_key())
    trained = set()
    for seed in range(200):
        game.reset(seed)
        trained.add(game.start_state_key())
    assert len(held_out) == 10
    assert len(trained) == 15
    assert not held_out & trained


@pytest.mark.parametrize(
    ("options", "message"),
    [({"split": "test"}, "choices: held_out, train"), ({"index": 15}, "choices: 0 to 14"), ({"indx": 1}, "'indx'")],
)
def test_a_start_that_does_not_exist_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        team_config({"role": "solver"}).build().reset(0, options)


def test_a_fork_plays_the_same_beginning_again() -> None:
    game = team_config(PLAN, {**SOLVE, "n": 2}, CHECK)
    table = team_simulator(game, lambda request: str(request.seed % 7))
    original = table.play([team_deal(game)])[0]
    [forks] = table.play_forks([Fork(original, 2, n=2)])
    assert len(forks) == 2
    for fork in forks:
        assert [turn.id for turn in fork.turns[:2]] == [turn.id for turn in original.turns[:2]]
        assert edges(fork) == edges(original)
        assert [turn.action for turn in fork.turns[3:]] == [grade_answer(turn.request) for turn in fork.turns[3:]]
