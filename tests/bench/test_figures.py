"""Figures in READMEs are those of the result files, and every scenario has one or says that it has none."""

from __future__ import annotations

import re

import figures
import pytest

MEASURED_IN = ("tests/bench/README.md", "credit/README.md")
MEASURED_BLOCKS = ("real",)
"""Figures in documents that name scenarios without figures, too."""
NONE = "Example, not measured"


@pytest.mark.parametrize("document", figures.READMES)
def test_a_readme_shows_what_the_result_files_hold(document: str) -> None:
    text = (figures.ROOT / document).read_text()
    assert figures.written(text) == text, "python tests/bench/figures.py writes them"


def test_every_scenario_has_a_figure_or_says_that_it_has_none() -> None:
    documents = [(figures.ROOT / name).read_text() for name in MEASURED_IN]
    documents += [figures.rendered(name) for name in MEASURED_BLOCKS]
    measured = set(re.findall(r"(\w+)\.yaml", " ".join(documents)))
    scenarios = figures.ROOT / "scenarios"
    silent = [
        str(file.relative_to(scenarios))
        for file in scenarios.rglob("*.yaml")
        if (file.stem in measured) == (NONE in file.read_text().partition("\ngame:")[0])
    ]
    assert not silent
