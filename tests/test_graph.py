"""Who read whom, and what a file keeps of it."""

import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import zstandard

from marl.core.graph import Trajectory, compressed_trajectory_line, read_trajectories, write_trajectories
from marl.core.types import CompletionFailure, Fork, Request
from marl.games.base import IllegalMoveHandling
from marl.games.kuhn_poker import KuhnPokerConfig
from tests.support.small_games import (
    CircleConfig,
    FunctionEngine,
    PenniesConfig,
    make_deal,
    make_simulator,
    random_move,
)


def played(game: KuhnPokerConfig | CircleConfig | PenniesConfig, voice: FunctionEngine, **options: Any) -> Trajectory:
    return make_simulator(game, voice).play([make_deal("e", game, **options)])[0]


def edges(trajectory: Trajectory) -> set[tuple[int, int]]:
    return {(source[1], target[1]) for source, target in trajectory.graph.edges}


def always(text: str) -> FunctionEngine:
    return FunctionEngine(lambda request: text)


def test_a_turn_reads_what_was_said_since_its_agents_last_turn_and_that_turn() -> None:
    trajectory = played(CircleConfig(rounds=2), always("[stay]"))
    assert [turn.agent[-1] for turn in trajectory.turns] == list("012012")
    first_round, second_round = {(0, 1), (0, 2), (1, 2)}, {(3, 4), (3, 5), (4, 5)}
    between = {(0, 3), (1, 3), (2, 3), (1, 4), (2, 4), (2, 5)}
    assert edges(trajectory) == first_round | between | second_round


def test_who_does_not_hear_is_not_joined_to_what_was_said() -> None:
    trajectory = played(CircleConfig(rounds=2, deaf="player_1"), always("[stay]"))
    assert edges(trajectory) == {(0, 2), (0, 3), (2, 3), (1, 4), (2, 5), (3, 5)}


def test_agents_that_are_asked_at_once_have_not_read_each_other() -> None:
    trajectory = played(PenniesConfig(rounds=2), always("[heads]"))
    assert [turn.agent[-1] for turn in trajectory.turns] == list("0101")
    assert edges(trajectory) == {(0, 2), (1, 2), (0, 3), (1, 3)}


@pytest.mark.parametrize("illegal", ["forfeit", "random"])
def test_the_order_of_answers_does_not_matter_to_agents_that_are_asked_at_once(illegal: str) -> None:
    game = PenniesConfig(rounds=3, illegal=IllegalMoveHandling(retry=1, then=illegal))  # type: ignore[arg-type]

    def say(request: Request) -> str:
        return random_move(request) if request.seed % 3 else "mumble"

    for seed in range(20):
        deals = [make_deal(f"{seed}", game, seed)]
        assert make_simulator(game, FunctionEngine(say)).play(deals) == make_simulator(
            game, FunctionEngine(say, newest_first=True, batch=1)
        ).play(deals)


def test_a_retry_reads_the_answer_that_was_refused() -> None:
    game = KuhnPokerConfig(illegal=IllegalMoveHandling(retry=1))
    trajectory = played(game, FunctionEngine(lambda r: "[check]" if "none" not in r.messages[-1].content else "eh"))
    assert [(turn.agent[-1], turn.nth, turn.attempt, turn.action) for turn in trajectory.turns] == [
        ("0", 0, 0, None),
        ("0", 1, 1, None),
    ]
    assert edges(trajectory) == {(0, 1)}


def test_the_networkx_graph_follows_turns_that_are_added_and_cannot_be_changed() -> None:
    trajectory = played(KuhnPokerConfig(), FunctionEngine(lambda r: "[check]"))
    shorter = Trajectory(trajectory.deal, trajectory.start)
    for turn in trajectory.turns:
        shorter.add(turn, trajectory.reads[turn.id], trajectory.reads[turn.id])
        assert list(shorter.graph) == [earlier.id for earlier in shorter.turns]
    assert list(shorter.graph.edges(data="kinds")) == list(trajectory.graph.edges(data="kinds"))
    with pytest.raises(nx.NetworkXError, match="Frozen graph"):
        shorter.graph.add_edge(*[turn.id for turn in trajectory.turns])


