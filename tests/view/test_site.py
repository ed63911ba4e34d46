"""The site: `make site` builds it without a warning, no link of it is dead, and it asks for nothing from elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.paths import ROOT, SCENARIOS
from tests.support.readme_blocks import DOCUMENTS

pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")

import site_commands  # from .site
import site_drawings
import site_gallery
import site_games
import site_hooks
import site_links
import site_settings

from marl.commands.command_group import COMMANDS
from marl.core.plugins import GROUPS, find_plugin, known_kinds
from marl.scenario.schema import Scenario

SEARCH_INDEX = "search/search_index.json"


def test_links_lead_to_the_pages_of_their_files() -> None:
    text = "[a](../scenarios/README.md#alarms) and [b](assign/reward_rules.py), [c](../tests/bench/results/kuhn.png)"
    moved = site_links.as_page("credit/README.md", f"{text}\n```yaml\n[d](nowhere.md)\n```\n")
    assert "[a](../scenarios/index.md#alarms)" in moved
    assert "[b](../source/credit/assign/reward_rules.py.md)" in moved
    assert "[c](../tests/bench/results/kuhn.png)" in moved
    assert "[d](nowhere.md)" in moved, "code is left as it is"
    assert site_links.as_page("README.md", "[x](scenarios/taboo.yaml)") == "[x](scenarios/taboo.md)"


def test_a_link_that_leads_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match=r"credit/README.md: the link gone.md leads nowhere"):
        site_links.as_page("credit/README.md", "[a](gone.md)")


def test_pipes_in_code_need_a_backslash_on_github_alone() -> None:
    assert site_links.as_page("README.md", "| `a\\|b` | c\\|d |") == "| `a|b` | c\\|d |"


def test_every_document_of_the_site_is_one_whose_blocks_are_run() -> None:
    shown = {document for document, _ in site_hooks.written()}
    typed = {str(file.relative_to(ROOT)) for file in (ROOT / "tests" / "transcripts").glob("*.md")}
    assert shown <= {*DOCUMENTS, *typed}, "documents whose code no test runs"


def test_every_tutorial_has_a_picture() -> None:
    tutorials = sorted((ROOT / ".site" / "pages" / "tutorials").glob("*.md"))
    assert tutorials
    assert [tutorial.name for tutorial in tutorials if "\n![" not in tutorial.read_text()] == []


def test_every_setting_of_every_part_is_in_the_reference() -> None:
    pages = site_settings.settings_pages()
    for group in GROUPS:
        text = pages[f"settings/{group}.md"][1]
        for kind in known_kinds(group):
            assert f"\n## {kind}\n" in text
            own = text.partition(f"\n## {kind}\n")[2].partition("\n## ")[0]
            assert not [
                name for name in find_plugin(group, kind).model_fields if name != "kind" and f"| `{name}` |" not in own
            ]
    scenario = pages["settings/scenario.md"][1]
    assert not [name for name in Scenario.model_fields if f"| `{name}` |" not in scenario]
    for place in ("schedule", "evaluate", "evaluate.average", "policies.NAME", "credit.kl", "games.NAME", "cluster"):
        assert f"\n## {place}\n" in scenario
    assert "| `keep_best` |" in scenario.partition("\n## evaluate\n")[2].partition("\n## ")[0]


def test_every_game_of_ours_for_play_is_in_the_gallery_of_games() -> None:
    _, text = site_games.games_page()
    tests_of_credit = {"matrix", "two_step", "coalition", "hint", "layered_hint", "stopping"}
    others = {"pettingzoo", "gymnasium", "openspiel", "textarena", "verifiers_environment", "trl_environment", "team"}
    ours = {kind for kind in known_kinds("games") if find_plugin("games", kind).__module__.startswith("marl.games.")}
    assert {*site_games.VALUES} == ours - tests_of_credit - others
    for kind in site_games.VALUES:
        section = text.partition(f"\n## {kind}\n")[2].partition("\n## ")[0]
        assert len(section.split()) > 60
        assert f"settings/games.md#{kind}" in section
    row = next(line for line in text.splitlines() if line.startswith("| [nim]"))
    assert "nim_self_play" in row
    assert "<svg" in row


def test_every_scenario_is_in_the_gallery_with_its_figure_or_without() -> None:
    pages = site_gallery.gallery_pages()
    gallery = pages["scenarios/gallery.md"][1]
    files = [file for file in SCENARIOS.rglob("*.yaml") if file.parent.name != "suites"]
    for file in files:
        link = file.relative_to(SCENARIOS).with_suffix(".md")
        [row] = [line for line in gallery.splitlines() if f"]({link})" in line]
        *_, figure = site_gallery.cells(row)
        assert (figure == "not measured") == (site_gallery.NONE in file.read_text().partition("\ngame")[0]), row
    nim = next(line for line in gallery.splitlines() if "(nim_self_play.md)" in line)
    assert "probability of an optimal move:<br>.347 → **.992, .991, .992**" in nim
    assert 'aria-label="from 0.347, 0.347, 0.347 to 0.992, 0.991, 0.992, on a scale from 0 to 1"' in nim


def test_the_reference_of_commands_has_every_option_of_every_command() -> None:
    page = site_commands.command_page()
    for name in COMMANDS:
        assert f"\n## marl {name}\n" in page
    plot = page.partition("\n## marl plot\n")[2].partition("\n## ")[0]
    assert "| `--style`: `screen`, `paper` | " in plot
    assert "| `screen` |" in plot, "a default"
    assert "| `runs` | Runs to compare. |" in plot
    assert "\n### marl eval cross-play\n" in page, "a command of a command"


def gallery_rows() -> list[str]:
    """The rows of the gallery's tables."""
    return [line for line in site_gallery.gallery_pages()["scenarios/gallery.md"][1].splitlines() if "](" in line]


