"""Forks that follow a script: some say nothing more, some what they said then, and all courses are played at once."""

from collections.abc import Callable, Iterator

import pytest

from marl.core.graph import Trajectory
from marl.core.types import Fork, Request
from marl.games.base import IllegalMoveHandling
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.games.tic_tac_toe import TicTacToeConfig
from marl.protocols import GameConfig
from marl.roles.answering import PlayerRole
from marl.rollout.game_errors import GameError
from marl.rollout.simulator import RolloutSimulator
from tests.support.addition_task import team_config, team_deal, team_simulator
from tests.support.small_games import (
    PAIR,
    CircleConfig,
    FailingPenniesConfig,
    FunctionEngine,
    HearingPlayer,
    PenniesConfig,
    make_deal,
    make_simulator,
    random_move,
)

STUMBLING = IllegalMoveHandling(retry=2, then="random")


def told(trajectory: Trajectory) -> list[tuple[str, str | None]]:
    return [(turn.agent, turn.action) for turn in trajectory.turns]


def stumbler(request: Request) -> str:
    return random_move(request) if request.seed % 3 else "mumble"


def hearing(game: GameConfig, say: Callable[[Request], str] = random_move, **engine: object) -> RolloutSimulator:
    """Everybody's prompt holds what it heard."""
    return make_simulator(game, FunctionEngine(say, **engine), player=HearingPlayer(policy="actor"))  # type: ignore[arg-type]


def courses(laid: RolloutSimulator, *forks: Fork) -> list[Trajectory]:
    return [course for group in laid.play_forks(forks) for course in group]


# --- those who are muted ---------------------------------------------------------------------------------------------


def test_the_muted_say_nothing_whenever_they_are_asked_and_nobody_asks_their_policy() -> None:
    game = CircleConfig(rounds=2, illegal=IllegalMoveHandling(then="penalty", penalty=3.0))
    voice = FunctionEngine(lambda request: "[stay]")
    laid = make_simulator(game, voice, player=HearingPlayer(policy="actor"))
    [past] = laid.play([make_deal("e", game)])
    before = len(voice.requests)
    [fork] = courses(laid, Fork(past, 1, scripted_moves=(("player_1", None),)))
    silent = [turn for turn in fork.turns if turn.agent == "player_1"]
    assert silent
    assert {(turn.action, turn.completion.text, turn.completion.finish) for turn in silent} == {(None, "", "aborted")}
    assert {turn.completion.token_ids for turn in silent} == {()}
    assert len(voice.requests) - before == len(fork.turns) - 1 - len(silent), "the first turn is inherited"
    assert sum(r.value for r in fork.rewards if r.agent == "player_1" and r.name == "illegal") == -3.0 * len(silent)


def test_the_muted_may_be_given_a_move() -> None:
    game = CircleConfig(rounds=2)
    laid = hearing(game, lambda request: "[stay]")
    [past] = laid.play([make_deal("e", game)])
    [fork] = courses(laid, Fork(past, 1, scripted_moves=(("player_1", "quit"), ("player_2", "stay"))))
    quitted = [("player_1", "quit"), ("player_2", "stay")]
    assert told(fork) == [("player_0", "stay"), *quitted, ("player_0", "stay"), ("player_2", "stay")]
    assert fork.turns[1].completion.text == "[quit]", "in their role's own words"
    assert fork.returns == {"player_0": 10.0, "player_1": 1.0, "player_2": 10.0}


def test_the_muted_are_asked_again_as_often_as_the_game_asks_and_each_time_say_nothing() -> None:
    game = KuhnPokerConfig(illegal=IllegalMoveHandling(retry=2))
    laid = make_simulator(game, FunctionEngine(random_move))
    [past] = laid.play([make_deal("e", game, cards="KQ")])
    [fork] = courses(laid, Fork(past, 0, scripted_moves=(("player_0", None),)))
    assert [(turn.agent, turn.attempt, turn.action) for turn in fork.turns] == [
        ("player_0", attempt, None) for attempt in range(3)
    ]
    assert fork.returns == {"player_0": -2.0, "player_1": 2.0}


