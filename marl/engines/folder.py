"""What a Hugging Face folder holds, read without torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")


def check_folder(folder: Path) -> None:
    """Make sure that a causal language model can be loaded from `folder`.

    Raises:
        ValueError: saying what is missing or broken.
    """
    if not folder.is_dir():
        raise ValueError("there is no such folder")
    if not (folder / "config.json").is_file():
        raise ValueError("is not a model folder: it has no config.json")
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise ValueError(f"has no tokenizer: none of {', '.join(_TOKENIZERS)}")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        absent = [name for name in sorted(set(_json(index)["weight_map"].values())) if not (folder / name).is_file()]
        if absent:
            raise ValueError(f"has an index of weights but no {', '.join(absent)}")
    elif not (any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin"))):
        raise ValueError("has no weights: no model.safetensors")
    for path in sorted(folder.glob("*.safetensors")):
        _header(path)


def parameters(folder: Path) -> int:
    """How many numbers the weights in `folder` hold; tied ones count once."""
    headers = [_header(path) for path in sorted(folder.glob("*.safetensors"))]
    return sum(math.prod(tensor["shape"]) for header in headers for tensor in header.values())


def _header(path: Path) -> dict[str, Any]:
    """Names, shapes and places of the tensors in a safetensors file: 8 bytes of length, then JSON, then data."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            raise ValueError(f"holds a broken {path.name}: {size} bytes, too few for its header")
        try:
            header: dict[str, Any] = json.loads(file.read(length))
        except ValueError as error:
            raise ValueError(f"holds a broken {path.name}: its header is not JSON") from error
    header.pop("__metadata__", None)
    wanted = 8 + length + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    if size != wanted:
        raise ValueError(f"holds a broken {path.name}: {size} bytes instead of {wanted}; was it cut off?")
    return header


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"holds a broken {path.name}: {error}") from error
