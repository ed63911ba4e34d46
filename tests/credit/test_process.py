"""Process rewards combined with the outcome."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import pytest
from pydantic import ValidationError

from marl.core.graph import Trajectory
from marl.core.types import Credit, Reward
from marl.credit.assign.process import ProcessRewardAssign, rewards_by_name_and_turn
from marl.credit.assign.process_formulas import (
    FORMS,
    AgentEpisodeRewards,
    RewardSourceWeights,
    scale_by_max_reward_to_go,
)
from marl.credit.assign.reward_rules import FullTeamRewardAssign
from marl.protocols import Evidence
from marl.scenario.load import explain_validation_error
from tests.support.addition_task import team_config, team_deal, team_simulator
from tests.support.credit_graphs import fork_episode, random_episode
from tests.support.handmade_episodes import TimedRewards, advantages_of, make_episode

RULES = frozenset({"verifier"})


def paid(
    name: str, agents: str, process: Mapping[int, float], outcome: TimedRewards = (), start: str = "s"
) -> Trajectory:
    """Who speaks is paid `process` for its turn, and `outcome`s for the whole."""
    t = make_episode(name, agents, outcome, start=start)
    t.rewards += [Reward(agents[turn], value, (name, turn), "step") for turn, value in process.items()]
    return t


def credit(t: Sequence[Trajectory], **settings: Any) -> Credit:
    return ProcessRewardAssign(**{"rewards": ("step",), **settings}).build()(
        Evidence(t, "a_game", rule_based_roles=RULES)
    )


def rows(t: Sequence[Trajectory], **settings: Any) -> list[list[float]]:
    judged = credit(t, **settings)
    return [advantages_of(judged, each) for each in t]


def three() -> list[Trajectory]:
    """K = 3 episodes of one agent: process rewards [1, 2], [3] and [0, 0, 3], outcomes 1, 0 and 1."""
    return [
        paid("e1", "aa", {0: 1.0, 1: 2.0}, [("a", 1.0, 1)]),
        paid("e2", "a", {0: 3.0}),
        paid("e3", "aaa", {2: 3.0}, [("a", 1.0, 2)]),
    ]


# --- who a payment on the way is for ------------------------------------------------------------------------------


def test_a_payment_is_for_the_payees_own_last_turn() -> None:
    # The verifier speaks last and pays a and b; c is paid before it ever spoke, which is for none of its turns.
    t = make_episode("e", "abcv", [("a", 9.0, 3)], seats={"a": "x", "b": "x", "c": "x", "v": "verifier"})
    t.rewards += [Reward("a", 1.0, ("e", 3), "step"), Reward("b", 2.0, ("e", 3), "step")]
    t.rewards += [Reward("a", 4.0, ("e", 0), "step"), Reward("c", 8.0, ("e", 1), "step")]
    assert rewards_by_name_and_turn(t, ["step", "none"]) == {"step": {("e", 0): 5.0, ("e", 1): 2.0}, "none": {}}
    judged = credit([t], teams=(("a", "b"),))
    assert {turn[1]: advantage.value for turn, advantage in judged.items()} == {0: 14.0, 1: 11.0, 2: 0.0}


def test_without_process_rewards_it_is_the_outcome_of_the_team() -> None:
    t = random_episode(0)
    seen = Evidence([t], "a_game", rule_based_roles=RULES)
    assert ProcessRewardAssign(rewards=("never",)).build()(seen) == FullTeamRewardAssign()(seen)


def test_process_rewards_are_left_out_of_the_outcome_and_not_shared() -> None:
    t = paid("e", "abab", {0: 1.0, 1: 10.0, 2: 100.0}, [("a", 1000.0, 3)])
    assert rows([t]) == [[1101.0, 1010.0, 1100.0, 1000.0]]
    assert rows([t], teams=(("a",), ("b",))) == [[1101.0, 10.0, 1100.0, 0.0]]
    assert rows([t], common="mean") == [[601.0, 510.0, 600.0, 500.0]]


def test_a_weighted_sum_with_discounts_by_hand() -> None:
    # a's turns: r = 1, 4 and R = 8. To go with 1/2: 3, 4; twice that, and 8 times 1/4 (one more turn to go) and 1.
    t = paid("e", "aba", {0: 1.0, 2: 4.0}, [("a", 8.0, 2)])
    settings = {"discount": 0.5, "outcome_discount": 0.25, "weights": {"step": 2.0, "outcome": 0.5}}
    assert rows([t], teams=(("a",), ("b",)), **settings) == [[6.0 + 1.0, 0.0, 8.0 + 4.0]]


def test_rewards_of_several_names_count_by_their_weights() -> None:
    t = paid("e", "aa", {0: 1.0, 1: 2.0})
    t.rewards += [Reward("a", 10.0, ("e", 0), "form")]
    assert rows([t], rewards=("step", "form"), weights={"form": 0.5}) == [[8.0, 2.0]]
    assert rows([t], rewards=("form",), weights={"outcome": 2.0}) == [[10.0 + 6.0, 6.0]]


@pytest.mark.parametrize("combine", ["sum", "max_abs"])
def test_an_inherited_turn_is_judged_where_it_was_said(combine: str) -> None:
    past = paid("e", "aa", {0: 1.0, 1: 1.0}, [("a", 1.0, 1)])
    branch = fork_episode(past, 1, "f", "a", [("a", 4.0, 1)])
    branch.rewards.append(Reward("a", 1.0, ("e", 0), "step"))
    first, second, other = (2.0, 1.0, 0.0) if combine == "sum" else (1.0, 0.5, 0.0)
    judged = credit([past, branch], combine=combine)
    assert judged["e", 0].value == pytest.approx(first + 1, rel=1e-6)
    assert judged["e", 1].value == pytest.approx(second + 1, rel=1e-6)
    assert judged["f", 1].value == pytest.approx(other + 4, rel=1e-6)


# --- published forms, worked out by hand --------------------------------------------------------------------------


def test_max_abs_divides_by_the_largest_reward_to_go_of_the_step() -> None:
    # To go: [3, 2], [3], [3, 3, 3]: the largest is 3. Agent-R1 then adds the outcome.
    expected = [[1 + 1, 2 / 3 + 1], [1.0], [2.0, 2.0, 2.0]]
    for row, by_hand in zip(rows(three(), combine="max_abs"), expected, strict=True):
        assert row == pytest.approx(by_hand, rel=1e-6)
    assert rows([paid("e", "a", {})], combine="max_abs") == [[0.0]]


def test_the_papers_prime_by_hand() -> None:
    # gamma = 1/2. Means of process rewards: 1.5, 3, 1; the mean of the two others': 2, 1.25, 2.25.
    # e1: 1 - 2 = -1 and 2 - 2 = 0; to go -1 and 0. Outcome 1 - (0 + 1)/2 = .5.
    # e2: 3 - 1.25 = 1.75. Outcome 0 - (1 + 1)/2 = -1.
    # e3: -2.25, -2.25, .75; to go .75, then -2.25 + .375 = -1.875, then -2.25 - .9375 = -3.1875. Outcome .5.
    advantages = rows(three(), combine="prime_paper", discount=0.5)
    assert advantages == [[-0.5, 0.5], [0.75], [-2.6875, -1.375, 1.25]]


def test_the_released_prime_by_hand() -> None:
    # Divided by 3 (the largest |to go|): [1/3, 2/3], [1], [0, 0, 1], with means 1/2, 1, 1/3, which sum to 11/6.
    # K/(K-1) = 3/2, so minus 11/12: -5/12 and 1/12; 7/12; -11/12, -11/12, 7/12.
    # To go with gamma = 1/2: -3/8, 1/12; 7/12; -59/48, -5/8, 7/12. Outcomes 3/2 R - 2/2: 1/2, -1, 1/2, undiscounted.
    # Together: 1/8, 7/12; -5/12; -35/48, -1/8, 13/12; their mean is 25/288, their spread (ddof 1) 0.6641119.
    before = [[1 / 8, 7 / 12], [-5 / 12], [-35 / 48, -1 / 8, 13 / 12]]
    expected = [[(x - 25 / 288) / 0.6641119 for x in row] for row in before]
    advantages = rows(three(), combine="prime_released", discount=0.5)
    for row, by_hand in zip(advantages, expected, strict=True):
        assert row == pytest.approx(by_hand, abs=2e-6)


def test_the_released_token_term_equals_the_papers_only_on_the_rows_average() -> None:
    # ALGORITHMS.md section 11. With gamma = 0 a turn keeps its own term alone; without outcomes nothing else is there.
    made = scale_by_max_reward_to_go([AgentEpisodeRewards("g", [r], 0.0) for r in ([1.0, 2.0], [3.0], [0.0, 0.0, 3.0])])
    weights = RewardSourceWeights([1.0], discount=0.0)
    # The paper's on the same (normalised) rewards: 1/3 - 2/3, 2/3 - 2/3; 1 - 5/12; -3/4, -3/4, 1/4.
    paper = [[-1 / 3, 0.0], [7 / 12], [-3 / 4, -3 / 4, 1 / 4]]
    released = [[-5 / 12, 1 / 12], [7 / 12], [-11 / 12, -11 / 12, 7 / 12]]
    for form, by_hand in (("prime_paper", paper), ("prime_released", released)):
        for row, expected in zip(FORMS[form](made, weights), by_hand, strict=True):
            assert row == pytest.approx(expected, abs=1e-6)
    # normalising again divides by 1.000001: no difference at this precision
    for a, b in zip(paper, released, strict=True):
        assert fmean(a) == pytest.approx(fmean(b))
    assert paper[0] != pytest.approx(released[0])


def masked_rloo(values: Any, mask: Any) -> Any:
    """The token term of PRIME's released code as ALGORITHMS.md states it, on padded tensors."""
    many = len(values)
    mean = (values * mask).sum(1) / mask.sum(1)
    return (values * many / (many - 1) - mean.sum() / (many - 1)) * mask


