"""Search over the turns of a team: what is found, what it costs, and how courses are chosen."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest

from marl.commands.eval.evaluate import EvaluatedPolicies, evaluate_policies, parse_search
from marl.commands.simulators import untrained_simulator
from marl.core.graph import Trajectory
from marl.core.types import Completion, Deal, Request
from marl.evaluation.turn_search import rating_needs_gold_answer, turn_search_setting_errors
from marl.games.team.settings import TeamConfig
from marl.roles.answering import PlayerRole
from marl.roles.judging import CriticRole
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.load import ScenarioError, validate
from marl.scenario.schema import Scenario
from marl.search.rollout_ratings import RolloutRater
from marl.search.settings import TurnSearchSettings
from marl.search.tree import ucb1_scores
from marl.search.turn_rules import TurnTree
from marl.search.turn_search import RolloutTokenCost, TurnSearch, TurnSearchResult
from tests.support.small_games import FunctionEngine, make_simulator, random_move
from tests.support.small_team_scenarios import small_scenario

WORDS = ("a", "b", "c", "d")
RULES = ("best_of_n", "beam", "tree")
SEATS = {"planner": "planner", "solver": "solver", "judge": "judge"}
GOOD = {"planner": "c", "solver": "b"}
"""The best answer of each; the other's does not matter to it."""
PLANNER, SOLVER = ({"role": role, "legal": WORDS} for role in ("planner", "solver"))
JUDGE = {"role": "judge", "hears": ["planner", "solver"], "examples": ["0.5"]}
Rates = Callable[[dict[str, str]], str]


def game(*stages: dict[str, Any]) -> TeamConfig:
    right = "planner.readable * solver.readable * (planner.move == 'c' and solver.move == 'b')"
    return TeamConfig.model_validate(
        {
            "task": {"kind": "arithmetic", "numbers": [10, 99], "train": 20, "held_out": 20},
            "stages": stages or (PLANNER, {**SOLVER, "hears": ["planner"]}, JUDGE),
            "rewards": {"solver": {"right": right}},
            "measures": {"success": right},
        }
    )


GAME = game()
STEPS = game(PLANNER, {**JUDGE, "name": "step", "hears": ["planner"]}, {**SOLVER, "hears": ["planner"]}, JUDGE)
"""With a verdict on the plan alone, too."""


class Wordless(FunctionEngine):
    """Its answers have no tokens, as those of an engine by rule."""

    def _answer(self, request: Request) -> Completion:
        return Completion(random_move(request) if request.options else "[0.5]", (), (), (), "stop")


def moves_in(request: Request) -> dict[str, str]:
    """Return role -> the move that a judge has before it."""
    return dict(line.split(": ") for line in request.state.splitlines() if line.startswith(("planner: ", "solver: ")))


def share_of_good(moves: dict[str, str]) -> str:
    return f"[{sum(moves[role] == word for role, word in GOOD.items() if role in moves) / 2}]"


def team(config: TeamConfig = GAME, rates: Rates = share_of_good, **order: Any) -> RolloutSimulator:
    """Players say any word as likely, two tokens each, and a judge two tokens, too."""

    def say(request: Request) -> str:
        return rates(moves_in(request)) if request.policy == "judge" else random_move(request)

    voice = FunctionEngine(say, **order)
    roles = {name: PlayerRole(policy="actor") for name in ("planner", "solver")}
    judge = CriticRole.model_validate({"policy": "judge", "verdict": "score", "answer": "bracket"})
    return make_simulator(config, {"actor": voice, "judge": voice}, judge=judge, **roles)


def deals(many: int) -> list[Deal]:
    return [Deal(f"e{seed}", f"e{seed}", seed, SEATS, "eval") for seed in range(many)]


def settings(rule: str, tokens: int = 120, by: str = "judge.score", **more: Any) -> TurnSearchSettings:
    return TurnSearchSettings.model_validate({"rule": rule, "tokens": tokens, "by": by, **more})


def searched(chosen: TurnSearchSettings, simulator: RolloutSimulator | None = None, many: int = 6):
    simulator = simulator or team()
    return TurnSearch(simulator)(simulator.play(deals(many)), chosen)


