"""Copies of the metrics beside metrics.jsonl: TensorBoard event files, and trackers that are installed."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import time
from typing import TYPE_CHECKING, Any, ClassVar

from marl.errors import Writing
from marl.text import well_formed
from marl.types import Metrics
from marl.view.console import Monitor

if TYPE_CHECKING:
    from pathlib import Path

    from tensorboard.summary.writer.record_writer import RecordWriter

    from marl.runs.run_folder import RunFolder


class EventFiles(Monitor):
    """TensorBoard event files. They follow from metrics.jsonl, so a resumed run writes them anew from its rows."""

    _folder: Path
    _writer: RecordWriter
    name = "event files"

    def begin(self, folder: RunFolder) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[attr-defined]
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder = folder.path / "events"
        name = f"events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}"
        with Writing(self._folder):
            if self._folder.is_dir():
                shutil.rmtree(self._folder)
            self._folder.mkdir()
            # TensorBoard's own writer has a thread that dies with a traceback when the disk is full.
            self._writer = RecordWriter((self._folder / name).open("wb"))
        self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))
        for row in folder.rows():
            self.log(int(row["step"]), row)

    def log(self, step: int, metrics: Metrics) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[attr-defined]
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[attr-defined]

        tags = {well_formed(name): value for name, value in metrics.items() if name != "step"}
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in tags.items()]
        self._add(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def _add(self, event: Any) -> None:
        with Writing(self._folder):
            self._writer.write(event.SerializeToString())
            self._writer.flush()

    def close(self) -> None:
        with Writing(self._folder):
            self._writer.close()


class Tracker(Monitor):
    """Client of wandb, mlflow or trackio, which gets the metrics under the run folder's name.

    Whatever the client raises later, as without a network, ends the tracking alone.

    Raises:
        ValueError: if it is not installed.
    """

    dispensable: ClassVar[tuple[type[Exception], ...]] = (Exception,)

    def __init__(self, name: str) -> None:
        self._name = name
        try:
            self._library = importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise ValueError(f"track: {name!r} is not installed; pip install 'marl-llm[tracking]'") from error
        self._run: Any = None
        self.name = f"tracker {name}"

    def begin(self, folder: RunFolder) -> None:
        settings = folder.scenario().model_dump(mode="json")
        if self._name == "mlflow":
            self._library.set_experiment("marl")
            self._library.start_run(run_name=folder.path.name)
            self._library.log_dict(settings, "scenario.json")
        else:
            self._run = self._library.init(project="marl", name=folder.path.name, config=settings)
        # A resumed run is a new one to the tracker: it gets the whole curve.
        for row in folder.rows():
            self.log(int(row.pop("step")), row)

    def log(self, step: int, metrics: Metrics) -> None:
        if self._run is None:
            self._library.log_metrics(metrics, step=step)
        else:
            self._library.log(metrics, step=step)

    def close(self) -> None:
        (self._library.end_run if self._run is None else self._library.finish)()
