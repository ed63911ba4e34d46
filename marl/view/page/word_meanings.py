"""Meanings that the page shows beside metrics, credit rules and words, each from the text that documents it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from marl.core.plugins import known_kinds, plugin_summary
from marl.view.metric_units import MetricMeaning, metric_meaning

_UNKNOWN = MetricMeaning("", "")


def word_meanings(metrics: Iterable[str]) -> dict[str, Any]:
    """Return the meanings of metrics, kinds of `assign` and `baseline`, and words of the glossary, as JSON data.

    `metrics` maps a name to its unit and meaning, without undocumented names; the others map a word to a sentence.
    """
    meanings = {metric: _metric_meaning(metric) for metric in dict.fromkeys(metrics)}
    return {
        "metrics": {metric: meaning._asdict() for metric, meaning in meanings.items() if meaning != _UNKNOWN},
        "assign": {kind: plugin_summary("credit", kind) for kind in known_kinds("credit")},
        "baseline": {kind: plugin_summary("baselines", kind) for kind in known_kinds("baselines")},
        "glossary": glossary(),
    }


_metric_meaning = cache(metric_meaning)


@cache
def glossary() -> dict[str, str]:
    """Return word -> meaning (in Markdown) of the project's glossary, in its order."""
    meanings: dict[str, str] = {}
    for line in files("marl.view").joinpath("glossary.md").read_text().splitlines():
        if line.startswith("| ") and not line.startswith("| word |"):
            word, _, meaning = line.strip("| ").partition(" | ")
            meanings[word] = meaning
    return meanings
