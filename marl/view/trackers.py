"""Where metrics go beside metrics.jsonl: TensorBoard event files, and trackers that are installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from marl.types import Metrics


class Events:
    """TensorBoard event files. They follow from metrics.jsonl, so a resumed run writes them anew from its rows."""

    def __init__(self, folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        shutil.rmtree(folder, ignore_errors=True)
        self._writer = EventFileWriter(str(folder))
        for row in rows:
            self.log(row["step"], {name: value for name, value in row.items() if name != "step"})

    def log(self, step: int, metrics: Metrics) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(Event(step=step, summary=Summary(value=values)))

    def say(self, message: str) -> None:
        """Event files hold numbers only."""

    def close(self) -> None:
        self._writer.close()
