"""Pictures of the page for the documents: runs compared, an episode with its credit, two siblings, a phone in the dark,
a run with an alarm, a conversation.

Needs two runs of Kuhn poker that differ in their seeds, one of `debate`, and one of `critic_verdict`, with recorded
episodes:

    marl train scenarios/kuhn_self_play.yaml --out runs/kuhn_0 schedule.steps=200 checkpoint.trajectories=0.1
    marl train scenarios/kuhn_self_play.yaml --out runs/kuhn_1 schedule.steps=200 checkpoint.trajectories=0.1 \\
        schedule.seed=1
    marl train scenarios/debate.yaml --out runs/debate schedule.steps=40 checkpoint.trajectories=0.2
    marl train scenarios/critic_verdict.yaml --out runs/critic schedule.steps=60 evaluate.every=10 \\
        checkpoint.trajectories=0.2
    python tests/bench/page_pictures.py runs/kuhn_0 runs/kuhn_1 runs/debate runs/critic

`graph_solver_critic.png`, `graph_one_role.png`, `graph_langgraph.png` and `graph_shop.png` are drawn by `marl show`,
the last two with the files of the tutorials `langgraph.md` (steps 1 to 5) and `function_to_team.md` (2 and 3):

    marl train scenarios/solver_critic.yaml --out runs/solver_critic schedule.steps=10 checkpoint.trajectories=0.5
    marl show runs/solver_critic --best --episodes 1 --graph tests/bench/results/graph_solver_critic.png
    marl new one-role --out solver.yaml
    marl train solver.yaml --out runs/one schedule.steps=20 checkpoint.trajectories=0.1
    marl show runs/one --best --episodes 1 --graph tests/bench/results/graph_one_role.png
    marl train program.yaml --trust --out runs/graph policies.planner.learner=null schedule.steps=4 evaluate.every=4 \\
        checkpoint.trajectories=1
    marl show runs/graph --best --episodes 1 --graph graph_langgraph.png
    marl train shop.yaml --trust --out runs/shop schedule.steps=10 evaluate.every=10 checkpoint.trajectories=1
    marl show runs/shop --best --episodes 1 --graph graph_shop.png
"""

from __future__ import annotations

import argparse
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _bench import ROOT
from PIL import Image
from playwright.sync_api import Browser, expect, sync_playwright

from marl.commands.web_view import OfflineCreditRecomputation
from marl.view.page.episode_filter import EpisodeFilter
from marl.view.page.page_data import PageApi, ServedRun
from marl.view.page.server import PageServer

OUT = ROOT / "tests" / "bench" / "results"
COLOURS = 128
"""Of a picture, so that it stays small."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("runs", type=Path, nargs=4)
    *compared, critic = options.parse_args().runs
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with served(compared) as (url, runs):
            take_comparison(browser, url, runs)
        with served([critic]) as (url, [run]):
            take_alarm(browser, url, run)
        browser.close()


@contextmanager
def served(paths: list[Path]) -> Iterator[tuple[str, list[ServedRun]]]:
    """Serve the page of these runs; yield its address and the runs."""
    data = PageApi(paths, OfflineCreditRecomputation())
    for run in data.runs.values():
        run.index.index_new_steps()
    with PageServer(data) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url, list(data.runs.values())
        server.shutdown()


def take_comparison(browser: Browser, url: str, runs: list[ServedRun]) -> None:
    debate = runs[2]
    first, second = siblings(debate)
    where = f"run={debate.name}&step={first[0]}&episode={first[1]}&turn=4"
    other = f"run2={debate.name}&step2={second[0]}&episode2={second[1]}&turn2=4"
    metrics = "eval/nashconv,eval/held_out/success"
    take(browser, url, "runs", f"#/overview?metrics={metrics}", ".chart canvas", (1200, 1010))
    take(browser, url, "episode", f"#/episode?{where}&rule=flow", "#turn-title", (1200, 1080))
    take(browser, url, "siblings", f"#/compare?{where}&{other}", ".pane + .pane #turn-title", (1200, 900))
    take(browser, url, "phone", f"#/states?run={runs[0].name}", ".state", (390, 800), dark=True)


def take_alarm(browser: Browser, url: str, run: ServedRun) -> None:
    take(browser, url, "alarm", "#/overview", ".chart canvas", (1200, 730))
    _, episodes = run.index.query_episodes(EpisodeFilter(order="worst"), limit=200)
    worst = next(episode for episode in episodes if not episode.unreadable)
    where = f"run={run.name}&step={worst.step}&episode={worst.episode}&turn=1&show=conversation"
    take(browser, url, "conversation", f"#/episode?{where}", "article.said", (1200, 760))


def siblings(run: ServedRun) -> tuple[tuple[int, str], tuple[int, str]]:
    """Return (step, episode) of two episodes of one group that were paid differently."""
    for entry in run.index.query_episodes(EpisodeFilter(), limit=200)[1]:
        for peer in run.index.query_episodes(
            EpisodeFilter(first=entry.step, last=entry.step, group=entry.group), limit=50
        )[1]:
            if peer.paid > entry.paid:
                return (entry.step, entry.episode), (peer.step, peer.episode)
    raise SystemExit(f"{run.name}: all episodes of each group were paid the same")


def take(
    browser: Browser, url: str, name: str, place: str, awaited: str, size: tuple[int, int], *, dark: bool = False
) -> None:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light"
    )
    page = context.new_page()
    page.goto(url)
    page.goto(url.partition("?")[0] + place)
    expect(page.locator(awaited).first).to_be_visible(timeout=60_000)
    page.wait_for_timeout(2000)
    file = OUT / f"page_{name}.png"
    page.screenshot(path=file)
    # The default method replaces rare colours, such as those of a legend.
    picture = Image.open(file).convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    picture.save(file, optimize=True)
    context.close()


if __name__ == "__main__":
    main()
