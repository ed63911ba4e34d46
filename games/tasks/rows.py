"""Reads Hugging Face data sets."""

from __future__ import annotations

from marl.data_files import Rows


def read_split(path: str, name: str | None, revision: str | None, split: str) -> Rows:
    """One split of a Hugging Face data set. Code that comes with a data set is never run.

    Raises:
        ValueError: naming data set and split.
    """
    try:
        from datasets import Dataset, load_dataset
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise ValueError(f"path: {path}: data sets need the package `datasets`: pip install marl[data]") from error
    where = f"data set {path}" + (f" ({name})" if name else "") + f", split {split!r}"
    try:
        table = load_dataset(path, name, split=split, revision=revision)
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        # A missing data set, a split or configuration that it lacks, no network, a script that would have to be run.
        raise ValueError(f"path: {where}: {error}") from error
    if not isinstance(table, Dataset):
        raise ValueError(f"split: {where}: must name one split")
    return Rows(where, tuple(table.column_names), table.to_list())