@pytest.mark.parametrize("seed", range(3))
def test_the_released_form_agrees_with_tensors(seed: int) -> None:
    import torch

    torch.manual_seed(seed)
    lengths = [2, 5, 1, 4]
    mask = torch.tensor([[float(t < n) for t in range(5)] for n in lengths], dtype=torch.float64)
    process, outcome = torch.randn(4, 5, dtype=torch.float64) * mask, torch.rand(4, 1, dtype=torch.float64)
    last = mask - torch.cat([mask[:, 1:], torch.zeros(4, 1)], dim=1)

    def reverse_cumsum(x: torch.Tensor) -> torch.Tensor:
        return x.flip(1).cumsum(1).flip(1)

    scaled = process / (reverse_cumsum(process).abs().max() + 1e-6)
    whole = reverse_cumsum(5 * masked_rloo(scaled, mask) + 2 * masked_rloo(outcome * last, last))[mask > 0]
    expected = (whole - whole.mean()) * torch.rsqrt(whole.var() + 1e-8)
    played = [
        paid(f"e{i}", "a" * n, dict(enumerate(process[i, :n].tolist())), [("a", outcome[i].item(), n - 1)])
        for i, n in enumerate(lengths)
    ]
    advantages = rows(played, combine="prime_released", weights={"step": 5.0, "outcome": 2.0})
    assert [x for row in advantages for x in row] == pytest.approx(expected.tolist(), abs=1e-9)


