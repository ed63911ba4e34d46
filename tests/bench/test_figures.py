"""Figures in READMEs are those of the result files, and every scenario has one or says that it has none."""

from __future__ import annotations

import json
import re

import figures
import pytest

MEASURED_IN = ("tests/bench/README.md", "credit/README.md")
MEASURED_BLOCKS = ("real",)
"""Figures in documents that name scenarios without figures, too."""


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
        if (file.stem in measured) == figures.says_not_measured(file)
    ]
    assert not silent


def test_the_scenarios_readme_lists_every_scenario_without_a_result() -> None:
    section = (figures.ROOT / "scenarios" / "README.md").read_text().partition("### Scenarios without a result")[2]
    listed = re.findall(r"\]\(([\w./]+\.yaml)\)", section.partition("\n## ")[0])
    assert listed == figures.unmeasured()
    assert "biased_rps_self_play.yaml" in listed


def test_every_result_comes_from_a_commit_without_changes() -> None:
    records = {
        name: json.loads((figures.BENCH / "results" / f"{name}.json").read_text()) for name in figures.result_names()
    }
    # Results older than the rule lack the field; tests/bench/README.md lists those with changes.
    assert not [name for name, record in records.items() if record.get("changed")], "measure again after a commit"
