"""Export of recorded episodes as two Parquet tables, written in row groups.

The tables hold every recorded field of a turn except seeds and the origins of prompt text.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Self

import pyarrow as pa
from pyarrow.parquet import ParquetWriter

from marl.core.errors import RaiseRunFolderErrorOnFailedWrite
from marl.export.table_rows import CREDIT_COLUMNS, Row, episode_row, turn_row
from marl.export.turn_selection import RecordedEpisode
from marl.runs.run_folder import RunFolder
from marl.view.token_decoder import TokenDecoder

MAX_GROUP_ROWS = 1000
"""Maximum number of rows in a row group."""
MAX_GROUP_SIZE = 2**21
"""Sum of characters and tokens at which a row group is written early, because a single turn may have 100,000."""
_TURNS_FILE, _EPISODES_FILE = "turns.parquet", "episodes.parquet"
_TEXT, _INTEGER, _NUMBER = pa.string(), pa.int64(), pa.float64()
_CALLS = pa.list_(pa.struct({"name": _TEXT, "arguments": _TEXT, "id": _TEXT}))
_CHAT = pa.list_(
    pa.struct({"role": _TEXT, "content": _TEXT, "calls": _CALLS, "call_id": _TEXT, "name": _TEXT}),
)
_NAMED_NUMBERS = pa.list_(pa.struct({"name": _TEXT, "value": _NUMBER}))
_REWARDS = pa.list_(
    pa.struct({"agent": _TEXT, "name": _TEXT, "value": _NUMBER, "cause": _TEXT, "turn": _INTEGER}),
)
TURN_SCHEMA = pa.schema(
    {
        **{"step": _INTEGER, "episode": _TEXT, "turn": _INTEGER},
        **dict.fromkeys(("group", "game", "start", "problem", "agent", "role", "policy"), _TEXT),
        **{"nth": _INTEGER, "attempt": _INTEGER, "messages": _CHAT, "chat": _CHAT, "prompt": _TEXT},
        **{"prompt_ids": pa.list_(_INTEGER), "continues": _INTEGER, "tools": pa.list_(_TEXT), "completion": _TEXT},
        **{
            "token_ids": pa.list_(_INTEGER),
            "logprobs": pa.list_(_NUMBER),
            "imposed": pa.list_(_INTEGER),
            "segments": pa.list_(_INTEGER),
        },
        **{"finish": _TEXT, "reason": _TEXT, "versions": pa.list_(_INTEGER), "sampling": _TEXT},
        **{"legal": pa.list_(_TEXT), "action": _TEXT, "state": _TEXT},
        **{"rewards": _REWARDS, "return": _NUMBER},
        "sources": pa.list_(pa.struct({"episode": _TEXT, "turn": _INTEGER, "kinds": pa.list_(_TEXT)})),
        **dict.fromkeys(CREDIT_COLUMNS, _NUMBER),
        **{"pool": pa.list_(_TEXT), "penalties": _NAMED_NUMBERS, "token_advantages": pa.list_(_NUMBER)},
    }
)
"""Schema of the table of turns."""
EPISODE_SCHEMA = pa.schema(
    {
        **{"step": _INTEGER, "episode": _TEXT, "group": _TEXT, "game": _TEXT},
        # Seeds are unsigned 64-bit numbers, half of which overflow int64.
        **{"seed": pa.uint64(), "purpose": _TEXT, "branch": _INTEGER, "start": _TEXT},
        **{"parent": pa.struct({"episode": _TEXT, "turn": _INTEGER}), "end": _TEXT},
        **{"turns": _INTEGER, "tokens": _INTEGER, "seats": pa.list_(pa.struct({"agent": _TEXT, "role": _TEXT}))},
        "policies": pa.list_(pa.struct({"role": _TEXT, "policy": _TEXT})),
        "returns": pa.list_(pa.struct({"agent": _TEXT, "value": _NUMBER})),
        **{"rewards": _REWARDS, "measures": _NAMED_NUMBERS},
    }
)
"""Schema of the table of episodes."""
VERL_SCHEMA = pa.schema(
    {
        **{"data_source": _TEXT, "prompt": _CHAT, "ability": _TEXT},
        "reward_model": pa.struct({"style": _TEXT, "ground_truth": _TEXT}),
        "extra_info": pa.struct(
            {
                **{"split": _TEXT, "index": _INTEGER, "step": _INTEGER},
                **{"role": _TEXT, "agent": _TEXT, "start": _TEXT, "problem": _TEXT},
            }
        ),
    }
)
"""Schema of verl's table for reinforcement learning."""


class ParquetTableWriter:
    """Context manager that writes one table to a Parquet file in row groups."""

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        self._file, self._schema = file, schema
        self._rows: list[Row] = []
        self._size = 0
        self.count = 0
        """Number of rows written so far."""
        with RaiseRunFolderErrorOnFailedWrite(file):
            self._writer = ParquetWriter(file, schema, compression="zstd")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write the pending rows unless an exception is propagating, then close the file."""
        if kind is None:
            self._flush()
        with RaiseRunFolderErrorOnFailedWrite(self._file):
            self._writer.close()

    def write(self, row: Row) -> None:
        """Append `row` to the table. Rows are held in memory until they fill a row group."""
        self._rows.append(row)
        for value in row.values():
            if isinstance(value, str):
                self._size += len(value)
            elif isinstance(value, list | tuple):
                # All items of a list have the same type, so the first one tells chat messages from tokens.
                is_chat = bool(value) and isinstance(value[0], dict) and "content" in value[0]
                self._size += sum(len(message["content"]) for message in value) if is_chat else len(value)
        self.count += 1
        if len(self._rows) == MAX_GROUP_ROWS or self._size >= MAX_GROUP_SIZE:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            with RaiseRunFolderErrorOnFailedWrite(self._file):
                self._writer.write_table(pa.Table.from_pylist(self._rows, self._schema))
            self._rows.clear()
            self._size = 0


def write_turn_and_episode_tables(
    folder: Path, episodes: Iterable[RecordedEpisode], run_folder: RunFolder
) -> dict[str, int]:
    """Write the tables of turns and of episodes to `folder`, and return file name -> number of rows.

    Episodes without a selected turn are left out.
    """
    decoder = TokenDecoder(run_folder)
    turn_table = ParquetTableWriter(folder / _TURNS_FILE, TURN_SCHEMA)
    episode_table = ParquetTableWriter(folder / _EPISODES_FILE, EPISODE_SCHEMA)
    with turn_table, episode_table:
        for episode in episodes:
            if not episode.turns:
                continue
            for recorded in episode.turns:
                turn_table.write(turn_row(recorded, decoder))
            episode_table.write(episode_row(episode))
    return {_TURNS_FILE: turn_table.count, _EPISODES_FILE: episode_table.count}
