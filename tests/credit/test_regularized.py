"""R-NaD's transformed reward, against the paper's formula by hand and an equilibrium that is worked out elsewhere."""

from dataclasses import replace
from itertools import product
from math import log

import numpy as np
import pytest

from marl.core.graph import Trajectory
from marl.core.types import Reading, TurnId
from marl.credit.assign.rnad import Rnad
from marl.protocols import Evidence
from marl.scenario.load import ScenarioError, validate
from tests.support.handmade_episodes import advantages_of, make_episode
from tests.support.run_processes import kuhn_scenario


def read(trajectory: Trajectory, ratios: dict[int, float]) -> dict[TurnId, Reading]:
    """Readings in which the policy says a turn's one token with this many nats more than the reference does."""
    return {trajectory.turns[at].id: Reading((-0.5,), reference=(-0.5 - ratio,)) for at, ratio in ratios.items()}


def test_a_turn_pays_for_its_agents_way_from_the_reference_and_is_paid_for_the_opponents() -> None:
    # Perolat et al. 2022: r_i - eta log(pi_i / ref_i) + eta log(pi_-i / ref_-i), summed from the turn on.
    played = make_episode("e", "abab", [("a", 3.0, 3), ("b", -3.0, 3)])
    given = Evidence([played], "game", read(played, {0: 1.0, 1: 2.0, 2: -4.0, 3: 0.5}))
    a, b = 3.0, -3.0
    expected = [a - 1 + 2 + 4 + 0.5, b - 2 - 4 - 0.5, a + 4 + 0.5, b - 0.5]
    by_half = [paid + (whole - paid) / 2 for paid, whole in zip((a, b, a, b), expected, strict=True)]
    assert advantages_of(Rnad(eta=1.0)(given), played) == pytest.approx(expected)
    assert advantages_of(Rnad(eta=0.5)(given), played) == pytest.approx(by_half)


def test_who_is_not_read_costs_nothing_and_several_opponents_share() -> None:
    played = make_episode("e", "abc", [("c", 1.0, 2)])
    given = Evidence([played], "game", read(played, {0: 1.0, 2: 3.0}))
    assert advantages_of(Rnad(eta=1.0)(given), played) == pytest.approx([-1 + 1.5, 1.5, 1 - 3])


def test_nothing_is_paid_for_tokens_that_the_engine_imposed() -> None:
    played = make_episode("e", "ab")
    turn = played.turns[0]
    completion = replace(turn.completion, token_ids=(5, 6), logprobs=(-0.5, -0.5), imposed=(0,))
    played.turns[0] = replace(turn, completion=completion)
    readings = {turn.id: Reading((-0.5, -0.5), reference=(-9.0, -1.5))}
    assert advantages_of(Rnad(eta=1.0)(Evidence([played], "game", readings)), played) == pytest.approx([-1.0, 0.0])


PAYOFF = np.array([[0.0, -1.0, 2.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
"""What the rows' player wins from the columns' player."""


def regularised_equilibrium(reference: np.ndarray, eta: float) -> np.ndarray:
    """Both players' strategies, [2, 3], with pi ~ reference exp(payoff / eta), by damped iteration."""
    policies = reference.copy()
    for _ in range(20_000):
        payoffs = np.stack([PAYOFF @ policies[1], -PAYOFF.T @ policies[0]])
        best = reference * np.exp(payoffs / eta)
        policies = 0.99 * policies + 0.01 * best / best.sum(1, keepdims=True)
    return policies


@pytest.mark.parametrize("eta", [0.5, 2.0])
def test_nothing_is_to_be_gained_in_the_equilibrium_of_the_transformed_game(eta: float) -> None:
    reference = np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]])
    policies = regularised_equilibrium(reference, eta)
    plays, readings = {}, dict[TurnId, Reading]()
    for row, column in product(range(3), range(3)):
        won = PAYOFF[row, column]
        plays[row, column] = played = make_episode(f"{row}{column}", "ab", [("a", won, 1), ("b", -won, 1)])
        ratios = [log(policies[player, move] / reference[player, move]) for player, move in ((0, row), (1, column))]
        readings |= read(played, dict(enumerate(ratios)))
    credit = Rnad(eta=eta)(Evidence(list(plays.values()), "game", readings))
    # The second player's turn comes after the first one's, whose payment is behind it: constant over its moves.
    earned = np.array([[[credit[t.id].value for t in plays[r, c].turns] for c in range(3)] for r in range(3)])
    by_row, by_column = earned[..., 0] @ policies[1], policies[0] @ earned[..., 1]
    assert np.ptp(by_row) == pytest.approx(0, abs=1e-6)
    assert np.ptp(by_column) == pytest.approx(0, abs=1e-6)
    assert np.ptp(PAYOFF @ policies[1]) > 0.01, "without the transformation there would be something to gain"


def test_it_wants_a_reference_read_and_is_known_to_judge_turns_apart() -> None:
    assert Rnad().needed_reading_fields == {"logprobs", "reference"}
    assert Rnad().credit_depends_on_reward_time


def test_a_learner_without_a_reference_is_told_to_have_one() -> None:
    told = r"credit: .*Rnad' and 'group' need reference .* give policies\.actor\.learner a `reference`"
    with pytest.raises(ScenarioError, match=told):
        validate(kuhn_scenario(credit={"assign": {"kind": "marl.credit.assign.rnad:Rnad"}}))
