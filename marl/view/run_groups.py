"""Runs that differ in nothing but their seeds, as one group: what comparisons and curves with bands are made of."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl.runs.run_folder import RunFolder

SEEDS = frozenset({"schedule.seed"})
"""Settings in which runs of one group may differ."""
Settings = Mapping[str, Any]
"""Dotted path of a setting -> its value, which is no mapping."""


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs of the same settings, but for their seeds."""

    name: str
    settings: Settings
    runs: tuple[Path, ...]
    rows: tuple[Sequence[Mapping[str, Any]], ...]
    """For each run, the rows of its metrics."""

    def setting(self, path: str) -> str | None:
        """Return a setting's value as a scenario may write it (`true`, `null`); None if there is no such setting."""
        if path not in self.settings:
            return None
        value = self.settings[path]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def run_groups(runs: Sequence[Path]) -> list[RunGroup]:
    """Return the runs in groups of equal settings, in the order in which they are first named; twice named counts once.

    Raises:
        ScenarioError: if a folder holds no run.
    """
    members: dict[str, list[Path]] = {}
    settings: dict[str, Settings] = {}
    names = run_names(runs)
    for run in names.values():
        values = flat(RunFolder(run).settings())
        key = repr(sorted((path, value) for path, value in values.items() if path not in SEEDS))
        settings.setdefault(key, values)
        members.setdefault(key, []).append(run)
    name_of = {run: name for name, run in names.items()}
    return [
        RunGroup(
            ", ".join(name_of[run] for run in group),
            settings[key],
            tuple(group),
            tuple(list(RunFolder(run).rows()) for run in group),
        )
        for key, group in members.items()
    ]


def run_names(runs: Sequence[Path]) -> dict[str, Path]:
    """Return a name for each run: its folder's, or its whole path where several folders are called alike."""
    folders = {run.resolve(): run for run in runs}
    often = Counter(folder.name for folder in folders)
    return {folder.name if often[folder.name] == 1 else str(run): run for folder, run in folders.items()}


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by their dotted paths; lists are values."""
    leaves: dict[str, Any] = {}
    for name, value in settings.items():
        path = f"{prefix}{name}"
        leaves |= flat(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value}
    return leaves


def differing(groups: Sequence[RunGroup]) -> list[str]:
    """Return the settings that are not the same in all groups, seeds left out; one that is missing differs."""
    paths = dict.fromkeys(path for group in groups for path in group.settings)
    missing = object()
    values = {path: [group.settings.get(path, missing) for group in groups] for path in paths if path not in SEEDS}
    return [path for path, each in values.items() if any(value != each[0] for value in each)]
