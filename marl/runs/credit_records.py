"""Credit records on disk: `credit/000040.jsonl.zst` records how the turns of one step got their advantages.

The first JSON line holds the rules and the groups of peers. One line for each episode follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import zstandard
from pydantic import ConfigDict, TypeAdapter, with_config

from marl.credit_stage.records import CreditRecord, EpisodeRecord, PeerGroup, RuleRecord
from marl.host.data_files import read_lines, summarize_error, write_atomically


@dataclass(frozen=True, slots=True)
class _Header:
    rules: tuple[RuleRecord, ...]
    groups: tuple[PeerGroup, ...]


@cache
def _codecs() -> tuple[TypeAdapter[_Header], TypeAdapter[EpisodeRecord]]:
    # Credit may be infinite or NaN before the learner refuses it, which JSON needs as constants.
    codable = with_config(ConfigDict(ser_json_inf_nan="constants"))
    return TypeAdapter(codable(_Header)), TypeAdapter(codable(EpisodeRecord))


def write_credit_record(path: Path, record: CreditRecord) -> None:
    """Write the credit record of a step, completely or not at all."""
    header, episode = _codecs()
    lines = [header.dump_json(_Header(record.rules, record.groups)), *map(episode.dump_json, record.episodes)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, zstandard.ZstdCompressor(write_checksum=True).compress(b"\n".join(lines) + b"\n"))


def read_credit_record(path: Path) -> CreditRecord:
    """Return the credit record written by `write_credit_record`.

    Raises:
        ValueError: if the file is missing, damaged, not a credit record, or over a limit of `marl/host/data_files.py`.
    """
    header, episode = _codecs()
    try:
        lines = read_lines(path)
        head = header.validate_json(next(lines, b""))
        return CreditRecord(head.rules, head.groups, tuple([episode.validate_json(line) for line in lines]))
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file") from error
    except ValueError as error:
        raise ValueError(f"{path}: not a whole credit record ({summarize_error(error).splitlines()[0]})") from error
