"""A report of runs: the page as one HTML file that needs no server and asks nobody for anything."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from marl.data_files import write_whole
from marl.errors import Writing
from marl.view.page.assets import asset, script, style
from marl.view.page.episode_index import IndexedEpisode
from marl.view.page.filters import EpisodeFilter
from marl.view.page.page_data import MOST_ROWS, OpenRun, PageData

_POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; base-uri 'none'; form-action 'none'"
)

_MOST_POINTS = 500
"""Most points of a curve."""
_MOST_STATES = 1000
"""Most information states of the recorded strategies."""


def write_report(data: PageData, file: Path, episodes: int) -> int:
    """Write the page of these runs, with up to `episodes` episodes of each; return the size of the file in bytes.

    Of each run: the best and the worst of its first and its last recorded step, each with its group, so that siblings
    and checkpoints can be compared.

    Raises:
        FolderError: if the file cannot be written.
    """
    for run in data.runs.values():
        run.index.update()
    answers = dict(_answers(data, episodes))
    page = _page(answers).encode()
    with Writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, page)
    return len(page)


def chosen(run: OpenRun, episodes: int) -> list[IndexedEpisode]:
    """Return the episodes of a run that a report holds."""
    steps = run.index.steps()
    picked: dict[tuple[int, str], IndexedEpisode] = {}
    for step in dict.fromkeys([*steps[-1:], *steps[:1]]):
        of_step = run.index.select(EpisodeFilter(first=step, last=step, order="best"), limit=MOST_ROWS)[1]
        share = max(1, episodes // min(len(steps), 2))
        for episode in list(_with_siblings(of_step))[:share]:
            picked[step, episode.episode] = episode
    return list(picked.values())[:episodes]


def _with_siblings(episodes: Sequence[IndexedEpisode]) -> Iterator[IndexedEpisode]:
    """Yield the group of the best episode, the group of the worst one, and the rest from the best to the worst."""
    groups = dict.fromkeys(episode.group for episode in [*episodes[:1], *episodes[-1:], *episodes])
    for group in groups:
        yield from (episode for episode in episodes if episode.group == group)


def _answers(data: PageData, episodes: int) -> Iterator[tuple[str, Any]]:
    """Yield what the page asks for, by the address that it would ask."""
    yield _address("runs"), data.answer("runs", {})
    yield _address("settings"), data.answer("settings", {})
    for by in ("", "role"):
        for band in ("", "seeds"):
            query = {"by": by, "band": band}
            yield _address("curves", query), data.answer("curves", query | {"points": str(_MOST_POINTS)})
    for name, run in data.runs.items():
        query = {"run": name, "limit": str(MOST_ROWS)}
        yield _address("rows", {"run": name}), data.answer("rows", query)
        yield _address("held_out", {"run": name}), data.answer("held_out", {"run": name})
        strategies = data.answer("strategies", {"run": name})
        yield _address("strategies", {"run": name}), strategies | {"states": strategies["states"][:_MOST_STATES]}
        picked = chosen(run, episodes)
        yield _address("episodes", {"run": name}), {"episodes": picked, "index": run.index.progress()}
        yield from _of_episodes(data, name, picked)


def _of_episodes(data: PageData, run: str, episodes: Iterable[IndexedEpisode]) -> Iterator[tuple[str, Any]]:
    steps: dict[int, None] = {}
    for each in episodes:
        query = {"run": run, "step": str(each.step), "episode": each.episode}
        episode = data.answer("episode", query)
        yield _address("episode", query), episode
        steps[each.step] = None
        for turn in episode["turns"]:
            if turn["prompt_tokens"]:
                of_turn = query | {"turn": str(turn["index"])}
                yield _address("prompt", of_turn), data.answer("prompt", of_turn)
    for step in steps:
        query = {"run": run, "step": str(step)}
        yield _address("states", query), data.answer("states", query)


def _address(path: str, query: Mapping[str, str] | None = None) -> str:
    """Return a path and its query, in the order of names, as `store.js` writes them."""
    return json.dumps([path, *map(list, sorted((query or {}).items()))], separators=(",", ":"), ensure_ascii=False)


def _page(answers: Mapping[str, Any]) -> str:
    code, look = script(), style()
    policy = _POLICY.format(script=_digest(code), style=_digest(look))
    # Within a script element, only `<` could end it; JSON may spell it otherwise.
    facts = to_json(answers, inf_nan_mode="strings").decode().replace("<", "\\u003c")
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{look}</style>'
    body = f'<script type="application/json" id="answers">{facts}</script>\n<script>{code}</script>'
    return _replaced(_replaced(asset("index.html").decode(), "head", head), "body", body)


def _replaced(page: str, mark: str, text: str) -> str:
    """Return the page with a text in place of what stands between two marks, which loads it from a server."""
    before, _, rest = page.partition(f"<!--{mark}-->")
    return before + text + rest.partition(f"<!--/{mark}-->")[2]


def _digest(text: str) -> str:
    """Return a text's digest as a Content-Security-Policy names it."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