def test_one_of_those_asked_at_once_is_muted_and_the_others_are_asked() -> None:
    game = PenniesConfig(rounds=2)
    voice = FunctionEngine(lambda request: "[heads]")
    laid = make_simulator(game, voice)
    [past] = laid.play([make_deal("e", game)])
    for mute in PAIR:
        before = len(voice.requests)
        [fork] = courses(laid, Fork(past, 0, scripted_moves=((mute, "tails"),)))
        assert told(fork) == [(agent, "tails" if agent == mute else "heads") for agent in PAIR * 2]
        assert len(voice.requests) == before + 2


def test_an_episode_in_which_all_are_muted_needs_no_policy() -> None:
    game = PenniesConfig(rounds=3)
    laid = make_simulator(game, FunctionEngine(random_move))
    [past] = laid.play([make_deal("e", game)])
    spent = dict(laid.tokens)
    [fork] = courses(laid, Fork(past, 0, scripted_moves=tuple((agent, "heads") for agent in PAIR)))
    assert told(fork) == [(agent, "heads") for agent in PAIR * 3]
    assert fork.end == "terminated"
    assert dict(laid.tokens) == spent


def test_a_forced_move_comes_before_silence() -> None:
    game = CircleConfig(rounds=2, illegal=IllegalMoveHandling(then="penalty"))
    laid = hearing(game, lambda request: "[stay]")
    [past] = laid.play([make_deal("e", game)])
    [fork] = courses(laid, Fork(past, 0, "stay", scripted_moves=(("player_0", None),)))
    assert [turn.action for turn in fork.turns if turn.agent == "player_0"] == ["stay", None]


def test_nothing_can_be_said_at_one_turn_only() -> None:
    game = PenniesConfig(rounds=2, illegal=IllegalMoveHandling(then="penalty"))
    laid = hearing(game, lambda request: "[heads]")
    [past] = laid.play([make_deal("e", game)])
    [fork] = courses(laid, Fork(past, 0, ""))
    assert fork.turns[0].completion.finish == "aborted"
    assert [turn.action for turn in fork.turns if turn.agent == "player_0"] == [None, "heads"]


# --- those who keep to what they said --------------------------------------------------------------------------------


def test_who_is_asked_what_it_was_asked_then_answers_as_it_did_and_nothing_is_spent() -> None:
    game = PenniesConfig(rounds=1)
    laid = make_simulator(game, FunctionEngine(random_move))
    for seed in range(8):
        [past] = laid.play([make_deal(f"e{seed}", game, seed)])
        spent = dict(laid.tokens)
        first, second = past.turns
        for move in ("heads", "tails"):
            fork, other = courses(
                laid,
                Fork(past, 0, move, keeps_unchanged_answers=True),
                Fork(past, 1, move, keeps_unchanged_answers=True),
            )
            assert told(fork) == [("player_0", move), ("player_1", second.action)]
            assert fork.turns[1].completion == second.completion
            assert told(other) == [("player_0", first.action), ("player_1", move)]
        assert dict(laid.tokens) == spent


def test_who_is_asked_anything_else_answers_anew() -> None:
    game = TicTacToeConfig()
    voice = FunctionEngine(random_move)
    laid = make_simulator(
        game, voice, player=PlayerRole(policy="actor", prompt="{{ observation }} {{ legal|join(' ') }}")
    )
    [past] = laid.play([make_deal("e", game)])
    then = {(turn.agent, turn.nth): turn for turn in past.turns}
    move = next(m for m in (past.turns[2].request.options or {}) if m != past.turns[2].action)
    before = len(voice.requests)
    [fork] = courses(laid, Fork(past, 2, move, keeps_unchanged_answers=True))
    later = fork.turns[3:]
    anew = [turn for turn in later if turn.completion.token_ids]
    assert len(voice.requests) - before == len(anew) == len(later)
    assert all(turn.request.messages != then[turn.agent, turn.nth].request.messages for turn in later[:2])


@pytest.mark.parametrize("seed", range(12))
def test_a_course_in_which_nothing_differs_is_the_same_again(seed: int) -> None:
    game = CircleConfig(rounds=3, illegal=STUMBLING)
    laid = hearing(game, stumbler)
    [past] = laid.play([make_deal("e", game, seed)])
    spent = laid.tokens["credit"]
    for left in past.turns:
        if left.action is not None:
            [fork] = courses(laid, Fork(past, left.id[1], left.action, keeps_unchanged_answers=True))
            assert told(fork) == told(past)
            assert fork.returns == past.returns
            assert [turn.completion for turn in fork.turns[left.id[1] + 1 :]] == [
                turn.completion for turn in past.turns[left.id[1] + 1 :]
            ]
    assert laid.tokens["credit"] == spent


