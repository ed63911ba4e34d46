"""Unit and meaning of a metric, from the text `METRICS` of the module that computes it."""

from __future__ import annotations

import os
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

_TABLE = re.compile(r'^METRICS = """\n(.*?)^"""', re.DOTALL | re.MULTILINE)
_PLACEHOLDER = re.compile(r"[A-Z]+")
_NO_UNITS = ("number", "the game's")
"""Entries of the column of units that name none."""
_REFERENCES = ("as above", "as the rest of its name", "as the metric")
"""Entries of the column of units that refer to another row."""


class MetricMeaning(NamedTuple):
    """What a metric's numbers are."""

    unit: str
    """Unit, or "" if the metric has none or is unknown."""
    meaning: str
    """Description, or "" if the metric is unknown."""


def metric_meaning(metric: str) -> MetricMeaning:
    """Return the unit and the meaning of a metric such as `role/solver/tokens`, also of one of several games."""
    without_game = re.sub(r"^game/[^/]+/", "", metric)
    # Evaluations of one of several games are named eval/GAME/METRIC.
    names = (without_game, re.sub(r"^eval/[^/]+/", "eval/", without_game))
    for name in names:
        for pattern, meaning in _metric_table():
            if pattern.fullmatch(name):
                return meaning
    return MetricMeaning("", "")


@cache
def _metric_table() -> tuple[tuple[re.Pattern[str], MetricMeaning], ...]:
    """Return (pattern of names, meaning) of every documented metric, those with the most literal text first."""
    rows: list[tuple[int, re.Pattern[str], MetricMeaning]] = []
    # The sources are read and not imported, because most of these modules import torch.
    for folder, _, names in os.walk(str(files("marl")), followlinks=True):
        for name in names:
            table = _TABLE.search(Path(folder, name).read_text()) if name.endswith(".py") else None
            # An indented line continues the row above it.
            for line in table[1].replace("\n    ", " ").splitlines() if table else ():
                metrics, unit, meaning = line.split(" | ")
                if unit not in _REFERENCES:
                    row = MetricMeaning("" if unit in _NO_UNITS else unit, meaning)
                    rows += [(_literal_length(metric), _pattern(metric), row) for metric in _names(metrics)]
    rows.sort(key=lambda row: row[0], reverse=True)
    return tuple((pattern, meaning) for _, pattern, meaning in rows)


def _names(metrics: str) -> list[str]:
    """Return the names of a row such as `eval/OPPONENT/win, draw, loss`, whose later names omit the common path."""
    first, *others = metrics.split(", ")
    path = first.rpartition("/")[0]
    return [first, *(other if "/" in other else f"{path}/{other}" for other in others)]


def _literal_length(metric: str) -> int:
    """Return the number of characters of a documented name outside its placeholders."""
    return len(_PLACEHOLDER.sub("", metric.replace("...", "")))


def _pattern(metric: str) -> re.Pattern[str]:
    """Return the pattern of a documented name. A word in capitals stands for any part, `...` for any remainder."""
    escaped = re.escape(metric).replace(r"\.\.\.", ".+")
    return re.compile(_PLACEHOLDER.sub("[^/]+", escaped))
