"""Tree sampling: several answers from one state, each played to its end, the best one gone on with."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from itertools import chain
from statistics import fmean, stdev
from typing import Any

import pytest

from marl.core.graph import Trajectory
from marl.core.types import Completion, CompletionFailure, Deal, Fork, Request, Turn, TurnId
from marl.credit_stage.stage import CreditStage
from marl.experience.tree_sampling import TreeSampling
from marl.games.base import FinalRewards, IllegalMoveHandling, NextAgent, TextGame, TextGameConfig
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.games.tic_tac_toe import TicTacToeConfig
from marl.protocols import Evidence, GameConfig
from marl.roles.answering import PlayerRole
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.load import ScenarioError, validate
from marl.scenario.schema import CreditConfig
from marl.training.samples import collect_samples
from tests.support.run_processes import kuhn_scenario
from tests.support.small_games import (
    PAIR,
    TRIO,
    CircleConfig,
    FailingPenniesConfig,
    FunctionEngine,
    PenniesConfig,
    make_deal,
    make_simulator,
    random_move,
)

GAMES = (
    KuhnPokerConfig(illegal=IllegalMoveHandling(retry=1)),
    CircleConfig(rounds=2),
    PenniesConfig(rounds=2),
    TicTacToeConfig(illegal=IllegalMoveHandling(then="random")),
)


class Spelled(FunctionEngine):
    """Its prompts' ids are the bytes of what it was asked; `rules` names policies whose answers have no tokens."""

    def __init__(self, say=random_move, *, rules: tuple[str, ...] = (), **order) -> None:
        super().__init__(say, **order)
        self._rules = rules

    def _answer(self, request: Request) -> Completion | CompletionFailure:
        text = self._say(request)
        if isinstance(text, CompletionFailure) or request.policy in self._rules:
            return text if isinstance(text, CompletionFailure) else Completion(text, (), (), (), "stop")
        prompt = tuple("".join(message.content for message in request.messages).encode())
        return Completion(text, prompt, tuple(text.encode()), (-0.5,) * len(text.encode()), "stop")


def grown(
    game: GameConfig, settings: TreeSampling, simulator: RolloutSimulator | None = None, many: int = 3
) -> list[list[Trajectory]]:
    """All courses of `many` deals, a list for each deal."""
    simulator = simulator or make_simulator(game, Spelled())
    played = settings.build().gather(
        0, lambda _: [make_deal(f"e{seed}", game, seed) for seed in range(many)], simulator
    )
    return [[course for course in played if course.id.split("~")[0] == f"e{seed}"] for seed in range(many)]


def decisions(courses: list[Trajectory]) -> dict[TurnId, list[tuple[Trajectory, Turn]]]:
    """The trunk's turn that was left -> candidates: the first turns that the courses leaving there have to themselves.

    The first course left no other one: it is a candidate where it was left first.
    """
    candidates: dict[TurnId, list[tuple[Trajectory, Turn]]] = defaultdict(list)
    for course in courses[1:]:
        assert course.parent is not None
        candidates[course.parent].append((course, course.turns[course.parent[1]]))
    first = courses[0]
    if candidates:
        at = next(iter(candidates))
        assert at[0] == first.id
        candidates[at].insert(0, (first, first.turns[at[1]]))
    return candidates


def paid(course: Trajectory, agent: str, own: float, team: float) -> float:
    of = [own * (reward.agent == agent) * reward.value + team * reward.value for reward in course.rewards]
    return sum(of)


