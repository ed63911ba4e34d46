"""Recorded play, told again in the tokens of the model that learns from it."""

from dataclasses import replace
from pathlib import Path

import pytest

from marl.core.graph import Trajectory, write_trajectories
from marl.core.types import Completion, CompletionFailure, Request, SpanFromEarlierTurn
from marl.experience.recorded import RecordedEpisodes
from marl.experience.rollouts import Rollouts
from marl.games.base import IllegalMoveHandling
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.roles.answering import PlayerRole
from marl.rollout.simulator import RolloutSimulator
from tests.support.small_games import FunctionEngine, make_deal, make_simulator, random_move

GAME = KuhnPokerConfig(illegal=IllegalMoveHandling(retry=1))


def recording(path: Path, many: int = 5, **roles: PlayerRole) -> list[Trajectory]:
    voice = FunctionEngine(lambda request: random_move(request) if request.seed % 4 else "hm")
    played = make_simulator(GAME, voice, **roles).play([make_deal(f"old {i}", GAME, i) for i in range(many)])
    write_trajectories(path, played)
    return played


class Scorer(FunctionEngine):
    """Scores forced texts in tokens of its own; `[fold]` is too long for it."""

    def __init__(self) -> None:
        super().__init__(random_move)

    def _answer(self, request: Request) -> Completion | CompletionFailure:
        assert request.forced is not None
        if request.forced == "[fold]":
            return CompletionFailure("overflow", "too long")
        return Completion(request.forced, (9,), tuple(request.forced.encode()), (-1.0,) * len(request.forced), "stop")


def learner() -> RolloutSimulator:
    return make_simulator(GAME, {"new": Scorer()}, player=PlayerRole(policy="new"))


def test_rollouts_are_the_deals_played() -> None:
    simulator = make_simulator(GAME, FunctionEngine(random_move))
    deals = [make_deal(f"{i}", GAME, i) for i in range(3)]
    assert Rollouts().build().gather(0, lambda _: deals, simulator) == simulator.play(deals)


def test_recorded_episodes_come_in_order_and_round_and_round(tmp_path: Path) -> None:
    old = recording(tmp_path / "t.jsonl.zst")
    recorded = RecordedEpisodes(path=tmp_path / "t.jsonl.zst").build()
    first = recorded.gather(0, lambda _: [make_deal(f"a{i}", GAME) for i in range(3)], learner())
    resumed = RecordedEpisodes(path=tmp_path / "t.jsonl.zst").build()
    resumed.load_state_dict(recorded.state_dict())
    second = resumed.gather(0, lambda _: [make_deal(f"b{i}", GAME) for i in range(3)], learner())
    assert [t.id for t in first + second] == ["a0", "a1", "a2", "b0", "b1", "b2"]
    for new, past in zip(first + second, [*old, old[0]], strict=True):
        assert [turn.action for turn in new.turns] == [turn.action for turn in past.turns]
        assert (new.returns, new.start, new.end) == (past.returns, past.start, past.end)
        assert {(u[1], v[1]) for u, v in new.graph.edges} == {(u[1], v[1]) for u, v in past.graph.edges}
        assert {turn.id[0] for turn in new.turns} == {new.id} == {reward.turn[0] for reward in new.rewards}


def test_what_cannot_be_scored_or_was_no_move_has_no_tokens_and_the_rest_has_the_new_models(tmp_path: Path) -> None:
    recording(tmp_path / "t.jsonl.zst", 40)
    deals = [make_deal(f"{i}", GAME) for i in range(40)]
    episodes = RecordedEpisodes(path=tmp_path / "t.jsonl.zst").build().gather(0, lambda _: deals, learner())
    turns = [turn for episode in episodes for turn in episode.turns]
    assert {turn.action for turn in turns} > {None, "fold", "check"}
    for turn in turns:
        usable = turn.action not in (None, "fold")
        assert turn.completion.token_ids == (tuple(turn.completion.text.encode()) if usable else ())
        assert len(turn.completion.logprobs) == len(turn.completion.token_ids)