def rich() -> list[Trajectory]:
    """Refused answers, an overflow, impossible tokens, options, several rewards, and forks with inherited turns."""
    game = KuhnPokerConfig(illegal=IllegalMoveHandling(retry=1, then="penalty"))

    def say(request: Request) -> str | CompletionFailure:
        return (random_move(request), "¿", CompletionFailure("overflow", "too long"))[request.seed % 3]

    laid = make_simulator(game, FunctionEngine(say))
    episodes = laid.play([make_deal(f"e/{i}", game, i, cards="KQ") for i in range(10)])
    longest = max(episodes, key=lambda t: len(t.turns))
    forks = (
        laid.play_forks([Fork(longest, len(longest.turns) - 1, n=2)])[0]
        + laid.play_forks([Fork(longest, 1, "check")])[0]
    )
    turn = longest.turns[0]
    unlikely = replace(turn, completion=replace(turn.completion, logprobs=(-math.inf, -1e-300)))
    episodes.append(Trajectory(replace(longest.deal, episode="odd"), "KQ"))
    episodes[-1].add(unlikely, ())
    return episodes + forks


def test_a_file_gives_back_exactly_what_was_written(tmp_path: Path) -> None:
    written = rich()
    assert any(t.parent for t in written)
    write_trajectories(tmp_path / "a" / "t.jsonl.zst", written)
    read = list(read_trajectories(tmp_path / "a" / "t.jsonl.zst"))
    assert read == written
    assert [list(t.graph.edges) for t in read] == [list(t.graph.edges) for t in written]
    assert read[10].turns[0].completion.logprobs == (-math.inf, -1e-300)
    assert [t.graph.nodes[turn.id]["turn"] for t in read for turn in t.turns] == [u for t in written for u in t.turns]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["t.jsonl.zst"]


def test_lines_that_simulators_encoded_give_the_bytes_of_lines_that_the_run_encodes(tmp_path: Path) -> None:
    written, sent = rich(), rich()
    for trajectory in sent[::2]:
        trajectory.compressed_line = compressed_trajectory_line(trajectory)
    write_trajectories(tmp_path / "run.jsonl.zst", written)
    write_trajectories(tmp_path / "sent.jsonl.zst", sent)
    assert (tmp_path / "sent.jsonl.zst").read_bytes() == (tmp_path / "run.jsonl.zst").read_bytes()


def test_a_changed_trajectory_is_written_as_changed_and_one_that_is_sent_leaves_its_line_behind(tmp_path: Path) -> None:
    played = next(trajectory for trajectory in rich() if trajectory.rewards)
    played.compressed_line = compressed_trajectory_line(played)
    assert pickle.loads(pickle.dumps(played)).compressed_line is None
    scaled = played.with_scaled_rewards(3.0)
    write_trajectories(tmp_path / "t.jsonl.zst", [scaled])
    assert list(read_trajectories(tmp_path / "t.jsonl.zst")) == [scaled]
    played.add(replace(played.turns[-1], id=(played.id, len(played.turns))), ())
    write_trajectories(tmp_path / "u.jsonl.zst", [played])
    assert list(read_trajectories(tmp_path / "u.jsonl.zst")) == [played]


def test_a_pickled_trajectory_is_equal_with_all_fields_of_its_turns() -> None:
    for trajectory in rich():
        received = pickle.loads(pickle.dumps(trajectory))
        assert received == trajectory
        assert received.turns == trajectory.turns


def test_a_damaged_file_is_never_read_in_part_without_a_word(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl.zst"
    write_trajectories(file, rich())
    whole = file.read_bytes()
    for cut in (0, 3, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"t\.jsonl\.zst: not a whole trajectory file"):
            list(read_trajectories(file))
    for at in range(8, len(whole), max(1, len(whole) // 50)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ValueError, match=r"t\.jsonl\.zst"):
            list(read_trajectories(file))


def test_a_line_that_is_no_trajectory_is_named(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl.zst"
    write_trajectories(file, rich()[:1])
    line = zstandard.decompress(file.read_bytes())
    file.write_bytes(zstandard.compress(line + b'{"deal": 3}\n'))
    with pytest.raises(ValueError, match="line 2 is no trajectory"):
        list(read_trajectories(file))


def test_scaling_rewards_leaves_the_episode_as_it_was() -> None:
    trajectory = played(PenniesConfig(), always("[heads]"))
    doubled = trajectory.with_scaled_rewards(2.0)
    assert (trajectory.returns, doubled.returns) == ({"player_0": 1, "player_1": -1}, {"player_0": 2, "player_1": -2})
    assert doubled.turns is trajectory.turns
    assert trajectory.with_scaled_rewards(1.0) is trajectory