# --- what is played --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.kind)
@pytest.mark.parametrize("candidates", [2, 3])
def test_every_turn_of_the_trunk_is_tried_so_many_times_from_one_state(game: GameConfig, candidates: int) -> None:
    say = lambda request: random_move(request) if request.seed % 4 else "mumble"  # noqa: E731
    for courses in grown(game, TreeSampling(candidates=candidates), make_simulator(game, Spelled(say))):
        attempts = decisions(courses)
        assert len(courses) == candidates * len(attempts)
        assert all(course.end == "terminated" for course in courses)
        for place, (left, group) in enumerate(attempts.items()):
            assert len(group) == candidates
            assert [turn.id for course, turn in group] == [(course.id, place) for course, _ in group]
            assert len({turn.id for _, turn in group} | {left}) == candidates + (place > 0)
            for same in ("agent", "nth", "attempt", "role", "problem"):
                assert len({getattr(turn, same) for _, turn in group}) == 1
            assert len({turn.completion.prompt_ids for _, turn in group}) == 1
            assert len({(turn.request.messages, turn.request.state) for _, turn in group}) == 1
            assert len({turn.request.seed for _, turn in group}) == candidates


@pytest.mark.parametrize(("own", "team"), [(1.0, 0.0), (0.0, 1.0), (1.0, 0.25)])
def test_the_best_candidate_is_gone_on_with_and_of_equals_the_earlier(own: float, team: float) -> None:
    ties = 0
    for game in (CircleConfig(rounds=2), PenniesConfig(rounds=2)):
        for courses in grown(game, TreeSampling(candidates=3, agent=own, team=team), many=4):
            trunk: Trajectory | None = None
            for left, group in decisions(courses).items():
                assert left[0] == (trunk or courses[0]).turns[left[1]].id[0]
                scores = [paid(course, turn.agent, own, team) for course, turn in group]
                ties += scores.count(max(scores)) > 1
                trunk = next(course for (course, _), score in zip(group, scores, strict=True) if score == max(scores))
            assert trunk is not None
            assert all(
                turn.id in {t.id for group in decisions(courses).values() for _, t in group} for turn in trunk.turns
            )
    assert ties, "often there are several best ones"


QUITS = ("player_1 1 0", "player_0 2 1")


@pytest.mark.parametrize(
    ("own", "team", "best"), [(1, 0, "stay"), (0, 1, "quit"), (1, 0.1, "stay"), (1, 0.2, "quit"), (0.5, 0, "stay")]
)
def test_a_score_is_made_of_what_ones_own_and_what_all_are_paid(own: float, team: float, best: str) -> None:
    """If player_0 quits at once, the three are paid 1, 10, 10; if it stays, 2, 1, 10."""

    def say(request: Request) -> str:
        first = request.state == "player_0 1 0"
        return random_move(request) if first else "[quit]" if request.state in QUITS else "[stay]"

    settings = TreeSampling(candidates=8, agent=own, team=team)
    for courses in grown(CircleConfig(rounds=2), settings, make_simulator(CircleConfig(rounds=2), Spelled(say))):
        first, second = list(decisions(courses).items())[:2]
        paid = {turn.action: [course.returns[agent] for agent in TRIO] for course, turn in first[1]}
        assert paid == {"quit": [1.0, 10.0, 10.0], "stay": [2.0, 1.0, 10.0]}
        assert next(turn.action for course, turn in first[1] if course.id == second[0][0]) == best


def test_when_all_are_paid_alike_the_first_candidate_is_gone_on_with() -> None:
    game = PenniesConfig(rounds=2)
    [courses] = grown(
        game, TreeSampling(candidates=2), make_simulator(game, Spelled(lambda request: "[heads]")), many=1
    )
    # Four turns, two candidates each: the first course's own answer is one; later, both are said anew.
    assert [(course.id, course.parent) for course in courses] == [
        ("e0", None),
        ("e0~0..1", ("e0", 0)),
        ("e0~1..1", ("e0", 1)),
        ("e0~1..2", ("e0", 1)),
        ("e0~1..1~2..1", ("e0~1..1", 2)),
        ("e0~1..1~2..2", ("e0~1..1", 2)),
        ("e0~1..1~2..1~3..1", ("e0~1..1~2..1", 3)),
        ("e0~1..1~2..1~3..2", ("e0~1..1~2..1", 3)),
    ]
    assert [[turn.id[0] for turn in course.turns] for course in courses[-1:]] == [
        ["e0", "e0~1..1", "e0~1..1~2..1", "e0~1..1~2..1~3..2"]
    ]