def test_decoupled_with_one_turn_is_gdpo_and_a_loud_reward_does_not_drown_a_quiet_one() -> None:
    # Right: 0, 0, 1, 1; long: 0, 100, 100, 0. Each alone has mean 1/2 (50), deviation +-.5 (50), spread .5773503
    # (57.73503) with ddof 1: +-.8660254. Sums: -1.7320508, 0, 1.7320508, 0; their spread is sqrt(6/3).
    played = [
        paid(f"e{i}", "a", {0: long}, [("a", right, 0)])
        for i, (right, long) in enumerate([(0.0, 0.0), (0.0, 100.0), (1.0, 100.0), (1.0, 0.0)])
    ]
    advantages = [row[0] for row in rows(played, combine="decoupled", epsilon=0.0)]
    assert advantages == pytest.approx([-1.2247449, 0.0, 1.2247449, 0.0], abs=1e-6)
    advantages = [row[0] for row in rows(played, combine="decoupled", epsilon=0.0, weights={"outcome": 3.0})]
    # Sums: -3.4641016, -1.7320508, 3.4641016, 1.7320508; their spread is sqrt(30/3).
    assert advantages == pytest.approx([-1.0954451, -0.5477226, 1.0954451, 0.5477226], abs=1e-6)


def test_decoupled_compares_rewards_to_go_of_nth_turns_and_outcomes_of_episodes() -> None:
    # To go: [3, 2], [3], [3, 3, 3]: first turns are alike, second ones are -.5 and .5 from their mean, the only third
    # one has no peer; the spread of all six is .4082483. Outcomes 1, 0, 1: mean 2/3, spread .5773503.
    half, right, wrong = 0.5 / 0.4082483, 0.5773503, -1.1547005
    sums = [right, -half + right, wrong, right, half + right, right]
    expected = [(x - fmean(sums)) / stdev(sums) for x in sums]
    advantages = rows(three(), combine="decoupled", epsilon=0.0)
    assert [x for row in advantages for x in row] == pytest.approx(expected, abs=1e-5)


