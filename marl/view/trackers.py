"""Monitors that copy metrics to TensorBoard event files and to experiment trackers."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import time
from pathlib import Path
from typing import Any, ClassVar

from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[attr-defined]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[attr-defined]
from tensorboard.summary.writer.record_writer import RecordWriter

from marl.core.errors import RaiseRunFolderErrorOnFailedWrite
from marl.core.types import Metrics
from marl.host.untrusted_text import replace_surrogates
from marl.runs.run_folder import RunFolder
from marl.view.console import RunMonitor


class TensorBoardEvents(RunMonitor):
    """TensorBoard event files. A resumed run recreates them from metrics.jsonl."""

    _folder: Path
    _writer: RecordWriter
    _names: tuple[str, ...] = ()
    """Names of the metrics in `_event`."""
    _event: Any = None
    """Message of the latest step."""
    name = "event files"

    def begin(self, folder: RunFolder) -> None:
        self._folder = folder.path / "events"
        name = f"events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}"
        with RaiseRunFolderErrorOnFailedWrite(self._folder):
            if self._folder.is_dir():
                shutil.rmtree(self._folder)
            self._folder.mkdir()
            # EventFileWriter writes in a thread, which dies with a traceback when the disk is full.
            # RecordWriter raises the error in this thread, where the monitor is closed with a warning.
            self._writer = RecordWriter((self._folder / name).open("wb"))
        self._write_event(Event(wall_time=time.time(), file_version="brain.Event:2"))
        for row in folder.rows():
            self.log_metrics(int(row["step"]), row)

    def log_metrics(self, step: int, metrics: Metrics) -> None:
        names = tuple([name for name in metrics if name != "step"])
        if names != self._names:
            values = [Summary.Value(tag=replace_surrogates(name)) for name in names]
            self._names, self._event = names, Event(summary=Summary(value=values))
        # Most steps have the metrics of the step before; to fill its message again takes a quarter of the time.
        self._event.wall_time, self._event.step = time.time(), step
        for name, value in zip(names, self._event.summary.value, strict=True):
            value.simple_value = metrics[name]
        self._write_event(self._event)

    def _write_event(self, event: Event) -> None:
        with RaiseRunFolderErrorOnFailedWrite(self._folder):
            self._writer.write(event.SerializeToString())
            self._writer.flush()

    def close(self) -> None:
        with RaiseRunFolderErrorOnFailedWrite(self._folder):
            self._writer.close()


class ExperimentTracker(RunMonitor):
    """Client of wandb, mlflow or trackio, with the run folder's name as the run's name.

    Any later error of the client, such as a lost connection, ends only the tracking.

    Raises:
        ValueError: if the library is not installed.
    """

    # Exception, because every tracker's client raises classes of its own.
    tolerated_errors: ClassVar[tuple[type[Exception], ...]] = (Exception,)

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
        # A resumed run is a new run for the tracker, so it gets all rows again.
        for row in folder.rows():
            self.log_metrics(int(row.pop("step")), row)

    def log_metrics(self, step: int, metrics: Metrics) -> None:
        if self._run is None:
            self._library.log_metrics(metrics, step=step)
        else:
            self._library.log(metrics, step=step)

    def close(self) -> None:
        (self._library.end_run if self._run is None else self._library.finish)()
