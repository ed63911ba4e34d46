"""Reader of Parquet files that estimates the memory of rows before it decodes them.

A Parquet file of a kilobyte can mean gigabytes: a dictionary page holds a long text once for thousands of rows, and
millions of missing values are one run length. The file's metadata bound the number of values and the sizes of values
of fixed length. Texts stay in their dictionaries until their expanded size is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BATCH = 1000
"""Number of rows that are decoded at once."""


def parquet_rows(path: Path, max_values: int, max_bytes: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a Parquet file in batches. A row maps the name of a column to its value.

    Raises:
        ValueError: if `path` is no Parquet file, has more than `max_values` values or more than `max_bytes` bytes when
            decoded, or if pyarrow is not installed. The message lacks the path.
    """
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ValueError("reading Parquet needs pyarrow: pip install 'marl-llm[data]'") from error
    too_large = ValueError(f"unpacked, it is larger than the limit of {max_bytes >> 30} GiB")
    try:
        with ParquetFile(path) as probe:
            values, fixed_bytes, texts = _value_count_fixed_bytes_and_text_columns(probe)
        if values > max_values:
            raise ValueError(f"it has {values:,} values; the limit is {max_values:,}")
        if fixed_bytes > max_bytes:
            raise too_large
        size = 0
        with ParquetFile(path, read_dictionary=texts) as file:
            for batch in file.iter_batches(_BATCH):
                size += sum(map(_dictionary_decoded_bytes, batch.columns))
                if size > max_bytes:
                    raise too_large
                yield batch.to_pylist()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"no Parquet file ({error})") from error


def _value_count_fixed_bytes_and_text_columns(parquet_file: Any) -> tuple[int, int, list[str]]:
    """Return the number of values of a ParquetFile, the bytes of its values of fixed length, and its columns of texts.

    Bytes are those of the decoded values.
    """
    values = fixed_bytes = 0
    texts: list[str] = []
    for index, column in enumerate(parquet_file.schema):
        chunks = [
            parquet_file.metadata.row_group(group).column(index)
            for group in range(parquet_file.metadata.num_row_groups)
        ]
        count = sum(chunk.num_values for chunk in chunks)
        values += count
        fixed_bytes += count * max(column.length, 8)
        if column.physical_type == "BYTE_ARRAY":
            texts.append(column.path)
    return values, fixed_bytes, texts


def _dictionary_decoded_bytes(arrow_array: Any) -> int:
    """Return the size of an Arrow array in bytes, with each value of a dictionary counted as often as it occurs."""
    import pyarrow.compute as compute
    from pyarrow import types

    if types.is_dictionary(arrow_array.type):
        lengths = compute.binary_length(arrow_array.dictionary)  # type: ignore[attr-defined]
        return compute.sum(lengths.take(arrow_array.indices).cast("int64")).as_py() or 0  # type: ignore[attr-defined]
    if types.is_map(arrow_array.type):
        return _dictionary_decoded_bytes(arrow_array.keys) + _dictionary_decoded_bytes(arrow_array.items)
    if types.is_struct(arrow_array.type) or types.is_list(arrow_array.type) or types.is_large_list(arrow_array.type):
        children = arrow_array.flatten()
        return (
            sum(map(_dictionary_decoded_bytes, children))
            if isinstance(children, list)
            else _dictionary_decoded_bytes(children)
        )
    return arrow_array.nbytes
