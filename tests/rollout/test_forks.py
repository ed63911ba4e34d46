"""Episodes left at a turn: the start is replayed, the rest is played anew."""

from typing import Any

import pytest
from small_games import CircleConfig, Listener, PenniesConfig, Voice, deal, drawn, table

from games.base import IllegalMove
from games.kuhn_poker import KuhnPokerConfig
from games.tic_tac_toe import TicTacToeConfig

STUMBLING = IllegalMove(retry=1, then="random")
FORKABLE = (
    KuhnPokerConfig(illegal=STUMBLING),
    TicTacToeConfig(illegal=STUMBLING),
    CircleConfig(illegal=STUMBLING),
    PenniesConfig(rounds=3, illegal=STUMBLING),
)


@pytest.mark.parametrize("game", FORKABLE, ids=lambda game: game.kind)
def test_a_fork_at_any_turn_of_any_episode_asks_what_was_asked_then(game: Any) -> None:
    voice = Voice(lambda request: drawn(request) if request.seed % 3 else "mumble")
    laid = table(game, voice, player=Listener(policy="actor"))
    deals = [deal(f"e{seed}", game, seed) for seed in range(6)]
    for past in laid.play(deals):
        for at, left in enumerate(past.turns):
            for fork in laid.fork(left.id, 2):
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
    laid = table(game, Voice(drawn))
    [past] = laid.play([deal("e", game)])
    branches = laid.fork(past.turns[1].id, 4) + laid.fork(past.turns[1].id, 4)
    assert len({fork.id for fork in branches}) == 8
    assert len({tuple(t.action for t in fork.turns) for fork in branches}) > 4
    other = table(game, Voice(drawn, newest_first=True, batch=1))
    held = other.play([deal("e", game)])
    assert other.fork(held[0].turns[1].id, 8) == branches
    again = laid.fork(branches[3].turns[4].id, 1)[0]
    assert again.turns[:4] == branches[3].turns[:4]
    assert [turn.id[0] for turn in again.turns[:5]] == ["e", branches[3].id, branches[3].id, branches[3].id, again.id]


@pytest.mark.parametrize("move", ["bet", "check", "no move at all"])
def test_a_forced_action_is_recorded_without_tokens(move: str) -> None:
    laid = table(KuhnPokerConfig(), Voice(drawn))
    [past] = laid.play([deal("e", KuhnPokerConfig(), cards="KQ")])
    for fork in laid.fork(past.turns[0].id, 3, move):
        turn = fork.turns[0]
        assert turn.action == (move if move in ("bet", "check") else None)
        assert (turn.completion.prompt_ids, turn.completion.token_ids) == ((), ())
        assert fork.deal.purpose == "credit"


def test_a_forced_action_of_one_of_two_that_are_asked_at_once_leaves_the_others_question_open() -> None:
    game = PenniesConfig(rounds=2)
    laid = table(game, Voice(lambda request: "[heads]"), player=Listener(policy="actor"))
    [past] = laid.play([deal("e", game)])
    [fork] = laid.fork(past.turns[2].id, 1, "tails")
    assert [(turn.agent, turn.attempt, turn.action) for turn in fork.turns[2:]] == [
        ("player_0", 0, "tails"),
        ("player_1", 0, "heads"),
    ]
    assert fork.turns[3].request.messages == past.turns[3].request.messages


def test_only_what_was_played_here_and_is_still_held_can_be_forked() -> None:
    laid = table(KuhnPokerConfig(), Voice(drawn))
    [past] = laid.play([deal("e", KuhnPokerConfig())])
    laid.play([deal("another", KuhnPokerConfig())])
    assert laid.fork(past.turns[0].id, 1)
    turn = past.turns[0].id
    del past
    with pytest.raises(ValueError, match="no episode 'e' at hand"):
        laid.fork(turn, 1)
    with pytest.raises(ValueError, match="no episode 'another' at hand"):
        laid.fork(("another", 0), 1)
