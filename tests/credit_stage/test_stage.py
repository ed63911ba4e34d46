"""One step judged by a scenario's rules, and what learners get of it."""

import math
from dataclasses import replace
from statistics import correlation
from typing import Any, ClassVar

import pytest

from marl.core.graph import Trajectory
from marl.core.types import Advantage, Credit, Fork, Metrics, Reading
from marl.credit.assign.reward_rules import AgentReturnAssign
from marl.credit_stage.stage import CreditStage, InvalidCreditError, StepCredit
from marl.games.stopping import StoppingConfig
from marl.games.tic_tac_toe import TicTacToeConfig
from marl.protocols import AssignConfig, BaselineConfig, Evidence
from marl.roles.answering import PlayerRole
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import CreditConfig
from marl.training.samples import collect_samples
from tests.support.handmade_episodes import advantages_of, make_episode, make_evidence
from tests.support.small_games import FunctionEngine, make_deal, make_simulator, random_move

PLAIN = {"assign": {"kind": "outcome"}, "baseline": {"kind": "none"}}


def judge(**settings: Any) -> CreditStage:
    return CreditStage(CreditConfig.model_validate({**PLAIN, **settings}))


def test_scale_scales_what_credit_reads_and_not_the_rewards() -> None:
    t = make_episode("e", "ab", [("a", 3.0, 1)])
    judgement = judge(scale=0.5)(make_evidence(t))
    assert advantages_of(judgement.credit, t) == advantages_of(judgement.earned, t) == [1.5, 0.0]
    assert t.returns == {"a": 3.0}


def test_a_role_can_have_a_rule_of_its_own() -> None:
    seats = {"a": "x", "b": "y"}
    episodes = [make_episode(f"{i}", "abab", [("a", 1.0 + i, 0), ("b", 2.0 + i, 3)], seats=seats) for i in range(2)]
    own = {"assign": {"kind": "outcome", "to_go": True}, "baseline": {"kind": "group", "std": False}, "scale": 2}
    judgement = judge(baseline={"kind": "role_average"}, roles={"y": own})(make_evidence(*episodes))
    assert advantages_of(judgement.earned, episodes[1]) == [2.0, 6.0, 2.0, 6.0]
    assert advantages_of(judgement.credit, episodes[1])[1::2] == [1.0, 1.0]
    # Each comparison sees only the turns that it judges.
    own = {name for name in judgement.metrics if not name.startswith(("credit/x/", "credit/y/"))}
    assert own == {"credit/average/a_game/x/a", "credit/groups@y", "credit/degenerate_groups@y"}


def test_the_state_of_every_rule_survives() -> None:
    rules = {"baseline": {"kind": "role_average"}, "roles": {"y": {**PLAIN, "baseline": {"kind": "role_average"}}}}
    episodes = [
        make_episode(f"{i}", "ab", [("a", 1.0, 1), ("b", -1.0, 1)], seats={"a": "x", "b": "y"}) for i in range(2)
    ]
    whole, before, after = judge(**rules), judge(**rules), judge(**rules)
    whole(make_evidence(episodes[0]))
    before(make_evidence(episodes[0]))
    after.load_state_dict(before.state_dict())
    assert after(make_evidence(episodes[1])) == whole(make_evidence(episodes[1]))


ROLES = {
    "x": PlayerRole(policy="one"),
    "y": PlayerRole(policy="two"),
    "frozen": PlayerRole(policy="one", trainable=False),
}


def test_learners_get_judged_turns_of_trained_roles_that_a_model_said() -> None:
    seats = {"a": "x", "b": "y", "c": "frozen", "d": "x"}
    t = make_episode("e", "abcdab", seats=seats, prompts=[(1,), (2,), (3,), (), (5,), (6,)])
    credit = {turn.id: Advantage(float(i)) for i, turn in enumerate(t.turns) if i != 1}
    reading = Reading((-0.1,))
    batches = collect_samples([t], StepCredit({}, credit, {}), ROLES, {("e", 4): reading})
    assert {name: [s.id[1] for s in samples] for name, samples in batches.items()} == {"one": [0, 4], "two": [5]}
    assert [s.advantage.value for s in batches["one"]] == [0.0, 4.0]
    assert [s.reading for s in batches["one"]] == [None, reading]
    assert [(s.nth, s.end) for s in batches["one"]] == [(0, "no"), (1, "terminated")]


def test_of_courses_that_part_only_the_turns_at_which_they_do_are_learnt_from() -> None:
    game = TicTacToeConfig()
    laid = make_simulator(game, FunctionEngine(random_move))
    [past] = laid.play([make_deal("e", game)])
    episodes = [past, *laid.play_forks([Fork(past, 2, n=3)])[0]]
    judgement = judge()(make_evidence(*episodes))
    samples = collect_samples(episodes, judgement, {"player": PlayerRole(policy="actor")}, {})["actor"]
    assert [sample.id for sample in samples] == [(t.id, 2) for t in episodes]
    assert {sample.group for sample in samples} == {past.start}