def test_a_figure_without_a_name_in_the_gallery_is_success_on_held_out_problems() -> None:
    checked = 0
    for file in (ROOT / "tests" / "bench" / "results").glob("*.json"):
        gallery = [row for row in gallery_rows() if f"[{file.stem}](" in row and site_gallery.SUCCESS in row]
        runs = json.loads(file.read_text())["figures"].get("runs", ()) if gallery else ()
        for row in gallery:
            checked += 1
            shown = site_drawings.numbers(site_gallery.cells(row)[-1].partition("<br>")[2].partition(" →")[0])
            assert shown == pytest.approx([run["held_out/success/start"] for run in runs], abs=0.0051), row
    assert checked > 15


class _Links(HTMLParser):
    """Collects the targets of a page, and the names that others can link to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := named.get(key))}
        for key in ("href", "src"):
            if value := named.get(key):
                self.targets.append(value)
                if key == "src" or (tag == "link" and named.get("rel") not in ("canonical", "prev", "next")):
                    self.loaded.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make site` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-f", ".site/mkdocs.yml", "-d", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_no_link_of_the_site_is_dead(site: Path) -> None:
    pages = {file: _Links(file.read_text()) for file in site.rglob("*.html")}
    assert len(pages) > 100
    dead = []
    for file, page in pages.items():
        for target in page.targets if file.name != "404.html" else ():
            parts = urlsplit(target)
            if parts.scheme in ("http", "https", "data", "javascript"):
                continue
            aim = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            anchor = unquote(parts.fragment)
            if not aim.exists() or (anchor and aim in pages and anchor not in pages[aim].anchors):
                dead.append(f"{file.relative_to(site)}: {target}")
    assert not dead


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_search_leads_to_documents_and_not_to_tests(site: Path) -> None:
    found = {each["location"].partition("#")[0] for each in json.loads((site / SEARCH_INDEX).read_text())["docs"]}
    assert not [page for page in found if page.startswith(("source/", "tests/")) and page != "tests/bench/index.html"]
    assert {"index.html", "commands.html", "glossary.html", "tutorials/watch_a_run.html", "how_to.html"} <= found
    glossary = (site / "glossary.html").read_text()
    assert "turns credited samples into new weights" in glossary


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    elsewhere = {
        target for file in site.rglob("*.html") for target in _Links(file.read_text()).loaded if "://" in target
    }
    assert not elsewhere