def test_the_turn_that_is_left_is_not_kept() -> None:
    game = PenniesConfig(rounds=1)
    laid = make_simulator(game, FunctionEngine(random_move))
    [past] = laid.play([make_deal("e", game)])
    [moves] = laid.play_forks([Fork(past, 0, keeps_unchanged_answers=True, n=40)])
    assert {fork.turns[0].action for fork in moves} == {"heads", "tails"}
    assert {fork.turns[1].action for fork in moves} == {past.turns[1].action}
    assert laid.tokens["credit"] == 2 * 40, "two tokens for each answer of player_0"


def test_a_kept_answer_waits_for_the_one_that_is_asked_with_it() -> None:
    game = PenniesConfig(rounds=2)
    laid = make_simulator(game, FunctionEngine(random_move, newest_first=True, batch=1))
    [past] = laid.play([make_deal("e", game)])
    [moves] = laid.play_forks([Fork(past, 0, keeps_unchanged_answers=True, n=10)])
    for fork in moves:
        assert [turn.agent for turn in fork.turns] == [*PAIR, *PAIR]
        assert fork.turns[1].completion == past.turns[1].completion


# --- teams -----------------------------------------------------------------------------------------------------------

PLAN = {"role": "planner"}
SOLVE = {"role": "solver", "n": 2, "hears": ["planner"]}
CHECK = {"role": "verifier", "verifies": "solver", "scores": ["correct"]}
TEAM = team_config(PLAN, SOLVE, CHECK, rewards={"solver": {"correct": "own.correct"}})


def crowd(request: Request) -> str:
    """Right on the problem 2 + 2, unless a planner says otherwise."""
    return "5" if "bad" in request.messages[-1].content else "4"


def test_verifiers_judge_what_is_said_in_the_course_that_is_played() -> None:
    laid = team_simulator(TEAM, crowd)
    [past] = laid.play([team_deal(TEAM)])
    agents = ["planner", "solver_0", "solver_1", "verifier_0", "verifier_1"]
    assert [turn.agent for turn in past.turns] == agents
    assert past.returns == {"solver_0": 1.0, "solver_1": 1.0}
    silent, wrong, misled = courses(
        laid,
        Fork(past, 1, scripted_moves=(("solver_0", None),), keeps_unchanged_answers=True),
        Fork(past, 1, "5", keeps_unchanged_answers=True),
        Fork(past, 0, "bad", keeps_unchanged_answers=True),
    )
    for fork in (silent, wrong):
        assert [turn.agent for turn in fork.turns] == agents
        assert fork.returns == {"solver_1": 1.0}
        assert fork.turns[2].completion == past.turns[2].completion, "solver_1 was asked the same"
        assert fork.turns[4].completion == past.turns[4].completion
        assert fork.turns[3].completion != past.turns[3].completion
    assert told(misled)[1:3] == [("solver_0", "5"), ("solver_1", "5")]
    assert misled.returns == {}


def test_only_answers_that_are_asked_for_anew_cost_tokens() -> None:
    laid = team_simulator(TEAM, crowd)
    [past] = laid.play([team_deal(TEAM)])

    def spent(fork: Fork) -> int:
        """The grader's verdicts are worth two tokens each here, too."""
        before = laid.tokens["credit"]
        courses(laid, fork)
        return (laid.tokens["credit"] - before) // 2

    assert spent(Fork(past, 1, scripted_moves=(("solver_0", None),), keeps_unchanged_answers=True)) == 1, (
        "solver_0's verdict"
    )
    assert spent(Fork(past, 1, scripted_moves=(("solver_0", None),))) == 3, "solver_1 and both verdicts"
    assert spent(Fork(past, 0, scripted_moves=(("planner", None),), keeps_unchanged_answers=True)) == 2, (
        "both solvers hear the planner"
    )


# --- names, numbers and order ----------------------------------------------------------------------------------------