# --- what a baseline by name is told ---------------------------------------------------------------------------


class Told(BaselineConfig):
    """Gives each turn what the reward `second` alone would have earned it."""

    kind: str = "told"
    uses_reward_names: ClassVar[bool] = True

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        return {turn: evidence.earned_by_reward["second"][turn] for turn in earned}, {
            "names": float(len(evidence.earned_by_reward))
        }


def named(name: str) -> Trajectory:
    t = make_episode(name, "ab", [("a", 3.0, 0), ("b", 1.0, 1), ("a", 0.5, 1)])
    t.rewards = [
        replace(reward, name=part) for reward, part in zip(t.rewards, ("first", "first", "second"), strict=True)
    ]
    return t


def test_a_baseline_by_name_is_told_what_each_reward_alone_would_have_earned() -> None:
    one, other = named("e"), make_episode("f", "ab")
    judgement = judge(baseline=Told(), scale=2)(make_evidence(one, other))
    assert advantages_of(judgement.earned, one) == [7.0, 2.0]
    assert advantages_of(judgement.credit, one) == [1.0, 0.0]
    assert advantages_of(judgement.credit, other) == [0.0, 0.0]
    assert judgement.metrics["names"] == 2.0
    assert [reward.value for reward in one.rewards] == [3.0, 1.0, 0.5]


def test_other_baselines_are_not_told_and_assign_is_asked_once() -> None:
    requests: list[Evidence] = []

    class Counted(AgentReturnAssign):
        kind: str = "counted"

        def __call__(self, evidence: Evidence) -> Credit:
            requests.append(evidence)
            return super().__call__(evidence)

    judge(assign=Counted())(make_evidence(named("e")))
    assert len(requests) == 1
    judge(assign=Counted(), baseline=Told())(make_evidence(named("e")))
    assert [[r.name for r in e.trajectories[0].rewards] for e in requests[2:]] == [["first"] * 2, ["second"]]


# --- more play is paid alike -----------------------------------------------------------------------------------


class Again(AssignConfig):
    """What the same agent is paid when its first turn is played again."""

    kind: str = "again"

    def __call__(self, evidence: Evidence) -> Credit:
        assert evidence.simulator
        turns = [trajectory.turns[0] for trajectory in evidence.trajectories]
        courses = evidence.simulator.play_forks([Fork(t, 0) for t in evidence.trajectories], evidence.reward_transform)
        again = [evidence.simulator.play_forks([Fork(one, 0)], evidence.reward_transform)[0][0] for [one] in courses]
        returns = [course.returns.get(turn.agent, 0.0) for turn, course in zip(turns, again, strict=True)]
        return {turn.id: Advantage(value) for turn, value in zip(turns, returns, strict=True)}

    def metrics(self) -> Metrics:
        return {"credit/again": 1.0}


def again(**settings: Any) -> tuple[StepCredit, RolloutSimulator]:
    game = StoppingConfig(intermediate=0.25)
    laid = make_simulator(game, FunctionEngine(random_move))
    episodes = laid.play([make_deal(f"{i}", game) for i in range(4)])
    return judge(assign=Again(), **settings)(Evidence(episodes, game.kind, simulator=laid)), laid


def test_scale_scales_the_rewards_of_what_credit_plays() -> None:
    assert {a.value for a in again()[0].earned.values()} == {1.0}
    assert {a.value for a in again(scale=0.5)[0].earned.values()} == {0.5}


def test_what_credit_plays_for_one_named_reward_pays_only_that() -> None:
    class Intermediate(Told):
        kind: str = "intermediate"

        def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
            return dict(evidence.earned_by_reward["intermediate"]), {}

    judgement, _ = again(baseline=Intermediate())
    assert {a.value for a in judgement.credit.values()} == {0.0, 0.25}


def test_an_assignment_says_something_of_itself() -> None:
    assert again()[0].metrics["credit/again"] == 1.0


# --- rules beside ----------------------------------------------------------------------------------------------


def beside() -> list[Trajectory]:
    paid = ([("a", 1.0, 0), ("b", -1.0, 3)], [("a", -1.0, 2)], [("b", 4.0, 1)])
    return [make_episode(f"{i}", "abab", given, seats={"a": "x", "b": "y"}) for i, given in enumerate(paid)]


def test_rules_beside_are_reported_and_change_nothing() -> None:
    compare = {"to_go": {**PLAIN, "assign": {"kind": "outcome", "to_go": True}}}
    alone, reported = judge()(make_evidence(*beside())), judge(compare=compare)(make_evidence(*beside()))
    assert (alone.earned, alone.credit) == (reported.earned, reported.credit)
    told = {name: value for name, value in reported.metrics.items() if name not in alone.metrics}
    # x: outcome 1 1 -1 -1 0 0, to go 1 0 -1 -1 0 0; y: -1 -1 0 0 4 4 and -1 -1 0 0 4 0.
    assert told == {
        "credit/x/sign_agreement/to_go": 0.75,
        "credit/x/correlation/to_go": pytest.approx(correlation([1, 1, -1, -1, 0, 0], [1, 0, -1, -1, 0, 0])),
        "credit/y/sign_agreement/to_go": 0.75,
        "credit/y/correlation/to_go": pytest.approx(correlation([-1, -1, 0, 0, 4, 4], [-1, -1, 0, 0, 4, 0])),
    }


