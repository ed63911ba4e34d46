"""Episodes as rounds and as tensors: when a team is paid, what is bootstrapped, and what stands for a text."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch

from marl.core.graph import Trajectory
from marl.credit.assign.teams import CreditTeam
from marl.credit.assign.value_decomposition import Vdn
from marl.credit.mixing.decomposition import DecompositionRule
from marl.credit.mixing.fitted_rule import lambda_returns
from marl.credit.mixing.networks import RoundBatch, UtilityNetworks
from marl.credit.mixing.round_tensors import FeatureLayout, RoundEncoder, hashed_text_features, observation_text
from marl.credit.mixing.rounds import Round, team_rounds
from marl.games.matrix_games import TwoStepConfig
from marl.models.mixers import VdnMixer
from tests.support.enumerated_rollouts import all_rollouts
from tests.support.handmade_episodes import make_episode
from tests.support.handmade_episodes import make_evidence as by_hand
from tests.support.small_games import CircleConfig, FunctionEngine, make_deal, make_simulator

AB = CreditTeam(frozenset("ab"))


def by_turns(trajectory: Trajectory, team: CreditTeam = AB) -> list[Round]:
    return [*team_rounds(trajectory, team, "turns")]


def paid(trajectory: Trajectory, team: CreditTeam = AB) -> list[float]:
    return [each.reward for each in by_turns(trajectory, team)]


def speakers(played: Iterable[Round]) -> list[str]:
    return ["".join(turn.agent for turn in each.turns) for each in played]


def test_by_reading_each_stage_of_a_pipeline_is_a_round() -> None:
    t = make_episode("e", "abab", [("a", 1.0, 1), ("b", 2.0, 3)])
    assert speakers(team_rounds(t, AB, "reading")) == ["a", "b", "a", "b"]
    assert [each.reward for each in team_rounds(t, AB, "reading")] == [0.0, 1.0, 0.0, 2.0]
    assert speakers(by_turns(t)) == ["ab", "ab"]


def test_by_reading_those_who_move_at_once_share_a_round() -> None:
    for course in all_rollouts(TwoStepConfig()):
        team = CreditTeam(frozenset(course.deal.seats), 0.5)
        assert [len(each.turns) for each in team_rounds(course, team, "reading")] == [2, 2]
        assert [*team_rounds(course, team, "reading")] == [*team_rounds(course, team, "turns")]
    # A chain that leads through somebody else is a chain all the same; numbers have no gaps.
    assert speakers(team_rounds(make_episode("e", "acb"), AB, "reading")) == ["a", "b"]
    deaf = make_simulator(CircleConfig(deaf="player_2"), FunctionEngine(lambda request: "[stay]")).play(
        [make_deal("e", CircleConfig())]
    )[0]
    [first, *_] = team_rounds(deaf, CreditTeam(frozenset(deaf.deal.seats)), "reading")
    assert [turn.agent for turn in first.turns] == ["player_0", "player_2"]


def test_a_reward_belongs_to_the_round_of_the_teams_last_turn_before_it() -> None:
    t = make_episode("e", "abcabc", [("a", 1.0, 1), ("b", 2.0, 2), ("c", 9.0, 3), ("a", 4.0, 5), ("b", 8.0, 5)])
    assert paid(t) == [3.0, 12.0]
    assert paid(t, CreditTeam(frozenset("ab"), reward_scale=0.5)) == [1.5, 6.0]
    assert paid(t, CreditTeam(frozenset("c"))) == [9.0, 0.0]
    early = make_episode("e", "abcabc", [("c", 9.0, 0)])
    assert paid(early, CreditTeam(frozenset("c"))) == [9.0, 0.0], "paid before its first turn counts in its first round"


def test_no_turn_loses_what_was_paid_after_it_when_agents_speak_unequally_often() -> None:
    t = make_episode("e", "aaab", [("b", 1.0, 3)])
    assert speakers(by_turns(t)) == ["ab", "a", "a"]
    assert paid(t) == [0.0, 0.0, 1.0]


def test_a_rounds_place_in_the_graph_is_told_by_its_edges() -> None:
    first, second = by_turns(make_episode("e", "abab"))
    # b reads a's turn; then a reads b's and its own, and b likewise: chains of 0, 1, 2 and 3 turns before them.
    assert np.expm1(first.graph_features[:4]) == pytest.approx([0, 2, 1, 1])
    assert np.expm1(second.graph_features[:4]) == pytest.approx([1, 2, 4, 3])
    assert first.graph_features[4] == second.graph_features[4] == 1.0


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
def test_returns_are_the_mean_of_n_step_returns(lam: float) -> None:
    """The forward view of TD(lambda): (1 - lam) sum of lam^(n - 1) G(n), and the whole return with what is left."""
    gamma, rewards = 0.9, [0.5, -1.0, 2.0, 3.0]
    part = Vdn(features="text").build()
    assert isinstance(part, DecompositionRule)
    t = make_episode("e", "abababab", [("a", reward, 2 * i + 1) for i, reward in enumerate(rewards)])
    fitted = part.get_or_create_networks(by_hand(t))
    record, _ = fitted.encode_rounds([*by_turns(t), *by_turns(make_episode("f", "ab", [("b", 7.0, 1)]))], by_hand(t))
    with torch.no_grad():
        values = fitted.networks.round_values(RoundBatch(record)).tolist()

    def ahead(t: int, n: int) -> float:
        steps = range(t, min(t + n, 4))
        left = gamma**n * values[t + n] if t + n < 4 else 0.0
        return sum(gamma ** (k - t) * rewards[k] for k in steps) + left

    def mixed(t: int) -> float:
        last = 4 - t
        return sum((1 - lam) * lam ** (n - 1) * ahead(t, n) for n in range(1, last)) + lam ** (last - 1) * ahead(
            t, last
        )

    targets = lambda_returns(record, fitted.networks, gamma, lam)
    assert targets.tolist() == pytest.approx([*map(mixed, range(4)), 7.0], abs=1e-5)


def test_a_network_grows_with_the_kinds_of_turns_that_it_meets() -> None:
    layout = FeatureLayout(("a", "b"), ("player",), 16)
    encoder, networks = RoundEncoder(layout, hidden=True), UtilityNetworks(layout, VdnMixer(), 8)
    t = make_episode("e", "ab")
    record, turns = encoder([*by_turns(t)], {})
    assert [turn.agent for turn in turns] == ["a", "b"]
    assert [len(requests) for requests in record.prompts] == [2]
    for kind in encoder.kinds:
        networks.add_turn_kind_layers(kind)
    assert networks.round_values(RoundBatch(record)).shape == (1,)


def test_equal_words_are_equal_numbers_in_every_process() -> None:
    code = (
        "from marl.credit.mixing.round_tensors import hashed_text_features as features;"
        "print(features('Two plus 2 is 4.', 32).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = hashed_text_features("two plus 2  is 4 .", 32)
    assert done.stdout.strip() == str(here.tolist())
    assert float(np.linalg.norm(here)) == pytest.approx(1, abs=1e-6)
    assert not hashed_text_features("", 32).any()


def test_order_and_words_tell_texts_apart() -> None:
    texts = ["a b c", "c b a", "a b d", "d"]
    vectors = np.stack([hashed_text_features(text, 64) for text in texts])
    alike = vectors @ vectors.T
    assert np.allclose(np.diag(alike), 1, atol=1e-6)
    assert (alike - np.eye(4)).max() < 0.8
    assert alike[0, 2] > alike[0, 3]


def test_an_agents_situation_is_its_state_or_else_its_prompt() -> None:
    turn = make_episode("e", "a").turns[0]
    assert observation_text(turn) == "0"
    assert observation_text(replace(turn, request=replace(turn.request, state="all it knows"))) == "all it knows"
