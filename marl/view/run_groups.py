"""Groups of runs that differ only in their seeds, for comparisons and curves with bands."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from marl.core.plugins import GROUPS, find_plugin, known_kinds
from marl.runs.run_folder import RunFolder
from marl.view.type_descriptions import settings_classes_of_field

SEED_SETTINGS = frozenset({"schedule.seed"})
"""Settings that may differ within a group."""
Settings = Mapping[str, Any]
"""Dotted path of a setting -> value."""


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs with equal settings except their seeds."""

    name: str
    """Names of the runs, separated by commas."""
    settings: Settings
    """Settings of the first run."""
    runs: tuple[Path, ...]
    rows: tuple[Sequence[Mapping[str, Any]], ...]
    """Rows of metrics of each run."""

    def setting_as_yaml_text(self, setting_path: str) -> str | None:
        """Return a setting's value as written in a scenario (`true`, `null`), or None if the group lacks the
        setting."""
        if setting_path not in self.settings:
            return None
        value = self.settings[setting_path]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def group_runs(runs: Sequence[Path]) -> list[RunGroup]:
    """Return the runs in groups of equal settings, ordered by first occurrence. A repeated run counts once.

    Raises:
        ScenarioError: if a folder contains no run.
    """
    members: dict[str, dict[str, Path]] = {}
    settings: dict[str, Settings] = {}
    for name, run in runs_by_name(runs).items():
        run_settings = flatten_settings(RunFolder(run).settings())
        # `repr` makes a usable key of values that are not hashable, such as lists.
        key = repr(sorted((path, value) for path, value in run_settings.items() if path not in SEED_SETTINGS))
        settings.setdefault(key, run_settings)
        members.setdefault(key, {})[name] = run
    groups: list[RunGroup] = []
    for key, group in members.items():
        rows = [list(RunFolder(run).rows()) for run in group.values()]
        groups.append(RunGroup(", ".join(group), settings[key], tuple(group.values()), tuple(rows)))
    return groups


def metric_rows_of_all_runs(groups: Iterable[RunGroup]) -> list[Mapping[str, Any]]:
    """Return the rows of metrics of all runs of all groups."""
    rows: list[Mapping[str, Any]] = []
    for group in groups:
        rows += chain.from_iterable(group.rows)
    return rows


def metric_values(rows: Iterable[Mapping[str, Any]], metric: str) -> list[float]:
    """Return the values of `metric` in the rows that have it."""
    return [row[metric] for row in rows if metric in row]


def runs_by_name(runs: Sequence[Path]) -> dict[str, Path]:
    """Return name -> folder of each run: the folder's name, or its full path if several folders share the name."""
    folders = {run.resolve(): run for run in runs}
    counts = Counter(folder.name for folder in folders)
    names: dict[str, Path] = {}
    for folder, run in folders.items():
        names[folder.name if counts[folder.name] == 1 else str(run)] = run
    return names


def flatten_settings(settings: Mapping[str, Any], path_prefix: str = "") -> dict[str, Any]:
    """Return nested settings as dotted path -> value. A list is one value."""
    leaves: dict[str, Any] = {}
    for name, value in settings.items():
        path = f"{path_prefix}{name}"
        leaves |= flatten_settings(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value}
    return leaves


def differing_settings(groups: Sequence[RunGroup]) -> list[str]:
    """Return the settings that differ between groups, except seeds.

    A setting that some groups lack counts as different, unless the others have the default of their plug-in: then the
    plug-in's `kind` differs, too.
    """
    differing: list[str] = []
    for path in dict.fromkeys(chain.from_iterable(group.settings for group in groups)):
        with_setting = [group.settings for group in groups if path in group.settings]
        if path in SEED_SETTINGS:
            continue
        if len(with_setting) == len(groups):
            is_different = any(settings[path] != with_setting[0][path] for settings in with_setting)
        else:
            is_different = not all(_is_plugin_default(settings, path) for settings in with_setting)
        if is_different:
            differing.append(path)
    return differing


def _is_plugin_default(settings: Settings, path: str) -> bool:
    """Return True if a setting has the default value of the innermost plug-in around it."""
    section = path
    while "." in section:
        section = section.rpartition(".")[0]
        kind = settings.get(f"{section}.kind")
        if isinstance(kind, str):
            name = path.removeprefix(f"{section}.")
            return any(name in defaults and defaults[name] == settings[path] for defaults in _plugin_defaults(kind))
    return False


@cache
def _plugin_defaults(kind: str) -> Sequence[Settings]:
    """Return the default settings of each installed plug-in with this kind; several groups may have one.

    The defaults of a section that is off by default, such as `magnet`, are those of its own fields.
    """
    all_defaults = list[Settings]()
    for plugin in [find_plugin(group, kind) for group in GROUPS if kind in known_kinds(group)]:
        defaults = dict[str, Any]()
        for name, info in plugin.model_fields.items():
            for section in settings_classes_of_field(info):
                defaults |= flatten_settings(section.model_construct().model_dump(mode="json"), f"{name}.")
        all_defaults.append(defaults | flatten_settings(plugin.model_construct().model_dump(mode="json")))
    return all_defaults
