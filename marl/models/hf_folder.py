"""Checks of Hugging Face and PEFT folders, without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
TINY_MARK = "marl_tiny"
"""Setting in the config.json of a tiny model."""
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_SPECIAL = (
    *("modules_to_save", "rank_pattern", "alpha_pattern", "lora_bias", "layer_replication"),
    *("trainable_token_indices", "target_parameters", "use_qalora", "alora_invocation_tokens"),
)
"""Settings of PEFT that change how an adapter's matrices are used."""
_GGUF = b"GGUF"
"""First bytes of a GGUF file."""


def check_folder(folder: Path) -> None:
    """Check that a causal language model can be loaded from `folder`.

    Raises:
        ValueError: if something is missing or broken.
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


def gguf_of(folder: Path) -> str | None:
    """Return the name of the one GGUF file of a folder that is none of Hugging Face; None if it has none.

    Raises:
        ValueError: if there are several.
    """
    if (folder / "config.json").is_file():
        return None
    names = sorted(path.name for path in folder.glob("*.gguf"))
    if len(names) > 1:
        raise ValueError(f"has {len(names)} GGUF files; choose one as gguf_file: {', '.join(names)}")
    return names[0] if names else None


def is_gguf(path: Path) -> bool:
    """Return whether a file begins as GGUF files do."""
    with path.open("rb") as file:
        return file.read(len(_GGUF)) == _GGUF


def check_gguf(folder: Path, name: str) -> None:
    """Check that a model can be loaded from the GGUF file `name` in `folder`; its tensors are not looked at.

    Raises:
        ValueError: if it is missing or no GGUF file, or the package that reads it is not installed.
    """
    if not (folder / name).is_file():
        there = ", ".join(sorted(path.name for path in folder.glob("*.gguf"))) or "none"
        raise ValueError(f"gguf_file: no file {name!r} in it; GGUF files there: {there}")
    if not is_gguf(folder / name):
        raise ValueError(f"gguf_file: {name!r} is no GGUF file: it does not begin with these four letters")
    if find_spec("gguf") is None:
        raise ValueError(f"gguf_file: {name!r} is read by the package `gguf`: pip install 'marl-llm[gguf]'")


def adapter_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of PEFT with which the adapter in `folder` was made.

    Raises:
        ValueError: if it holds none.
    """
    if not folder.is_dir():
        raise ValueError("there is no such folder")
    absent = [name for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS) if not (folder / name).is_file()]
    if absent:
        raise ValueError(f"is not a PEFT folder: it has no {', '.join(absent)}")
    settings = _json(folder / ADAPTER_CONFIG)
    if not isinstance(settings, dict):
        raise ValueError(f"holds a broken {ADAPTER_CONFIG}: {type(settings).__name__} instead of an object")
    return settings


def check_adapter(folder: Path, wanted: Mapping[str, float]) -> None:
    """Check that `folder` holds a plain LoRA adapter as PEFT saves it, made with the settings `wanted`.

    Raises:
        ValueError: if something is missing, broken or different.
    """
    settings = adapter_settings(folder)
    if settings.get("peft_type") != "LORA":
        raise ValueError(f"holds an adapter of type {settings.get('peft_type')}; only LORA can be used")
    if special := [name for name in _SPECIAL if settings.get(name)]:
        raise ValueError(f"was made with {', '.join(special)}; only LoRA and DoRA with one rank can be used")
    for name, value in wanted.items():
        if (made := settings.get(name, False)) != value:
            raise ValueError(f"was made with {name}={made}, not {value}")
    _header(folder / ADAPTER_WEIGHTS)


def is_tiny(folder: Path) -> bool:
    """Return whether `folder` holds a model that was made as a tiny one, whatever it has learnt since."""
    file = folder / "config.json"
    return file.is_file() and _json(file).get(TINY_MARK, False) is True


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model's weights.

    Raises:
        ValueError: if one is missing.
    """
    index = folder / "model.safetensors.index.json"
    names = set(_json(index)["weight_map"].values()) if index.is_file() else {"model.safetensors"}
    if absent := sorted(name for name in names if not (folder / name).is_file()):
        raise ValueError(f"{folder}: no {', '.join(absent)} to load weights from")
    return [folder / name for name in sorted(names)]


def publish_folder(made: Path, folder: Path) -> None:
    """Rename `made` to `folder`, unless another process was faster: equal settings make equal folders."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _header(path: Path) -> dict[str, Any]:
    """Return the tensors' names, shapes and offsets in a safetensors file: 8 bytes of length, then JSON, then data."""
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
    expected = 8 + length + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    if size != expected:
        raise ValueError(f"holds a broken {path.name}: {size} bytes instead of {expected}; was it cut off?")
    return header


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"holds a broken {path.name}: {error}") from error