def test_decoupled_credits_no_turn_for_its_place_in_the_episode() -> None:
    # What comes later earns less in every episode; only the first episode's second turn is better than its peers.
    played = [paid(f"e{i}", "aaa", {0: 0.3, 1: 0.3 + (i == 0), 2: 0.3}) for i in range(4)]
    third = [row[2] for row in rows(played, combine="decoupled")]
    assert third == pytest.approx([0.0] * 4, abs=1e-9)
    best, *others = rows(played, combine="decoupled")
    assert best[1] > 1 > 0 > max(row[1] for row in others)


COMPARING = ["prime_paper", "prime_released", "decoupled"]


@pytest.mark.parametrize("combine", COMPARING)
@pytest.mark.parametrize("value", [0.1, 0.3, 0.7])
def test_a_constant_group_gets_exactly_0(combine: str, value: float) -> None:
    alike = [paid(f"e{i}", "aa", {0: value, 1: value}, [("a", value, 1)]) for i in range(5)]
    assert {x for row in rows(alike, combine=combine, discount=0.0) for x in row} == {0.0}
    differ = [paid(f"f{i}", "a", {0: value}, [("a", float(i > 0), 0)], start="t") for i in range(3)]
    assert {x for row in rows([*alike, *differ], combine=combine, discount=0.0)[:5] for x in row} == {0.0}


@pytest.mark.parametrize("combine", COMPARING)
def test_a_reward_that_is_not_finite_reaches_its_turns_for_the_learner_to_name_them(combine: str) -> None:
    broken = [paid(f"e{i}", "a", {0: value}) for i, value in enumerate((0.0, 1.0, math.nan))]
    assert any(math.isnan(x) for row in rows(broken, combine=combine) for x in row)


@pytest.mark.parametrize("discount", [0.0, 0.9, 1.0])
def test_decoupled_gives_turns_of_equal_episodes_0_though_later_ones_have_less_to_come(discount: float) -> None:
    equal = [paid(f"e{i}", "aaa", {0: 0.1, 1: 0.3, 2: 0.7}, [("a", 0.1, 2)]) for i in range(5)]
    assert {x for row in rows(equal, combine="decoupled", discount=discount) for x in row} == {0.0}
    other = [paid(f"f{i}", "aa", {0: float(i)}, start="t") for i in range(3)]
    judged = rows([*equal, *other], combine="decoupled", discount=discount)
    assert {x for row in judged[:5] for x in row} == {0.0}
    assert any(x for row in judged[5:] for x in row)


@pytest.mark.parametrize("combine", COMPARING)
def test_who_has_no_peers_gets_0_and_does_not_count_in_the_step(combine: str) -> None:
    alone = paid("e4", "aa", {0: 50.0}, [("a", -50.0, 1)], start="another")
    stranger = paid("e5", "bb", {0: 50.0}, [("b", -50.0, 1)])
    advantages = rows([*three(), alone, stranger], combine=combine)
    assert advantages[3:] == [[0.0, 0.0], [0.0, 0.0]]
    without = three()
    for t in (alone, stranger):
        t.rewards = []
    if combine != "prime_released":  # there the largest reward of the step counts
        assert advantages[:3] == rows(without, combine=combine)
    assert rows([*without, alone, stranger], combine=combine)[:3] == rows(three(), combine=combine)


