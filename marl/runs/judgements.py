"""Judgements on disk: `judgements/000040.jsonl.zst`, why each turn of a recorded step got its advantage.

One JSON line with the rules and the groups of peers, then one line for each episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import zstandard
from pydantic import ConfigDict, TypeAdapter, with_config

from marl.data_files import problems, read_lines, write_whole
from marl.judging.records import EpisodeRecord, PeerGroup, RuleRecord, StepRecord


@dataclass(frozen=True, slots=True)
class _Header:
    rules: tuple[RuleRecord, ...]
    groups: tuple[PeerGroup, ...]


@cache
def _codecs() -> tuple[TypeAdapter[_Header], TypeAdapter[EpisodeRecord]]:
    # Credit may be infinite or NaN before the learner refuses it; JSON needs that spelled.
    spelled = with_config(ConfigDict(ser_json_inf_nan="constants"))
    return TypeAdapter(spelled(_Header)), TypeAdapter(spelled(EpisodeRecord))


def write_judgement(path: Path, record: StepRecord) -> None:
    """Write a step's judgement. The file appears whole or not at all."""
    header, episode = _codecs()
    lines = [header.dump_json(_Header(record.rules, record.groups)), *map(episode.dump_json, record.episodes)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, zstandard.ZstdCompressor(write_checksum=True).compress(b"\n".join(lines) + b"\n"))


def read_judgement(path: Path) -> StepRecord:
    """Return what `write_judgement` wrote.

    Raises:
        ValueError: if the file is missing, damaged, no judgement, or exceeds a limit of `marl/data_files.py`.
    """
    header, episode = _codecs()
    try:
        lines = read_lines(path)
        head = header.validate_json(next(lines, b""))
        return StepRecord(head.rules, head.groups, tuple([episode.validate_json(line) for line in lines]))
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file") from error
    except ValueError as error:
        raise ValueError(f"{path}: not a whole judgement file ({problems(error).splitlines()[0]})") from error
