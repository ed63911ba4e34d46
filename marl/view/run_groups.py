"""Groups of runs that differ only in their seeds, for comparisons and curves with bands."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl.runs.run_folder import RunFolder

SEED_SETTINGS = frozenset({"schedule.seed"})
"""Settings that may differ within a group."""
Settings = Mapping[str, Any]
"""Dotted path of a setting -> value."""


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs with equal settings except their seeds."""

    name: str
    settings: Settings
    runs: tuple[Path, ...]
    rows: tuple[Sequence[Mapping[str, Any]], ...]
    """Rows of metrics of each run."""

    def setting(self, path: str) -> str | None:
        """Return a setting's value as written in a scenario (`true`, `null`), or None if the group lacks the
        setting."""
        if path not in self.settings:
            return None
        value = self.settings[path]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def run_groups(runs: Sequence[Path]) -> list[RunGroup]:
    """Return the runs in groups of equal settings, ordered by first occurrence. A repeated run counts once.

    Raises:
        ScenarioError: if a folder contains no run.
    """
    members: dict[str, list[Path]] = {}
    settings: dict[str, Settings] = {}
    names = run_names(runs)
    for run in names.values():
        values = flatten_settings(RunFolder(run).settings())
        # Values may be lists, which are not hashable; their `repr` is a usable key.
        key = repr(sorted((path, value) for path, value in values.items() if path not in SEED_SETTINGS))
        settings.setdefault(key, values)
        members.setdefault(key, []).append(run)
    name_of = {run: name for name, run in names.items()}
    groups = []
    for key, group in members.items():
        title = ", ".join(name_of[run] for run in group)
        rows = tuple(list(RunFolder(run).rows()) for run in group)
        groups.append(RunGroup(title, settings[key], tuple(group), rows))
    return groups


def run_names(runs: Sequence[Path]) -> dict[str, Path]:
    """Return name -> folder of each run: the folder's name, or its full path if several folders share the name."""
    folders = {run.resolve(): run for run in runs}
    counts = Counter(folder.name for folder in folders)
    return {folder.name if counts[folder.name] == 1 else str(run): run for folder, run in folders.items()}


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return dotted path -> value of nested settings. Lists are leaf values."""
    leaves: dict[str, Any] = {}
    for name, value in settings.items():
        path = f"{prefix}{name}"
        leaves |= flatten_settings(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value}
    return leaves


def differing_settings(groups: Sequence[RunGroup]) -> list[str]:
    """Return the settings that differ between groups, except seeds. A missing setting counts as different."""
    paths = dict.fromkeys(path for group in groups for path in group.settings)
    missing = object()  # None is a legal value of a setting
    differing = []
    for path in paths:
        values = [group.settings.get(path, missing) for group in groups]
        if path not in SEED_SETTINGS and any(value != values[0] for value in values):
            differing.append(path)
    return differing