def many_forks(past: Trajectory) -> Iterator[Fork]:
    for turn in past.turns:
        for action in (None, "", "stay", "quit"):
            for muted in ((), (("player_1", None),), (("player_1", "stay"), ("player_2", None))):
                for keeps in (False, True):
                    yield Fork(past, turn.id[1], action, muted, keeps, 2)


def test_all_courses_are_played_at_once_and_come_back_in_the_order_of_the_forks() -> None:
    game = CircleConfig(illegal=STUMBLING)
    laid, other = hearing(game, stumbler), hearing(game, stumbler, newest_first=True, batch=1)
    [past], [twin] = laid.play([make_deal("e", game, 3)]), other.play([make_deal("e", game, 3)])
    forks = list(many_forks(past))
    groups = laid.play_forks(forks)
    assert [len(group) for group in groups] == [2] * len(forks)
    for fork, group in zip(forks, groups, strict=True):
        assert {course.parent for course in group} == {past.turns[fork.index].id}
    names = [course.id for group in groups for course in group]
    assert len(set(names)) == len(names)
    assert other.play_forks(list(many_forks(twin))) == groups, "whatever order the answers come in"
    again = laid.play_forks(forks)
    assert not {course.id for group in again for course in group} & set(names)


def test_no_move_makes_two_courses_alike_by_name() -> None:
    game = CircleConfig()
    laid = hearing(game)
    [past] = laid.play([make_deal("e", game, 3)])
    forks = [
        Fork(past, 0),
        Fork(past, 0, ""),
        Fork(past, 0, "="),
        Fork(past, 0, "kept"),
        Fork(past, 0, keeps_unchanged_answers=True),
        Fork(past, 0, ",kept"),
        Fork(past, 0, "x", scripted_moves=(("player_1", "y"),)),
        Fork(past, 0, "x,player_1=y"),
        Fork(past, 0, scripted_moves=(("player_1", None),)),
        Fork(past, 0, scripted_moves=(("player_1", ""),)),
        Fork(past, 0, scripted_moves=(("player_1", "="),)),
        Fork(past, 0, "x.1~1.y"),
    ]
    [once] = courses(laid, Fork(past, 0, "x"))
    played = [once, *courses(laid, *forks), *courses(laid, Fork(once, 0, "y"))]
    assert len({course.id for course in played}) == len(forks) + 2


def test_courses_of_a_fork_are_forked_like_any_episode() -> None:
    game = CircleConfig(rounds=3)
    laid = hearing(game, lambda request: "[stay]")
    [past] = laid.play([make_deal("e", game)])
    [fork] = courses(laid, Fork(past, 3, "quit", keeps_unchanged_answers=True))
    inherited = fork.turns[1].id
    assert inherited == ("e", 1)
    own, of_parent = courses(
        laid, Fork(fork, 1, "stay", keeps_unchanged_answers=True), Fork(past, 1, "stay", keeps_unchanged_answers=True)
    )
    assert told(own) == told(fork), "what was kept is what was said in the fork"
    assert told(of_parent) == told(past)
    assert own.parent == inherited
    assert [turn.id[0] for turn in own.turns[:2]] == ["e", own.id]
    assert own.id.startswith(fork.id)


def test_a_fork_at_a_turn_that_is_not_there_is_refused() -> None:
    game = KuhnPokerConfig()
    laid = make_simulator(game, FunctionEngine(random_move))
    [past] = laid.play([make_deal("e", game)])
    many = len(past.turns)
    with pytest.raises(ValueError, match=f"episode 'e' has no turn {many}; it has {many}"):
        laid.play_forks([Fork(past, 0), Fork(past, many)])


def test_a_game_that_breaks_in_a_course_without_questions_is_named_or_dropped() -> None:
    game = FailingPenniesConfig()
    laid = make_simulator(game, FunctionEngine(lambda request: "[safe]"))
    [past] = laid.play([make_deal("e", game)])
    broken = Fork(past, 0, scripted_moves=(("player_0", "safe"), ("player_1", "crack")))
    whole = Fork(past, 0, scripted_moves=(("player_0", "safe"),))
    with pytest.raises(GameError, match=r"the glass broke .*episode e~0"):
        laid.play_forks([broken])
    laid.drops.limit = 5
    left, stayed = laid.play_forks([broken, whole])
    assert left == []
    assert [len(course.turns) for course in stayed] == [4]
