"""Generalised advantage estimation against its definition, and the two levels by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from marl.credit.assign.gae import TERMINAL, BootstrapValueAndAdvantage, GammaAndLambda, bi_level_gae, gae

NOTHING = BootstrapValueAndAdvantage(Fraction(0), Fraction(0))  # type: ignore[arg-type]
"""The end of an episode, in exact numbers."""


def drawn(seed: int, n: int) -> tuple[list[Fraction], list[Fraction], GammaAndLambda, BootstrapValueAndAdvantage]:
    """Exact rewards, values, discount and bootstrap value."""
    rng = random.Random(seed)
    rewards, values = ([Fraction(rng.randint(-9, 9), rng.randint(1, 9)) for _ in range(n)] for _ in range(2))
    discount = GammaAndLambda(Fraction(rng.randint(0, 7), 7), Fraction(rng.randint(0, 5), 5))  # type: ignore[arg-type]
    return rewards, values, discount, BootstrapValueAndAdvantage(Fraction(rng.randint(-5, 5), 3), Fraction(0))  # type: ignore[arg-type]


def defined(
    rewards: Sequence[Fraction], values: Sequence[Fraction], discount: GammaAndLambda, later: BootstrapValueAndAdvantage
) -> list[Fraction]:
    """A_k = sum over j >= k of (gamma lambda)^(j - k) delta_j, each sum on its own (Schulman et al. 2016, eq. 16)."""
    gamma, lam = Fraction(discount.gamma), Fraction(discount.lam)
    after = [*values, Fraction(later.value)]
    n = len(rewards)
    return [
        sum(
            ((gamma * lam) ** (j - k) * (rewards[j] + gamma * after[j + 1] - after[j]) for j in range(k, n)),
            Fraction(0),
        )
        for k in range(n)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_one_pass_gives_the_sums_of_the_definition_exactly(seed: int) -> None:
    rewards, values, discount, later = drawn(seed, n=1 + seed % 9)
    assert gae(rewards, values, discount, later) == defined(rewards, values, discount, later)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_lambda_1_is_the_return_minus_the_value_and_lambda_0_is_the_temporal_difference(seed: int) -> None:
    rewards, values, discount, later = drawn(seed, n=6)
    gamma = Fraction(discount.gamma)
    returns = [sum((gamma ** (j - k) * rewards[j] for j in range(k, 6)), Fraction(0)) for k in range(6)]
    whole = gae(rewards, values, discount._replace(lam=Fraction(1)), later)  # type: ignore[arg-type]
    assert whole == [returns[k] + gamma ** (6 - k) * Fraction(later.value) - values[k] for k in range(6)]
    next_ = gae(rewards, values, discount._replace(lam=Fraction(0)), later)  # type: ignore[arg-type]
    assert next_ == [r + gamma * w - v for r, v, w in zip(rewards, values, [*values[1:], later.value], strict=True)]


def test_three_tokens_by_hand() -> None:
    # gamma 1/2, lambda 1/2; r = 0, 0, 8; V = 2, 4, 6. delta = 0, -1, 2; A3 = 2, A2 = -1 + 2/4, A1 = 0 - .5/4.
    assert gae([0, 0, 8], [2, 4, 6], GammaAndLambda(0.5, 0.5)) == [-0.125, -0.5, 2.0]
    # Truncated, with 4 to come: delta3 = 8 + 2 - 6 = 4; A2 = -1 + 1, A1 = 0.
    assert gae([0, 0, 8], [2, 4, 6], GammaAndLambda(0.5, 0.5), BootstrapValueAndAdvantage(4.0)) == [0.0, 0.0, 4.0]


def test_no_moments_have_no_advantages() -> None:
    assert gae([], [], GammaAndLambda()) == []


# --- what is between --------------------------------------------------------------------------------------------------


def skipping(row: np.ndarray, discount: GammaAndLambda) -> np.ndarray:
    """verl's GAE of one row [reward, value, mask], as restated: at a masked token, what is next stays what it was."""
    next_value = last = 0.0
    advantages = np.zeros(len(row))
    for t, (reward, value, mask) in reversed(list(enumerate(row))):
        if mask:
            advantages[t] = last = reward + discount.gamma * next_value - value + discount.gamma * discount.lam * last
            next_value = value
    return advantages


def filling(row: np.ndarray, discount: GammaAndLambda) -> np.ndarray:
    """OpenRLHF's, as restated: masked tokens are states worth 0 on the time axis."""
    rewards, values = row[:, 0] * row[:, 2], row[:, 1] * row[:, 2]
    after = np.append(values[1:], 0.0)
    deltas, last, advantages = rewards + discount.gamma * after - values, 0.0, np.zeros(len(row))
    for t in reversed(range(len(row))):
        advantages[t] = last = deltas[t] + discount.gamma * discount.lam * last
    return advantages * row[:, 2]


@pytest.mark.parametrize("seed", range(8))
def test_what_others_said_between_two_turns_does_not_exist_on_the_time_axis(seed: int) -> None:
    rng = np.random.default_rng(seed)
    row = np.stack([rng.normal(size=12), rng.normal(size=12), rng.random(12) < 0.6], 1)
    seen, discount = row[row[:, 2] == 1], GammaAndLambda(0.9, 0.8)
    assert gae(seen[:, 0].tolist(), seen[:, 1].tolist(), discount) == pytest.approx(
        skipping(row, discount)[row[:, 2] == 1].tolist(), rel=1e-12
    )


