"""The baseline that is a critic, with values given by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marl.core.types import Advantage, Reading
from marl.credit.assign.gae import PerAgentGae
from marl.credit.assign.reward_rules import AgentReturnAssign
from marl.credit.baselines.value import Value
from tests.support.handmade_episodes import advantages_of, make_episode, make_evidence, uniform_credit


def test_what_was_earned_minus_the_value_at_the_prompt_with_what_was_earned_as_the_target() -> None:
    past = make_episode("e", "ab", [("a", 3.0, 1), ("b", -1.0, 1)])
    readings = {("e", 0): Reading((), values=(0.5,)), ("e", 1): Reading((), values=(0.25,))}
    seen = replace(make_evidence(past), readings=readings)
    credit, _ = Value().build()(seen, AgentReturnAssign()(seen))
    assert credit == {("e", 0): Advantage(2.5, (), (3.0,)), ("e", 1): Advantage(-1.25, (), (-1.0,))}


def test_it_is_the_turn_level_gae_of_the_return_where_nothing_is_discounted() -> None:
    past = make_episode("e", "abab", [("a", 3.0, 3), ("b", -1.0, 3)])
    readings = {turn.id: Reading((), values=(0.1 * index,)) for index, turn in enumerate(past.turns)}
    seen = replace(make_evidence(past), readings=readings)
    credit, _ = Value().build()(seen, AgentReturnAssign()(seen))
    assert advantages_of(credit, past) == pytest.approx(advantages_of(PerAgentGae(level="turn").build()(seen), past))


def test_of_judged_tokens_each_is_compared() -> None:
    past = make_episode("e", "a")
    turn = past.turns[0]
    longer = replace(turn, completion=replace(turn.completion, token_ids=(2, 3)))
    past.turns[0] = longer
    seen = replace(make_evidence(past), readings={turn.id: Reading((), values=(0.5, 9.0))})
    credit, _ = Value().build()(seen, {turn.id: Advantage(2.0, (1.0, 3.0))})
    assert credit == {turn.id: Advantage(1.5, (0.5, 2.5), (2.0,))}


def test_turns_without_a_value_are_not_judged() -> None:
    past = make_episode("e", "ab")
    seen = replace(make_evidence(past), readings={("e", 0): Reading((), values=(0.5,)), ("e", 1): Reading(())})
    credit, _ = Value().build()(seen, uniform_credit([past], 1.0))
    assert set(credit) == {("e", 0)}


def test_only_what_was_earned_is_judged() -> None:
    past = make_episode("e", "ab")
    seen = replace(make_evidence(past), readings={turn.id: Reading((), values=(0.5,)) for turn in past.turns})
    credit, metrics = Value().build()(seen, {("e", 1): Advantage(1.0)})
    assert credit == {("e", 1): Advantage(0.5, (), (1.0,))}
    assert metrics == {}, "one number has no variance"


def test_the_share_of_the_variance_that_the_values_foretold_by_hand() -> None:
    # Earned 0, 2, 4: variance 8/3. Left over with V = 0, 1, 2: 0, 1, 2: variance 2/3, so 3/4 was foretold.
    episodes = [make_episode(f"{i}", "a") for i in range(3)]
    readings = {t.turns[0].id: Reading((), values=(float(i),)) for i, t in enumerate(episodes)}
    seen = replace(make_evidence(*episodes), readings=readings)
    _, metrics = Value().build()(seen, uniform_credit(episodes, 0.0, 2.0, 4.0))
    assert metrics == {"credit/explained_variance/player": pytest.approx(0.75)}
    at = PerAgentGae(level="turn").build()
    at(replace(seen, trajectories=[make_episode(f"{i}", "a", [("a", 2.0 * i, 0)]) for i in range(3)]))
    assert at.metrics() == metrics


def test_a_step_that_nobody_read_values_of_is_refused() -> None:
    past = make_episode("e", "a")
    with pytest.raises(ValueError, match=r"values: 'learner', but no turn was read with values.*choices: learner"):
        Value().build()(make_evidence(past), uniform_credit([past], 1.0))