@pytest.mark.parametrize("combine", ["prime_released", "decoupled"])
def test_what_is_whitened_has_mean_0_and_spread_1_over_the_steps_turns(combine: str) -> None:
    played = [random_episode(seed, names=("outcome", "step")) for seed in range(6)]
    judged = credit(played, combine=combine)
    values = [advantage.value for advantage in judged.values()]
    assert len(values) == sum(turn.role != "verifier" for t in played for turn in t.turns)
    assert fmean(values) == pytest.approx(0.0, abs=1e-9)
    assert stdev(values) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_the_papers_prime_without_discount_sums_to_0_over_first_turns_of_equally_long_rows(seed: int) -> None:
    # Leave-one-out terms of a group sum to 0, process and outcome alike.
    rng = random.Random(seed)
    played = [
        paid(f"e{i}", "aaa", {s: rng.uniform(-1, 1) for s in range(3)}, [("a", rng.uniform(-1, 1), 2)])
        for i in range(4)
    ]
    assert sum(row[0] for row in rows(played, combine="prime_paper")) == pytest.approx(0.0, abs=1e-12)


# --- scores of seats that answer by rule ----------------------------------------------------------------------------


SEATS = {"a": "solver", "b": "solver", "v": "verifier"}


def scored(
    agents: str, answers: Mapping[int, str], outcome: TimedRewards = (), seats: Mapping[str, str] = SEATS
) -> Trajectory:
    """Everybody hears everybody; the turns in `answers` say these texts."""
    played = make_episode("e", agents, outcome, seats=seats)
    made = Trajectory(played.deal, played.start)
    for turn in played.turns:
        completion = replace(turn.completion, text=answers.get(turn.id[1], "5"))
        made.add(replace(turn, completion=completion), played.graph.pred[turn.id])
    made.rewards, made.end = played.rewards, played.end
    return made


def scores(**values: float) -> str:
    return json.dumps({"scores": values, "why": {}})


def by_turn(t: Trajectory, **settings: Any) -> dict[int, float]:
    credit = ProcessRewardAssign(**{"scores": {"verifier": ("right",)}, "discount": 0.0, **settings}).build()(
        Evidence([t], "a_game", rule_based_roles=RULES)
    )
    return {turn[1]: advantage.value for turn, advantage in credit.items()}


def test_a_score_belongs_to_the_turn_that_its_seat_read_last() -> None:
    t = scored("avbv", {1: scores(right=1), 3: scores(right=0.5)}, [("a", 8.0, 3)])
    assert by_turn(t) == {0: 8.0 + 1.0, 2: 8.0 + 0.5}
    # Of several turns that it had not read yet, the last; verdicts on verdicts are nobody's.
    assert by_turn(scored("abv", {2: scores(right=1)})) == {0: 0.0, 1: 1.0}
    two = {"a": "solver", "v": "verifier", "w": "verifier"}
    assert by_turn(scored("avw", {1: scores(right=1), 2: scores(right=0.25)}, seats=two)) == {0: 0.25}


def test_scores_are_sources_like_rewards_with_weights_and_an_order() -> None:
    t = scored("ava", {1: scores(right=1, form=2)}, [("a", 8.0, 2)])
    t.rewards += [replace(t.rewards[0], value=3.0, turn=("e", 0), name="form")]
    settings = {"scores": {"verifier": ("right", "form")}, "weights": {"form": 10.0, "outcome": 0.5}}
    assert by_turn(t, **settings) == {0: 1 + 20 + 0.5 * 11.0, 2: 0.5 * 11.0}, "a reward of that name is the outcome's"
    rule = ProcessRewardAssign(scores={"verifier": ("right", "form")}).build()
    rule(Evidence([t], "a_game", rule_based_roles=RULES))
    assert rule.metrics() == {"credit/process/right": 1 / 2, "credit/process/form": 2 / 2}


@pytest.mark.parametrize("answer", ["", "no JSON", "[1]", '{"scores": 1}', '{"scores": {"right": true}}'])
def test_an_answer_that_cannot_be_read_scores_0(answer: str) -> None:
    assert by_turn(scored("av", {1: answer})) == {0: 0.0}


def test_a_seat_that_read_nothing_new_scores_the_same_turn_again() -> None:
    t = scored("avv", {1: "no JSON", 2: scores(right=1)})
    assert t.graph.has_edge(("e", 1), ("e", 2))
    assert by_turn(t) == {0: 1.0}
    assert by_turn(scored("va", {0: scores(right=1)})) == {1: 0.0}, "a seat that read nothing at all"


