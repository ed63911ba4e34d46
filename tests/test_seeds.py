"""Seeds follow from names alone, and names count steps as metrics and files do."""

from __future__ import annotations

from pathlib import Path

import pytest

import marl
from marl.core.seeds import episode_name_for_seeding, hash_text_to_seed, hash_to_seed
from marl.runs.run_folder import RunFolder
from tests.support.paths import KUHN


@pytest.mark.parametrize(
    ("episode", "name"),
    [
        ("000008.0.1", "000007.0.1"),
        ("000001.12.0/2", "000000.12.0/2"),
        ("1000000.3+1.0", "999999.3+1.0"),
        ("random.3", "random.3"),
        ("00008.0", "00008.0"),
        ("000008", "000008"),
        ("held_out.000008.0", "held_out.000008.0"),
    ],
)
def test_seeds_count_steps_from_0(episode: str, name: str) -> None:
    assert episode_name_for_seeding(episode) == name


def test_parts_and_their_text_with_slashes_have_the_same_seed() -> None:
    assert hash_text_to_seed("3/train/000007.0.1/0/player_0/1/0") == hash_to_seed(
        3, "train", "000007.0.1/0/player_0", 1, 0
    )


def test_the_episodes_of_a_step_are_named_by_the_step_of_their_file_and_metrics(tmp_path: Path) -> None:
    small = ["schedule.steps=2", "schedule.groups=2", "checkpoint.trajectories=1", "evaluate.every=2"]
    marl.train(marl.load(KUHN, small), tmp_path / "run")
    home = RunFolder(tmp_path / "run")
    named = {step: {episode.id.split(".")[0] for episode in home.load_trajectories(step)} for step in (1, 2)}
    assert named == {1: {"000001"}, 2: {"000002"}}
    assert [row["step"] for row in home.rows()][-2:] == [1, 2]