def words(course: Trajectory) -> tuple[str | None, ...]:
    return tuple(turn.action for turn in course.turns if turn.role != "judge")


# --- what is chosen --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_with_enough_tokens_the_best_course_is_chosen(rule: str) -> None:
    results = searched(settings(rule, 400))
    assert {words(result.chosen_rollout) for result in results} == {("c", "b")}
    assert {result.chosen_rating for result in results} == {1.0}


def test_a_tree_that_is_led_by_verdicts_on_plans_needs_fewer_tokens_than_whole_courses() -> None:
    def solved(rule: str, **more: Any) -> float:
        results = searched(settings(rule, 80, **more), team(STEPS), 30)
        return sum(words(result.chosen_rollout) == ("c", "b") for result in results) / len(results)

    assert solved("tree", exploration=0.2) > solved("best_of_n") + 0.1


@pytest.mark.parametrize("rule", RULES)
def test_the_course_with_the_best_rating_is_chosen_and_of_equals_the_first(rule: str) -> None:
    for result in searched(settings(rule)):
        ratings = [RolloutRater("judge.score").rate_rollout(course) for course in result.rollouts]
        assert tuple(ratings) == result.ratings
        assert result.chosen_rollout is result.rollouts[ratings.index(max(rating or 0.0 for rating in ratings))]
        assert result.rollouts[0].parent is None


def test_a_course_without_a_readable_verdict_is_worse_than_any_other() -> None:
    first, second, third = team().play(deals(3))
    costs = (RolloutTokenCost(1, 1),) * 3
    assert TurnSearchResult((first, second, third), (None, -5.0, -7.0), costs, 0).chosen_rollout is second
    assert TurnSearchResult((first, second), (None, None), costs[:2], 0).chosen_rollout is first
    mumbling = team(rates=lambda moves: "hm" if moves["planner"] == "c" else "[0.1]")
    assert all(words(result.chosen_rollout)[0] != "c" for result in searched(settings("tree"), mumbling))


# --- what it costs ---------------------------------------------------------------------------------------------------


def test_best_of_n_plays_as_many_whole_courses_as_fit() -> None:
    # A course is three answers of two tokens; the fourth course ends at 24 tokens.
    for result in searched(settings("best_of_n", 20)):
        assert (len(result.rollouts), result.sampled_tokens, result.discarded_tokens) == (3, 18, 6)
        assert result.prompt_tokens == 3 * 3 * 2
    (only,) = searched(settings("best_of_n", 18), many=1)
    assert (len(only.rollouts), only.sampled_tokens, only.discarded_tokens) == (3, 18, 0)
    (first,) = searched(settings("tree", 1), many=1)
    assert (len(first.rollouts), first.sampled_tokens, first.discarded_tokens) == (1, 6, 0)


def test_a_beam_tries_each_turn_from_the_best_course_so_far() -> None:
    # First course 6 tokens; two other plans 6 each; two other answers to the best plan 4 each; then anew.
    (result,) = searched(settings("beam", 32, width=3), many=1)
    assert [cost.tokens for cost in result.costs] == [6, 6, 6, 4, 4, 6]
    places = [course.parent and course.parent[1] for course in result.rollouts]
    assert places == [None, 0, 0, 1, 1, 0]
    best = max(result.rollouts[:3], key=lambda course: RolloutRater("judge.score").rate_rollout(course) or 0.0)
    assert {course.turns[0].id for course in result.rollouts[3:5]} == {best.turns[0].id}


@pytest.mark.parametrize("rule", RULES)
def test_tokens_are_counted_once_and_turns_that_are_shared_are_not_sampled_again(rule: str) -> None:
    simulator = team()
    results = searched(settings(rule, 90), simulator)
    spent = sum(result.sampled_tokens + result.discarded_tokens for result in results)
    voice = simulator.engines["actor"]
    assert isinstance(voice, FunctionEngine)
    assert spent == 2 * len(voice.requests) == simulator.tokens["eval"]
    for result in results:
        turns = {turn.id: turn for course in result.rollouts for turn in course.turns}
        assert result.sampled_tokens == 2 * len(turns) <= 90
        assert all(turns[turn.id] is turn for course in result.rollouts for turn in course.turns)