def test_at_a_real_table_each_solver_gets_its_own_verdict() -> None:
    game = team_config({"role": "solver", "n": 2}, {"role": "verifier", "verifies": "solver", "scores": ["correct"]})
    table = team_simulator(game, lambda request: "4" if request.seed % 2 else "5")
    episodes = table.play([team_deal(game, f"e{i}") for i in range(8)])
    rule = ProcessRewardAssign(scores={"verifier": ("correct",)}, combine="prime_paper").build()
    credit = rule(Evidence(episodes, "team", rule_based_roles=RULES))
    right = [turn.action == "4" for t in episodes for turn in t.turns if turn.role == "solver"]
    assert 0 < sum(right) < len(right)
    assert rule.metrics() == {"credit/process/correct": sum(right) / len(right)}
    assert set(credit) == {turn.id for t in episodes for turn in t.turns if turn.role == "solver"}


def test_a_score_that_a_seat_does_not_give_and_a_role_that_is_no_such_seat_are_named() -> None:
    t = scored("av", {1: scores(form=1)})
    with pytest.raises(ValueError, match=r"assign\.scores: 'verifier' gives no score 'right'; scores: form"):
        by_turn(t)
    message = r"assign\.scores: 'verifer' does not answer by rule here; did you mean 'verifier'\? choices: verifier"
    with pytest.raises(ValueError, match=message):
        by_turn(t, scores={"verifer": ("form",)})
    with pytest.raises(ValueError, match=r"'solver' does not answer by rule here; choices: verifier"):
        by_turn(t, scores={"solver": ("form",)})


WRONG = {
    "no process rewards: give `rewards` (names of what the game pays), `scores` (of a seat that answers by rule) or "
    "`learner`": {},
    "'form' is the name of more than one source: step, form, form, outcome": {
        "rewards": ["step", "form"],
        "scores": {"verifier": ["form"]},
    },
    "verifiers: checks run at a seat: give the game a stage with a `verifier` (`{role: verifier, verifies: ROLE, "
    "scores: [NAME]}`), and write `scores: {verifier: [NAME]}` here": {"verifiers": {"checks": {"form": {}}}},
    "model: a reward model sits at a seat: give the game a stage with a `rater` (`{role: rater, verifies: ROLE, "
    "scores: [reward]}`, its policy's `engine: {kind: reward_model}`), and write `scores: {rater: [reward]}` here": {
        "model": {"path": "somewhere"}
    },
    "roles: the stage of a verifier or rater says whose turns it scores (`verifies`); leave it out": {
        "rewards": ["step"],
        "roles": ["solver"],
    },
    "'step' is the name of more than one source: step, step, outcome": {"rewards": ["step", "step"]},
    "'outcome' is the name of more than one source: outcome, outcome": {"rewards": ["outcome"]},
    "weights.stp: no such source; did you mean 'step'? choices: outcome, step": {
        "rewards": ["step"],
        "weights": {"stp": 1},
    },
    "combine: unknown; did you mean 'prime_paper'? choices: decoupled, max_abs, prime_paper, "
    "prime_released, sum (got 'prime_papr')": {"rewards": ["step"], "combine": "prime_papr"},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_settings_are_named(message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ProcessRewardAssign.model_validate(WRONG[message])
    assert explain_validation_error(caught.value) == [message]


def test_settings_survive_being_written_down() -> None:
    rule = ProcessRewardAssign.model_validate({"rewards": ["step"], "scores": {"verifier": ["form"]}})
    assert rule.reward_source_names == ["step", "form"]
    assert ProcessRewardAssign.model_validate(rule.model_dump(mode="json")) == rule
    assert list(rule.unmet_requirements()) == []
    assert ProcessRewardAssign.model_json_schema()


def test_the_saved_scenario_of_an_earlier_version_has_empty_fields_that_are_gone() -> None:
    saved = {"kind": "process", "rewards": ["step"], "verifiers": None, "model": None, "roles": []}
    assert ProcessRewardAssign.model_validate(saved) == ProcessRewardAssign(rewards=("step",))
