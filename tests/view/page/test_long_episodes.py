"""The page stays quick with long answers and with episodes of thousands of turns."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from marl.credit_stage.stage import CreditStage
from marl.protocols import Evidence
from marl.runs.run_folder import RunFolder
from marl.view.page.page_data import PageApi
from tests.support.recorded_runs import kuhn_run, long_episode
from tests.support.served_page import CHROMIUM, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
    pytest.mark.xdist_group("browser"),
]
TURNS, TOKENS = 5000, 30_000
EPISODE = "#/episode?run=long&step=9&episode=000009.0.0"
BUSY = 10
"""Factor by which a busy machine may be slower than a quiet one."""
PRESS = """() => new Promise((done) => {
  const began = performance.now();
  document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "j", bubbles: true }));
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began), 0));
})"""
"""Time from a key to the frame that it drew [ms]."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("long")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_CACHE", str(folder / "cache"))
        made = kuhn_run(folder / "long")
        home = RunFolder(made)
        episodes = [long_episode(f"000009.0.{number}", TURNS, TOKENS) for number in range(2)]
        home.record_trajectories(9, episodes)
        record = CreditStage(home.scenario().credit)(Evidence(episodes, "kuhn_poker"))
        home.record_credit(9, record.to_credit_record(episodes, {"player": "actor"}))
        yield made


@pytest.fixture
def page(context: BrowserContext, run: Path) -> Iterator[Page]:
    with serving([run]) as server:
        made, problems = context.new_page(), []
        made.on("pageerror", lambda error: problems.append(str(error)))
        made.goto(server.url)
        expect(made.get_by_role("heading", name="curves")).to_be_visible()
        yield made
        assert not problems


def show(page: Page, hash_: str) -> float:
    """Open an address; return the time until a turn is shown [s]."""
    began = time.perf_counter()
    page.goto(page.url.partition("#")[0] + hash_)
    expect(page.locator("#turn-title")).to_be_visible(timeout=60_000)
    return time.perf_counter() - began


def test_an_answer_of_thirty_thousand_tokens_is_drawn_in_pieces(page: Page) -> None:
    assert show(page, f"{EPISODE}&turn={TURNS - 1}") < 1.0 * BUSY
    assert page.locator(".tokens .token").count() > 0
    expect(page.locator(".tokens .token")).to_have_count(TOKENS, timeout=60_000)
    expect(page.locator(".tokens .token").last).to_have_attribute(
        "title",
        f"token {TOKENS - 1}, id 1, log-probability "
        "\N{MINUS SIGN}0.5, advantage 0, entropy \N{EN DASH}, mismatch \N{EN DASH}",
    )
    page.get_by_label("shade by").select_option("logprob")
    expect(page.locator(".tokens .token").last).to_have_css("background-color", "rgba(230, 120, 0, 0.063)")


def test_an_episode_of_five_thousand_turns_opens_quickly_and_follows_the_keys(page: Page) -> None:
    assert show(page, f"{EPISODE}&turn=0") < 1.0 * BUSY
    times = sorted(page.evaluate(PRESS) for _ in range(30))
    expect(page.locator("#turn-title")).to_contain_text("turn 30")
    assert times[15] < 50 * BUSY
    expect(page.locator('[data-turn="30"]')).to_be_in_viewport()
    assert page.locator(".node").count() < 200, "only turns near those in sight are drawn"
    show(page, f"{EPISODE}&turn={TURNS - 1}")
    expect(page.locator(f'[data-turn="{TURNS - 1}"]')).to_be_in_viewport()


def test_the_answer_about_a_long_episode_takes_linear_time(run: Path) -> None:
    data = PageApi([run])
    data.runs["long"].index.index_new_steps()
    began = time.perf_counter()
    answer = data.answer("episode", {"run": "long", "step": "9", "episode": "000009.0.0"})
    assert time.perf_counter() - began < 1.0 * BUSY
    assert answer["chains"][0]["peer_count"] == TURNS - 1
    assert len(answer["chains"][0]["peers"]) == 10, "fewer are listed than of a short episode"
