"""Folders of exports: whole or not at all, never over what is there, and two exports at a time spare each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl.core.errors import RunFolderError
from marl.export.atomic_folder import atomic_folder
from marl.scenario.load import ScenarioError


def filled(folder: Path) -> None:
    folder.mkdir()
    (folder / "file").write_text("whole")


def test_a_folder_appears_whole_and_an_error_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> None:
        with atomic_folder(tmp_path / "out") as folder:
            filled(folder)
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        failing()
    assert not list(tmp_path.iterdir())
    with atomic_folder(tmp_path / "out") as folder:
        filled(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_link_that_leads_nowhere_is_something(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "gone")
    with pytest.raises(ScenarioError, match="exists already"), atomic_folder(tmp_path / "out") as folder:
        filled(folder)


def test_of_two_exports_at_a_time_the_first_to_end_stays_whole(tmp_path: Path) -> None:
    def interrupted() -> None:
        with atomic_folder(tmp_path / "out") as folder:
            filled(folder)
            with atomic_folder(tmp_path / "out") as other:
                filled(other)
            assert (folder / "file").is_file()

    with pytest.raises(RunFolderError, match="out cannot be written"):
        interrupted()
    assert (tmp_path / "out" / "file").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