@pytest.mark.parametrize("rule", RULES)
def test_a_search_with_fewer_tokens_is_the_beginning_of_one_with_more(rule: str) -> None:
    longest = searched(settings(rule, 100))
    for tokens in (1, 6, 17, 41, 100):
        for shorter, longer in zip(searched(settings(rule, tokens)), longest, strict=True):
            within_token_budget = longer.within_token_budget(tokens)
            assert (within_token_budget.rollouts, within_token_budget.ratings, within_token_budget.costs) == (
                shorter.rollouts,
                shorter.ratings,
                shorter.costs,
            )
            ends = list(accumulate(cost.tokens for cost in longer.costs))
            assert len(within_token_budget.rollouts) == max(1, sum(end <= tokens for end in ends))


@pytest.mark.parametrize("rule", RULES)
def test_a_search_is_the_same_alone_and_among_others_again_and_whatever_the_order_of_answers(rule: str) -> None:
    simulator = team()
    crowd = searched(settings(rule), simulator)
    assert searched(settings(rule), simulator) == crowd, "the same simulator plays the same continuations again"
    assert searched(settings(rule), team(newest_first=True, batch=3)) == crowd
    assert searched(settings(rule), many=1) == crowd[:1]


def test_players_without_tokens_are_not_searched() -> None:
    silent = Wordless(random_move)
    roles = {name: PlayerRole(policy="actor") for name in ("planner", "solver")}
    judge = CriticRole.model_validate({"policy": "actor", "verdict": "score", "answer": "bracket"})
    simulator = make_simulator(GAME, {"actor": silent}, judge=judge, **roles)
    assert [len(result.rollouts) for result in searched(settings("tree"), simulator)] == [1] * 6


# --- whose turns -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["beam", "tree"])
def test_the_judge_is_never_asked_again_about_the_same_course(rule: str) -> None:
    parents = {c.parent and c.parent[1] for result in searched(settings(rule, 120)) for c in result.rollouts}
    assert parents == {None, 0, 1}


@pytest.mark.parametrize("rule", ["beam", "tree"])
def test_only_turns_of_the_roles_named_are_searched(rule: str) -> None:
    for result in searched(settings(rule, 60, roles=["solver"])):
        places = {course.parent and course.parent[1] for course in result.rollouts}
        # A beam begins anew when it has come to its end.
        assert places == ({None, 0, 1} if rule == "beam" else {None, 1})


def test_a_role_without_chance_is_not_searched() -> None:
    simulator = team()
    greedy = simulator.casting.roles["planner"].model_copy(update={"sampling": {"temperature": 0.0}})
    greedy = PlayerRole.model_validate(greedy.model_dump(exclude={"tools"}, warnings=False))
    fixed = make_simulator(GAME, simulator.engines, **{**simulator.casting.roles, "planner": greedy})
    parents = {c.parent and c.parent[1] for result in searched(settings("tree"), fixed) for c in result.rollouts}
    assert parents == {None, 1}


# --- the tree --------------------------------------------------------------------------------------------------------


def test_uct_is_that_of_the_paper() -> None:
    # Q + c sqrt(ln N / n), by hand: N = 4; ln 4 = 1.3863.
    assert ucb1_scores([0.5, 0.9], [3, 1], 0.5) == pytest.approx([0.5 + 0.5 * 0.67979, 0.9 + 0.5 * 1.17741], abs=1e-5)
    assert ucb1_scores([0.25], [1], 9.0) == [0.25]


def rated(rate: Callable[[tuple[str, str]], float]) -> Callable[[dict[str, str]], str]:
    return lambda moves: f"[{rate((moves['planner'], moves['solver']))}]"


