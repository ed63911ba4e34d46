"""What tokens are charged beside what the game pays: a KL penalty in the reward, and DAPO's for length."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from marl.core.types import Advantage, Credit, Reading
from marl.credit_stage.token_penalties import TokenPenalties, kl_per_token, soft_overlong_penalty
from marl.protocols import AssignConfig, Evidence
from marl.scenario.credit_checks import credit_notes
from marl.scenario.load import ScenarioError, validate
from marl.scenario.schema import KlInReward, OverlongPenalty
from tests.support.handmade_episodes import advantages_of, make_episode
from tests.support.run_processes import kuhn_scenario
from tests.support.token_logprob_episodes import credit_stage, logprob_evidence, token_episode

NONE = {"kind": "none"}


# --- KL in the reward -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("k1", [1.0, -0.5]),
        ("abs", [1.0, 0.5]),
        ("k2", [0.5, 0.125]),
        ("k3", [math.exp(-1), math.exp(0.5) - 1.5]),
    ],
)
def test_the_estimators_by_hand(estimator: Any, expected: list[float]) -> None:
    kl = KlInReward(coefficient=1, estimator=estimator)
    assert kl_per_token((-1.0, -2.0), (-2.0, -1.5), kl) == pytest.approx(expected, rel=1e-15)


def test_a_clamp_keeps_every_token_within_it_on_both_sides() -> None:
    kl = KlInReward(coefficient=1, clamp=0.75)
    assert kl_per_token((-1.0, -9.0, 0.0), (-2.0, -2.0, -math.inf), kl) == [0.75, -0.75, 0.75]
    assert kl_per_token((-900.0,), (0.0,), KlInReward(coefficient=1, estimator="k3", clamp=10)) == [10.0]


def test_imposed_tokens_are_charged_nothing_and_are_not_in_the_mean() -> None:
    # The sampled tokens have k = 1 and 1/2, so a coefficient of 1/2 charges 1/2 and 1/4; their mean is 3/4.
    episode = make_episode("e", "a")
    [turn] = episode.turns
    completion = replace(turn.completion, token_ids=(7, 8, 9), logprobs=(-1.0, -1.0, -1.0), imposed=(1,))
    episode.turns[0] = replace(turn, completion=completion)
    readings = {turn.id: Reading((-1.0, -1.0, -1.0), reference=(-2.0, -9.0, -1.5))}
    penalties = TokenPenalties(KlInReward(coefficient=0.5), None)
    rewards, sums, metrics = penalties(Evidence([episode], "game", readings), None)
    assert rewards[turn.id] == (-0.5, 0.0, -0.25)
    assert sums["kl"][turn.id] == -0.75
    assert metrics["credit/kl"] == 0.75


def test_what_other_rules_assign_falls_by_the_sum_over_the_turns_own_tokens() -> None:
    # beta 1/2: a's turns are charged (1 + 2) / 2 and -4 / 2, b's, whom nobody read, nothing.
    t = token_episode("e", "aba", [2, 1, 1], [("a", 10.0, 2), ("b", 1.0, 2)])
    charged = credit_stage(kl={"coefficient": 0.5})
    found = charged(logprob_evidence([t], [(1, 2), None, (-4,)]))
    assert advantages_of(found.earned, t) == advantages_of(found.credit, t) == [8.5, 1.0, 12.0]
    assert found.metrics["credit/kl"] == (1.5 - 4) / 2  # the mean over turns of the mean over tokens
    assert found.metrics["credit/kl_coefficient"] == 0.5


def test_rewards_are_not_changed_and_what_they_add_up_to_is_still_told() -> None:
    t = token_episode("e", "a", [2], [("a", 10.0, 0)])
    found = credit_stage(kl={"coefficient": 0.5})(logprob_evidence([t], [(1, 2)]))
    assert t.returns == {"a": 10.0}
    assert found.metrics["credit/player/conservation"] == 1.0


def test_the_coefficient_is_not_scaled_with_the_rewards() -> None:
    t = token_episode("e", "a", [2], [("a", 10.0, 0)])
    assert advantages_of(
        credit_stage(kl={"coefficient": 0.5}, scale=0.1)(logprob_evidence([t], [(1, 2)])).credit, t
    ) == [1.0 - 1.5]


def test_rloo_with_the_kl_in_the_reward_by_hand() -> None:
    # R - beta sum of k1: 1 - .1 * 3 = .7, 0 - .1 * -1 = .1, 1 - 0 = 1; each minus the mean of the other two.
    episodes = [token_episode(str(i), "a", [2], [("a", paid, 0)], start="s") for i, paid in enumerate((1.0, 0.0, 1.0))]
    found = credit_stage(kl={"coefficient": 0.1}, baseline={"kind": "rloo"})(
        logprob_evidence(episodes, [(1, 2), (-2, 1), (0, 0)])
    )
    expected = [0.7 - (0.1 + 1) / 2, 0.1 - (0.7 + 1) / 2, 1 - (0.7 + 0.1) / 2]
    assert [advantages_of(found.credit, t)[0] for t in episodes] == pytest.approx(expected)


def test_sums_to_go_are_charged_token_by_token() -> None:
    # REINFORCE++ before whitening: x = -.5, 1, 8 - 1.5 in the first turn, -1 in the second, where 2 are paid.
    # gamma 1/2, over both turns' tokens: 1; 6.5 + .5 = 7; 1 + 3.5 = 4.5; -.5 + 2.25 = 1.75.
    t = token_episode("e", "aa", [3, 1], [("a", 8.0, 0), ("a", 2.0, 1)])
    rule = {"assign": {"kind": "gae", "values": "none", "gamma": 0.5}, "kl": {"coefficient": 0.5}}
    found = credit_stage(**rule)(logprob_evidence([t], [(1, -2, 3), (2,)]))
    assert found.credit["e", 0].tokens == (1.75, 4.5, 7.0)
    assert found.credit["e", 1].tokens == (1.0,)


def test_gae_takes_a_charge_at_its_token_and_at_the_level_of_turns_with_the_turn() -> None:
    # lambda 0: A = x + V' - V. V = 1, 4, 9 | 2; x = -1, -2, 10 - 3 | 1 + 4.
    t = token_episode("e", "aa", [3, 1], [("a", 10.0, 0), ("a", 1.0, 1)])
    evidence = logprob_evidence([t], [(1, 2, 3), (-4,)])
    values = {("e", 0): (1.0, 4.0, 9.0), ("e", 1): (2.0,)}
    evidence = replace(evidence, readings={k: replace(r, values=values[k]) for k, r in evidence.readings.items()})
    found = credit_stage(assign={"kind": "gae", "lam": 0}, kl={"coefficient": 1})(evidence)
    assert found.credit["e", 0].tokens == (-1 + 4 - 1, -2 + 9 - 4, 7 + 2 - 9)
    assert found.credit["e", 1].tokens == (5 - 2,)
    assert found.credit["e", 0].returns == (3.0, 7.0, 9.0)
    found = credit_stage(assign={"kind": "gae", "lam": 0, "level": "turn"}, kl={"coefficient": 1})(evidence)
    assert advantages_of(found.credit, t) == [(10 - 6) + 2 - 1, 5 - 2]


def test_a_chain_of_agents_shares_what_its_tokens_are_charged() -> None:
    # No values, gamma 1: each token gets all that is charged and paid from it on. 6 - 1 - 2 - 4.
    t = token_episode("e", "ab", [2, 1], [("b", 6.0, 1)])
    rule = {"assign": {"kind": "chain_gae", "values": "none"}, "kl": {"coefficient": 1}}
    found = credit_stage(**rule)(logprob_evidence([t], [(1, 2), (4,)]))
    assert found.credit["e", 0].tokens == (-1.0, 0.0)
    assert found.credit["e", 1].tokens == (2.0,)


def test_each_role_is_charged_by_the_rule_that_it_is_judged_by() -> None:
    t = token_episode("e", "ab", [1, 1], [("a", 1.0, 1), ("b", 1.0, 1)], seats={"a": "x", "b": "y"})
    own = {"assign": {"kind": "outcome"}, "baseline": NONE, "kl": {"coefficient": 1}}
    found = credit_stage(roles={"y": own})(logprob_evidence([t], [(1,), (2,)]))
    assert advantages_of(found.credit, t) == [1.0, -1.0]
    assert found.metrics["credit/kl@y"] == 2.0
    assert "credit/kl" not in found.metrics


def test_a_charge_that_is_not_finite_is_left_for_the_learner_to_name() -> None:
    t = token_episode("e", "a", [2], [("a", 1.0, 0)])
    found = credit_stage(kl={"coefficient": 1})(logprob_evidence([t], [(math.inf, -math.inf)]))
    assert math.isnan(found.credit["e", 0].value)


# --- a coefficient that adapts ----------------------------------------------------------------------------------------


def test_the_coefficient_follows_its_target_a_turn_at_a_time() -> None:
    # target 1, horizon 10, 2 turns a step. k1 1.1 on average: e = .1, beta 1 -> 1.02; then 9: e = .2, -> 1.0608.
    adapting = credit_stage(kl={"coefficient": 1, "target": 1, "horizon": 10})
    episodes = [token_episode(str(i), "a", [2]) for i in range(2)]
    charged = [adapting(logprob_evidence(episodes, [(d, d), (1, 1)])) for d in (1.2, 17, 0)]
    assert [c.metrics["credit/kl_coefficient"] for c in charged] == pytest.approx([1.0, 1.02, 1.0608])
    assert [c.credit["0", 0].value for c in charged] == pytest.approx([-2.4, -1.02 * 34, 0])
    assert adapting.has_state


def test_a_coefficient_that_adapts_goes_on_exactly_where_it_was() -> None:
    def made() -> Any:
        return credit_stage(
            kl={"coefficient": 0.3, "target": 0.05, "horizon": 7}, compare={"beside": {"baseline": NONE}}
        )

    steps = [logprob_evidence([token_episode("e", "a", [2], [("a", 1.0, 0)])], [(0.1 * i, 0.07)]) for i in range(5)]
    whole, before, after = made(), made(), made()
    expected = [whole(step) for step in steps]
    for step in steps[:3]:
        before(step)
    after.load_state_dict(before.state_dict())
    assert [after(step) for step in steps[3:]] == expected[3:]


def test_a_constant_coefficient_is_nothing_to_remember() -> None:
    plain = credit_stage(kl={"coefficient": 0.3})
    plain(logprob_evidence([token_episode("e", "a", [1])], [(1,)]))
    assert not plain.has_state
    assert not plain.may_have_state
    assert plain.state_dict()[""]["default"] == {"assign": {}, "baseline": {}}


# --- length -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "expected"), [(0, 0.0), (16384, 0.0), (17408, -0.25), (18432, -0.5), (20480, -1.0), (24576, -1.0)]
)
def test_the_papers_punishment_falls_from_16384_to_20480_tokens(length: int, expected: float) -> None:
    assert soft_overlong_penalty(length, max_tokens=20480, buffer_tokens=4096) == expected


def test_uncapped_it_goes_on_falling() -> None:
    assert soft_overlong_penalty(24576, max_tokens=20480, buffer_tokens=4096, capped=False) == -2.0
    assert str(soft_overlong_penalty(0, max_tokens=4, buffer_tokens=2, capped=False)) == "0.0"


def test_what_long_answers_are_assigned_falls_and_short_ones_keep_theirs() -> None:
    # limit 4, buffer 2: 2 tokens 0, 3 tokens -1/2, 6 tokens -1; times the factor.
    episodes = [token_episode(str(i), "a", [many], [("a", 1.0, 0)]) for i, many in enumerate((2, 3, 6))]
    found = credit_stage(overlong={"limit": 4, "buffer": 2, "factor": 0.5})(logprob_evidence(episodes, [None] * 3))
    assert [advantages_of(found.credit, t)[0] for t in episodes] == [1.0, 0.75, 0.5]
    assert found.metrics["credit/overlong"] == -0.25
    uncapped = credit_stage(overlong={"limit": 4, "buffer": 2, "capped": False})(logprob_evidence(episodes, [None] * 3))
    assert advantages_of(uncapped.credit, episodes[2]) == [-1.0]


def test_length_is_charged_at_the_last_token_where_tokens_are_judged() -> None:
    t = token_episode("e", "aa", [3, 1], [("a", 1.0, 1)])
    rule = {"assign": {"kind": "gae", "values": "none", "gamma": 0.5}, "overlong": {"limit": 2, "buffer": 1}}
    found = credit_stage(**rule)(logprob_evidence([t], [None, None]))
    # 1 at the end; -1 + .5 at the third token.
    assert found.credit["e", 0].tokens == (-0.125, -0.25, -0.5)
    assert found.credit["e", 1].tokens == (1.0,)


def test_each_token_costs_its_price_in_turns_and_at_the_token() -> None:
    # 1/8 a token: 2 and 3 tokens of a turn that earns 1.
    t = token_episode("e", "ab", [2, 3], [("a", 1.0, 1), ("b", 1.0, 1)])
    found = credit_stage(token_cost=0.125)(logprob_evidence([t], [None, None]))
    assert advantages_of(found.credit, t) == [0.75, 0.625]
    assert found.metrics["credit/token_cost"] == -0.3125
    assert t.returns == {"a": 1.0, "b": 1.0}
    judged = {"assign": {"kind": "gae", "values": "none"}, "token_cost": 0.125}
    assert credit_stage(**judged)(logprob_evidence([t], [None, None])).credit["e", 1].tokens == (0.625, 0.75, 0.875)
    both = credit_stage(token_cost=0.125, kl={"coefficient": 0.5})(logprob_evidence([t], [(1, 1), None]))
    assert advantages_of(both.credit, t) == [-0.25, 0.625]


def test_one_role_may_pay_for_its_tokens_alone() -> None:
    t = token_episode("e", "ab", [2, 3], [("a", 1.0, 1), ("b", 1.0, 1)], seats={"a": "x", "b": "y"})
    found = credit_stage(roles={"y": {"baseline": NONE, "token_cost": 0.125}})(logprob_evidence([t], [None, None]))
    assert advantages_of(found.credit, t) == [1.0, 0.625]


class Spelled(AssignConfig):
    """Judges tokens, and does not know what they are charged."""

    kind: str = "spelled"

    def __call__(self, evidence: Evidence) -> Credit:
        turns = (turn for trajectory in evidence.trajectories for turn in trajectory.turns)
        return {turn.id: Advantage(2.0, (1.0, 3.0), (5.0,)) for turn in turns}


def test_a_rule_that_judges_tokens_without_their_charges_has_all_of_them_charged_alike() -> None:
    t = token_episode("e", "a", [2])
    rule = {"assign": {"kind": f"{__name__}:Spelled"}, "overlong": {"limit": 2, "buffer": 1, "factor": 0.75}}
    assert credit_stage(**rule)(logprob_evidence([t], [None])).credit["e", 0] == Advantage(1.25, (0.25, 2.25), (5.0,))


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"coefficient": 0.0, "target": 0.1}, "coefficient: 0 times anything is 0, so target: 0.1 has no effect"),
        ({"coefficient": 0.1, "horizon": 10}, "horizon: 10 has no effect on a constant coefficient; give a target"),
    ],
)
def test_a_penalty_that_cannot_adapt_as_asked_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        KlInReward.model_validate(settings)


def test_a_buffer_longer_than_the_limit_is_refused() -> None:
    with pytest.raises(ValidationError, match="buffer: 5 tokens before the limit of 4; choices: 1 to the limit"):
        OverlongPenalty(limit=4, buffer=5)


def test_lambda_without_values_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"lam: 0.5 says how far values are trusted, and values are 'none'"):
        credit_stage(assign={"kind": "gae", "values": "none", "lam": 0.5})
    with pytest.raises(ValidationError, match="values: 'none' compares with 0, which is baseline: none"):
        credit_stage(baseline={"kind": "value", "values": "none"})


def scenario(learner: dict[str, Any], **credit: Any) -> dict[str, Any]:
    made = kuhn_scenario()
    made["policies"]["actor"]["learner"] = {"kind": "grpo", **learner}
    return made | {"credit": credit}


def test_a_kl_in_the_reward_of_a_learner_without_a_reference_is_refused_and_the_fix_named() -> None:
    with pytest.raises(ScenarioError) as refused:
        validate(scenario({}, kl={"coefficient": 0.1}), "a file")
    assert "credit.kl: needs reference of what role 'player' says, but its learner 'grpo' reads" in str(refused.value)
    assert "give policies.actor.learner a `reference` ({coefficient: 0} keeps it out of the loss)" in str(refused.value)
    assert validate(scenario({"reference": {"coefficient": 0}}, kl={"coefficient": 0.1}), "a file").credit.kl


@pytest.mark.parametrize(
    ("credit", "field"),
    [
        ({"kl": {"coefficient": 0.1}}, "credit.kl"),
        ({"roles": {"player": {"kl": {"coefficient": 0.1}}}}, "credit.roles.player.kl"),
    ],
)
def test_a_kl_in_the_reward_is_refused_if_nobody_learns_from_rewards(credit: dict[str, Any], field: str) -> None:
    for learner in ({"kind": "distillation", "teacher": "teacher"}, {"kind": "sft"}, {"kind": "dpo"}):
        made = scenario(learner, **credit)
        if "teacher" in learner:
            made["policies"]["teacher"] = {"model": {"kind": "tiny"}}
        with pytest.raises(ScenarioError) as refused:
            validate(made, "a file")
        assert f"{field}: coefficient 0.1 has no effect, because no learner here ({learner['kind']!r}) learns" in str(
            refused.value
        )


def test_a_token_cost_that_is_only_measured_gives_a_note() -> None:
    (note,) = credit_notes(validate(scenario({"kind": "sft"}, token_cost=0.1), "a file"))
    assert note == "credit.token_cost: is measured, but changes no weights, because no learner here ('sft') uses credit"
    assert not list(credit_notes(validate(scenario({}, token_cost=0.1), "a file")))


def test_charges_beside_a_baseline_that_compares_named_rewards_are_refused() -> None:
    credit = {"baseline": "decoupled", "overlong": {"limit": 4, "buffer": 2}}
    with pytest.raises(ScenarioError, match=r"credit.overlong: credit.baseline 'decoupled' compares what each named"):
        validate(scenario({}, **credit), "a file")


def test_readings_without_a_reference_are_not_charged() -> None:
    t = token_episode("e", "a", [1], [("a", 1.0, 0)])
    evidence = replace(logprob_evidence([t], [None]), readings={("e", 0): Reading((-1.0,))})
    assert advantages_of(credit_stage(kl={"coefficient": 1})(evidence).credit, t) == [1.0]


def test_settings_that_were_written_down_can_be_read_again() -> None:
    for penalty in (KlInReward(coefficient=0.1), KlInReward(coefficient=0.1, target=0.2, horizon=10)):
        assert KlInReward.model_validate_json(penalty.model_dump_json()) == penalty
