"""Loading of Hugging Face data sets, in folders and on the hub, which may read their own files alone.

The card of a data set can name files anywhere on this machine and on any host. Code that comes with a data set is never
run, and formats whose files may name further files, such as HDF5, are refused.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from datasets import Dataset, config, load_dataset_builder
from datasets.exceptions import DatasetsError
from huggingface_hub import DatasetCard
from yaml import YAMLError, safe_load

from marl.core.config import shorten
from marl.host.data_files import MAX_FILE_BYTES, DataTable, check_file_limits
from marl.host.paths import is_possible_hub_name

_FORMATS = ("arrow", "csv", "json", "parquet", "text")
"""Formats of `datasets` whose files name no other files."""
_FAULTS = (OSError, ValueError, RuntimeError, TypeError, LookupError, AttributeError, EOFError, BadZipFile)
"""Errors that `datasets` raises if a data set, a split or the network is missing, or a card or file is damaged."""
_MAX_ERROR_LENGTH = 400
"""Maximum length of an error message of `datasets`, which may list all its formats [characters]."""


def load_dataset_split(path: str, name: str | None, split: str, revision: str | None) -> DataTable:
    """Return the rows of one split of a data set in the folder `path`, or with the name `path` on the hub.

    Args:
        path: folder, or name on the hub.
        name: configuration of the data set, or None for its default one.
        split: name of the split.
        revision: branch, tag or commit on the hub, or None for the newest commit.

    Raises:
        ValueError: if the data set cannot be read, names files elsewhere, or is too large. The message begins with the
            setting.
    """
    source_label = f"data set {path}" + (f" ({name})" if name else "") + f", split {split!r}"
    is_folder = Path(path).is_dir()
    if not is_folder and not is_possible_hub_name(path):
        raise ValueError(f"path: {source_label}: no such folder, and no name of a data set on the hub")
    # `datasets` reads the files of the working directory if the name is that of a format.
    if path.isidentifier() and find_spec(f"datasets.packaged_modules.{path}"):
        raise ValueError(f"path: {path!r} is a format and no data set; name a folder, or use task `file`")
    try:
        if is_folder:
            _check_patterns_of_card(Path(path))
        builder = load_dataset_builder(path, name, revision=revision)
        _check_files(builder, f"{Path(path).resolve()}/" if is_folder else f"hf://datasets/{path}@")
        with _limit_file_size(MAX_FILE_BYTES):
            builder.download_and_prepare()
        table = builder.as_dataset(split)
        if isinstance(table, Dataset):
            check_file_limits(table.data.nbytes, len(table))
    except (*_FAULTS, DatasetsError) as error:
        # `datasets` names a damaged file in the cause of its error.
        causes = [cause for cause in (error, error.__cause__) if cause]
        if any(isinstance(cause, OSError) and cause.errno == errno.EFBIG for cause in causes):
            text = f"one of its files unpacks to more than the limit of {MAX_FILE_BYTES:,} bytes"
        else:
            text = " ".join(": ".join(dict.fromkeys(map(str, causes))).split())
        raise ValueError(f"path: {source_label}: {shorten(text, _MAX_ERROR_LENGTH)}") from error
    if not isinstance(table, Dataset):
        raise ValueError(f"split: {source_label}: must name one split")
    return DataTable(source_label, tuple(table.column_names), table.to_list())


@contextmanager
def _limit_file_size(max_bytes: int) -> Iterator[None]:
    """Let this process write no file larger than `max_bytes`: larger writes raise OSError ("File too large").

    `datasets` unpacks compressed files to disk before their contents can be checked.
    """
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    own_limit = max_bytes if soft_limit == resource.RLIM_INFINITY else min(max_bytes, soft_limit)
    resource.setrlimit(resource.RLIMIT_FSIZE, (own_limit, hard_limit))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft_limit, hard_limit))


def _check_patterns_of_card(folder: Path) -> None:
    """Raise ValueError if the card of the data set in `folder` names files elsewhere, before `datasets` looks for them.

    `datasets` would call the host of a name such as `https://host/file`.
    """
    card, settings_file = folder / config.REPOCARD_FILENAME, folder / config.REPOYAML_FILENAME
    try:
        metadata = [DatasetCard.load(card).data.to_dict()] if card.is_file() else []
        metadata += [safe_load(settings_file.read_text("utf-8"))] if settings_file.is_file() else []
    except YAMLError as error:
        raise ValueError(f"its card is not YAML: {error}") from error
    for settings in metadata:
        for text in _texts_in(settings.get("configs") if isinstance(settings, dict) else settings):
            if text.startswith(("/", "~")) or ".." in text.split("/") or "://" in text or "::" in text:
                raise ValueError(f"its card names {text!r}, which is not in its folder")


def _texts_in(data: Any) -> Iterator[str]:
    """Yield the texts in plain data. A YAML alias may make it a circle, or one object thousands of items."""
    pending, seen = [data], set[int]()
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list) and id(value) not in seen:
            seen.add(id(value))
            pending += value.values() if isinstance(value, dict) else value


def _check_files(builder: Any, own_files_prefix: str) -> None:
    """Raise ValueError if a data set has a refused format, or a file whose resolved name lacks `own_files_prefix`."""
    data_format = type(builder).__module__.split(".")[-1]
    if data_format not in _FORMATS:
        raise ValueError(f"its format is {data_format!r}; choices: {', '.join(_FORMATS)}")
    for files in (builder.config.data_files or {}).values():
        for file in files:
            if not file.startswith(own_files_prefix):
                raise ValueError(f"it names {file}, which is not one of its files")