def test_skipping_is_not_filling_with_zeros_unless_nothing_is_discounted() -> None:
    row = np.array([[0.0, 0.5, 1], [0.0, 0.7, 0], [0.0, 0.2, 0], [1.0, 0.25, 1]])
    seen = row[row[:, 2] == 1]
    skip = gae(seen[:, 0].tolist(), seen[:, 1].tolist(), GammaAndLambda(0.9, 1.0))
    assert skip == pytest.approx([0.9 - 0.5, 1 - 0.25])
    assert filling(row, GammaAndLambda(0.9, 1.0))[[0, 3]].tolist() == pytest.approx([0.9**3 - 0.5, 1 - 0.25])
    assert (
        gae(seen[:, 0].tolist(), seen[:, 1].tolist(), GammaAndLambda())
        == filling(row, GammaAndLambda())[[0, 3]].tolist()
    )


# --- two levels -------------------------------------------------------------------------------------------------------

# Three turns of 2, 1 and 3 tokens: the second is paid exactly 0.
ENDS = [1, 2, 5]
REWARDS = [0.0, 4.0, 0.0, 0.0, 0.0, 8.0]
VALUES = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_bi_level_gae_of_three_turns_by_hand() -> None:
    # Turns, gamma_turn 1/2 and lambda 1: V(e) = 2, 3, 6 and R = 4, 0, 8.
    #   delta = 4 + 3/2 - 2 = 3.5,  0 + 6/2 - 3 = 0,  8 - 6 = 2;  A3 = 2, A2 = 0 + 2/2 = 1, A1 = 3.5 + 1/2 = 4.
    # Tokens inside, gamma = lambda = 1: turn 1: (2 - 1) + 4 = 5. Turn 3: (6 - 5) + 2 = 3, then (5 - 4) + 3 = 4.
    advantages = bi_level_gae(REWARDS, VALUES, ENDS, GammaAndLambda(), GammaAndLambda(0.5, 1.0))
    assert advantages == [5.0, 4.0, 1.0, 4.0, 3.0, 2.0]


def test_bi_level_gae_discounts_inside_a_turn_with_the_tokens_own_gamma_and_lambda() -> None:
    # The same turns with lambda_turn 1/2: A3 = 2, A2 = 0 + 2/4 = .5, A1 = 3.5 + .5/4 = 3.625.
    # Inside, gamma 1/2, lambda 1/2: turn 1: 2/2 - 1 + 3.625/4; turn 3: 6/2 - 5 + 2/4 = -1.5, 5/2 - 4 - 1.5/4 = -1.875.
    advantages = bi_level_gae(REWARDS, VALUES, ENDS, GammaAndLambda(0.5, 0.5), GammaAndLambda(0.5, 0.5))
    assert advantages == [0.90625, 3.625, 0.5, -1.875, -1.5, 2.0]


def test_a_truncated_episode_goes_on_at_the_level_of_turns() -> None:
    # A3 = 8 + 10/2 - 6 = 7; A2 = 0 + 7/2 = 3.5; A1 = 3.5 + 3.5/2 = 5.25; inside: differences of V are added.
    advantages = bi_level_gae(
        REWARDS, VALUES, ENDS, GammaAndLambda(), GammaAndLambda(0.5, 1.0), BootstrapValueAndAdvantage(10.0)
    )
    assert advantages == [6.25, 5.25, 3.5, 9.0, 8.0, 7.0]


def guessed(rewards: Sequence[float]) -> list[int]:
    """RAGEN's turn ends: wherever something was paid."""
    return [index for index, reward in enumerate(rewards) if reward != 0]


def test_a_turn_that_is_paid_exactly_0_is_a_turn() -> None:
    assert guessed(REWARDS) == [1, 5], "RAGEN merges the second turn into the third"
    merged = bi_level_gae(REWARDS, VALUES, guessed(REWARDS), GammaAndLambda(), GammaAndLambda(0.5, 1.0))
    # Then A = 8 - 6 = 2 and 4 + 6/2 - 2 + 2/2 = 6: the first turn's advantage would be 6 instead of 4.
    assert merged[1] == 6.0
    assert bi_level_gae(REWARDS, VALUES, ENDS, GammaAndLambda(), GammaAndLambda(0.5, 1.0))[1] == 4.0


@pytest.mark.parametrize("ends", [[], [1], [1, 3]])
def test_tokens_after_the_last_turn_are_refused(ends: list[int]) -> None:
    with pytest.raises(ValueError, match=r"the last of 6 tokens must end a turn, got ends=\["):
        bi_level_gae(REWARDS, VALUES, ends, GammaAndLambda(), GammaAndLambda())


@pytest.mark.parametrize("seed", range(10))
def test_where_nothing_is_discounted_the_two_levels_are_plain_gae(seed: int) -> None:
    rewards, values, _, later = drawn(seed, n=7)
    rewards = [reward if t in (1, 2, 6) else Fraction(0) for t, reward in enumerate(rewards)]
    whole = GammaAndLambda(Fraction(1), Fraction(1))  # type: ignore[arg-type]
    assert bi_level_gae(rewards, values, [1, 2, 6], whole, whole, later) == gae(rewards, values, whole, later)  # type: ignore[arg-type]


def test_the_end_is_worth_nothing_by_default() -> None:
    assert TERMINAL == NOTHING == (0, 0)
