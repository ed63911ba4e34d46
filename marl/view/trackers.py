"""Where metrics go beside metrics.jsonl: TensorBoard event files, and trackers that are installed."""

from __future__ import annotations

import importlib
import shutil
from types import ModuleType
from typing import TYPE_CHECKING, Any

from marl.types import Metrics

if TYPE_CHECKING:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    from marl.folder import RunFolder


class Events:
    """TensorBoard event files. They follow from metrics.jsonl, so a resumed run writes them anew from its rows."""

    _writer: EventFileWriter

    def begin(self, folder: RunFolder) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        shutil.rmtree(folder.path / "events", ignore_errors=True)
        self._writer = EventFileWriter(str(folder.path / "events"))
        for row in folder.rows():
            self.log(int(row["step"]), row)

    def log(self, step: int, metrics: Metrics) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items() if name != "step"]
        self._writer.add_event(Event(step=step, summary=Summary(value=values)))

    def say(self, message: str) -> None:
        """Event files hold numbers only."""

    def close(self) -> None:
        self._writer.close()


class Tracked:
    """Sends metrics to wandb, mlflow or trackio, under the run folder's name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._library = _library(name)
        self._run: Any = None

    def begin(self, folder: RunFolder) -> None:
        settings = folder.scenario().model_dump(mode="json")
        if self._name == "mlflow":
            self._library.set_experiment("marl")
            self._library.start_run(run_name=folder.path.name)
            self._library.log_dict(settings, "scenario.json")
        else:
            self._run = self._library.init(project="marl", name=folder.path.name, config=settings)

    def log(self, step: int, metrics: Metrics) -> None:
        if self._run is None:
            self._library.log_metrics(metrics, step=step)
        else:
            self._library.log(metrics, step=step)

    def say(self, message: str) -> None:
        """Trackers get numbers only."""

    def close(self) -> None:
        (self._library.end_run if self._run is None else self._library.finish)()


def _library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(f"track: {name!r} is not installed; pip install 'marl[tracking]'") from error
