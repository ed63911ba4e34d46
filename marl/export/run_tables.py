"""Tables of a recorded run for analysis in Python: `marl.open_run`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from marl.export.table_rows import Row, episode_row, turn_row
from marl.export.turn_selection import RunRecording, TurnSelection
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario
from marl.view.token_decoder import TokenDecoder

if TYPE_CHECKING:
    import pandas
    import polars


class Table(Sequence[Row]):
    """Rows of a table. A row maps each column to a value; a cell without a value is None."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = list(rows)
        self.columns = tuple(dict.fromkeys(name for row in self._rows for name in row))
        """Names of the columns, in the order of their first appearance."""
        for row in self._rows:
            for name in self.columns:
                row.setdefault(name, None)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Table: ...
    def __getitem__(self, index: int | slice) -> Row | Table:
        return self._rows[index] if isinstance(index, int) else Table(self._rows[index])

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Table({len(self)} rows, columns {', '.join(self.columns)})"

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table as a data frame of pandas.

        Raises:
            ScenarioError: if pandas is not installed.
        """
        return _import_optional_library("pandas").DataFrame(self._rows, columns=list(self.columns))

    def to_polars(self) -> polars.DataFrame:
        """Return the table as a data frame of polars.

        Raises:
            ScenarioError: if polars is not installed.
        """
        # Types are inferred from all rows, since a column of floats may begin with integers or empty cells.
        return _import_optional_library("polars").DataFrame(self._rows, infer_schema_length=None)


class RunTables:
    """Tables of a run's records, read anew at each call, so that a run in progress can be followed.

    The tables hold one row per step (`metrics`, `evaluations`), recorded episode (`episodes`) or turn (`turns`,
    `credit`). `steps` selects the first and the last step, both included.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the run in folder `path`.

        Raises:
            ScenarioError: if the folder contains no run, or the run's scenario cannot be loaded.
        """
        self.path = Path(path)
        self._folder = RunFolder(self.path)
        self.scenario: Scenario = self._folder.scenario()
        """The run's scenario, as it was validated at the start of the run."""

    def metrics(self) -> Table:
        """Return one row per step with the metrics of marl/README.md; step 0 is the evaluation before training.

        Raises:
            RunFolderError: if metrics.jsonl is damaged.
        """
        return Table(self._folder.rows())

    def evaluations(self) -> Table:
        """Return one row per evaluation with its step and the metrics that begin with `eval/`, without this prefix.

        Raises:
            RunFolderError: if metrics.jsonl is damaged.
        """
        rows: list[Row] = []
        for row in self._folder.rows():
            figures = {name.removeprefix("eval/"): value for name, value in row.items() if name.startswith("eval/")}
            if figures:
                rows.append({"step": row["step"], **figures})
        return Table(rows)

    def episodes(self, steps: tuple[int, int] | None = None) -> Table:
        """Return one row per recorded episode, with the columns of episodes.parquet (marl/README.md, Export).

        Raises:
            ScenarioError: if no episode of these steps was recorded.
            RunFolderError, ValueError: if a file is damaged.
        """
        return Table(map(episode_row, self._open_recording(steps).episodes()))

    def turns(self, steps: tuple[int, int] | None = None, *, roles: Sequence[str] = ()) -> Table:
        """Return one row per recorded turn, with the columns of turns.parquet (marl/README.md, Export).

        A turn that several branched episodes share has one row. `roles`: roles whose turns are returned (default: all).

        Raises:
            ScenarioError: if no episode of these steps was recorded, or the run has no such role.
            RunFolderError, ValueError: if a file is damaged.
        """
        decoder = TokenDecoder(self._folder)
        return Table(turn_row(recorded, decoder) for recorded in self._open_recording(steps, roles).turns())

    def credit(self, steps: tuple[int, int] | None = None) -> Table:
        """Return one row per turn with credit: the derivation of its advantage, from rewards to the baseline.

        Raises:
            ScenarioError: if no episode of these steps was recorded.
            RunFolderError: if a file is damaged.
        """
        return Table(self._credit_rows(self._open_recording(steps).steps))

    def _credit_rows(self, steps: Iterable[int]) -> Iterator[Row]:
        for step in steps:
            if not self._folder.has_credit_record(step):
                continue
            record = self._folder.read_credit_of_step(step)
            for turn, credit in record.turns().items():
                rule = record.rules[credit.rule]
                yield {
                    **{"step": step, "episode": turn[0], "turn": turn[1], "agent": credit.agent},
                    **{"role": credit.role, "policy": credit.policy, "rule": rule.field},
                    **{"assign": rule.assign["kind"], "baseline_kind": rule.baseline["kind"]},
                    **{"pool": list(credit.pool), "pool_reward": credit.pool_reward, "assigned": credit.assigned},
                    **{f"penalty/{name}": value for name, value in credit.penalties.items()},
                    **{"earned": credit.earned, "baseline": credit.baseline, "scale": credit.scale},
                    "advantage": credit.advantage,
                }

    def _open_recording(self, steps: tuple[int, int] | None, roles: Sequence[str] = ()) -> RunRecording:
        first, last = steps or (None, None)
        return RunRecording(self.path, TurnSelection(roles=tuple(roles), first_step=first, last_step=last))


def _import_optional_library(library_name: str) -> Any:
    """Return the module of an optional library.

    Raises:
        ScenarioError: if the library is not installed.
    """
    try:
        return import_module(library_name)
    except ImportError as error:
        raise ScenarioError(
            f"this table needs {library_name}: pip install {library_name}; the rows are also plain dicts"
        ) from error
