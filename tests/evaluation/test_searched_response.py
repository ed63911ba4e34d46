"""Best responses by search: known gains against uniform play in Kuhn poker."""

from __future__ import annotations

from functools import partial

import pytest

from marl.engines.scripted import Random
from marl.evaluation.evaluate import move_probabilities
from marl.evaluation.game_tree import InformationState, Strategy, build_game_tree, expected_returns
from marl.evaluation.searched_response import BestResponseSearch
from marl.games.kuhn_poker import KuhnEquilibrium, KuhnPokerConfig
from marl.protocols import EngineConfig
from marl.roles.answering import PlayerRole
from marl.rollout.casting import RoleRequestBuilder
from tests.support.small_games import PAIR, make_simulator

CASTING = RoleRequestBuilder(dict.fromkeys(PAIR, PlayerRole(policy="actor")), 0)


def values_of_response(opponent: EngineConfig, agent: str, episodes: int) -> tuple[float, float]:
    """Return the exact expected return of a searched response, and that of the frozen player in its seat."""
    game = KuhnPokerConfig()
    simulator = make_simulator(game, opponent.build(None)).variant(CASTING)
    search = BestResponseSearch(game, CASTING, agent, partial(move_probabilities, simulator), 0)
    search.run(episodes // 2)
    search.run(episodes // 2)
    response = search.response()
    tree = build_game_tree(game, CASTING, dict(zip(PAIR, PAIR, strict=True)))
    requests = list(tree.requests.items())
    answers = move_probabilities(simulator, [request for _, request in requests])
    frozen: dict[InformationState, dict[str, float]] = {}
    for (situation, _), answer in zip(requests, answers, strict=True):
        frozen[situation] = dict(answer)
    mixed: Strategy = {
        situation: response.move_probabilities(situation.state, tuple(moves)) if situation.agent == agent else moves
        for situation, moves in frozen.items()
    }
    return expected_returns(tree, mixed)[agent], expected_returns(tree, frozen)[agent]


# Best responses to uniform play, enumerated by hand: .5 chips for the first player and .41667 for the second.
@pytest.mark.parametrize(("agent", "value"), [("player_0", 0.5), ("player_1", 5 / 12)])
def test_a_search_finds_the_best_response_to_uniform_play(agent: str, value: float) -> None:
    assert values_of_response(Random(), agent, 2000)[0] == pytest.approx(value)


def test_nothing_is_gained_against_an_equilibrium() -> None:
    # The value of Kuhn poker is -1/18 chips for the first player (Kuhn, 1950).
    found, own = values_of_response(KuhnEquilibrium(), "player_0", 1000)
    assert own == pytest.approx(-1 / 18)
    assert found <= own + 1e-9
