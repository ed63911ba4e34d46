"""The page shows the versions of learned instructions, with what models wrote as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from marl.scenario.load import validate
from marl.training.session import NewOrResumedRunStart, train_in_folder
from marl.view.page.page_data import PageApi
from marl.view.page.report import write_report
from tests.support.paths import SCENARIOS
from tests.support.served_page import CHROMIUM, serving

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

STEPS = 2
HOSTILE = "<img src=x onerror=alert(1)>\u202e and {{ more }}"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two short searches of the scenario, without the processes of its verifier."""
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    given = yaml.safe_load((SCENARIOS / "prompt_search.yaml").read_text())
    reward = "own.readable * (own.move == answer)"
    given["game"] |= {"stages": [{"role": "editor"}], "rewards": {"editor": {"correct": reward}}}
    del given["game"]["measures"], given["roles"]["verifier"], given["policies"]["checker"], given["evaluate"]
    given["policies"]["editor"]["learner"] |= {"trials": 16, "candidates": 4}
    given |= {"schedule": {"steps": STEPS, "groups": 2, "group_size": 2}, "checkpoint": {"every": STEPS}}
    assert train_in_folder(validate(given, "test"), tmp_path / "run", NewOrResumedRunStart(), [])
    return tmp_path / "run"


def versions_file(run: Path) -> Path:
    return run / "checkpoints" / f"{STEPS:06d}" / "policies" / "editor" / "prompts.json"


def test_versions_have_parents_scores_and_changes_and_damage_is_named(run: Path, tmp_path: Path) -> None:
    page = PageApi([run])
    assert page.answer("runs", {})["runs"][0]["learns_instructions"]
    (learned,) = page.answer("instructions", {"run": "run"})
    stored: dict[str, Any] = json.loads(versions_file(run).read_text())
    assert (learned["policy"], learned["step"], learned["incumbent"]) == ("editor", STEPS, stored["incumbent"])
    assert learned["count"] == len(learned["versions"]) == len(stored["versions"]) == 1 + 4 * STEPS
    assert learned["versions"][0]["instructions"] == {"editor": "Rules."}
    for shown, version in zip(learned["versions"], stored["versions"], strict=True):
        assert {name: shown[name] for name in ("number", "parent", "status", "gain")}.items() <= version.items()
        assert shown["starts"] == len(version["scores"])
        assert shown["diff"] == version["diff"][2:]
    # A run from elsewhere may name a parent that there is not.
    stored["versions"][1]["parent"] = 99
    versions_file(run).write_text(json.dumps(stored))
    (damaged,) = page.answer("instructions", {"run": "run"})
    assert damaged["problem"] == f"the versions of policy editor in checkpoint {STEPS} cannot be read"
    assert write_report(page, tmp_path / "report.html", max_episodes=1) > 0


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.xdist_group("browser")
def test_instructions_are_text_in_the_page_and_in_a_report(run: Path, tmp_path: Path, context: BrowserContext) -> None:
    from playwright.sync_api import expect  # not installed where no browser is

    stored = json.loads(versions_file(run).read_text())
    stored["versions"][1] |= {"diff": ["", "", f"+{HOSTILE}"], "reason": HOSTILE, "status": "kept"}
    versions_file(run).write_text(json.dumps(stored))
    report = tmp_path / "report.html"
    with serving([run]) as server:
        write_report(PageApi([run]), report, max_episodes=1)
        for address in (server.url, report.as_uri()):
            page = context.new_page()
            page.goto(address)
            section = page.get_by_role("region", name="learned instructions", exact=True)
            expect(section).to_contain_text(f"Version {stored['incumbent']} is in use.")
            expect(section.get_by_label("text of version 1")).to_contain_text("+<img src=x onerror=alert(1)>U+202E")
            expect(section.locator("tbody tr")).to_have_count(len(stored["versions"]))
            expect(section.locator("img")).to_have_count(0)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
