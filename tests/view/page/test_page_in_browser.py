"""The page in a real browser: what is shown is what lies on disk, whatever models wrote, whoever looks at it."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from marl.runs.run_folder import RunFolder
from marl.runs.status import STATUS_FILE, RunActivity, RunStatus
from tests.support.browsed_page import EPISODE, number, visit
from tests.support.served_page import CHROMIUM, LOOK_MS, serving
from tests.view.test_run_comparison import NUMBERS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
    pytest.mark.xdist_group("browser"),
]


def test_two_runs_are_compared_and_their_curves_drawn(page: Page) -> None:
    expect(page.locator(".runs li")).to_have_count(2)
    expect(page.locator(".chart canvas").first).to_be_visible()
    expect(page.get_by_text("ALARM run a, role player: constant (role/player/constant), step 2").first).to_be_visible()
    differences = page.get_by_role("region", name="table of settings")
    expect(differences.locator("tbody th")).to_have_text(["credit.scale", "schedule.steps", "schedule.seed"])
    page.get_by_label("panels").select_option("role")
    expect(page.get_by_text("role/*/reward/outcome")).to_be_visible()


def test_a_card_says_whether_a_run_goes_well(page: Page, runs: list[Path]) -> None:
    card = page.locator(".run-card").first
    expect(card.locator(".verdict")).to_contain_text("no clear change")
    expect(card).to_contain_text("step 3 of 3")
    returns = [row["episode/return/player_0"] for row in RunFolder(runs[0]).rows()]
    shown = (card.locator(".figure").text_content() or "").replace("[", "").split("→")
    assert [number(each) for each in shown] == pytest.approx([returns[0], returns[-1]], rel=1e-3)
    assert card.locator(".spark polyline").count() == 1
    card.get_by_role("link", name="worst of a").click()
    expect(page).to_have_url(re.compile("episodes.*order=worst"))


def test_a_run_has_one_colour_and_a_click_on_its_curve_opens_it(page: Page, runs: list[Path]) -> None:
    page.get_by_label("seeds").select_option("")
    chart = page.locator(".chart", has_text="episode/return/player_0").first
    colour = "(all) => all.map((each) => getComputedStyle(each).backgroundColor)"
    expect(chart.locator(".legend i")).to_have_count(2)
    assert chart.locator(".legend i").evaluate_all(colour) == page.locator(".runs .swatch").evaluate_all(colour)
    returns = [next(iter(RunFolder(run).rows()))["episode/return/player_0"] for run in runs]
    upper = "ab"[returns.index(max(returns))]
    for name, y in ((upper, 2), ("ab".replace(upper, ""), -2)):
        box = chart.locator(".u-over").bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + 2, box["y"] + y % box["height"])
        expect(page).to_have_url(re.compile(f"episodes.run={name}&first=1&last=1"))
        page.go_back()
        expect(chart.locator(".u-over")).to_be_visible()
        chart.scroll_into_view_if_needed()


def test_a_chart_shows_the_values_under_the_pointer_on_the_axis_of_choice(page: Page, runs: list[Path]) -> None:
    page.get_by_label("seeds").select_option("")
    page.get_by_label("x axis").select_option("tokens")
    page.get_by_label("smoothing").select_option("0.5")
    expect(page).to_have_url(re.compile("x=tokens&smooth=0.5"))
    chart = page.locator(".chart", has_text="episode/return/player_0").first
    chart.scroll_into_view_if_needed()
    box = chart.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    expect(chart.locator(".legend span").first).to_have_text("200 tokens, step 2")
    shown = [number(each) for each in chart.locator(".legend b").all_text_contents()]
    second = [list(RunFolder(run).rows())[1]["episode/return/player_0"] for run in runs]
    assert shown == pytest.approx(second, rel=1e-3)
    page.mouse.move(5, 5)
    expect(chart.locator(".legend span").first).to_have_text("last")


def test_a_smoothed_curve_is_the_moving_average_without_the_bias_of_its_start(page: Page) -> None:
    script = """import('/static/curves.js').then(({ axis, columns }) => columns(
        [{ runs: ["a"], points: [[1, 1, null, null, 1], [2, 2, null, null, 1], [3, 3, null, null, 1]] }],
        axis("", {}), 0.5, false).data[1])"""
    # By hand: 0.5/0.5, (0.25 + 1)/0.75, (0.125 + 0.5 + 1.5)/0.875.
    assert page.evaluate(script) == pytest.approx([1, 1.25 / 0.75, 2.125 / 0.875])


def test_a_chart_is_saved_as_values_lines_and_pixels(page: Page, runs: list[Path]) -> None:
    page.get_by_label("seeds").select_option("")
    files = {}
    for kind in ("CSV", "SVG", "PNG"):
        with page.expect_download() as download:
            page.get_by_role("button", name=f"save episode/return/player_0 as {kind}").click()
        assert download.value.suggested_filename == f"episode_return_player_0.{kind.lower()}"
        files[kind] = Path(download.value.path()).read_bytes()
    rows = list(csv.DictReader(files["CSV"].decode().splitlines()))
    assert [(row["line"], int(row["step"])) for row in rows] == [(name, step) for name in "ab" for step in (1, 2, 3)][
        :5
    ]
    assert float(rows[0]["value"]) == next(iter(RunFolder(runs[0]).rows()))["episode/return/player_0"]
    assert files["PNG"].startswith(b"\x89PNG")
    drawn = ElementTree.fromstring(files["SVG"])
    texts = {element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"episode/return/player_0", "step", "reward", "a", "b"} <= texts


def test_distributions_stand_above_the_steps(page: Page) -> None:
    visit(page, "#/steps?run=a")
    distributions = page.get_by_role("region", name="distributions")
    expect(distributions.locator(".chart canvas")).to_have_count(3)
    distributions.get_by_role("button", name="values").nth(1).click()
    rows = page.get_by_role("region", name="values of length").locator("tbody tr")
    assert rows.all_text_contents() == [f"player{step}44 to 4" for step in (1, 2, 3)]


def test_recorded_strategies_stand_beside_the_equilibrium(page: Page) -> None:
    visit(page, "#/states?run=a")
    page.get_by_label("show").select_option("strategies")
    expect(page.locator(".state")).to_have_count(12)
    expect(page.locator(".state thead").first).to_have_text("movenewestaveragenash")
    expect(page.locator(".state h3").first).to_contain_text("3.0 % away from nash")
    page.get_by_label("order").select_option("far")
    page.get_by_label("step").select_option("1")
    expect(page.locator(".state h3").first).to_contain_text("1.0 % away from nash")
    expect(page).to_have_url(re.compile("of=strategies.*step=1"))


@pytest.mark.parametrize(
    "hash_",
    [
        "#/episode?run=kuhn&step=1&episode=000001.0.0",
        "#/states?run=kuhn&step=1",
        "#/compare?run=a&step=1&episode=000001.0.0&run2=kuhn&step2=1&episode2=000001.0.0",
    ],
)
def test_a_link_to_an_unknown_run_shows_a_sentence_and_no_other_run(page: Page, hash_: str) -> None:
    visit(page, hash_)
    expect(page.get_by_role("alert")).to_contain_text("“kuhn”, which this server does not show")
    expect(page.locator(".pane, .state, .turn")).to_have_count(0)
    expect(page.get_by_label("run", exact=True)).to_have_count(0)
    page.get_by_role("main").get_by_role("link", name="b").click()
    expect(page.get_by_role("heading", name="episodes of b")).to_be_visible()


def test_every_title_names_its_run(page: Page) -> None:
    expect(page).to_have_title("runs - marl")
    for hash_, title in (
        (EPISODE, "episode 000001.0.0 of a - marl"),
        ("#/episodes?run=b", "episodes of b - marl"),
        ("#/steps?run=b", "steps of b - marl"),
        ("#/states?run=a&step=1", "information states of a - marl"),
        ("#/held_out?run=a", "held-out examples of a - marl"),
    ):
        visit(page, hash_)
        expect(page).to_have_title(title)
        expect(page.get_by_role("heading", level=2).first).to_contain_text(title.removesuffix(" - marl"))


def test_a_broken_run_and_one_that_was_moved_away_leave_the_others_as_they_are(
    context: BrowserContext, runs: list[Path], tmp_path: Path
) -> None:
    broken, moved = (shutil.copytree(runs[0], tmp_path / name) for name in ("broken", "moved"))
    with serving([*runs, broken, moved]) as server:
        page = context.new_page()
        page.goto(server.url)
        expect(page.locator(".runs li")).to_have_count(4)
        with (broken / "metrics.jsonl").open("a") as file:
            file.write("no row\n")
        moved.rename(tmp_path / "elsewhere")
        expect(page.locator(".runs li", has_text="folder gone")).to_contain_text("moved", timeout=LOOK_MS)
        expect(page.locator(".runs li", has_text="no row of metrics")).to_contain_text("broken")
        expect(page.locator(".chart canvas").first).to_be_visible()
        expect(page.get_by_role("region", name="table of final figures").locator("th", has_text="a")).not_to_have_count(
            0
        )
        page.goto(f"http://127.0.0.1:{server.server_port}/{EPISODE.replace('run=a', 'run=moved')}")
        expect(page.get_by_role("alert")).to_contain_text("the folder of run 'moved' is gone")
        expect(page.get_by_role("heading", level=2)).to_contain_text("of moved")
        page.goto(f"http://127.0.0.1:{server.server_port}/{EPISODE}")
        expect(page.locator("#turn-title")).to_contain_text("turn 0")


def test_a_run_that_was_killed_has_died_on_the_page_as_in_marl_status(page: Page, runs: list[Path]) -> None:
    killed = RunStatus("node1", 7, time.time() - 100, ended=False, activity=RunActivity(3, 9, "play", 0.0))
    try:
        (runs[0] / STATUS_FILE).write_text(json.dumps(asdict(killed)))
        row = page.locator(".runs li").first
        expect(row).to_contain_text("died", timeout=LOOK_MS)
        expect(row).to_contain_text("process 7 on node1 was last heard of 1 min 4")
        expect(row).to_contain_text(re.compile("newest row .* old"))
        visit(page, "#/steps?run=a")
        expect(page.get_by_role("banner")).to_contain_text("died")
    finally:
        (runs[0] / STATUS_FILE).unlink()


def test_the_page_writes_numbers_as_the_terminal_does(page: Page) -> None:
    finite = [number for number in NUMBERS if math.isfinite(number)]
    script = "(numbers) => import('/static/words.js').then(({ figure }) => numbers.map((each) => figure(each)))"
    shown = page.evaluate(script, finite)
    assert [text.replace("\N{MINUS SIGN}", "-") for text in shown] == [NUMBERS[number] for number in finite]
    assert page.evaluate(script, [-5.78e-14]) == ["\N{MINUS SIGN}5.78e\N{MINUS SIGN}14"]


def test_held_out_starts_are_counted_by_what_changed(page: Page, runs: list[Path]) -> None:
    before, after = (RunFolder(runs[0]).read_held_out_episodes(step)[0] for step in (0, 3))
    returns = [sum(played.returns.values()) for played in (before, after)]
    visit(page, "#/held_out?run=a&figure=sum+of+returns")
    expect(page.get_by_text("of 1 starts played in both")).to_be_visible()
    kinds = {"higher": returns[1] > returns[0], "lower": returns[1] < returns[0], "as before": returns[0] == returns[1]}
    for words, holds in kinds.items():
        expect(page.get_by_role("link", name=f"{int(holds)} {words}")).to_be_visible()
    words = next(words for words, holds in kinds.items() if holds)
    page.get_by_role("link", name=f"1 {words}").click()
    expect(page.locator("article.turn")).to_have_count(1)


def test_everything_is_reached_without_a_mouse(page: Page) -> None:
    page.keyboard.press("/")
    page.get_by_label("search (/)").wait_for()
    expect(page.get_by_label("search (/)")).to_be_focused()
    page.keyboard.type("bet")
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile("text=bet"))
    page.wait_for_load_state("networkidle")
    page.keyboard.press("j")
    expect(page.locator("tr.chosen")).to_have_count(1)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("#turn-title")).to_contain_text("turn 0")
    page.keyboard.press("j")
    expect(page.locator("#turn-title")).to_contain_text("turn 1")
    page.locator('[data-turn="0"]').focus()
    page.keyboard.press("Enter")
    expect(page.locator("#turn-title")).to_contain_text("turn 0")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("i")
    expect(page.get_by_role("heading", name=re.compile("information states"))).to_be_visible()


def test_escape_leads_from_an_episode_to_the_list_with_its_filters_and_never_off_the_page(page: Page) -> None:
    visit(page, EPISODE)
    page.keyboard.press("Escape")
    expect(page.get_by_label("search (/)")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="curves")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="curves")).to_be_visible()
    visit(page, "#/episodes?run=b&text=bet")
    page.locator("table a").first.click()
    expect(page.locator("#turn-title")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile("text=bet"))


def test_theme_and_scroll_survive_a_reload(page: Page) -> None:
    page.set_viewport_size({"width": 800, "height": 300})
    theme = page.evaluate("document.documentElement.dataset.theme")
    page.keyboard.press("t")
    expect(page.locator(".chart canvas").first).to_be_visible()
    page.evaluate("scrollTo(0, 200)")
    assert page.evaluate("scrollY") == 200
    page.reload()
    expect(page.locator(".chart canvas").first).to_be_visible()
    assert page.evaluate("document.documentElement.dataset.theme") != theme
    for _ in range(50):
        if page.evaluate("scrollY") == 200:
            return
        page.wait_for_timeout(100)
    pytest.fail("the page is not where it was before the reload")


def test_a_step_that_is_recorded_meanwhile_appears_by_itself(page: Page, runs: list[Path]) -> None:
    visit(page, "#/episodes?run=b")
    expect(page.get_by_text("16 episodes")).to_be_visible()
    home = RunFolder(runs[1])
    home.record_trajectories(9, home.load_trajectories(1))
    expect(page.get_by_text("24 episodes")).to_be_visible()
