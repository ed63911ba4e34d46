"""Checks of Hugging Face and PEFT folders. This module does not import torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
TINY_KEY = "marl_tiny"
"""Key in the config.json of a tiny model, which marks the model as tiny."""
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_UNSUPPORTED_PEFT_SETTINGS = (
    *("modules_to_save", "rank_pattern", "alpha_pattern", "lora_bias", "layer_replication"),
    *("trainable_token_indices", "target_parameters", "use_qalora", "alora_invocation_tokens"),
)
"""PEFT settings that this project does not support, because they change the use of an adapter's matrices."""
_MAX_LAYERS = 10_000
"""Maximum number of layers and experts in a config.json. The modules are built before the weights are compared."""
_MAX_NORMALIZER_GROWTH = 1000
"""Maximum product of the lengths of the texts that a tokenizer's normalizer inserts for one character."""
_GGUF = b"GGUF"
"""First bytes of a GGUF file."""


def check_model_folder(folder: Path) -> None:
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
        names = sorted(set(read_json(index)["weight_map"].values()))
        if outside := [name for name in names if Path(name).name != name]:
            raise ValueError(f"has an index of weights that names {outside[0]!r}, which is no file of the folder")
        if absent := _missing_files(folder, names):
            raise ValueError(f"has an index of weights but no {', '.join(absent)}")
    elif not any(folder.glob("*.safetensors")):
        if any(folder.glob("pytorch_model*.bin")):
            raise ValueError(
                "has its weights in pytorch_model.bin alone, which could run code when it is read; save the model in "
                "Transformers with save_pretrained, which writes model.safetensors"
            )
        raise ValueError("has no weights: no model.safetensors")
    for path in sorted(folder.glob("*.safetensors")):
        _check_safetensors(path)
    _check_module_counts(read_json(folder / "config.json"))
    if (folder / "tokenizer.json").is_file():
        _check_normalizer_growth(read_json(folder / "tokenizer.json"))


def _check_module_counts(config: Any) -> None:
    """Raise ValueError if a model of `config`, the content of a config.json, has too many modules to be built."""
    nested = config.values() if isinstance(config, dict) else ()
    for section in (config, *nested):
        for name, value in section.items() if isinstance(section, dict) else ():
            counts_modules = any(word in name for word in ("layers", "experts")) or name == "n_layer"
            if counts_modules and isinstance(value, int | float) and value > _MAX_LAYERS:
                raise ValueError(f"has a config.json with {name}: {value}; at most {_MAX_LAYERS} can be built")


def _check_normalizer_growth(tokenizer: Any) -> None:
    """Raise ValueError if the normalizer in `tokenizer`, the content of a tokenizer.json, makes texts far longer."""
    growth, stack = 1, [tokenizer.get("normalizer") if isinstance(tokenizer, dict) else None]
    while stack:
        step = stack.pop()
        if isinstance(step, dict):
            growth *= max(1, len(str(step.get("content") or step.get("prepend") or "")))
            stack += step["normalizers"] if isinstance(step.get("normalizers"), list) else []
    if growth > _MAX_NORMALIZER_GROWTH:
        raise ValueError(f"has a tokenizer.json whose normalizer can make texts {growth} times longer")


def find_gguf(folder: Path) -> str | None:
    """Return the name of the only GGUF file in `folder`, or None if `folder` has none or has a config.json.

    Raises:
        ValueError: if there are several GGUF files.
    """
    if (folder / "config.json").is_file():
        return None
    names = sorted(path.name for path in folder.glob("*.gguf"))
    if len(names) > 1:
        raise ValueError(f"has {len(names)} GGUF files; choose one as gguf_file: {', '.join(names)}")
    return names[0] if names else None


def is_gguf(path: Path) -> bool:
    """Return True if the file at `path` begins with the magic bytes of GGUF."""
    with path.open("rb") as file:
        return file.read(len(_GGUF)) == _GGUF


