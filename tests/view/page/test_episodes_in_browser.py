"""Episodes in a real browser: credit, tokens and texts as they lie on disk, lists of episodes and comparisons."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from marl.runs.run_folder import RunFolder
from tests.support.browsed_page import BAD, EPISODE, number, visit
from tests.support.recorded_runs import OPPOSITE
from tests.support.served_page import CHROMIUM

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
    pytest.mark.xdist_group("browser"),
]


def test_the_chain_of_every_turn_that_is_clicked_is_the_one_on_disk(page: Page, runs: list[Path]) -> None:
    visit(page, EPISODE)
    chains = RunFolder(runs[0]).read_credit_of_step(1).turns()
    turns = RunFolder(runs[0]).load_trajectory(1, 0).turns
    for turn in turns:
        page.locator(f'[data-turn="{turn.id[1]}"]').click()
        expect(page.locator("#turn-title")).to_contain_text(f"turn {turn.id[1]}: {turn.agent}")
        chain = chains[turn.id]
        for name in ("pool_reward", "assigned", "earned", "advantage"):
            assert number(page.locator(f'.chain [data-figure="{name}"]').text_content()) == pytest.approx(
                getattr(chain, name), rel=1e-3
            )
        assert (
            page.locator(".peers li").count()
            == len(RunFolder(runs[0]).read_credit_of_step(1).groups[chain.group or 0].turns) - 1
        )
    page.get_by_role("button", name="chat template").click()
    expect(page.get_by_label("exact prompt")).to_have_text("check bet")
    page.get_by_label("shade by").select_option("logprob")
    expect(page.locator(".tokens .token")).to_have_count(4)
    page.get_by_role("button", name="token table").click()
    expect(page.get_by_role("region", name="tokens").locator("tbody tr")).to_have_count(4)


def test_tokens_are_shaded_by_entropy_and_by_the_mismatch_of_the_sampler(page: Page) -> None:
    visit(page, EPISODE)
    tokens = page.locator(".tokens .token")
    page.get_by_label("shade by").select_option("entropy")
    expect(page.get_by_label("legend of the shading by entropy")).to_contain_text("2 nats or more")
    expect(tokens.nth(1)).to_have_attribute("title", re.compile("entropy 1, mismatch \N{MINUS SIGN}0.05"))
    expect(tokens.nth(2)).to_have_css("background-color", "rgba(0, 114, 178, 0.5)")
    page.get_by_label("shade by").select_option("mismatch")
    expect(page.get_by_label("legend of the shading by sampler mismatch")).to_contain_text(
        "\N{MINUS SIGN}0.05 nats: less"
    )
    expect(tokens.nth(1)).to_have_css("background-color", "rgba(230, 120, 0, 0.5)")
    expect(page).to_have_url(re.compile("shade=mismatch"))
    page.get_by_role("button", name="token table").click()
    expect(page.get_by_role("region", name="tokens").locator("tbody tr").nth(1)).to_contain_text("\N{MINUS SIGN}0.05")
    visit(page, EPISODE.replace("000001.0.0", "000001.0.1") + "&shade=mismatch")
    expect(page.get_by_text("Not recorded for this turn")).to_be_visible()


def test_another_rule_is_shown_beside_the_runs_own_with_what_differs_and_a_summary_by_role(page: Page) -> None:
    visit(page, EPISODE)
    page.get_by_label("assign", exact=True).select_option("flow")
    page.get_by_label("baseline", exact=True).select_option("role_average")
    expect(page.locator(".chain")).to_have_count(2)
    expect(page.locator(".chain").nth(1)).to_contain_text("role_average")
    comparison = page.get_by_role("region", name="comparison of the rules")
    expect(comparison.locator("li")).to_have_count(2)
    expect(comparison).to_contain_text("Every other setting is the run's")
    rows = page.get_by_role("region", name="credit of the step by role").locator("tbody tr")
    expect(rows.nth(0)).to_contain_text("the run's own")
    expect(rows.nth(1)).to_contain_text("flow/role_average")
    expect(page).to_have_url(re.compile("rule=flow%2Frole_average"))


def test_rules_that_cannot_work_on_the_run_are_grey_with_the_reason(page: Page) -> None:
    visit(page, EPISODE)
    expect(page.get_by_label("assign", exact=True).locator("option[value=shapley]")).to_be_disabled()
    expect(page.get_by_label("assign", exact=True).locator("option[value=flow]")).to_be_enabled()
    page.get_by_text("other rules, by a command or in other runs").click()
    expect(page.get_by_text(re.compile("greedy: greedy plays or samples"))).to_contain_text("--with /greedy")
    visit(page, f"{EPISODE}&rule=shapley")
    expect(page.get_by_role("alert")).to_contain_text("zero-sum")


def test_episodes_are_filtered_and_a_link_leads_to_the_same_selection(page: Page, context: BrowserContext) -> None:
    visit(page, "#/episodes?run=a")
    expect(page.get_by_text("24 episodes")).to_be_visible()
    page.get_by_label("unreadable turns").check()
    expect(page.get_by_text("1 episodes")).to_be_visible()
    page.get_by_role("button", name="clear").click()
    page.get_by_label("search (/)").fill("onerror")
    expect(page.get_by_role("link", name="000003.0.0")).to_be_visible()
    again = context.new_page()
    again.goto(page.url)
    expect(again.get_by_text("1 episodes")).to_be_visible()
    expect(again.get_by_label("search (/)")).to_have_value("onerror")


def test_two_siblings_stand_side_by_side(page: Page) -> None:
    visit(page, EPISODE)
    page.get_by_role("link", name="compare with 000001.0.2").click()
    expect(page.locator(".pane")).to_have_count(2)
    expect(page.get_by_role("heading", name=re.compile("episode 000001.0.0"))).to_be_visible()
    right = page.get_by_label("episode 000001.0.2 of a", exact=True)
    right.locator('[data-turn="1"]').click()
    expect(right.locator("#turn-title")).to_contain_text("turn 1")


def test_episodes_of_two_runs_are_compared_by_two_clicks(page: Page) -> None:
    visit(page, "#/episodes?run=a")
    page.get_by_role("button", name="compare 000001.0.0 with another episode").click()
    expect(page.get_by_text("to be compared: episode 000001.0.0 of a")).to_be_visible()
    visit(page, "#/episodes?run=b")
    page.get_by_role("link", name="compare 000002.1.3 of b with the chosen episode").click()
    expect(page.locator(".pane")).to_have_count(2)
    expect(page.get_by_role("heading", name="episode 000001.0.0 of a")).to_be_visible()
    expect(page.get_by_role("heading", name="episode 000002.1.3 of b")).to_be_visible()


def test_a_click_on_a_column_orders_the_list_and_the_way_goes_on_in_this_order(page: Page, runs: list[Path]) -> None:
    visit(page, "#/episodes?run=b&first=1&last=1")
    header = page.get_by_role("columnheader", name="chips")
    header.get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", "descending")
    header.get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", "ascending")
    hands = RunFolder(runs[1]).load_trajectories(1)
    hands.sort(key=lambda hand: (hand.findings.measures["chips"], -len(hand.turns)))
    links = page.locator("table.list tbody a[href*='#/episode?']")
    expect(links).to_have_text([hand.id for hand in hands])
    links.nth(1).click()
    around = page.get_by_role("navigation", name="episodes around")
    expect(around).to_contain_text("2 of 8 in the list")
    page.keyboard.press("n")
    expect(page.get_by_role("heading", name=f"episode {hands[2].id}")).to_be_visible()
    around.get_by_role("link", name="previous").click()
    expect(page.get_by_role("heading", name=f"episode {hands[1].id}")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile("order=worst"))
    visit(page, "#/episode?run=b&step=1&episode=000001.0.0")
    expect(page.get_by_role("navigation", name="episodes around")).to_contain_text("1 of 8 in step 1")


def test_an_episode_is_a_conversation_beside_its_graph(page: Page, runs: list[Path]) -> None:
    visit(page, EPISODE)
    page.get_by_role("button", name="conversation").click()
    hand = RunFolder(runs[0]).load_trajectory(1, 0)
    said = page.locator("article.said")
    expect(said).to_have_count(len(hand.turns))
    for turn, shown in zip(hand.turns, said.all(), strict=True):
        expect(shown.get_by_label(f"answer of turn {turn.id[1]}")).to_have_text(turn.completion.text)
        expect(shown).to_contain_text(turn.agent)
    expect(said.last.locator(".outcome li")).to_have_count(len(hand.rewards))
    page.locator('[data-turn="1"]').click()
    expect(page.locator("article.said.chosen")).to_have_attribute("data-said", "1")
    page.keyboard.press("k")
    expect(page.locator('[data-turn="0"]')).to_have_attribute("aria-pressed", "true")
    expect(page).to_have_url(re.compile("show=conversation"))


def test_link_and_text_of_an_episode_are_copied(page: Page, context: BrowserContext, runs: list[Path]) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit(page, f"{EPISODE}&turn=1")
    page.get_by_role("button", name="copy text").click()
    expect(page.get_by_role("button", name="copied")).to_be_visible()
    spoken = RunFolder(runs[0]).load_trajectory(1, 0).turns[1].completion.text
    assert page.evaluate("navigator.clipboard.readText()") == spoken
    page.get_by_role("button", name="copy link").click()
    expect(page.get_by_role("button", name="copied")).to_have_count(1)
    assert page.evaluate("navigator.clipboard.readText()").endswith(f"/{EPISODE}&turn=1")


MARKDOWN = r"""# Result
Let $y = 0$. Then
- **bold** and `code <b>`
- $x^2 + \frac{1}{2}$

