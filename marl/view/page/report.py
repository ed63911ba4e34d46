"""Report of runs: the page as one HTML file that works without a server and loads nothing."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import chain, islice
from math import inf
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
"""Size of a report up to which episodes and information states are added [bytes]."""
_LISTED_BYTES = 200
"""Compressed size of an episode's entry in the list of episodes, at most [bytes]."""
_MOST_STATES = 1000
"""Maximum number of information states of the recorded strategies in a report."""


class _PackedAnswers:
    """Gzipped JSON object of answers by address, whose size is known while it grows."""

    def __init__(self) -> None:
        self._compressor = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)  # 16 asks for the header of gzip
        self._packed = self._compressor.compress(b'{"":null')

    def size(self) -> int:
        """Return the length of all answers so far in base64 [bytes]."""
        return _base64_size(self._packed)

    def add(self, answers: Mapping[str, Any], max_size: float = inf) -> bool:
        """Add `answers` (address -> answer), unless the object in base64 would then be longer than `max_size` [bytes].

        Return True if they were added.
        """
        compressor = self._compressor.copy()
        parts = [self._packed]
        for address, answer in answers.items():
            pair = b"," + to_json(address) + b":" + to_json(answer, inf_nan_mode="strings")
            parts.append(compressor.compress(pair))
        packed = b"".join([*parts, compressor.flush(zlib.Z_SYNC_FLUSH)])
        if _base64_size(packed) > max_size:
            return False
        self._compressor, self._packed = compressor, packed
        return True

    def text(self) -> str:
        """Return the finished object in base64."""
        return b64encode(self._packed + self._compressor.compress(b"}") + self._compressor.flush()).decode()


def write_report(page_api: PageApi, file: Path, max_episodes: int) -> int:
    """Write the page of the runs, with up to `max_episodes` episodes of each; return the file's size [bytes].

    A report holds the best and the worst episodes of the first and the last recorded step with their groups, to compare
    siblings and checkpoints, and compared held-out episodes. Episodes that would make it larger than 2 MB are left out.

    Raises:
        RunFolderError: if the file cannot be written.
    """
    for run in page_api.runs.values():
        run.index.index_new_steps()
    script, style = bundle_page_script(), "\n".join(read_page_asset(name).decode() for name in STYLES)
    policy = _POLICY.format(
        script=_content_security_policy_digest(script), style=_content_security_policy_digest(style)
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    page = _replace_section(read_page_asset("index.html").decode(), "head", head)
    answers = _PackedAnswers()
    for address, answer in _answers_without_episodes(page_api):
        answers.add({address: answer})
    max_size = _MAILED_BYTES - len(page.encode()) - len(script.encode())
    for place, name in enumerate(page_api.runs):
        # What one run leaves is shared by the runs after it.
        share = (max_size - answers.size()) // (len(page_api.runs) - place)
        _add_episodes(answers, answers.size() + share, page_api, name, max_episodes)
    body = f'<script type="application/gzip" id="answers">{answers.text()}</script>\n<script>{script}</script>'
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


def _answers_without_episodes(page_api: PageApi) -> Iterator[tuple[str, Any]]:
    """Yield (address, answer) of the requests of the page in a report that concern no single episode or step."""
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
    for name in page_api.runs:
        query = {"run": name, "limit": str(MAX_ROWS)}
        yield _canonical_request_address("rows", {"run": name}), page_api.answer("rows", query)
        yield (
            _canonical_request_address("distributions", {"run": name}),
            page_api.answer("distributions", {"run": name}),
        )
        yield _canonical_request_address("held_out", {"run": name}), page_api.answer("held_out", {"run": name})
        instructions = page_api.answer("instructions", {"run": name})
        yield _canonical_request_address("instructions", {"run": name}), instructions
        strategies = page_api.answer("strategies", {"run": name})
        yield (
            _canonical_request_address("strategies", {"run": name}),
            strategies | {"states": strategies["states"][:_MOST_STATES]},
        )


def _add_episodes(answers: _PackedAnswers, max_size: int, page_api: PageApi, name: str, max_episodes: int) -> None:
    """Add episodes of a run while the answers are no longer than `max_size`: recorded ones, the information states of
    their steps, and held-out ones."""
    run = page_api.runs[name]
    selected = report_episodes(run, max_episodes)
    largest = max_size - _LISTED_BYTES * len(selected)
    held = [entry for entry in selected if answers.add(_episode_with_prompts(page_api, name, entry), largest)]
    counts = run.index.index_counts_and_unreadable_steps()
    answers.add({_canonical_request_address("episodes", {"run": name}): {"episodes": held, "index": counts}})
    for step in dict.fromkeys(entry.step for entry in selected):
        query = {"run": name, "step": str(step)}
        answers.add({_canonical_request_address("states", query): page_api.answer("states", query)}, max_size)
    for query, episode in _compared_held_out_episodes(page_api, name):
        if not answers.add({_canonical_request_address("episode", query): episode}, max_size):
            return


def _episode_with_prompts(page_api: PageApi, run_name: str, entry: IndexedEpisode) -> dict[str, Any]:
    """Return address -> answer of an episode, and of the prompts of its turns as they were tokenized."""
    query = {"run": run_name, "step": str(entry.step), "episode": entry.episode}
    episode = page_api.answer("episode", query)
    answers = {_canonical_request_address("episode", query): episode}
    for turn in episode["turns"]:
        if turn["prompt_tokens"]:
            of_turn = query | {"turn": str(turn["index"])}
            answers[_canonical_request_address("prompt", of_turn)] = page_api.answer("prompt", of_turn)
    return answers


def _compared_held_out_episodes(page_api: PageApi, run_name: str) -> Iterator[tuple[Query, dict[str, Any]]]:
    """Yield (query, answer) of the compared held-out episodes of a run, first those with changed measures.

    The answers lack the tokens of the turns, which are most of an episode's size.
    """

    def is_unchanged(pair: Mapping[str, Any]) -> bool:
        return pair["before"] is None or pair["before"]["measures"] == pair["after"]["measures"]

    comparison = page_api.answer("held_out", {"run": run_name})
    for pair in sorted(comparison["episodes"], key=is_unchanged):
        # With a single evaluation, both sides are the same episode.
        for step in dict.fromkeys(comparison[side] for side in ("before", "after") if pair[side]):
            query = {"run": run_name, "step": str(step), "episode": pair["episode"], "held_out": "1"}
            query |= {"game": pair["game"]} if pair["game"] else {}
            episode = page_api.answer("episode", query)
            for turn in episode["turns"]:
                turn["prompt_tokens"], turn["tokens"] = 0, {name: [] for name in turn["tokens"]}
            yield query, episode


def _canonical_request_address(api_path: str, query: Mapping[str, str] | None = None) -> str:
    """Return a path and its query sorted by name, in the notation of `store.js`."""
    return json.dumps([api_path, *map(list, sorted((query or {}).items()))], separators=(",", ":"), ensure_ascii=False)


def _replace_section(page: str, section_name: str, replacement: str) -> str:
    """Return the HTML of `page` with `replacement` instead of the section between the comments `section_name` and
    `/mark`."""
    before, _, remainder = page.partition(f"<!--{section_name}-->")
    return before + replacement + remainder.partition(f"<!--/{section_name}-->")[2]


def _base64_size(data: bytes) -> int:
    """Return the length of `data` in base64 [bytes]."""
    return 4 * -(-len(data) // 3)


def _content_security_policy_digest(text: str) -> str:
    """Return the digest of `text` in the notation of a Content-Security-Policy."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