def test_with_many_candidates_everybody_ends_up_with_what_pays_it_most() -> None:
    """Staying for both rounds pays 10, and random play does so once in four times."""
    for courses in grown(CircleConfig(rounds=2), TreeSampling(candidates=16)):
        *_, (_, last) = decisions(courses).items()
        assert [turn.action for turn in last[0][0].turns[:-1]] == ["stay"] * 5
        assert {turn.action for _, turn in last} == {"stay", "quit"}


def test_a_tree_is_the_same_alone_and_among_others_and_whatever_the_order_of_answers() -> None:
    game = GAMES[0]
    crowd = grown(game, TreeSampling(candidates=3), many=6)
    again = grown(game, TreeSampling(candidates=3), make_simulator(game, Spelled(newest_first=True, batch=3)), many=6)
    assert again == crowd
    [alone] = grown(game, TreeSampling(candidates=3), many=1)
    assert alone == crowd[0]
    flat = (
        TreeSampling(candidates=3)
        .build()
        .gather(0, lambda _: [make_deal(f"e{i}", game, i) for i in range(6)], make_simulator(game, Spelled()))
    )
    assert flat == list(chain(*crowd)), "by deal, then as they were begun"


def test_it_keeps_nothing_from_step_to_step() -> None:
    game = GAMES[1]
    used, simulator = TreeSampling(candidates=2).build(), make_simulator(game, Spelled())
    used.gather(0, lambda _: [make_deal("before", game)], simulator)
    assert used.state_dict() == {}
    [fresh] = grown(game, TreeSampling(candidates=2), many=1)
    assert used.gather(0, lambda _: [make_deal("e0", game, 0)], simulator) == fresh


# --- whose turns -----------------------------------------------------------------------------------------------------


def seated(game: GameConfig, rules: tuple[str, ...] = ()) -> RolloutSimulator:
    voice = Spelled(rules=rules)
    roles = {name: PlayerRole(policy=name) for name in ("first", "second")}
    return make_simulator(game, dict.fromkeys(roles, voice), **roles)


def two_roles() -> Deal:
    return Deal("e", "e", 0, dict(zip(PAIR, ("first", "second"), strict=True)))


@pytest.mark.parametrize(("roles", "rules"), [(("first",), ()), ((), ("second",))], ids=["named", "no_tokens"])
def test_only_turns_of_the_roles_named_and_never_those_without_tokens_are_tried(roles, rules) -> None:
    game = PenniesConfig(rounds=2)
    courses = TreeSampling(candidates=3, roles=roles).build().gather(0, lambda _: [two_roles()], seated(game, rules))
    assert len(courses) == 3 * 2
    assert {turn.role for group in decisions(courses).values() for _, turn in group} == {"first"}
    assert [left[1] for left in decisions(courses)] == [0, 2]


def test_a_role_that_no_seat_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"experience\.roles: no seat has the role 'frist'; did you mean 'first'\?"):
        TreeSampling(roles=("frist",)).build().gather(0, lambda _: [two_roles()], seated(PenniesConfig()))


def test_a_game_without_a_turn_to_try_is_played_once() -> None:
    game = PenniesConfig()
    courses = TreeSampling().build().gather(0, lambda _: [two_roles()], seated(game, ("first", "second")))
    assert [course.parent for course in courses] == [None]
    assert TreeSampling().build().gather(0, lambda _: [], seated(game)) == []


# --- what becomes of it ----------------------------------------------------------------------------------------------


def test_its_tokens_are_for_training_and_each_is_counted_once() -> None:
    game = CircleConfig(rounds=2)
    simulator = make_simulator(game, Spelled())
    courses = list(chain(*grown(game, TreeSampling(candidates=3), simulator)))
    tokens = {turn.id: len(turn.completion.token_ids) for course in courses for turn in course.turns}
    assert simulator.tokens == {"train": sum(tokens.values())}
    assert {course.deal.purpose for course in courses} == {"train"}


