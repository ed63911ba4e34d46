"""Report of runs: the page as one HTML file that works without a server and loads nothing."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from marl.core.errors import RaiseRunFolderErrorOnFailedWrite
from marl.host.data_files import write_atomically
from marl.view.page.assets import STYLES, bundle_page_script, read_page_asset
from marl.view.page.episode_filter import EpisodeFilter
from marl.view.page.episode_index import IndexedEpisode
from marl.view.page.page_data import PageApi, ServedRun
from marl.view.page.url_parameters import MAX_ROWS, Query

_POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; base-uri 'none'; form-action 'none'"
)

_MOST_POINTS = 500
"""Maximum number of points of a curve in a report."""
_MAILED_BYTES = 2_000_000
"""Size of a report up to which opened held-out episodes are added [bytes]."""
_MOST_STATES = 1000
"""Maximum number of information states of the recorded strategies in a report."""


def write_report(page_api: PageApi, file: Path, max_episodes: int) -> int:
    """Write the page of the runs, with up to `max_episodes` episodes of each; return the file's size [bytes].

    A report holds the best and the worst episodes of the first and the last recorded step with their groups, to compare
    siblings and checkpoints.

    Raises:
        RunFolderError: if the file cannot be written.
    """
    for run in page_api.runs.values():
        run.index.index_new_steps()
    answers = dict(_request_keys_and_answers(page_api, max_episodes))
    script, style = bundle_page_script(), "\n".join(read_page_asset(name).decode() for name in STYLES)
    room = _MAILED_BYTES - len(script) - len(style) - len(to_json(answers, inf_nan_mode="strings"))
    for name in page_api.runs:
        comparison = answers[_canonical_request_address("held_out", {"run": name})]
        for query, episode in _held_out_episodes_up_to(room // len(page_api.runs), page_api, name, comparison):
            answers[_canonical_request_address("episode", query)] = episode
    policy = _POLICY.format(
        script=_content_security_policy_digest(script), style=_content_security_policy_digest(style)
    )
    # `<` is escaped, because only `<` can end a script element early; JSON reads the escape as the same character.
    facts = to_json(answers, inf_nan_mode="strings").decode().replace("<", "\\u003c")
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    body = f'<script type="application/json" id="answers">{facts}</script>\n<script>{script}</script>'
    page = _replace_section(read_page_asset("index.html").decode(), "head", head)
    page = _replace_section(page, "body", body).encode()
    with RaiseRunFolderErrorOnFailedWrite(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, page)
    return len(page)


def report_episodes(run: ServedRun, max_episodes: int) -> list[IndexedEpisode]:
    """Return up to `max_episodes` episodes of a run's first and last recorded step, for a report."""
    steps = run.index.indexed_steps()
    selected: list[IndexedEpisode] = []
    # The last step comes first, so that `max_episodes` cuts off episodes of the first step and none of the last.
    for step in dict.fromkeys([*steps[-1:], *steps[:1]]):
        _, of_step = run.index.query_episodes(EpisodeFilter(first=step, last=step, order="best"), limit=MAX_ROWS)
        # The best and the worst episode's groups come first, then all other groups from best to worst.
        by_group = {episode.group: list[IndexedEpisode]() for episode in [*of_step[:1], *of_step[-1:], *of_step]}
        for episode in of_step:
            by_group[episode.group].append(episode)
        share = max(1, max_episodes // min(len(steps), 2))
        selected += islice(chain.from_iterable(by_group.values()), share)
    return selected[:max_episodes]


def _request_keys_and_answers(page_api: PageApi, max_episodes: int) -> Iterator[tuple[str, Any]]:
    """Yield (address, answer) of every request that the page in a report can make."""
    runs = page_api.answer("runs", {})
    yield _canonical_request_address("runs"), runs
    yield _canonical_request_address("status"), page_api.answer("status", {})
    yield _canonical_request_address("words"), page_api.answer("words", {})
    yield _canonical_request_address("settings"), page_api.answer("settings", {})
    names = [run["name"] for run in runs["runs"]]
    if len(names) == 2 and not any(run["problem"] for run in runs["runs"]):
        pair = {"first": names[0], "second": names[1]}
        yield _canonical_request_address("settings", pair), page_api.answer("settings", pair)
    for by in ("", "role"):
        for band in ("", "seeds"):
            query = {"by": by, "band": band}
            yield (
                _canonical_request_address("curves", query),
                page_api.answer("curves", query | {"points": str(_MOST_POINTS)}),
            )
    for name, run in page_api.runs.items():
        query = {"run": name, "limit": str(MAX_ROWS)}
        yield _canonical_request_address("rows", {"run": name}), page_api.answer("rows", query)
        yield (
            _canonical_request_address("distributions", {"run": name}),
            page_api.answer("distributions", {"run": name}),
        )
        yield _canonical_request_address("held_out", {"run": name}), page_api.answer("held_out", {"run": name})
        strategies = page_api.answer("strategies", {"run": name})
        yield (
            _canonical_request_address("strategies", {"run": name}),
            strategies | {"states": strategies["states"][:_MOST_STATES]},
        )
        selected = report_episodes(run, max_episodes)
        yield (
            _canonical_request_address("episodes", {"run": name}),
            {"episodes": selected, "index": run.index.index_counts_and_unreadable_steps()},
        )
        for entry in selected:
            query = {"run": name, "step": str(entry.step), "episode": entry.episode}
            episode = page_api.answer("episode", query)
            yield _canonical_request_address("episode", query), episode
            for turn in episode["turns"]:
                if turn["prompt_tokens"]:
                    of_turn = query | {"turn": str(turn["index"])}
                    yield _canonical_request_address("prompt", of_turn), page_api.answer("prompt", of_turn)
        for step in dict.fromkeys(entry.step for entry in selected):
            query = {"run": name, "step": str(step)}
            yield _canonical_request_address("states", query), page_api.answer("states", query)


def _held_out_episodes_up_to(
    max_bytes: int, page_api: PageApi, run: str, comparison: Mapping[str, Any]
) -> Iterator[tuple[Query, dict[str, Any]]]:
    """Yield (query, answer) of compared held-out episodes, first those with changed measures, up to `max_bytes`.

    The answers lack the tokens of the turns, which are most of an episode's size.
    """

    def is_unchanged(pair: Mapping[str, Any]) -> bool:
        return pair["before"] is None or pair["before"]["measures"] == pair["after"]["measures"]

    size = 0
    for pair in sorted(comparison["episodes"], key=is_unchanged):
        # With a single evaluation, both sides are the same episode.
        for step in dict.fromkeys(comparison[side] for side in ("before", "after") if pair[side]):
            query = {"run": run, "step": str(step), "episode": pair["episode"], "held_out": "1"}
            query |= {"game": pair["game"]} if pair["game"] else {}
            episode = page_api.answer("episode", query)
            for turn in episode["turns"]:
                turn["prompt_tokens"], turn["tokens"] = 0, {name: [] for name in turn["tokens"]}
            size += len(to_json(episode, inf_nan_mode="strings"))
            if size > max_bytes:
                return
            yield query, episode


def _canonical_request_address(api_path: str, query: Mapping[str, str] | None = None) -> str:
    """Return a path and its query sorted by name, in the notation of `store.js`."""
    return json.dumps([api_path, *map(list, sorted((query or {}).items()))], separators=(",", ":"), ensure_ascii=False)


def _replace_section(page: str, section_name: str, replacement: str) -> str:
    """Return the HTML of `page` with `replacement` instead of the section between the comments `section_name` and
    `/mark`."""
    before, _, remainder = page.partition(f"<!--{section_name}-->")
    return before + replacement + remainder.partition(f"<!--/{section_name}-->")[2]


def _content_security_policy_digest(text: str) -> str:
    """Return the digest of `text` in the notation of a Content-Security-Policy."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
