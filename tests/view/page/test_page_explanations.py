"""The page in a real browser: each figure says what it belongs to, and an advantage names the parts of its formula."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from marl.core.types import EpisodeMeasuresAndNewStarts
from marl.runs.run_folder import RunFolder
from tests.support.browsed_page import EPISODE, visit
from tests.support.recorded_runs import kuhn_episode, kuhn_run, with_forecasts, with_role_worth
from tests.support.served_page import CHROMIUM, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
    pytest.mark.xdist_group("browser"),
]

PINK = """(canvas) => { const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const pixels = Array.from({ length: data.length / 4 }, (_, i) => data.subarray(4 * i, 4 * i + 4));
    return pixels.filter(([red, green, blue, alpha]) => alpha && red > blue + 10 && green < blue + 3).length; }"""
"""Number of a canvas's pixels in the colour of an alarm's period."""


def test_an_alarm_shades_only_the_charts_that_show_its_run(
    context: BrowserContext, runs: list[Path], tmp_path: Path
) -> None:
    quiet = shutil.copytree(runs[1], tmp_path / "quiet")
    rows = [{"step": row["step"], "policy/other/loss": float(row["step"])} for row in RunFolder(quiet).rows()]
    (quiet / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with serving([runs[0], quiet]) as server:
        page = context.new_page()
        page.goto(server.url)
        chart = {name: page.locator(".chart", has_text=f"policy/{name}/loss") for name in ("actor", "other")}
        expect(chart["actor"].locator(".alarm-key")).to_have_text(
            "shaded: alarm of run a, role player: constant (role/player/constant), step 2"
        )
        expect(chart["other"].locator(".legend")).to_contain_text("quiet")
        expect(chart["other"].locator(".alarm-key")).to_have_count(0)
        assert chart["actor"].locator("canvas").evaluate(PINK) > 1000
        assert chart["other"].locator("canvas").evaluate(PINK) < 100  # letters have a few such pixels


FORMULA = re.compile(
    r"\(earned (\S+) \S mean of 4 episodes with this start, this one included: (\S+)\) "
    r"÷ standard deviation (\S+) = (\S+)"
)


def number(text: str) -> float:
    return float(text.replace("\N{MINUS SIGN}", "-"))


def test_an_advantage_names_the_parts_of_its_formula_whose_numbers_are_those_on_disk(
    context: BrowserContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    home = RunFolder(kuhn_run(tmp_path / "c", 'credit.baseline={"kind": "group", "std": true}', steps=1))
    record = home.read_credit_of_step(1)
    equal = {turn for turn, credit in record.turns().items() if credit.scale == 0}
    with serving([home.path]) as server:
        page = context.new_page()
        page.goto(server.url)
        for hand in record.episodes[::3]:
            visit(page, f"#/episode?run=c&step=1&episode={hand.episode}")
            for credit in hand.turns:
                page.locator(f'[data-turn="{credit.turn[1]}"]').click()
                expect(page.locator("#turn-title")).to_contain_text(f"turn {credit.turn[1]}:")
                words = page.locator(".chain li").last.locator("p").first.text_content() or ""
                if credit.turn in equal:
                    assert words == "all 4 episodes with this start earned the same, so the advantage is 0"
                    continue
                found = FORMULA.fullmatch(words)
                assert found, words
                earned, mean, deviation, advantage = map(number, found.groups())
                assert (earned, mean) == pytest.approx((credit.earned, credit.baseline), rel=1e-3)
                assert advantage == pytest.approx(credit.advantage, rel=1e-3)
                assert (earned - mean) / deviation == pytest.approx(advantage, rel=1e-2)
                expect(page.locator(".chain")).to_contain_text("(the number subtracted below also counts this turn)")


def test_the_first_chart_is_the_main_figure_and_says_that_lower_is_better(
    context: BrowserContext, runs: list[Path], tmp_path: Path
) -> None:
    run = shutil.copytree(runs[1], tmp_path / "n")
    rows = [dict(row) | {"eval/nashconv": 1 / row["step"]} for row in RunFolder(run).rows()]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with serving([run]) as server:
        page = context.new_page()
        page.goto(server.url)
        expect(page.locator(".charts .chart figcaption").first).to_have_text("eval/nashconv lower is better")
        expect(page.locator(".run-card .main-figure h4")).to_contain_text("(lower is better)")


def test_two_runs_of_choice_are_compared_with_the_difference_of_each_figure(
    context: BrowserContext, runs: list[Path], tmp_path: Path
) -> None:
    seed = shutil.copytree(runs[0], tmp_path / "seed")
    scenario = (seed / "scenario.yaml").read_text()
    (seed / "scenario.yaml").write_text(re.sub(r"^(  seed): 0$", r"\1: 5", scenario, flags=re.MULTILINE))
    with serving([*runs, seed]) as server:
        page = context.new_page()
        page.goto(server.url)
        figures = page.get_by_role("region", name="table of final figures")
        settings = page.get_by_role("region", name="table of settings")
        expect(figures.locator("thead th")).to_have_count(3)
        page.get_by_label("compare run").select_option("b")
        page.get_by_label("with run").select_option("a")
        expect(figures.locator("thead th")).to_have_text(["figure", "b", "a", "a \N{MINUS SIGN} b"])
        last = {run.name: list(RunFolder(run).rows())[-1]["episode/return/player_0"] for run in runs}
        cells = figures.locator("tr", has_text="episode/return/player_0").locator("td").all_text_contents()
        expected = [last["b"], last["a"], last["a"] - last["b"]]
        assert list(map(number, cells)) == pytest.approx(expected, rel=2e-3)
        page.get_by_label("compare run").select_option("seed")
        expect(page.get_by_text("The runs differ only in their seed.")).to_be_visible()
        expect(settings.locator("tbody tr")).to_have_count(1)
        expect(settings.locator("tbody tr")).to_have_text("schedule.seed50")
        page.get_by_role("button", name="all settings").click()
        settings.evaluate("(box) => box.scrollTo(0, 400)")
        top, head = settings.bounding_box(), settings.locator("thead th").first.bounding_box()
        assert top and head and abs(top["y"] - head["y"]) < 3  # noqa: PT018


def test_the_worst_hands_of_a_zero_sum_game_are_those_of_the_learner(
    context: BrowserContext, runs: list[Path], tmp_path: Path
) -> None:
    run = shutil.copytree(runs[1], tmp_path / "z")
    rows = [dict(row) | {"episode/return/player_1": -row["episode/return/player_0"]} for row in RunFolder(run).rows()]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    returns = sorted(hand.returns["player_0"] for step in (1, 2) for hand in RunFolder(run).load_trajectories(step))
    with serving([run]) as server:
        page = context.new_page()
        page.goto(server.url)
        page.get_by_role("link", name="worst of z").click()
        shown = page.locator("table.list tbody td:nth-child(4)")
        expect(shown).to_have_count(16)
        assert list(map(number, shown.all_text_contents())) == returns
        visit(page, "#/episodes?run=z")
        page.locator("#filter-order").select_option("best")
        expect(page).to_have_url(re.compile("order=best&figure=agent%2Fplayer_0"))
        expect(shown.first).to_have_text(f"+{returns[-1]:g}")


def test_a_row_of_the_steps_opens_its_detail_in_sight_which_leads_to_the_credit_rules(page: Page) -> None:
    page.set_viewport_size({"width": 900, "height": 500})
    visit(page, "#/steps?run=a")
    page.locator("table.list tbody tr").nth(1).locator("td").first.click()
    expect(page).to_have_url(re.compile("step=2"))
    detail = page.get_by_role("region", name="step 2", exact=True)
    expect(detail.get_by_role("heading")).to_be_in_viewport()
    detail.get_by_role("link", name="compare credit rules").click()
    expect(page.get_by_role("heading", name="episode 000002.0.0 of a")).to_be_visible()
    expect(page.get_by_label("assign", exact=True)).to_be_visible()


def test_held_out_answers_are_marked_right_or_wrong_and_the_wrong_ones_come_first(
    context: BrowserContext, runs: list[Path], tmp_path: Path
) -> None:
    home = RunFolder(shutil.copytree(runs[1], tmp_path / "h"))
    rng = random.Random(0)
    hands = [kuhn_episode(f"held_out.{i}", "QJ", rng) for i in range(4)]
    for hand, success in zip(hands, (1.0, 0.0, 1.0, 0.0), strict=True):
        hand.findings = EpisodeMeasuresAndNewStarts({"success": success})
    home.record_held_out_episodes(2, hands)
    with serving([home.path]) as server:
        page = context.new_page()
        page.goto(server.url)
        visit(page, "#/held_out?run=h&before=2&after=2")
        page.get_by_role("main").get_by_label("order").select_option("worst")
        expect(page).to_have_url(re.compile("order=worst"))
        articles = page.locator("article.turn h3")
        expect(articles).to_have_text(["held_out.1", "held_out.3", "held_out.0", "held_out.2"])
        marks = page.locator("article.turn .side-by-side > div:nth-child(2) h4 b")
        expect(marks).to_have_text(["✗ wrong", "✗ wrong", "✓ right", "✓ right"])
        page.get_by_role("link", name="open the episode held_out.3 after step 2").last.click()
        expect(page.get_by_role("heading", name="held-out episode held_out.3 of h")).to_be_visible()
        expect(page.get_by_label("completion")).to_have_text(hands[3].turns[0].completion.text)
        expect(page.locator(".facts")).to_contain_text("success0")
        expect(page.get_by_text("no credit is assigned")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page).to_have_url(re.compile("held_out.*order=worst"))


def test_rules_and_metrics_have_a_sentence_under_the_pointer_and_in_focus(page: Page) -> None:
    bubble = page.get_by_role("tooltip")
    page.locator(".main-figure .term").first.hover()
    expect(bubble).to_have_text("mean return of a seat [reward]")
    page.keyboard.press("Escape")
    expect(bubble).to_have_count(0)
    visit(page, EPISODE)
    page.locator(".chain .term", has_text="outcome").focus()
    expect(bubble).to_have_text("Each turn earns its agent's return in the episode.")
    expect(page.locator(".chain .term", has_text="outcome")).to_have_attribute("aria-describedby", "meaning")
    expect(page.get_by_text("assign outcome: Each turn earns")).to_be_visible()
    page.keyboard.press("?")
    page.get_by_role("dialog").get_by_role("link", name="glossary").click()
    expect(page.locator(".glossary dt", has_text="credit stage")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)
    visit(page, "#/steps?run=a&step=2")
    row = page.get_by_role("region", name="all metrics of step 2").locator("tr", has_text="episode/return/player_0")
    expect(row).to_contain_text("mean return of a seat")


def test_segments_of_an_answer_have_borders_and_each_its_credit(page: Page, runs: list[Path]) -> None:
    script = """import('/static/tokens.js').then(({ segments }) => segments(
        { tokens: { ids: [1, 2, 3, 4], imposed: [1], texts: ["a", "b", "c", "d"], segments: [2, 3] } },
        { tokens: [1, 7, 2, -0.5], advantage: 0 }))"""
    # The second token is imposed, so the first segment's credit is the mean of 1 and 2.
    assert page.evaluate(script) == [
        {"begin": 0, "end": 2, "text": "abc", "advantage": 1.5},
        {"begin": 3, "end": 3, "text": "d", "advantage": -0.5},
    ]
    visit(page, EPISODE.replace("000001.0.0", "000001.0.2"))
    expect(page.locator(".tokens .segment-end")).to_have_count(2)
    page.get_by_label("shade by").select_option("segments")
    expect(page.locator(".segment")).to_have_count(2)
    page.get_by_role("button", name="conversation").click()
    advantage = RunFolder(runs[0]).read_credit_of_step(1).turns()["000001.0.2", 0].advantage
    shown = page.locator(".said .segment-credit b").all_text_contents()
    assert list(map(number, shown)) == pytest.approx([advantage, advantage], rel=1e-3)


@pytest.mark.parametrize("context", [{"viewport": {"width": 390, "height": 844}}], indirect=True, ids=["390"])
def test_a_forecast_is_shown_with_its_skill_and_its_calibration_curve(
    context: BrowserContext, runs: list[Path], tmp_path: Path
) -> None:
    team = with_forecasts(shutil.copytree(runs[1], tmp_path / "team"))
    with serving([team]) as server:
        page = context.new_page()
        page.goto(server.url)
        row = page.get_by_role("region", name="quality of forecasts").get_by_role("row").filter(has_text="verdict")
        expect(row).to_contain_text("+0.2+0.50.1")
        curve = row.get_by_role("img", name="calibration curve of verdict, mean outcome by forecast: 0.1: 0, 0.5: 0.5")
        expect(curve.locator("circle")).to_have_count(3)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("context", [{"viewport": {"width": 390, "height": 844}}], indirect=True, ids=["390"])
def test_what_a_role_is_worth_is_read_on_a_phone_without_scrolling_sideways(
    context: BrowserContext, runs: list[Path], tmp_path: Path
) -> None:
    team = with_role_worth(shutil.copytree(runs[1], tmp_path / "team"))
    with serving([team]) as server:
        page = context.new_page()
        page.goto(server.url)
        rows = page.get_by_role("region", name="worth of each role").get_by_role("row").filter(has_text="critic")
        expect(rows).to_have_count(3)
        expect(rows.first).to_have_text("critic8 of 324 of 403")
        expect(rows.nth(1)).to_contain_text("+0.125 [\N{MINUS SIGN}0.1, 0.3]")
        expect(rows.last).to_contain_text("bug_fixes")
        box = rows.nth(1).get_by_role("cell").filter(has_text="+0.125").bounding_box()
        assert box
        assert box["x"] + box["width"] <= 390