def test_credit_that_forks_a_candidate_once_more_gets_courses_of_its_own() -> None:
    game = CircleConfig(rounds=1)
    simulator = make_simulator(game, Spelled())
    courses = list(chain(*grown(game, TreeSampling(candidates=2), simulator, many=1)))
    names = {course.id for course in courses}
    seeds = {turn.request.seed for course in courses for turn in course.turns}
    for left in decisions(courses):
        source = next(course for course in courses if course.id == left[0])
        for fork in simulator.play_forks([Fork(source, left[1], n=2)])[0]:
            assert fork.id not in names
            assert fork.deal.purpose == "credit"
            assert fork.turns[left[1]].request.seed not in seeds


def test_only_candidates_are_learnt_from_each_once_and_for_what_its_own_course_was_paid() -> None:
    game = KuhnPokerConfig()
    rule = CreditConfig.model_validate({"baseline": {"kind": "group", "like": "prompt"}})
    trees = grown(game, TreeSampling(candidates=4), many=8)
    courses = list(chain(*trees))
    batch = collect_samples(
        courses, CreditStage(rule)(Evidence(courses, game.kind)), {"player": PlayerRole(policy="actor")}, {}
    )["actor"]
    attempts = [each for tree in trees for group in decisions(tree).values() for each in group]
    assert {sample.id: sample.earned for sample in batch} == {
        turn.id: course.returns.get(turn.agent, 0.0) for course, turn in attempts
    }
    assert len(batch) == len(attempts) == len(courses)
    assert any(sample.advantage.value for sample in batch)


def test_what_it_says_of_a_step_can_be_counted() -> None:
    game = PenniesConfig(rounds=2)
    tree = TreeSampling(candidates=3).build()
    assert tree.metrics() == {}
    courses = tree.gather(
        0, lambda _: [make_deal(f"e{seed}", game, seed) for seed in range(5)], make_simulator(game, Spelled())
    )
    groups = [group for i in range(5) for group in decisions([c for c in courses if c.id[1] == str(i)]).values()]
    scores = [[course.returns.get(turn.agent, 0.0) for course, turn in group] for group in groups]
    assert tree.metrics() == {
        "tree/rollouts": len(courses) / 5,
        "tree/decisions": len(groups) / 5,
        "tree/gain": pytest.approx(fmean(max(each) - fmean(each) for each in scores)),
        "tree/tied": sum(len(set(each)) == 1 for each in scores) / len(scores),
    }


# --- what may go wrong -----------------------------------------------------------------------------------------------


def test_candidates_in_which_the_game_breaks_are_left_out() -> None:
    simulator = make_simulator(FailingPenniesConfig(), Spelled())
    simulator.drops.limit = 10**6
    played = (
        TreeSampling(candidates=4)
        .build()
        .gather(0, lambda _: [make_deal(f"e{i}", FailingPenniesConfig(), i) for i in range(40)], simulator)
    )
    assert simulator.drops.count
    assert {course.end for course in played} == {"terminated"}
    firsts = [course for course in played if course.parent is None]
    assert 0 < len(firsts) < 40
    assert len({course.id for course in played}) == len(played) < 4 * 4 * len(firsts)


def test_when_the_game_breaks_in_all_candidates_the_trunk_goes_on_as_it_was() -> None:
    def say(request: Request) -> str:
        return "[crack]" if len(voice.requests) > 4 else "[safe]"

    voice = Spelled(say)
    simulator = make_simulator(FailingPenniesConfig(), voice)
    simulator.drops.limit = 100
    tree = TreeSampling(candidates=2).build()
    [course] = tree.gather(0, lambda _: [make_deal("e", FailingPenniesConfig())], simulator)
    assert [turn.action for turn in course.turns] == ["safe"] * 4
    # The first answer was a candidate by itself; for each of the other three, two were tried.
    assert simulator.drops.count == 1 + 3 * 2
    assert tree.metrics()["tree/decisions"] == 1.0


