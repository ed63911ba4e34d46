"""GAE over an agent's own turns and over a team's chain, on episodes by hand whose values are given by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from marl.core.graph import Trajectory
from marl.core.types import Advantage, Credit, Reading, TurnId
from marl.credit.assign.gae import PerAgentGae, TeamChainGae
from marl.protocols import Evidence
from marl.scenario.load import ScenarioError, validate
from tests.support.handmade_episodes import TimedRewards, advantages_of, make_episode
from tests.support.run_processes import kuhn_scenario, tiny_model

Floats = tuple[float, ...]


def read_turns(
    agents: str, values: Sequence[Floats], paid: TimedRewards = (), name: str = "e", **more: Any
) -> Evidence:
    """An episode whose turns have as many tokens as there are values; () for one that nobody reads."""
    return read_episode(make_episode(name, agents, paid, **more), values)


def read_episode(whole: Trajectory, values: Sequence[Floats]) -> Evidence:
    made = Trajectory(whole.deal, whole.start)
    made.rewards, made.end = whole.rewards, whole.end
    for turn, row in zip(whole.turns, values, strict=True):
        tokens = tuple(range(len(row)))
        made.add(replace(turn, completion=replace(turn.completion, token_ids=tokens)), whole.graph.pred[turn.id])
    readings = {t.id: Reading((), values=row) for t, row in zip(made.turns, values, strict=True) if row}
    return Evidence([made], "a_game", readings)


def judged(part: PerAgentGae | TeamChainGae, evidence: Evidence) -> Credit:
    return part.build()(evidence)


def of(credit: Credit, index: int) -> Advantage:
    return credit["e", index]


# --- an agent's own turns ---------------------------------------------------------------------------------------------


def test_an_agents_tokens_follow_one_another_whatever_was_said_between() -> None:
    # a says 2 tokens and 1 token, b one between them that a's time axis knows nothing of. gamma 1/2, lambda 1:
    # a's V = 1, 2, 3 and r = 0, 0, 8: A3 = 5, A2 = 0 + 3/2 - 2 + 5/2 = 2, A1 = 2/2 - 1 + 2/2 = 1. b: 4 - 10.
    evidence = read_turns("aba", [(1, 2), (10,), (3,)], [("a", 8.0, 2), ("b", 4.0, 2)])
    credit = judged(PerAgentGae(gamma=0.5), evidence)
    assert of(credit, 0) == Advantage(1.5, (1.0, 2.0), (2.0, 4.0))
    assert of(credit, 2) == Advantage(5.0, (5.0,), (8.0,))
    assert of(credit, 1) == Advantage(-6.0, (-6.0,), (4.0,))


def test_what_is_paid_belongs_to_ones_own_last_turn_before_it_and_what_comes_first_to_nobody() -> None:
    evidence = read_turns("bab", [(0,), (0,), (0,)], [("a", 1.0, 0), ("b", 2.0, 1), ("a", 4.0, 2), ("b", 8.0, 2)])
    credit = judged(PerAgentGae(lam=0.0), evidence)
    assert advantages_of(credit, evidence.trajectories[0]) == [2.0, 4.0, 8.0]


def test_at_the_level_of_turns_a_turn_is_one_action_from_the_state_before_it() -> None:
    # V = 1 and 3 (the first of each turn), r = 2 and 8, gamma 1/2, lambda 1/2: A2 = 5, A1 = 2 + 3/2 - 1 + 5/4.
    evidence = read_turns("aa", [(1, 7, 7), (3, 7)], [("a", 2.0, 0), ("a", 8.0, 1)])
    credit = judged(PerAgentGae(level="turn", gamma=0.5, lam=0.5), evidence)
    assert of(credit, 0) == Advantage(3.75, (), (4.75,))
    assert of(credit, 1) == Advantage(5.0, (), (8.0,))


def test_the_two_levels_by_hand_with_a_turn_that_is_paid_0() -> None:
    # As in test_gae: three turns of 2, 1 and 3 tokens, paid 4, 0 and 8.
    evidence = read_turns("aaa", [(1, 2), (3,), (4, 5, 6)], [("a", 4.0, 0), ("a", 8.0, 2)])
    credit = judged(PerAgentGae(level="bi_level", gamma_turn=0.5), evidence)
    assert [of(credit, k).tokens for k in range(3)] == [(5.0, 4.0), (1.0,), (4.0, 3.0, 2.0)]
    assert [of(credit, k).returns for k in range(3)] == [(6.0, 6.0), (4.0,), (8.0, 8.0, 8.0)]
    assert [of(credit, k).value for k in range(3)] == [4.5, 1.0, 3.0]
    credit = judged(PerAgentGae(level="bi_level", gamma=0.5, lam=0.5, gamma_turn=0.5, lam_turn=0.5), evidence)
    assert [of(credit, k).tokens for k in range(3)] == [(0.90625, 3.625), (0.5,), (-1.875, -1.5, 2.0)]


def test_gamma_turn_and_lam_turn_are_those_of_tokens_unless_they_are_given() -> None:
    evidence = read_turns("aaa", [(1, 2), (3,), (4, 5, 6)], [("a", 4.0, 0), ("a", 8.0, 2)])
    plain = PerAgentGae(level="bi_level", gamma=0.9, lam=0.7)
    assert judged(plain, evidence) == judged(
        PerAgentGae(level="bi_level", gamma=0.9, lam=0.7, gamma_turn=0.9, lam_turn=0.7), evidence
    )
    assert judged(plain, evidence) != judged(PerAgentGae(level="bi_level", gamma=0.9, lam=0.7, lam_turn=0.0), evidence)


LEVELS = ("token", "turn", "bi_level")


@pytest.mark.parametrize("level", LEVELS)
def test_a_truncated_episode_goes_on_with_the_value_read_after_its_last_token(level: Any) -> None:
    whole = make_episode("e", "aa", [("a", 1.0, 1)])
    whole.end = "truncated"
    evidence = read_episode(whole, [(0.0,), (0.5,)])
    [_, last] = [turn.id for turn in whole.turns]
    read = {**evidence.readings, last: Reading((), values=(0.5,), next_value=3.0)}
    evidence = replace(evidence, readings=read)
    assert of(judged(PerAgentGae(level=level, gamma=0.5), evidence), 1).value == 1 + 0.5 * 3 - 0.5
    evidence.trajectories[0].end = "terminated"
    assert of(judged(PerAgentGae(level=level, gamma=0.5), evidence), 1).value == 1 - 0.5


def test_roles_that_answer_by_rule_are_judged_by_nobody() -> None:
    evidence = read_turns(
        "ava", [(0,), (0,), (0,)], [("v", 5.0, 1), ("a", 1.0, 1)], seats={"a": "solver", "v": "verifier"}
    )
    evidence = replace(evidence, rule_based_roles=frozenset({"verifier"}))
    for part in (PerAgentGae(), TeamChainGae()):
        assert set(judged(part, evidence)) == {("e", 0), ("e", 2)}
    assert of(judged(PerAgentGae(lam=0.0), evidence), 0).value == 1.0, "the verdict's reward belongs to what it judged"


def test_a_turn_that_forks_inherited_is_judged_where_it_was_said() -> None:
    whole = make_episode("e", "aa", [("a", 1.0, 1)])
    fork = Trajectory(replace(whole.deal, episode="f"), whole.start, whole.turns[1].id)
    fork.add(whole.turns[0], ())
    fork.add(replace(whole.turns[1], id=("f", 1)), [whole.turns[0].id])
    fork.rewards = [replace(whole.rewards[0], value=4.0, turn=("f", 1))]
    readings = {turn: Reading((), values=(0.5,)) for turn in (("e", 0), ("e", 1), ("f", 1))}
    credit = judged(PerAgentGae(), Evidence([whole, fork], "a_game", readings))
    assert credit["e", 0] == Advantage(0.5, (0.5,), (1.0,))
    assert (credit["e", 1].value, credit["f", 1].value) == (0.5, 3.5)


# --- a team's chain ---------------------------------------------------------------------------------------------------


def test_a_chain_of_three_agents_token_by_token_by_hand() -> None:
    # a says 2 tokens, b 1, c 2; the team is paid 8 in the end. gamma 1, lambda 1/2:
    # V = 1, 2 | 4 | 3, 5: delta = 1, 2, -1, 2, 3; from the last: 3, 2 + 1.5, -1 + 1.75, 2 + .375, 1 + 1.1875.
    evidence = read_turns("abc", [(1, 2), (4,), (3, 5)], [("a", 8.0, 2)])
    credit = judged(TeamChainGae(lam=0.5), evidence)
    assert [of(credit, k).tokens for k in range(3)] == [(2.1875, 2.375), (0.75,), (3.5, 3.0)]
    assert of(credit, 2) == Advantage(3.25, (3.5, 3.0), (6.5, 8.0))


def test_a_chain_of_three_agents_turn_by_turn_by_hand() -> None:
    # V = 1, 4, 3 (the first of each turn), gamma 1, lambda 0: what each adds to what the next one expects.
    evidence = read_turns("abc", [(1, 2), (4,), (3, 5)], [("a", 8.0, 2)])
    credit = judged(TeamChainGae(level="turn", lam=0.0), evidence)
    assert advantages_of(credit, evidence.trajectories[0]) == [3.0, -1.0, 5.0]
    assert [of(credit, k).returns for k in range(3)] == [(4.0,), (3.0,), (8.0,)]


def test_rewards_enter_at_the_teams_last_token_or_where_they_were_paid() -> None:
    paid = [("a", 2.0, 0), ("b", 4.0, 1), ("b", 6.0, 3)]
    evidence = read_turns("abab", [(0,)] * 4, paid)
    cases: dict[Any, list[float]] = {"last": [0.0, 0.0, 0.0, 12.0], "paid": [2.0, 4.0, 0.0, 6.0]}
    for where, worth in cases.items():
        credit = judged(TeamChainGae(lam=0.0, rewards=where), evidence)
        assert advantages_of(credit, evidence.trajectories[0]) == worth


def test_teams_have_chains_of_their_own_and_share_what_common_says() -> None:
    paid = [("a", 2.0, 3), ("b", 4.0, 3), ("c", 10.0, 3)]
    evidence = read_turns("acba", [(0,)] * 4, paid)
    cases: dict[Any, float] = {"sum": 6.0, "mean": 3.0}
    for common, team in cases.items():
        credit = judged(TeamChainGae(teams=(("a", "b"),), common=common), evidence)
        assert advantages_of(credit, evidence.trajectories[0]) == [team, 10.0, team, team]


@pytest.mark.parametrize("level", ["token", "turn"])
@pytest.mark.parametrize("seed", range(5))
def test_undiscounted_everyone_gets_the_teams_return_minus_its_own_value(level: Any, seed: int) -> None:
    rng = random.Random(seed)
    values = [tuple(rng.gauss(0, 1) for _ in range(rng.randint(1, 5))) for _ in range(12)]
    agents = "".join(rng.choice("abcd") for _ in range(12))
    evidence = read_turns(agents, values, [(rng.choice(agents), rng.gauss(0, 1), i) for i in range(12)])
    total = sum(evidence.trajectories[0].returns.values())
    credit = judged(TeamChainGae(level=level), evidence)
    for index, row in enumerate(values):
        expected = [total - value for value in row] if level == "token" else []
        assert of(credit, index).tokens == pytest.approx(expected)
        assert of(credit, index).returns == pytest.approx([total] * len(expected) or [total])
        assert of(credit, index).value == pytest.approx(sum(expected) / len(row) if expected else total - row[0])


def test_what_a_speaker_adds_is_paid_to_it_and_sums_to_what_the_team_got_beyond_its_first_value() -> None:
    values = [(0.3,), (0.1,), (0.7,), (0.6,)]
    evidence = read_turns("abca", values, [("b", 1.0, 3)])
    credit = judged(TeamChainGae(lam=0.0), evidence)
    assert sum(advantages_of(credit, evidence.trajectories[0])) == pytest.approx(1.0 - 0.3)


@pytest.mark.parametrize("part", [PerAgentGae(lam=0.0), TeamChainGae(lam=0.0, rewards="paid")])
def test_turns_that_nobody_reads_are_part_of_the_world(part: Any) -> None:
    # A partner that does not learn is not on the axis, costs no discount, and what is paid there is not lost.
    evidence = read_turns("apa", [(1,), (), (3,)], [("a", 2.0, 1), ("a", 8.0, 2)])
    assert {turn: one.value for turn, one in judged(part, evidence).items()} == {("e", 0): 4.0, ("e", 2): 5.0}


# --- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [PerAgentGae, TeamChainGae])
def test_values_of_credits_own_are_of_turns_and_cannot_judge_tokens(part: Any) -> None:
    for level in ("token", "bi_level") if part is PerAgentGae else ("token",):
        with pytest.raises(ValueError, match=f"level: '{level}' needs a value before each token, but values: 'own'"):
            part(level=level, values="own")
    assert part(level="turn", values="own").needed_reading_fields == {"hidden"}
    assert part().needed_reading_fields == {"values"}


def test_settings_of_turns_are_refused_where_they_have_no_effect() -> None:
    with pytest.raises(ValueError, match=r"gamma_turn: 0\.95 has no effect at level 'token'; choices: bi_level"):
        PerAgentGae(gamma_turn=0.95)
    with pytest.raises(ValueError, match="lam_turn: 0 has no effect at level 'turn'"):
        PerAgentGae(level="turn", lam_turn=0)


def test_a_step_without_any_value_is_refused() -> None:
    evidence = read_turns("ab", [(1,), (2,)])
    with pytest.raises(ValueError, match="values: 'learner', but no turn was read with values"):
        judged(PerAgentGae(), replace(evidence, readings={turn: Reading(()) for turn in evidence.readings}))
    assert judged(PerAgentGae(), Evidence([], "a_game")) == {}


def test_a_reading_that_does_not_fit_its_turn_is_named() -> None:
    evidence = read_turns("ab", [(1,), (2,)])
    wrong: dict[TurnId, Reading] = {("e", 1): Reading((), values=(1.0, 2.0))}
    with pytest.raises(ValueError, match=r"turn \('e', 1\) has 1 tokens, but reading.values has 2 numbers"):
        judged(TeamChainGae(), replace(evidence, readings=wrong))


TEAMS = [["player_0"], ["player_1"]]


@pytest.mark.parametrize(
    ("credit", "parts"),
    [
        (
            {"assign": {"kind": "marl.credit.assign.gae:PerAgentGae"}, "baseline": {"kind": "none"}},
            "'marl.credit.assign.gae:PerAgentGae' and 'none'",
        ),
        (
            {"assign": {"kind": "marl.credit.assign.gae:TeamChainGae", "teams": TEAMS}, "baseline": {"kind": "none"}},
            "'marl.credit.assign.gae:TeamChainGae' and 'none'",
        ),
        (
            {"baseline": {"kind": "marl.credit.baselines.value:Value"}},
            "'outcome' and 'marl.credit.baselines.value:Value'",
        ),
    ],
)
def test_a_learner_without_a_critic_is_refused_before_a_weight_is_loaded(credit: dict[str, Any], parts: str) -> None:
    message = f"credit: {parts} need values of what role 'player' says, but its learner 'grpo' reads hidden, logprobs"
    with pytest.raises(ScenarioError, match=message):
        validate(kuhn_scenario(credit=credit))
    for part in credit.values():
        if part["kind"].startswith("marl.credit."):
            part |= {"values": "own"} | ({} if "value" in part["kind"] else {"level": "turn"})
    assert validate(kuhn_scenario(credit=credit, policies={"actor": {"model": tiny_model(), "learner": "grpo"}}))
