"""Helpers of tests that look at the page in a browser."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

EPISODE = "#/episode?run=a&step=1&episode=000001.0.0"
BAD = "#/episode?run=a&step=3&episode=000003.0.0&turn=9"
VIEWS = (
    "#/overview",
    "#/episodes?run=a",
    EPISODE,
    BAD,
    "#/steps?run=a&step=2",
    f"{EPISODE}&shade=mismatch",
    f"{EPISODE}&show=conversation&markdown=1",
    "#/states?run=a&step=1",
    "#/states?run=a&of=strategies",
    "#/held_out?run=a",
    "#/episode?run=a&step=3&episode=held_out.1&held_out=1",
    f"{EPISODE.replace('0.0', '0.2')}&show=conversation",
    "#/glossary",
)


def visit(page: Page, hash_: str) -> None:
    page.goto(page.url.partition("#")[0] + hash_)
    expect(page.locator("main").get_by_role("heading").first).to_be_visible()
    expect(page.get_by_role("status").filter(has_text=re.compile("…$"))).to_have_count(0)


def number(text: str | None) -> float:
    """Return the number that the page shows as `text`."""
    return float((text or "").replace("\N{MINUS SIGN}", "-").replace(",", ""))
