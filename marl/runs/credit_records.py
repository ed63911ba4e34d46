"""Credit records on disk: `credit/000040.jsonl.zst` records how the turns of one step got their advantages.

The first JSON line holds the rules and the groups of peers. One line for each episode follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import zstandard
from pydantic import ConfigDict, TypeAdapter, with_config

from marl.credit_stage.records import BaselinePeerGroup, CreditRecord, CreditRuleSettingsRecord, EpisodeCreditRecord
from marl.host.data_files import one_line_error_message, read_lines, write_atomically


@dataclass(frozen=True, slots=True)
class _CreditRecordHeader:
    """First line of a credit record's file."""

    rules: tuple[CreditRuleSettingsRecord, ...]
    groups: tuple[BaselinePeerGroup, ...]


@cache
def _header_and_episode_codecs() -> tuple[TypeAdapter[_CreditRecordHeader], TypeAdapter[EpisodeCreditRecord]]:
    # By default JSON has no infinity and NaN, which credit may contain until the learner refuses it.
    codable = with_config(ConfigDict(ser_json_inf_nan="constants"))
    return TypeAdapter(codable(_CreditRecordHeader)), TypeAdapter(codable(EpisodeCreditRecord))


def write_credit_record(path: Path, record: CreditRecord) -> None:
    """Write the credit record of a step, completely or not at all."""
    header, episode = _header_and_episode_codecs()
    lines = [
        header.dump_json(_CreditRecordHeader(record.rules, record.groups)),
        *map(episode.dump_json, record.episodes),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, zstandard.ZstdCompressor(write_checksum=True).compress(b"\n".join(lines) + b"\n"))


def read_credit_record(path: Path) -> CreditRecord:
    """Return the credit record written by `write_credit_record`.

    Raises:
        ValueError: if the file is missing, damaged, not a credit record, or over a limit of `marl/host/data_files.py`.
    """
    header, episode = _header_and_episode_codecs()
    try:
        lines = read_lines(path)
        head = header.validate_json(next(lines, b""))
        return CreditRecord(head.rules, head.groups, tuple(map(episode.validate_json, lines)))
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file") from error
    except ValueError as error:
        raise ValueError(f"{path}: not a whole credit record ({one_line_error_message(error)})") from error
