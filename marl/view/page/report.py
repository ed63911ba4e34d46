"""Report of runs: the page as one HTML file that works without a server and loads nothing."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from marl.core.errors import Writing
from marl.host.data_files import write_atomically
from marl.view.page.assets import bundle_script, bundle_style, read_asset
from marl.view.page.episode_filter import EpisodeFilter
from marl.view.page.episode_index import IndexedEpisode
from marl.view.page.page_data import MAX_ROWS, PageApi, ServedRun

_POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; base-uri 'none'; form-action 'none'"
)

_MOST_POINTS = 500
"""Maximum number of points of a curve."""
_MOST_STATES = 1000
"""Maximum number of information states of the recorded strategies."""


def write_report(data: PageApi, file: Path, episodes: int) -> int:
    """Write the page of the runs, with up to `episodes` episodes of each; return the file's size [bytes].

    A report holds the best and the worst episodes of the first and the last recorded step with their groups, to compare
    siblings and checkpoints.

    Raises:
        FolderError: if the file cannot be written.
    """
    for run in data.runs.values():
        run.index.update()
    answers = dict(_answers(data, episodes))
    page = _page(answers).encode()
    with Writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, page)
    return len(page)


def report_episodes(run: ServedRun, episodes: int) -> list[IndexedEpisode]:
    """Return the episodes of a run that a report includes."""
    steps = run.index.steps()
    selected: dict[tuple[int, str], IndexedEpisode] = {}
    # The last step comes first: it keeps its share if the limit leaves out episodes.
    for step in dict.fromkeys([*steps[-1:], *steps[:1]]):
        of_step = run.index.select(EpisodeFilter(first=step, last=step, order="best"), limit=MAX_ROWS)[1]
        share = max(1, episodes // min(len(steps), 2))
        for episode in list(_with_siblings(of_step))[:share]:
            selected[step, episode.episode] = episode
    return list(selected.values())[:episodes]


def _with_siblings(episodes: Sequence[IndexedEpisode]) -> Iterator[IndexedEpisode]:
    """Yield the best episode's group, the worst episode's group, then the other groups from best to worst."""
    groups = dict.fromkeys(episode.group for episode in [*episodes[:1], *episodes[-1:], *episodes])
    for group in groups:
        yield from (episode for episode in episodes if episode.group == group)


def _answers(data: PageApi, episodes: int) -> Iterator[tuple[str, Any]]:
    """Yield address and answer of every request that the page can make."""
    yield _address("runs"), data.answer("runs", {})
    yield _address("settings"), data.answer("settings", {})
    for by in ("", "role"):
        for band in ("", "seeds"):
            query = {"by": by, "band": band}
            yield _address("curves", query), data.answer("curves", query | {"points": str(_MOST_POINTS)})
    for name, run in data.runs.items():
        query = {"run": name, "limit": str(MAX_ROWS)}
        yield _address("rows", {"run": name}), data.answer("rows", query)
        yield _address("held_out", {"run": name}), data.answer("held_out", {"run": name})
        strategies = data.answer("strategies", {"run": name})
        yield _address("strategies", {"run": name}), strategies | {"states": strategies["states"][:_MOST_STATES]}
        selected = report_episodes(run, episodes)
        yield _address("episodes", {"run": name}), {"episodes": selected, "index": run.index.index_status()}
        yield from _of_episodes(data, name, selected)


def _of_episodes(data: PageApi, run: str, episodes: Iterable[IndexedEpisode]) -> Iterator[tuple[str, Any]]:
    steps: dict[int, None] = {}
    for entry in episodes:
        query = {"run": run, "step": str(entry.step), "episode": entry.episode}
        episode = data.answer("episode", query)
        yield _address("episode", query), episode
        steps[entry.step] = None
        for turn in episode["turns"]:
            if turn["prompt_tokens"]:
                of_turn = query | {"turn": str(turn["index"])}
                yield _address("prompt", of_turn), data.answer("prompt", of_turn)
    for step in steps:
        query = {"run": run, "step": str(step)}
        yield _address("states", query), data.answer("states", query)


def _address(path: str, query: Mapping[str, str] | None = None) -> str:
    """Return a path and its query sorted by name, in the notation of `store.js`."""
    return json.dumps([path, *map(list, sorted((query or {}).items()))], separators=(",", ":"), ensure_ascii=False)


def _page(answers: Mapping[str, Any]) -> str:
    code, look = bundle_script(), bundle_style()
    policy = _POLICY.format(script=_digest(code), style=_digest(look))
    # Only `<` can end a script element early; in JSON the escape means the same character.
    facts = to_json(answers, inf_nan_mode="strings").decode().replace("<", "\\u003c")
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{look}</style>'
    body = f'<script type="application/json" id="answers">{facts}</script>\n<script>{code}</script>'
    return _replaced(_replaced(read_asset("index.html").decode(), "head", head), "body", body)


def _replaced(page: str, mark: str, text: str) -> str:
    """Return `page` with `text` instead of the section between two marks, which loads from a server."""
    before, _, remainder = page.partition(f"<!--{mark}-->")
    return before + text + remainder.partition(f"<!--/{mark}-->")[2]


def _digest(text: str) -> str:
    """Return the digest of `text` in the notation of a Content-Security-Policy."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