def test_a_tree_samples_all_its_answers_then_follows_uct() -> None:
    results = searched(settings("tree", 30, width=2, exploration=0.5))
    different = [each for each in results if each.rollouts[0].turns[0].action != each.rollouts[1].turns[0].action]
    assert different
    for result in different:
        first, second, third = result.rollouts[:3]
        assert (first.parent, second.parent) == (None, (first.id, 0))
        ratings = [rating or 0.0 for rating in result.ratings[:2]]
        # One visit each, so exploration adds the same to both: the better one, of equals the first, gets an answer.
        better = (first, second)[ratings.index(max(ratings))]
        assert third.parent == (better.id, 1)


def test_a_tree_backs_up_what_courses_were_rated_and_counts_equal_answers_as_one() -> None:
    simulator = team()
    chosen = settings("tree", 300, width=3)
    (first,) = simulator.play(deals(1))
    grown = TurnTree(first, chosen, RolloutRater("judge.score"), lambda turn: turn.role != "judge")
    others = simulator.play(deals(60)[1:])
    for _ in range(12):
        path, node = grown.select_node_to_expand()
        begun = [turn.completion.text for turn in node.position.rollout.turns[: node.position.index]]
        grown.insert_rollout(
            path, node, next(o for o in others if [t.completion.text for t in o.turns[: len(begun)]] == begun)
        )
    root = grown.root
    assert sum(root.visits) == 13
    assert len(root.children) == len(root.position.answers) <= 4
    for move, child in enumerate(root.children):
        assert child is not None
        assert root.visits[move] == sum(child.visits)
        assert root.totals[move] == pytest.approx(math.fsum(child.totals))


def test_a_verdict_on_a_plan_leads_the_tree_as_soon_as_it_is_there() -> None:
    def only_plans(moves: dict[str, str]) -> str:
        return "[0.5]" if "solver" in moves else f"[{0.9 if moves['planner'] == 'c' else 0.1}]"

    chosen = settings("tree", 200, width=8, prefix=1.0, exploration=0.01)
    for result in searched(chosen, team(STEPS, only_plans)):
        plans = [course.turns[0].action for course in result.rollouts]
        # Eight plans are sampled, each with one answer; the plan "c" gets more of them until it has eight, too.
        tried = plans[:8].count("c")
        assert not tried or set(plans[8 : 16 - tried]) == {"c"}


def test_ratings_may_be_the_last_the_mean_or_the_least_verdict() -> None:
    (course,) = team(STEPS, lambda moves: "[0.75]" if "solver" in moves else "[0.25]").play(deals(1))
    verdicts = {"last": 0.75, "mean": 0.5, "least": 0.25}
    assert {name: RolloutRater("judge.score", name).rate_rollout(course) for name in verdicts} == verdicts  # type: ignore[arg-type]
    assert RolloutRater("returns").rate_rollout(course) == sum(course.returns.values())
    with pytest.raises(ValueError, match=r"by: 'judge.correct': 'judge' gives no named scores; choose judge.score"):
        RolloutRater("judge.correct").rate_rollout(course)


# --- marl eval -------------------------------------------------------------------------------------------------------


def scenario(**changes: Any) -> Scenario:
    speaker = {"kind": "player", "policy": "actor"}
    judge = {"kind": "critic", "policy": "actor", "verdict": "score"}
    data = {
        "game": GAME.model_dump(mode="json", exclude_defaults=True) | {"kind": "team"},
        "roles": {"planner": speaker, "solver": speaker, "judge": judge},
        "policies": {"actor": {"engine": {"kind": "random"}}},
        "schedule": {"steps": 1, "groups": 2, "group_size": 1},
    }
    return validate(data | changes, "test", to_train=False)


