"""TensorBoard event files: each step has the values of its own metrics."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from marl.runs.run_folder import RunFolder
from marl.view.trackers import TensorBoardEvents


def test_each_step_has_its_own_values_also_when_the_names_change(tmp_path: Path) -> None:
    events = TensorBoardEvents()
    events.begin(RunFolder(tmp_path))
    events.log_metrics(1, {"step": 1.0, "loss": 4.0, "return": 1.0})
    events.log_metrics(2, {"step": 2.0, "loss": 3.0, "return": 2.0})
    events.log_metrics(3, {"step": 3.0, "return": 5.0, "eval": 0.5, "loss": 2.0})
    events.log_metrics(4, {"step": 4.0, "loss": 1.0, "return": 7.0})
    events.close()
    stored = EventAccumulator(str(tmp_path / "events"))
    stored.Reload()
    scalars = {name: [(one.step, one.value) for one in stored.Scalars(name)] for name in stored.Tags()["scalars"]}
    assert scalars == {
        "loss": [(1, 4.0), (2, 3.0), (3, 2.0), (4, 1.0)],
        "return": [(1, 1.0), (2, 2.0), (3, 5.0), (4, 7.0)],
        "eval": [(3, 0.5)],
    }
