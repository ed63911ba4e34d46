"""Search by a critic's values: whose they are, that good ones lead to good moves, and what happens without a critic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from marl.core.types import Completion, Deal, Request, Turn
from marl.experience.expert_iteration import SearchSelfPlay
from marl.games.base import FinalRewards, NextAgent
from marl.games.leduc_poker import LeducPokerConfig
from marl.games.negotiation import NegotiationConfig
from marl.games.nim import Nim, NimConfig
from marl.games.tic_tac_toe import TicTacToeConfig, best_moves, has_three_in_a_row, minimax_value, put_mark
from marl.rollout.episode import Episode, GameError
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.load import ScenarioError, validate
from marl.search.evaluators import CriticValues, PolicyPrior
from marl.search.mcts import SearchResult
from marl.search.play import SearchPlayer, SearchRoles, imitation_targets_from_search
from marl.search.positions import DecisionRequestCache, SearchPosition
from marl.search.settings import SearchSettings
from tests.support.small_games import FunctionEngine, make_deal, make_simulator, random_move

BY_CRITIC = SearchSettings(simulations=30, values="critic", prior="uniform")


class Scored(FunctionEngine):
    """Scores every text alike; a prompt's tokens are the state in bytes."""

    def __init__(self) -> None:
        super().__init__(random_move)

    def _answer(self, request: Request) -> Completion:
        text = random_move(request) if request.forced is None else request.forced
        prompt = tuple(request.state.encode())
        return Completion(text, prompt, tuple(text.encode()), (math.log(0.2), *[0.0] * (len(text) - 1)), "stop")


def minimax(turns: Sequence[Turn]) -> list[float]:
    """Return the exact value of each board to whoever is to move."""
    return [float(minimax_value(turn.request.state)) for turn in turns]


def seated(board: str) -> tuple[RolloutSimulator, Episode]:
    game = TicTacToeConfig()
    simulator = make_simulator(game, Scored())
    episode = Episode(game.build(), make_deal("e", game, board=board), simulator.casting)
    episode.take_new_requests()
    return simulator, episode


def test_a_critic_values_whoever_is_to_move_and_the_other_gets_the_opposite() -> None:
    asked: list[Turn] = []

    def critic(turns: Sequence[Turn]) -> list[float]:
        asked.extend(turns)
        return [0.25] * len(turns)

    simulator, episode = seated("x........")
    root = SearchPosition(episode.game, decision=DecisionRequestCache(episode.copy(episode.game)))
    values = CriticValues(critic, PolicyPrior(simulator, "eval"))
    assert values([root, root.position_after("5")]) == [[-0.25, 0.25], [0.25, -0.25]]
    assert [(turn.agent, turn.request.state) for turn in asked] == [
        ("player_1", "x........"),
        ("player_0", "x...o...."),
    ]
    assert [len(turn.completion.token_ids) for turn in asked] == [1, 1]
    values([root])
    assert len(asked) == 2  # equal prompts are valued once


def test_exact_values_lead_a_search_to_the_best_move_with_few_simulations() -> None:
    boards = [b for b in ("x........", "xo.......", "x...o...x", "xo..x....", "xox.o....") if len(best_moves(b)) < 4]
    assert len(boards) >= 3
    for board in boards:
        simulator, episode = seated(board)
        simulator.critic = minimax
        (result,) = SearchPlayer(simulator, BY_CRITIC, SearchRoles(["player"], {})).search_next_moves([episode])
        assert result.chosen_move in best_moves(board)


def test_the_end_of_a_game_counts_as_it_was_paid_whatever_a_critic_says() -> None:
    simulator, episode = seated("xx.oo....")
    simulator.critic = lambda turns: [0.0] * len(turns)
    (result,) = SearchPlayer(simulator, BY_CRITIC, SearchRoles(["player"], {})).search_next_moves([episode])
    assert result.chosen_move == "3"
    assert has_three_in_a_row(put_mark("xx.oo....", "3"))
    assert result.values[result.moves.index("3")] == 1.0


