"""Episodes left at a turn: the start is replayed, the rest is played anew."""

from typing import Any

import pytest

from marl.core.types import Fork
from marl.games.base import IllegalMoveHandling
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.games.tic_tac_toe import TicTacToeConfig
from tests.support.small_games import (
    CircleConfig,
    FunctionEngine,
    HearingPlayer,
    PenniesConfig,
    make_deal,
    make_simulator,
    random_move,
)

STUMBLING = IllegalMoveHandling(retry=1, then="random")
FORKABLE = (
    KuhnPokerConfig(illegal=STUMBLING),
    TicTacToeConfig(illegal=STUMBLING),
    CircleConfig(illegal=STUMBLING),
    PenniesConfig(rounds=3, illegal=STUMBLING),
)


@pytest.mark.parametrize("game", FORKABLE, ids=lambda game: game.kind)
def test_a_fork_at_any_turn_of_any_episode_asks_what_was_asked_then(game: Any) -> None:
    voice = FunctionEngine(lambda request: random_move(request) if request.seed % 3 else "mumble")
    laid = make_simulator(game, voice, player=HearingPlayer(policy="actor"))
    deals = [make_deal(f"e{seed}", game, seed) for seed in range(6)]
    for past in laid.play(deals):
        for at, left in enumerate(past.turns):
            for fork in laid.play_forks([Fork(past, at, n=2)])[0]:
                assert fork.parent == left.id
                assert fork.turns[:at] == past.turns[:at]
                assert [r for r in fork.rewards if r.turn in {t.id for t in past.turns[:at]}] == [
                    r for r in past.rewards if r.turn in {t.id for t in past.turns[:at]}
                ]
                first = fork.turns[at]
                assert first.id == (fork.id, at)
                assert first.request.messages == left.request.messages
                assert first.request.options == left.request.options
                assert first.request.seed != left.request.seed
                assert set(fork.graph.pred[first.id]) == set(past.graph.pred[left.id])


def test_branches_differ_and_can_be_forked_themselves() -> None:
    game = TicTacToeConfig()
    laid = make_simulator(game, FunctionEngine(random_move))
    [past] = laid.play([make_deal("e", game)])
    branches = laid.play_forks([Fork(past, 1, n=4)])[0] + laid.play_forks([Fork(past, 1, n=4)])[0]
    assert len({fork.id for fork in branches}) == 8
    assert len({tuple(t.action for t in fork.turns) for fork in branches}) > 4
    other = make_simulator(game, FunctionEngine(random_move, newest_first=True, batch=1))
    held = other.play([make_deal("e", game)])
    assert other.play_forks([Fork(held[0], 1, n=8)])[0] == branches
    again = laid.play_forks([Fork(branches[3], 4, n=1)])[0][0]
    assert again.turns[:4] == branches[3].turns[:4]
    assert [turn.id[0] for turn in again.turns[:5]] == ["e", branches[3].id, branches[3].id, branches[3].id, again.id]


@pytest.mark.parametrize("move", ["bet", "check", "no move at all"])
def test_a_forced_action_is_recorded_without_tokens(move: str) -> None:
    laid = make_simulator(KuhnPokerConfig(), FunctionEngine(random_move))
    [past] = laid.play([make_deal("e", KuhnPokerConfig(), cards="KQ")])
    for fork in laid.play_forks([Fork(past, 0, move, n=3)])[0]:
        turn = fork.turns[0]
        assert turn.action == (move if move in ("bet", "check") else None)
        assert (turn.completion.prompt_ids, turn.completion.token_ids) == ((), ())
        assert fork.deal.purpose == "credit"


def test_a_forced_action_of_one_of_two_that_are_asked_at_once_leaves_the_others_question_open() -> None:
    game = PenniesConfig(rounds=2)
    laid = make_simulator(game, FunctionEngine(lambda request: "[heads]"), player=HearingPlayer(policy="actor"))
    [past] = laid.play([make_deal("e", game)])
    [fork] = laid.play_forks([Fork(past, 2, "tails", n=1)])[0]
    assert [(turn.agent, turn.attempt, turn.action) for turn in fork.turns[2:]] == [
        ("player_0", 0, "tails"),
        ("player_1", 0, "heads"),
    ]
    assert fork.turns[3].request.messages == past.turns[3].request.messages


def test_a_fork_takes_its_trajectory_by_value() -> None:
    game = KuhnPokerConfig(illegal=STUMBLING)
    here = make_simulator(game, FunctionEngine(random_move))
    played = here.play([make_deal(f"e{seed}", game, seed) for seed in range(4)])
    expected = here.play_forks([Fork(past, 0, n=2) for past in played])
    elsewhere = make_simulator(game, FunctionEngine(random_move))
    assert elsewhere.play_forks([Fork(past, 0, n=2) for past in played]) == expected, "it was never played there"


def test_a_turn_that_an_episode_does_not_have_cannot_be_forked() -> None:
    laid = make_simulator(KuhnPokerConfig(), FunctionEngine(random_move))
    [past] = laid.play([make_deal("e", KuhnPokerConfig())])
    with pytest.raises(ValueError, match=f"episode 'e' has no turn 9; it has {len(past.turns)}"):
        laid.start([Fork(past, 9)])


def test_continuations_are_numbered_on_until_their_episode_is_released() -> None:
    game = TicTacToeConfig()
    laid = make_simulator(game, FunctionEngine(random_move))
    [past] = laid.play([make_deal("e", game)])
    first, second = (laid.play_forks([Fork(past, 1)])[0] for _ in range(2))
    assert first != second
    laid.fork_names.restart_fork_numbering([past])
    assert laid.play_forks([Fork(past, 1)])[0] == first