def test_marks_of_recorded_prompts_lead_to_turns_of_the_new_episode(tmp_path: Path) -> None:
    old = recording(tmp_path / "t.jsonl.zst", 40)
    for game in old:
        for place, turn in enumerate(game.turns[1:], 1):
            marks = (SpanFromEarlierTurn(game.turns[place - 1].id, "heard", 0, 0, 2),)
            completion = replace(turn.completion, mark_tokens=((0, 1),))
            game.turns[place] = replace(turn, request=replace(turn.request, marks=marks), completion=completion)
    write_trajectories(tmp_path / "t.jsonl.zst", old)
    deals = [make_deal(f"new {i}", GAME) for i in range(40)]
    new = RecordedEpisodes(path=tmp_path / "t.jsonl.zst").build().gather(0, lambda _: deals, learner())
    for turn in (turn for game in new for turn in game.turns[1:]):
        assert [mark.source for mark in turn.request.marks] == [(turn.id[0], turn.id[1] - 1)]
        assert not turn.completion.mark_tokens, "the old model's tokens are gone, and this engine does not know its own"


def test_a_recording_that_cannot_be_told_again_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no such file: .*nothing\.zst"):
        RecordedEpisodes(path=tmp_path / "nothing.zst").build()
    write_trajectories(tmp_path / "empty.zst", [])
    with pytest.raises(ValueError, match="no trajectories in"):
        RecordedEpisodes(path=tmp_path / "empty.zst").build()
    recording(tmp_path / "t.zst")
    strangers = make_simulator(GAME, {"new": Scorer()}, dealer=PlayerRole(policy="new"))
    with pytest.raises(ValueError, match="no role 'player' here; roles: dealer"):
        RecordedEpisodes(path=tmp_path / "t.zst").build().gather(0, lambda _: [make_deal("a", GAME)], strangers)


def test_a_prompt_that_continues_holds_the_tokens_of_the_model_that_learns(tmp_path: Path) -> None:
    old = recording(tmp_path / "long.zst", 60, player=PlayerRole(policy="actor", history="append"))
    scorer = Scorer()
    laid = make_simulator(GAME, {"new": scorer}, player=PlayerRole(policy="new", history="append"))
    deals = [make_deal(f"new {i}", GAME) for i in range(60)]
    new = RecordedEpisodes(path=tmp_path / "long.zst").build().gather(0, lambda _: deals, laid)
    assert any(turn.action is None for game in old for turn in game.turns if turn.nth == 0)
    asked = list(scorer.requests.values())
    continued = [request for request in asked if request.continues]
    assert len(continued) > 20
    assert {request.continues for request in continued} <= {
        (9, *(request.forced or "").encode()) for request in asked if request.forced != "[fold]"
    }
    for past, game in zip(old, new, strict=True):
        for turn in game.turns:
            assert bool(turn.completion.token_ids) == (turn.action not in (None, "fold"))
            assert turn.completion.text == past.turns[turn.id[1]].completion.text


def test_what_goes_on_from_a_text_that_was_too_long_is_left_out(tmp_path: Path) -> None:
    class Short(Scorer):
        def _answer(self, request: Request) -> Completion | CompletionFailure:
            return (
                CompletionFailure("overflow", "too long") if request.forced == "[check]" else super()._answer(request)
            )

    recording(tmp_path / "long.zst", 60, player=PlayerRole(policy="actor", history="append"))
    laid = make_simulator(GAME, {"new": Short()}, player=PlayerRole(policy="new", history="append"))
    deals = [make_deal(f"new {i}", GAME) for i in range(60)]
    games = RecordedEpisodes(path=tmp_path / "long.zst").build().gather(0, lambda _: deals, laid)
    after = [turn for game in games for turn in game.turns if turn.nth > 0 and game.turns[0].action == "check"]
    assert after
    assert not any(turn.completion.token_ids for turn in after if turn.agent == "player_0")
