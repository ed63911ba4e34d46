"""Credit of steps inside an answer, against values computed by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from marl.core.graph import Trajectory
from marl.core.types import Credit, Reading, Turn
from marl.credit.assign.gae import GammaAndLambda, PerAgentGae, bi_level_gae, nested_gae
from marl.credit.assign.process import ProcessRewardAssign
from marl.credit.assign.segments import segment_advantage
from marl.protocols import Evidence
from tests.support.handmade_episodes import TimedRewards, make_episode

RULES = frozenset({"verifier"})


def divided(turn: Turn, *last_tokens: int) -> Turn:
    """Return `turn` with tokens 0, 1, ... and segments that end with `last_tokens`."""
    ids = tuple(range(last_tokens[-1] + 1))
    completion = replace(turn.completion, token_ids=ids, logprobs=(0.0,) * len(ids), segments=last_tokens)
    return replace(turn, completion=completion)


def scored(name: str, ends: Sequence[int], scores: Any, outcome: TimedRewards = ()) -> Trajectory:
    """An episode of one answer by agent `a`, with segments that end with the tokens `ends`, and its verifier `v`."""
    episode = make_episode(name, "av", outcome, start="s")
    answer, verdict = episode.turns
    text = json.dumps({"scores": {"steps": scores}})
    turns = [
        divided(answer, *ends),
        replace(verdict, role="verifier", completion=replace(verdict.completion, text=text)),
    ]
    again = Trajectory(replace(episode.deal, seats={"a": "player", "v": "verifier"}), "s")
    again.add(turns[0], ())
    again.add(turns[1], (turns[0].id,))
    again.rewards, again.end = episode.rewards, episode.end
    return again


def process_credit(episodes: Sequence[Trajectory], **settings: Any) -> Credit:
    rule = ProcessRewardAssign(scores={"verifier": ("steps",)}, **settings).build()
    return rule(Evidence(episodes, "a_game", rule_based_roles=RULES))


def test_each_segment_gets_its_own_process_reward_to_go_plus_the_outcome() -> None:
    episode = scored("e", (1, 2, 4), [1.0, -1.0, 0.5], [("a", 2.0, 1)])
    got = process_credit([episode], level="segment")["e", 0]
    # To go: 1 - 1 + .5 = .5, -1 + .5 = -.5, .5; each plus the outcome 2. Lengths of the segments: 2, 1, 2 tokens.
    assert got.tokens == (2.5, 2.5, 1.5, 2.5, 2.5)
    assert got.value == pytest.approx((2.5 + 2.5 + 1.5 + 2.5 + 2.5) / 5)
    # Discount .5 a segment: 1 - .5 + .125 = .625, -1 + .25 = -.75, .5; the outcome is paid at the last segment.
    got = process_credit([episode], level="segment", discount=0.5, outcome_discount=0.5)["e", 0]
    assert got.tokens == pytest.approx((1.125, 1.125, 0.25, 2.5, 2.5))


def test_at_the_level_of_turns_a_list_of_scores_counts_as_its_mean() -> None:
    episode = scored("e", (0, 1), [1.0, 0.0], [("a", 2.0, 1)])
    assert process_credit([episode])["e", 0].value == 2.5
    assert process_credit([episode])["e", 0].tokens == ()


def test_a_single_score_belongs_to_the_last_segment() -> None:
    got = process_credit([scored("e", (0, 2), 0.5)], level="segment", discount=0.5)["e", 0]
    assert got.tokens == (0.25, 0.5, 0.5)


def test_max_abs_divides_by_the_largest_reward_to_go_of_a_segment() -> None:
    episodes = [scored("e", (0, 1), [1.0, 3.0], [("a", 1.0, 1)]), scored("f", (0,), [-2.0])]
    credit = process_credit(episodes, level="segment", combine="max_abs")
    # Largest |reward to go|: 1 + 3 = 4.
    assert credit["e", 0].tokens == pytest.approx((1 + 4 / 4, 1 + 3 / 4), abs=1e-6)
    assert credit["f", 0].tokens == pytest.approx((-2 / 4,), abs=1e-6)


def test_prime_subtracts_the_peers_mean_reward_of_a_segment() -> None:
    episodes = [scored("e", (0, 1), [1.0, 3.0], [("a", 1.0, 1)]), scored("f", (1, 2), [0.0, 1.0])]
    credit = process_credit(episodes, level="segment", combine="prime_paper")
    # Means of the segments' rewards: 2 and .5. e: (1 - .5) + (3 - .5) = 3, then 2.5; outcome 1 - 0.
    assert credit["e", 0].tokens == pytest.approx((4.0, 3.5))
    # f: (0 - 2) + (1 - 2) = -3, then -1; outcome 0 - 1. Its first segment has two tokens.
    assert credit["f", 0].tokens == pytest.approx((-4.0, -4.0, -2.0))


def test_the_released_code_of_prime_whitens_segments() -> None:
    episodes = [scored("e", (0, 1), [1.0, 3.0]), scored("f", (0, 1), [0.0, 1.0])]
    credit = process_credit(episodes, level="segment", combine="prime_released")
    # Divided by 4 (e: 1 + 3). K = 2: r K/(K-1) - sum of means/(K-1) = 2 (r - .3125), means .5 and .125.
    # e: 2 (.25 + .75 - .625) = .75, 2 (.75 - .3125) = .875; f: 2 (.25 - .625) = -.75, 2 (.25 - .3125) = -.125.
    raw = [0.75, 0.875, -0.75, -0.125]
    mean = sum(raw) / 4
    deviation = (sum((x - mean) ** 2 for x in raw) / 3) ** 0.5
    expected = [(x - mean) / deviation for x in raw]
    assert [*credit["e", 0].tokens, *credit["f", 0].tokens] == pytest.approx(expected, abs=1e-4)


def test_decoupled_compares_the_nth_segments_of_peers() -> None:
    episodes = [scored("e", (0, 1), [1.0, 1.0]), scored("f", (0, 1), [0.0, 0.0])]
    credit = process_credit(episodes, level="segment", combine="decoupled", epsilon=0.0)
    # To go: e 2, 1; f 0, 0. Minus the means 1 and .5 of the nth segments: 1, .5, -1, -.5. Then whitened: mean 0, and
    # the factor makes the variance (ddof 1) one: 2.5 / 3.
    scale = (2.5 / 3) ** -0.5
    assert credit["e", 0].tokens == pytest.approx((scale, 0.5 * scale))
    assert credit["f", 0].tokens == pytest.approx((-scale, -0.5 * scale))


def test_a_list_with_another_number_of_scores_than_segments_is_refused() -> None:
    with pytest.raises(ValueError, match=r"credit\.assign\.scores: 'steps' has 2 numbers for the 3 segments of turn"):
        process_credit([scored("e", (0, 1, 2), [1.0, 0.0])], level="segment")


def gae_credit(episode: Trajectory, values: dict[int, tuple[float, ...]], **settings: Any) -> Credit:
    readings = {("e", index): Reading((0.0,) * len(row), row) for index, row in values.items()}
    return PerAgentGae(**settings).build()(Evidence([episode], "a_game", readings))


def two_turns(reward: float) -> Trajectory:
    """Two turns of agent `a`, of segments with 2 + 1 and 1 + 2 tokens; `reward` after the second."""
    episode = make_episode("e", "aa", [("a", reward, 1)])
    again = Trajectory(episode.deal, "s")
    again.add(divided(episode.turns[0], 1, 2), ())
    again.add(divided(episode.turns[1], 0, 2), (episode.turns[0].id,))
    again.rewards, again.end = episode.rewards, episode.end
    return again


VALUES = {0: (0.1, 9.0, 0.2), 1: (0.4, 0.8, 9.0)}


def test_gae_by_segments_has_a_moment_a_segment() -> None:
    credit = gae_credit(two_turns(1.0), VALUES, level="segment", gamma=0.5, lam=0.5)
    # Values before the four segments: .1, .2, .4, .8. delta: .5 * .2 - .1 = 0, .5 * .4 - .2 = 0, .5 * .8 - .4 = 0,
    # 1 - .8 = .2. gamma lambda = .25: A = .003125, .0125, .05, .2.
    assert credit["e", 0].tokens == pytest.approx((0.003125, 0.003125, 0.0125))
    assert credit["e", 1].tokens == pytest.approx((0.05, 0.2, 0.2))
    assert credit["e", 0].returns == pytest.approx((0.103125, 0.103125, 0.2125))
    assert credit["e", 1].returns == pytest.approx((0.45, 1.0, 1.0))


def test_with_lambda_one_every_segment_gets_the_return_minus_its_value() -> None:
    credit = gae_credit(two_turns(1.0), VALUES, level="segment")
    assert credit["e", 0].tokens == pytest.approx((0.9, 0.9, 0.8))
    assert credit["e", 1].tokens == pytest.approx((0.6, 0.2, 0.2))


def test_segments_of_one_token_are_gae_by_tokens_and_whole_turns_gae_by_turns() -> None:
    settings = {"gamma": 0.9, "lam": 0.8}
    episode = two_turns(1.0)
    tokens, turns = Trajectory(episode.deal, "s"), Trajectory(episode.deal, "s")
    for again, ends in ((tokens, (0, 1, 2)), (turns, (2,))):
        for turn in episode.turns:
            again.add(divided(turn, *ends), ())
        again.rewards, again.end = episode.rewards, episode.end
    by_token = gae_credit(tokens, VALUES, level="token", **settings)
    assert gae_credit(tokens, VALUES, level="segment", **settings) == by_token
    by_turn = gae_credit(turns, VALUES, level="turn", **settings)
    for turn, advantage in gae_credit(turns, VALUES, level="segment", **settings).items():
        assert advantage.tokens == pytest.approx((by_turn[turn].value,) * 3)


def test_three_levels_by_hand() -> None:
    rewards, values = [0.0] * 5 + [1.0], [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    turn, segment, token = GammaAndLambda(0.5, 1.0), GammaAndLambda(1.0, 0.5), GammaAndLambda(1.0, 0.0)
    # Turns end with tokens 2 and 5, segments with 0, 2, 4 and 5.
    # Turns: A_5 = 1 - .5 = .5; A_2 = .5 * .5 - .2 + .5 * .5 = .3.
    # Segments: A_4 = .5 - .4 + .5 * .5 = .35; A_0 = .2 - 0 + .5 * .3 = .35.
    # Tokens (lambda 0): A_1 = .2 - .1 = .1; A_3 = .4 - .3 = .1.
    expected = [0.35, 0.1, 0.3, 0.1, 0.35, 0.5]
    assert nested_gae(rewards, values, [[2, 5], [0, 2, 4, 5]], [turn, segment, token]) == pytest.approx(expected)
    credit = gae_credit(
        two_turns(1.0), {0: tuple(values[:3]), 1: tuple(values[3:])}, **{"level": "tri_level", "lam": 0.0},
        gamma_turn=0.5, lam_turn=1.0, gamma_segment=1.0, lam_segment=0.5,
    )  # fmt: skip
    # Here the segments end with tokens 1 and 2, and with 3 and 5.
    # A_1 = .2 - .1 + .5 * .3 = .25; A_0 = .1 - 0 = .1; A_3 = .5 - .3 + .5 * .5 = .45; A_4 = .5 - .4 = .1.
    assert credit["e", 0].tokens == pytest.approx((0.1, 0.25, 0.3))
    assert credit["e", 1].tokens == pytest.approx((0.45, 0.1, 0.5))


def test_two_levels_are_three_with_one_segment_a_turn() -> None:
    rewards, values = [0.3, 0.0, -1.0, 0.0, 0.2, 1.0], [0.5, 0.1, 0.7, 0.3, 0.4, 0.9]
    turn, token = GammaAndLambda(0.9, 0.8), GammaAndLambda(0.7, 0.6)
    two = bi_level_gae(rewards, values, [2, 5], token, turn)
    assert nested_gae(rewards, values, [[2, 5], [2, 5]], [turn, GammaAndLambda(0.1, 0.2), token]) == two


def test_a_turn_without_marked_segments_is_one_segment() -> None:
    turn = divided(make_episode("e", "a", ()).turns[0], 2)
    whole = replace(turn, completion=replace(turn.completion, segments=()))
    assert segment_advantage(whole, [2.0]) == segment_advantage(turn, [2.0])
    assert segment_advantage(turn, [2.0]).tokens == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"level": "segment", "values": "own"}, "level: 'segment' needs a value before each token"),
        ({"level": "segment", "gamma_turn": 0.9}, "gamma_turn: 0.9 has no effect at level 'segment'"),
        ({"level": "bi_level", "lam_segment": 0.9}, "lam_segment: 0.9 has no effect .* choices: tri_level, or none"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        PerAgentGae(**settings)