def check_gguf(folder: Path, file_name: str) -> None:
    """Check that `folder` has a GGUF file `file_name` and that its reader's package is installed. Tensors are not read.

    Raises:
        ValueError: if the file is missing or no GGUF file, or if the package `gguf` is not installed.
    """
    if not (folder / file_name).is_file():
        present = ", ".join(sorted(path.name for path in folder.glob("*.gguf"))) or "none"
        raise ValueError(f"gguf_file: no file {file_name!r} in it; GGUF files there: {present}")
    if not is_gguf(folder / file_name):
        raise ValueError(f"gguf_file: {file_name!r} is no GGUF file: it does not begin with these four letters")
    if find_spec("gguf") is None:
        raise ValueError(f"gguf_file: {file_name!r} is read by the package `gguf`: pip install 'marl-llm[gguf]'")


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """Return the PEFT settings of the adapter in `folder`.

    Raises:
        ValueError: if the folder holds no adapter, or its settings cannot be read.
    """
    if not folder.is_dir():
        raise ValueError("there is no such folder")
    if absent := _missing_files(folder, (ADAPTER_CONFIG, ADAPTER_WEIGHTS)):
        raise ValueError(f"is not a PEFT folder: it has no {', '.join(absent)}")
    settings = read_json(folder / ADAPTER_CONFIG)
    if not isinstance(settings, dict):
        raise ValueError(f"holds a broken {ADAPTER_CONFIG}: {type(settings).__name__} instead of an object")
    return settings


def check_adapter_folder(folder: Path, expected_settings: Mapping[str, float]) -> None:
    """Check that `folder` holds a PEFT LoRA or DoRA adapter with the PEFT settings `expected_settings`.

    Raises:
        ValueError: if something is missing, broken or different.
    """
    settings = read_adapter_config(folder)
    if settings.get("peft_type") != "LORA":
        raise ValueError(f"holds an adapter of type {settings.get('peft_type')}; only LORA can be used")
    if special := [name for name in _UNSUPPORTED_PEFT_SETTINGS if settings.get(name)]:
        raise ValueError(f"was made with {', '.join(special)}; only LoRA and DoRA with one rank can be used")
    for name, value in expected_settings.items():
        if (saved := settings.get(name, False)) != value:
            raise ValueError(f"was made with {name}={saved}, not {value}")
    _check_safetensors(folder / ADAPTER_WEIGHTS)


def is_tiny_model_folder(folder: Path) -> bool:
    """Return True if `folder` holds a model that was built as a tiny model, even if it was trained later."""
    file = folder / "config.json"
    return file.is_file() and read_json(file).get(TINY_KEY, False) is True


def safetensors_files(folder: Path) -> list[Path]:
    """Return the safetensors files with the weights of the model in `folder`.

    Raises:
        ValueError: if a file is missing.
    """
    index = folder / "model.safetensors.index.json"
    names = sorted(set(read_json(index)["weight_map"].values())) if index.is_file() else ["model.safetensors"]
    if absent := _missing_files(folder, names):
        raise ValueError(f"{folder}: no {', '.join(absent)} to load weights from")
    return [folder / name for name in names]


def move_into_place(temporary_folder: Path, final_folder: Path) -> None:
    """Rename `temporary_folder` to `final_folder`, unless another process has created `final_folder` meanwhile."""
    try:
        temporary_folder.rename(final_folder)
    except OSError:
        # Another process has created the folder from equal settings, so its files are equal.
        if not final_folder.is_dir():
            raise


def _missing_files(folder: Path, names: Iterable[str]) -> list[str]:
    return [name for name in names if not (folder / name).is_file()]


def _check_safetensors(path: Path) -> None:
    """Check that the size of the safetensors file at `path` agrees with its header.

    The file holds the header's length (8 bytes), the header with the tensors' offsets (JSON), and the tensors.

    Raises:
        ValueError: if the header is broken or the file has another size.
    """
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


def read_json(path: Path) -> Any:
    """Return the content of the JSON file at `path`.

    Raises:
        ValueError: if the file is not JSON.
    """
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"holds a broken {path.name}: {error}") from error


def saved_weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of each weight in the safetensors files of `folder`. Only their headers are read."""
    from safetensors import safe_open  # imported late, because most scenarios have no folder of weights

    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="np") as weights:
            for name in weights.keys():  # noqa: SIM118 (no mapping)
                shapes[name] = tuple(weights.get_slice(name).get_shape())
    return shapes
