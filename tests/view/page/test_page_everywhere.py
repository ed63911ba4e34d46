"""The page on small and large screens, light and dark, on paper, for long, and as a file that is mailed."""

from __future__ import annotations

import re
import shutil
from itertools import cycle, islice
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page, expect

from marl.view.page.page_data import PageApi
from marl.view.page.report import write_report
from tests.support.browsed_page import EPISODE, VIEWS, visit
from tests.support.served_page import CHROMIUM

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
    pytest.mark.xdist_group("browser"),
]
SERIOUS = ("serious", "critical")
SCREENS = [
    {"viewport": {"width": width, "height": height}, "color_scheme": scheme, **touch}
    for width, height, touch in (
        (390, 844, {"has_touch": True, "is_mobile": True}),
        (768, 1024, {"has_touch": True}),
        (1440, 900, {}),
    )
    for scheme in ("light", "dark")
]
PIXELS_OF = """(canvas, ink) => {
    const { width, height } = canvas, copy = Object.assign(document.createElement("canvas"), { width, height });
    const drawn = copy.getContext("2d", { willReadFrequently: true });
    drawn.drawImage(canvas, 0, 0);
    const { data } = drawn.getImageData(0, 0, width, height);
    return Array.from({ length: data.length / 4 }, (_, i) => i).filter((i) => data[4 * i + 3] === 255
        && ink.every((colour, k) => data[4 * i + k] === colour)).length; }"""
"""Number of a canvas's opaque pixels of one colour."""
LOOKS = 200
LIMIT_BYTES = 2_000_000


@pytest.mark.parametrize(
    "context", SCREENS, indirect=True, ids=lambda screen: f"{screen['viewport']['width']}-{screen['color_scheme']}"
)
def test_every_view_fits_the_screen_and_has_no_serious_finding_of_axe(page: Page) -> None:
    for hash_ in VIEWS:
        visit(page, hash_)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), hash_
        findings = Axe().run(page).response["violations"]
        assert [(hash_, each["id"], each["nodes"][0]["html"]) for each in findings if each["impact"] in SERIOUS] == []


@pytest.mark.parametrize("context", [SCREENS[0]], indirect=True, ids=["390"])
def test_a_turn_is_chosen_by_a_tap(page: Page) -> None:
    visit(page, EPISODE)
    page.wait_for_load_state("networkidle")  # a tap on a box that moves meanwhile is lost
    page.locator('[data-turn="1"]').tap()
    expect(page.locator("#turn-title")).to_contain_text("turn 1")


def test_memory_does_not_grow_while_a_reader_goes_through_the_views(page: Page) -> None:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def memory() -> dict[str, float]:
        session.send("HeapProfiler.collectGarbage")
        metrics = session.send("Performance.getMetrics")["metrics"]
        return {each["name"]: each["value"] for each in metrics if each["name"] in ("JSHeapUsedSize", "Nodes")}

    def walk(count: int) -> None:
        for hash_ in islice(cycle(VIEWS), count):
            page.evaluate("(hash) => { location.hash = hash; }", hash_)
            page.locator("main h2, main h3").first.wait_for()

    walk(2 * len(VIEWS))
    before = memory()
    walk(LOOKS)
    after = memory()
    # What is kept of one view would be 20 times as much after 200 of 10 views: far above these bounds.
    assert after["JSHeapUsedSize"] < 1.5 * before["JSHeapUsedSize"] + 1e6
    assert after["Nodes"] < 2 * before["Nodes"]


