"""The browser of the page's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from marl.view.page.server import PageServer
from tests.support.recorded_runs import HOSTILE, OPPOSITE, kuhn_run
from tests.support.served_page import CHROMIUM, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright  # not installed where no browser is

    expect.set_options(timeout=20_000)  # on a busy machine the first view takes longer than the default of 5 s
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def context(browser: Browser, request: pytest.FixtureRequest) -> Iterator[BrowserContext]:
    made = browser.new_context(**{"viewport": {"width": 1300, "height": 900}, **getattr(request, "param", {})})
    made.set_default_timeout(20_000)
    yield made
    made.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    folder = tmp_path_factory.mktemp("browsed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_CACHE", str(folder / "cache"))
        yield [
            kuhn_run(folder / "a", steps=3, said=HOSTILE),
            kuhn_run(folder / "b", "credit.scale=2", seed=1, said=OPPOSITE),
        ]


@pytest.fixture(scope="module")
def server(runs: list[Path]) -> Iterator[PageServer]:
    with serving(runs) as made:
        yield made


@pytest.fixture
def page(context: BrowserContext, server: PageServer) -> Iterator[Page]:
    """A page on the server, which must ask nobody else for anything, and report no error."""
    from playwright.sync_api import expect  # not installed where no browser is

    made, problems = context.new_page(), []
    made.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    made.on("pageerror", lambda error: problems.append(str(error)))
    made.on("request", lambda asked: None if _is_here(asked.url, server) else problems.append(asked.url))
    made.on("dialog", lambda dialog: problems.append(dialog.message))
    made.goto(server.url)
    expect(made.get_by_role("heading", name="curves")).to_be_visible()
    yield made
    assert made.evaluate("window.broken") is None
    assert not problems


def _is_here(url: str, server: PageServer) -> bool:
    return url.startswith(f"http://127.0.0.1:{server.server_port}/")