\[ \sqrt{2} \]

| a | b |
|---|---|
| 1 | <img src=x onerror="window.broken=1"> |

[click](javascript:alert(1)) ![p](http://example.com/p.png) <script>window.broken=1</script>
$\href{javascript:alert(1)}{x}$ costs $5 or $6"""


def test_markdown_and_formulas_are_drawn_without_any_html_of_the_text(page: Page) -> None:
    script = """async (text) => {
        const { html, render } = await import('/static/words.js'), { Markdown } = await import('/static/markdown.js');
        const holder = document.createElement("div"); holder.id = "sample"; document.body.append(holder);
        render(html`<${Markdown} text=${text} label="sample" />`, holder); }"""
    page.evaluate(script, MARKDOWN)
    sample = page.locator("#sample")
    expect(sample.locator("math")).to_have_count(3)
    assert sample.locator("math mfrac").count() == sample.locator("math msqrt").count() == 1
    assert sample.locator("strong").all_text_contents() == ["bold"]
    assert sample.locator("code").all_text_contents() == ["code <b>"]
    assert sample.locator("td").count() == 2
    assert sample.locator("img, script, a, [href], [src], [style], [onerror]").count() == 0
    for part in (
        "[click](javascript:alert(1))",
        "![p](http://example.com/p.png)",
        "<script>",
        "<img",
        "costs $5 or $6",
    ):
        expect(sample).to_contain_text(part)


def test_the_same_start_is_compared_between_two_checkpoints(page: Page) -> None:
    visit(page, EPISODE)
    page.get_by_text("the same start in 2 other steps").click()
    page.get_by_role("link", name="compare with 000002.0.0").click()
    expect(page.locator(".pane")).to_have_count(2)
    for step, name in ((1, "000001.0.0"), (2, "000002.0.0")):
        expect(page.get_by_label(f"episode {name} of a", exact=True).get_by_role("heading").first).to_contain_text(
            f"step {step}"
        )


def test_what_models_wrote_is_text_and_hidden_signs_are_seen(page: Page) -> None:
    visit(page, BAD)
    page.get_by_label("shade by").select_option("plain")
    said = page.get_by_label("completion")
    for part in (
        "<img src=x onerror=",
        "<script>window.broken=1</script>",
        "U+001B",
        "U+202E",
        "U+200B",
        "{{constructor}}",
    ):
        expect(said).to_contain_text(part)
    assert page.locator("main img, main script").count() == 0
    assert "\u202e" not in page.locator("body").inner_text()
    visit(page, "#/episode?run=b&step=2&episode=000002.0.0&turn=9")
    page.get_by_label("shade by").select_option("plain")
    expect(page.get_by_label("completion")).to_have_text(OPPOSITE)