def test_what_a_critic_cannot_value_is_said_before_anything_is_played() -> None:
    with pytest.raises(ValueError, match="repeats: 4 has no effect with values: 'critic'"):
        SearchSettings(values="critic", repeats=4)
    game = NegotiationConfig()
    simulator = make_simulator(game, Scored())
    with pytest.raises(ValueError, match="game 'negotiation' is no zero-sum game of two"):
        SearchPlayer(simulator, BY_CRITIC, SearchRoles(["player"], {}))
    with pytest.raises(ValueError, match="no learner with a critic is here; choices: rollouts"):
        SearchPlayer(make_simulator(LeducPokerConfig(), Scored()), BY_CRITIC, SearchRoles(["player"], {}))


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        ({"kind": "sft"}, "role 'player' has no critic: the learner of policy 'actor' has none; choices: rollouts"),
        ({"kind": "sft", "critic": {"where": "trunk"}}, "learns from what comes of them; choose an assign"),
    ],
)
def test_a_scenario_that_lacks_a_critic_or_its_targets_is_refused(learner: Mapping[str, object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        validate(
            {
                "game": {"kind": "tic_tac_toe"},
                "seats": {"player_0": "player", "player_1": "player"},
                "roles": {"player": {"kind": "player", "policy": "actor"}},
                "policies": {"actor": {"model": {"kind": "tiny"}, "learner": learner}},
                "credit": {"assign": {"kind": "outcome"}, "baseline": {"kind": "none"}},
                "experience": {"kind": "search", "values": "critic"},
                "schedule": {"steps": 1, "groups": 2, "group_size": 1},
            },
            "test",
        )


class Sure(Scored):
    """Is four times as sure of taking one as of taking two."""

    def _answer(self, request: Request) -> Completion:
        answer = super()._answer(request)
        return replace(answer, logprobs=(math.log(0.8 if request.forced == "[1]" else 0.2), *answer.logprobs[1:]))


def test_a_prior_can_be_less_sharp_than_its_policy() -> None:
    game = NimConfig(piles=(1, 6))
    simulator = make_simulator(game, Sure())
    episode = Episode(game.build(), make_deal("e", game, pile=2), simulator.casting)
    episode.take_new_requests()
    for temperature, prior in ((1.0, (0.8, 0.2)), (2.0, (2 / 3, 1 / 3))):
        settings = SearchSettings(simulations=2, prior_temperature=temperature)
        (result,) = SearchPlayer(simulator, settings, SearchRoles(["player"], {})).search_next_moves([episode])
        assert result.prior == pytest.approx(prior)


# --- what is learned from a search -----------------------------------------------------------------------------------


def test_targets_are_the_sharpened_shares_of_visits_without_those_that_hardly_count() -> None:
    answers = {move: Completion(move, (1,), (ord(move),), (0.0,), "stop") for move in "abc"}
    answers["d"] = Completion("d", (), (), (), "stop")
    result = SearchResult(("a", "b", "c", "d"), (0.6, 0.3, 0.04, 0.06), (0.0,) * 4, (1,) * 4, "a", (0.25,) * 4)
    targets = imitation_targets_from_search(result, SearchSettings(temperature=0.5), answers)
    # .36 : .09 : .0016 : .0036, of which the last two are below .01.
    assert [(target.token_ids, target.share) for target in targets] == [
        ((ord("a"),), pytest.approx(0.8)),
        ((ord("b"),), pytest.approx(0.2)),
    ]
    (chosen,) = imitation_targets_from_search(result, SearchSettings(temperature=0.0), answers)
    assert (chosen.token_ids, chosen.share) == ((ord("a"),), 1.0)


def test_turns_that_were_searched_for_hold_the_distribution_from_which_their_move_was_drawn() -> None:
    game = TicTacToeConfig()
    counts: dict[Any, int] = {"policy": 2, "move": 0}
    for kind, many in counts.items():
        experience = SearchSelfPlay(simulations=16, targets=kind).build()
        (episode,) = experience.gather(0, lambda _: [make_deal("e", game)], make_simulator(game, Scored()))
        first = episode.turns[0].completion
        assert len(first.targets) >= many
        assert sum(target.share for target in first.targets) == pytest.approx(1.0 if many else 0.0)
        assert not many or first.token_ids in [target.token_ids for target in first.targets]


# --- games that raise ------------------------------------------------------------------------------------------------


class FragileConfig(NimConfig):
    """Nim that breaks down with two objects left."""

    kind: str = "fragile_nim"

    def build(self) -> Nim:
        return Fragile(self)


class Fragile(Nim):
    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        if self.pile - int(action) == 2:
            raise RuntimeError("two left")
        return super().apply_action(action)


def test_a_game_that_raises_in_a_line_of_search_is_named_with_seed_and_moves() -> None:
    game = FragileConfig(piles=(3, 6))
    player = SearchPlayer(make_simulator(game, Scored()), SearchSettings(simulations=8), SearchRoles(["player"], {}))
    with pytest.raises(GameError, match=r"game Fragile raised RuntimeError: two left \(episode e, seed 3, .*a search"):
        player.play([make_deal("e", game, 3, pile=5)])


def test_episodes_whose_game_raises_in_a_search_are_dropped_up_to_the_cap_and_others_are_as_without_them() -> None:
    game = FragileConfig(piles=(1, 6))
    deals = [
        make_deal("whole", game, 1, pile=1),
        make_deal("broken", game, 2, pile=5),
        make_deal("other", game, 3, pile=1),
    ]

    def played(some: Sequence[Deal], may_drop: int) -> tuple[list[str], int]:
        simulator = make_simulator(game, Scored())
        simulator.drops.limit = may_drop
        experience = SearchSelfPlay(simulations=8).build()
        return [trajectory.id for trajectory in experience.gather(0, lambda _: some, simulator)], simulator.drops.count

    assert played(deals, 1) == (["whole", "other"], 1)
    with pytest.raises(GameError, match="1 episodes were dropped before this one"):
        played([*deals, make_deal("broken too", game, 4, pile=4)], 1)