@pytest.mark.parametrize("context", [{"color_scheme": "dark"}], indirect=True)
def test_on_paper_the_page_is_light_whole_and_without_controls(page: Page) -> None:
    visit(page, f"{EPISODE}&show=conversation")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    expect(page.get_by_role("banner")).to_have_count(0)
    assert page.locator("button:visible, select:visible").count() == 0
    for part in page.locator(".conversation, .graph, .written").all():
        assert part.evaluate("(box) => box.scrollHeight <= box.clientHeight + 1")
    assert page.pdf().startswith(b"%PDF")
    # The axes of charts, which are pixels, have the light theme's ink on paper and the dark theme's on the screen.
    page.emulate_media(media="screen")
    visit(page, "#/overview")
    axes = page.locator(".chart canvas").first
    dark, light = [232, 234, 237], [29, 33, 39]
    assert axes.evaluate(PIXELS_OF, dark) > 20
    page.emulate_media(media="print")
    page.wait_for_timeout(100)
    assert axes.evaluate(PIXELS_OF, light) > 20
    page.emulate_media(media="screen")
    page.wait_for_timeout(100)
    assert axes.evaluate(PIXELS_OF, dark) > 20


def pages_behind(links: list[str]) -> set[str]:
    """Addresses without what only says how an episode is shown."""
    pages = set()
    for link in links:
        view, _, query = link.partition("?")
        ways = ("turn", "turn2", "list", "at", "show", "shade", "markdown")
        pages.add(f"{view}?{urlencode(sorted((name, text) for name, text in parse_qsl(query) if name not in ways))}")
    return pages


def test_no_link_of_a_report_of_three_runs_is_dead_and_it_can_be_mailed(
    context: BrowserContext, runs: list[Path], tmp_path: Path
) -> None:
    third = shutil.copytree(runs[0], tmp_path / "c")
    file = tmp_path / "report.html"
    # Fewer episodes than a step has, so that siblings are missing.
    assert write_report(PageApi([*runs, third]), file, max_episodes=6) < LIMIT_BYTES
    page = context.new_page()
    page.goto(file.as_uri())
    expect(page.locator(".chart canvas").first).to_be_visible()
    known, waiting = {"#/overview?"}, ["#/overview?"]
    while waiting:
        page.evaluate("(hash) => { location.hash = hash; }", waiting.pop())
        page.locator("main h2, main h3").first.wait_for()
        page.wait_for_function("!document.querySelector('main > [role=status]')")
        assert page.locator("main [role=alert]").all_text_contents() == []
        links = page.eval_on_selector_all("a[href^='#/']", "(all) => all.map((each) => each.getAttribute('href'))")
        new = pages_behind(links) - known
        known |= new
        waiting += sorted(new)
    episodes = [link for link in known if link.startswith("#/episode?")]
    # Each run has three held-out episodes, which all fit, and six others.
    assert (len([link for link in episodes if "held_out=1" in link]), len(episodes)) == (9, 27)
    page.evaluate("(hash) => { location.hash = hash; }", EPISODE.replace("000001.0.0", "000009.9.9"))
    expect(page.get_by_role("alert")).to_contain_text("Not in this report (6 of 24 episodes)")


def test_a_report_is_one_file_that_shows_the_same_and_loads_nothing(
    context: BrowserContext, runs: list[Path], tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    size = write_report(PageApi(runs), file, max_episodes=8)
    assert size == file.stat().st_size < 5e6
    page, asked, problems = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(file.as_uri())
    expect(page.locator(".chart canvas").first).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("onerror")
    page.get_by_role("link", name="000003.0.0").click()
    expect(page.locator("#turn-title")).to_contain_text("turn 0")
    page.get_by_role("button", name="chat template").click()
    expect(page.get_by_label("exact prompt")).to_have_text("check bet")
    page.get_by_role("button", name="conversation").click()
    page.get_by_label("Markdown and formulas").check()
    expect(page.locator("article.said .markdown").first).to_be_visible()
    page.get_by_role("navigation", name="views").get_by_role("link", name="states").click()
    expect(page.get_by_role("heading", name=re.compile("information states"))).to_be_visible()
    page.get_by_label("show").select_option("strategies")
    expect(page.locator(".state")).to_have_count(12)
    assert page.evaluate("window.broken") is None
    assert asked == [file.as_uri()]
    assert not problems
