"""The index of recorded episodes: what it finds is what lies on disk, also while a run goes on."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from marl.core.errors import RunFolderError
from marl.core.graph import Trajectory
from marl.runs.run_folder import RunFolder
from marl.view.page.episode_filter import EpisodeFilter
from marl.view.page.episode_index import EpisodeIndex
from marl.view.page.url_parameters import parse_episode_filter
from tests.support.recorded_runs import HOSTILE, kuhn_episode, kuhn_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    return kuhn_run(tmp_path / "run", steps=3, said=HOSTILE)


@pytest.fixture
def index(run: Path) -> EpisodeIndex:
    made = EpisodeIndex(run)
    made.index_new_steps()
    return made


def recorded(run: Path) -> list[tuple[int, Trajectory]]:
    home = RunFolder(run)
    return [(step, trajectory) for step in home.recorded_steps() for trajectory in home.load_trajectories(step)]


def test_every_recorded_episode_is_in_the_index_with_its_figures_and_its_place(run: Path, index: EpisodeIndex) -> None:
    count, episodes = index.query_episodes(EpisodeFilter(order="oldest"), limit=100)
    played = recorded(run)
    assert count == len(played) == 24
    for entry, (step, trajectory) in zip(episodes, played, strict=True):
        assert (entry.step, entry.episode, entry.turns) == (step, trajectory.id, len(trajectory.turns))
        assert entry.unreadable == sum(turn.action is None for turn in trajectory.turns)
        assert {f"agent/{agent}": value for agent, value in trajectory.returns.items()}.items() <= entry.figures.items()
        assert entry.figures["measure/chips"] == trajectory.findings.measures["chips"]
        assert RunFolder(run).load_trajectory(step, entry.place) == trajectory


def test_filters_and_orders_agree_with_a_walk_over_all_episodes(run: Path, index: EpisodeIndex) -> None:
    played = recorded(run)

    def names(query: dict[str, str]) -> list[str]:
        return [entry.episode for entry in index.query_episodes(parse_episode_filter(query), limit=100)[1]]

    def walk(wanted: object) -> set[str]:
        return {trajectory.id for step, trajectory in played if wanted(step, trajectory)}  # type: ignore[operator]

    assert set(names({"first": "2", "last": "2"})) == walk(lambda step, _: step == 2)
    assert set(names({"start": "KQ"})) == walk(lambda _, t: t.start == "KQ")
    assert set(names({"text": "fold"})) == walk(
        lambda _, t: (
            "fold" in "".join(x.completion.text for x in t.turns)
            or any("fold" in x.request.messages[-1].content for x in t.turns)
        )
    )
    assert set(names({"figure": "agent/player_0", "low": "1.5"})) == walk(lambda _, t: t.returns["player_0"] >= 1.5)
    assert set(names({"figure": "measure/chips", "high": "1"})) == walk(lambda _, t: t.findings.measures["chips"] <= 1)
    assert set(names({"role": "player", "unreadable": "1"})) == walk(
        lambda _, t: any(x.action is None for x in t.turns)
    )
    assert names({"role": "verifier"}) == names({"game": "nim"}) == names({"text": "no such words"}) == []
    best = [index.find_episode(int(name[:6]), name) for name in names({"order": "best", "figure": "agent/player_0"})]
    paid = [entry.figures["agent/player_0"] for entry in best if entry]
    assert paid == sorted(paid, reverse=True)
    assert len(paid) == 24


@pytest.mark.parametrize("text", ['"', "*", 'a" OR "b', "NEAR(", "'; DROP TABLE episodes; --", "^x", "text:bet", "\0"])
def test_what_is_searched_is_never_read_as_a_command(text: str, index: EpisodeIndex) -> None:
    index.query_episodes(EpisodeFilter(text=text))
    assert index.index_counts_and_unreadable_steps()["episodes"] == 24


def test_hostile_answers_are_found_by_their_words(index: EpisodeIndex) -> None:
    count, episodes = index.query_episodes(EpisodeFilter(text="onerror constructor"))
    assert (count, episodes[0].episode) == (1, "000003.0.0")


def test_steps_that_are_added_written_anew_or_removed_are_followed(run: Path, index: EpisodeIndex) -> None:
    home, rng = RunFolder(run), random.Random(5)
    home.record_trajectories(4, [kuhn_episode("000004.0.0", "QJ", rng)])
    assert index.unindexed_steps() == [4]
    index.index_new_steps()
    assert index.indexed_steps() == [1, 2, 3, 4]
    home.record_trajectories(2, [kuhn_episode("000002.9.0", "QJ", rng)])
    shutil.rmtree(run / "trajectories" / "nothing", ignore_errors=True)
    os.unlink(run / "trajectories" / "000001.jsonl.zst")
    index.index_new_steps()
    assert index.indexed_steps() == [2, 3, 4]
    assert [entry.episode for entry in index.query_episodes(EpisodeFilter(first=2, last=2))[1]] == ["000002.9.0"]
    assert EpisodeIndex(run).unindexed_steps() == []


def test_a_damaged_step_is_named_and_hides_no_other(run: Path, index: EpisodeIndex) -> None:
    (run / "trajectories" / "000002.jsonl.zst").write_bytes(b"no zstd")
    index.index_new_steps()
    assert index.indexed_steps() == [1, 3]
    assert "000002.jsonl.zst" in index.index_counts_and_unreadable_steps()["problems"][0]


def test_the_run_itself_is_only_read(run: Path, index: EpisodeIndex) -> None:
    assert not {path.suffix for path in run.rglob("*")} & {".sqlite3", ".sqlite3-wal"}
    assert index.file.is_relative_to(run.parent / "cache")


def test_a_cache_that_cannot_be_written_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run.parent / "file").write_text("")
    monkeypatch.setenv("MARL_CACHE", str(run.parent / "file"))
    with pytest.raises(RunFolderError, match="MARL_CACHE names another folder"):
        EpisodeIndex(run)


def test_figures_can_be_listed_without_reading_every_row(index: EpisodeIndex) -> None:
    names = ["agent/player_0", "agent/player_1", "measure/chips", "return/player", "turns/player", "unreadable/player"]
    assert index.metric_names() == names
    assert index.first_episode_per_step("KQ") == [(1, "000001.0.0"), (2, "000002.0.0"), (3, "000003.0.0")]


def test_an_agent_that_was_paid_nothing_for_its_answers_has_the_return_0(tmp_path: Path, run: Path) -> None:
    hand = kuhn_episode("000004.0.0", "QJ", random.Random(5))
    hand.rewards = [reward for reward in hand.rewards if reward.agent == "player_0"]
    RunFolder(run).record_trajectories(4, [hand])
    index = EpisodeIndex(run)
    index.index_new_steps()
    entry = index.find_episode(4, hand.id)
    assert entry
    assert entry.figures["agent/player_1"] == 0