def test_a_candidate_must_have_something_to_be_scored_by_and_somebody_to_be_compared_with() -> None:
    with pytest.raises(ValueError, match="agent and team are both 0"):
        TreeSampling(agent=0, team=0)
    with pytest.raises(ValueError, match="candidates"):
        TreeSampling(candidates=1)


def test_the_old_name_of_the_weight_of_an_agents_return_is_refused_with_the_new_one() -> None:
    with pytest.raises(ValueError, match="unknown field 'own'; it is now called 'agent'"):
        TreeSampling.model_validate({"own": 0.5, "team": 1})
    with pytest.raises(ValueError, match="unknown field 'own'"):
        TreeSampling.model_validate({"own": 0.5, "agent": 1})


def test_a_tree_makes_peers_in_groups_of_one_too() -> None:
    alone = kuhn_scenario(schedule={"steps": 1, "groups": 2, "group_size": 1})
    with pytest.raises(ScenarioError, match=r"schedule\.group_size: 1, but credit\.baseline 'group' compares"):
        validate(alone)
    assert validate(alone | {"experience": "tree"}).experience == TreeSampling()


# --- what is learnt from it ------------------------------------------------------------------------------------------


class GambleConfig(TextGameConfig):
    """`first` says a letter; `second` takes 1/2 for each, or `risky`: then `third` shows a coin; heads pays each 1."""

    kind: str = "gamble"

    def build(self) -> Gamble:
        return Gamble(self)


class Gamble(TextGame):
    name = "gamble"

    def __init__(self, config: GambleConfig) -> None:
        super().__init__(("first", "second", "third"), config.illegal, (*"abcd", "safe", "risky", "heads", "tails"))

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.said: list[str] = []
        self.key = str(rng.random())
        return "first"

    def start_state_key(self) -> str:
        return self.key

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return (("a", "b", "c", "d"), ("safe", "risky"), ("heads", "tails"))[len(self.said)]

    def describe_observation(self, agent: str) -> str:
        return " ".join(self.said) or "nothing"

    def information_state(self, agent: str) -> str:
        return self.describe_observation(agent)

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        self.said.append(action)
        if len(self.said) < 3:
            return ("first", "second", "third")[len(self.said)]
        return dict.fromkeys(self.agents, 0.5 if self.said[1] == "safe" else float(action == "heads"))


@pytest.mark.parametrize("candidates", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_what_is_learnt_is_the_gradient_of_what_is_paid(candidates: int) -> None:
    """E[R d log pi / d logit], by hand: to gamble pays as much as to play safe, so uniform players have nothing to
    learn there, nor from letters. After a gamble it is 1/4 for heads; taking off the mean of K leaves (K - 1) / K."""
    rule = CreditConfig.model_validate({"baseline": {"kind": "agent_turn_group", "std": False}})
    courses = list(chain(*grown(GambleConfig(), TreeSampling(candidates=candidates), many=600)))
    judgement = CreditStage(rule)(Evidence(courses, "gamble"))
    turns = {turn.id: turn for course in courses for turn in course.turns}
    slopes: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in collect_samples(courses, judgement, {"player": PlayerRole(policy="actor")}, {})["actor"]:
        turn = turns[sample.id]
        chance = {"a": 1 / 4, "risky": 1 / 2, "heads": 1 / 2}
        move = next(move for move in chance if move in (turn.request.options or ()))
        slope = sample.advantage.value * ((turn.action == move) - chance[move])
        slopes["safe" if "safe" in turn.request.state else move][sample.group].append(slope)
    expected = {"a": 0.0, "risky": 0.0, "heads": (1 - 1 / candidates) / 4, "safe": 0.0}
    for name, slope in expected.items():
        assert {len(own) for own in slopes[name].values()} == {candidates}
        means = [fmean(own) for own in slopes[name].values()]
        assert fmean(means) == pytest.approx(slope, abs=4 * stdev(means) / len(means) ** 0.5), name