def test_eval_shows_search_beside_no_search_and_best_of_n_at_the_same_budget() -> None:
    team = scenario()
    measured = EvaluatedPolicies(team, None, lambda: untrained_simulator(team))
    figures = evaluate_policies(measured, None, 12, parse_search("{rule: tree, by: returns, tokens: 200}"))
    assert figures["eval/search/episodes"] == 12
    assert figures["eval/search/oracle"] == 1
    assert figures["eval/search/success"] > figures["eval/search/first/success"]
    for scope in ("eval/search", "eval/search/best_of_n"):
        assert 0 < figures[f"{scope}/tokens"] <= 200
        assert figures[f"{scope}/rollouts"] > 1
        assert figures[f"{scope}/success_low"] <= figures[f"{scope}/success"] == figures[f"{scope}/rating"]
    gain = figures["eval/search/success"] - figures["eval/search/best_of_n/success"]
    assert figures["eval/search/over_best_of_n/success"] == pytest.approx(gain)
    alone = evaluate_policies(measured, None, 12, parse_search("{rule: best_of_n, by: returns, tokens: 200}"))
    assert alone["eval/search/success"] == figures["eval/search/best_of_n/success"]
    assert "eval/search/best_of_n/success" not in alone


def test_a_check_that_knows_the_right_answer_is_an_oracle_and_a_critic_is_none() -> None:
    team = small_scenario("solver_critic")
    assert rating_needs_gold_answer(team, "verifier.correct")
    assert not rating_needs_gold_answer(team, "critic.score")
    assert not turn_search_setting_errors(team, settings("tree", by="verifier.correct"))
    (problem,) = turn_search_setting_errors(team, settings("tree", by="verifier.corect"))
    assert problem.startswith("by: 'verifier.corect': 'verifier' gives no such score; did you mean 'correct'?")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{rule: tre, tokens: 9}",
            r"rule: 'tre': unknown; did you mean 'tree'\? choices: beam, best_of_n, gumbel, puct",
        ),
        ("{rule: tree, tokens: 9}", r"by: .*(missing|required)"),
        ("{rule: tree, by: judge.score, tokens: 0}", "tokens"),
        ("{rule: best_of_n, by: returns, tokens: 9, width: 3}", "width: has no effect with rule: best_of_n"),
        ("{rule: beam, by: returns, tokens: 9, verdicts: mean}", "verdicts: has no effect with by: returns"),
    ],
)
def test_faulty_settings_of_a_search_are_named(text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        parse_search(text)


@pytest.mark.parametrize(
    ("search", "against", "message"),
    [
        (
            "{simulations: 4}",
            None,
            r"rule: puct looks for moves .*'team' is no such game.*choose rule: best_of_n, beam",
        ),
        ("{rule: tree, by: judge.score, tokens: 9}", "random", "--against random: with rule: tree nobody is played"),
        ("{rule: tree, by: juge.score, tokens: 9}", None, r"no seat has the role 'juge'; did you mean 'judge'\?"),
        ("{rule: tree, by: score, tokens: 9}", None, r"must be ROLE.score, .* choices: returns, judge.score, planner"),
        ("{rule: tree, by: judge.correct, tokens: 9}", None, "'judge' gives no such score; did you mean 'score'"),
        ("{rule: beam, by: judge.score, tokens: 9, roles: [judge, x]}", None, r"roles: no seat has the role 'x'"),
    ],
)
def test_a_search_that_does_not_fit_the_game_is_refused_before_weights_are_loaded(
    search: str, against: str | None, message: str
) -> None:
    def load() -> RolloutSimulator:
        raise AssertionError("weights were loaded")

    measured = EvaluatedPolicies(scenario(), None, load)
    with pytest.raises(ScenarioError, match=message):
        evaluate_policies(measured, against, 4, parse_search(search))


def test_a_rating_role_is_not_searched_and_a_game_without_held_out_starts_is_not_measured() -> None:
    problems = turn_search_setting_errors(scenario(), settings("tree", roles=["judge"]))
    assert problems == ["roles: 'judge' rates rollouts, so its own turns are not searched; leave it out"]
    kuhn = validate(
        {
            "game": "kuhn_poker",
            "seats": {"player_0": "player", "player_1": "player"},
            "roles": {"player": {"kind": "player", "policy": "actor"}},
            "policies": {"actor": {"engine": {"kind": "random"}}},
            "schedule": {"steps": 1, "groups": 2, "group_size": 1},
        },
        "test",
        to_train=False,
    )
    (problem,) = turn_search_setting_errors(kuhn, settings("tree", by="returns"))
    assert problem == "rule: tree is measured on held-out starts, and 'kuhn_poker' has none"
