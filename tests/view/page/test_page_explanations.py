"""The page in a real browser: each figure says what it belongs to, and an advantage names the parts of its formula."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from marl.runs.run_folder import RunFolder
from tests.support.served_page import CHROMIUM, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
    pytest.mark.xdist_group("browser"),
]

PINK = """(canvas) => { const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const pixels = Array.from({ length: data.length / 4 }, (_, i) => data.subarray(4 * i, 4 * i + 4));
    return pixels.filter(([red, green, blue, alpha]) => alpha && red - blue > 10 && Math.abs(green - blue) < 3).length; }"""
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