def test_the_state_of_rules_beside_survives() -> None:
    compare = {"average": {**PLAIN, "baseline": "role_average"}}
    whole, before, after = (judge(compare=compare) for _ in range(3))
    whole(make_evidence(*beside()[:1]))
    before(make_evidence(*beside()[:1]))
    after.load_state_dict(before.state_dict())
    assert after(make_evidence(*beside()[1:])) == whole(make_evidence(*beside()[1:]))


# --- rules of one's own that go wrong ----------------------------------------------------------------------------


class Result(AssignConfig):
    """Returns whatever it holds."""

    kind: str = "result"
    result: Any = None

    def __call__(self, evidence: Evidence) -> Credit:
        return self.result


class ComparedResult(BaselineConfig):
    """Returns whatever it holds in place of credit and figures."""

    kind: str = "compared"
    result: Any = None

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        return self.result


TURN, NAN = ("e", 0), float("nan")
UNUSABLE = {
    "nothing": (None, "returned NoneType; it must return a mapping from the ids of turns to Advantage"),
    "a list": ([Advantage(1.0)], "returned list"),
    "a stranger": ({"e": Advantage(1.0)}, "judged 'e', which is the id of no turn of this step, such as ('e', 0)"),
    "a number": ({TURN: 0.5}, "gave turn ('e', 0) 0.5; it must be an Advantage"),
    "nan": ({TURN: Advantage(NAN)}, "gave turn ('e', 0) nan, though all rewards and readings are finite"),
    "nan tokens": ({TURN: Advantage(1.0, (NAN,))}, "gave turn ('e', 0) 1, though all rewards and readings are finite"),
    "inf target": ({TURN: Advantage(1.0, (), (float("inf"),))}, "though all rewards and readings are finite"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_rule_whose_result_cannot_be_used_is_named(name: str) -> None:
    result, message = UNUSABLE[name]
    t = make_episode("e", "ab", [("a", 1.0, 1)], seats={"a": "x", "b": "y"})
    with pytest.raises(InvalidCreditError) as caught:
        judge(assign=Result(result=result))(make_evidence(t))
    assert str(caught.value).startswith("credit.assign: 'result' ")
    assert message in str(caught.value)
    with pytest.raises(InvalidCreditError) as caught:
        judge(roles={"x": {**PLAIN, "baseline": ComparedResult(result=result if result is None else (result, {}))}})(
            make_evidence(t)
        )
    assert str(caught.value).startswith("credit.roles.x.baseline: 'compared' ")
    assert message in str(caught.value)


def test_a_rule_may_give_tokens_as_a_list_and_nan_in_it_is_found() -> None:
    t = make_episode("e", "ab", [("a", 1.0, 1)])
    numbers: Any = [1.0, 2.0]
    assert judge(assign=Result(result={TURN: Advantage(1.0, numbers)}))(make_evidence(t)).credit[TURN].value == 1.0
    numbers[1] = NAN
    with pytest.raises(InvalidCreditError, match="finite"):
        judge(assign=Result(result={TURN: Advantage(1.0, numbers)}))(make_evidence(t))


def test_numbers_that_were_not_finite_before_are_left_to_the_learner_which_names_their_turns() -> None:
    t = make_episode("e", "ab", [("a", NAN, 1)])
    assert math.isnan(judge()(make_evidence(t)).credit["e", 0].value)
    whole = make_episode("e", "ab", [("a", 1.0, 1)])
    read = Evidence([whole], "a_game", {TURN: Reading((-1.0,), values=(NAN,))})
    assert math.isnan(judge(assign=Result(result={TURN: Advantage(NAN)}))(read).credit[TURN].value)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({}, 0.0),
        ({TURN: Advantage(0.0)}, 0.0),
        ({TURN: Advantage(0.5)}, 0.5),
        ({TURN: Advantage(0.0, (1.0, -1.0)), ("e", 2): Advantage(-0.1)}, 1.0),
    ],
    ids=["nothing", "zero", "one of two", "both"],
)
def test_the_share_of_turns_from_which_something_can_be_learnt_is_reported(result: Credit, expected: float) -> None:
    t = make_episode("e", "abav", [("a", 1.0, 1)], seats={"a": "x", "b": "y", "v": "verifier"})
    judgement = judge(assign=Result(result=result))(Evidence([t], "a_game", rule_based_roles=frozenset({"verifier"})))
    figures = {name: value for name, value in judgement.metrics.items() if name.endswith("/nonzero")}
    assert figures == {"credit/x/nonzero": expected, "credit/y/nonzero": 0.0}
