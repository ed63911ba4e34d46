"""Settings of generation: a role's sampling in the words of Transformers, for `generation_config.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from tokenizers import Tokenizer

from marl.config import Sampling, nearest
from marl.scenario.schema import Scenario

FILE = "generation_config.json"
_TOKENS = ("bos_token_id", "pad_token_id")


def speaking_roles(scenario: Scenario, policy: str) -> list[str]:
    """Return the roles that a policy speaks for, those that are learned from first."""
    roles = [name for name, role in scenario.roles.items() if role.policy == policy]
    return sorted(roles, key=lambda name: not scenario.roles[name].trainable)


def generation_role(scenario: Scenario, policy: str, wanted: str | None) -> str | None:
    """Return the role whose sampling an exported policy gets: the one `wanted`, else the first that it speaks for.

    None if it speaks for none.

    Raises:
        ValueError: if it does not speak for the one that is wanted.
    """
    roles = speaking_roles(scenario, policy)
    if wanted is not None and wanted not in roles:
        raise ValueError(f"--role {wanted}: policy {policy!r} does not speak for it; {nearest(wanted, roles)}")
    return wanted or next(iter(roles), None)


def write_generation(folder: Path, base: str | None, sampling: Sampling) -> None:
    """Write generation_config.json: this sampling and no other, and the tokens with which an answer ends.

    Args:
        folder: of the model or adapter.
        base: the adapter's base, a folder or a name on the hub; None: it is a whole model.
        sampling: settings of the role.
    """
    declared = _declared(folder, base)
    ends = [*_ends(declared.get("eos_token_id")), *_ends(_end_of(folder))]
    settings = {
        **{name: declared[name] for name in _TOKENS if declared.get(name) is not None},
        **({"eos_token_id": sorted(set(ends))} if ends else {}),
        **as_generation(sampling),
    }
    (folder / FILE).write_text(f"{json.dumps(settings, indent=2)}\n")


def as_generation(sampling: Sampling) -> dict[str, Any]:
    """Return a role's sampling as `generate` of Transformers takes it; 0 for `top_k` keeps every token there, too."""
    settings: dict[str, Any] = {"do_sample": sampling.temperature > 0, "max_new_tokens": sampling.max_tokens}
    if sampling.temperature > 0:
        settings |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    return settings | ({"stop_strings": list(sampling.stop)} if sampling.stop else {})


def _declared(folder: Path, base: str | None) -> Mapping[str, Any]:
    """Return what the model declares of its special tokens; what its generation settings say comes first."""
    files = [_file_of(folder, base, name) for name in ("config.json", FILE)]
    declared: dict[str, Any] = {}
    for file in files:
        if file is not None and file.is_file():
            declared |= {name: value for name, value in json.loads(file.read_text()).items() if value is not None}
    return declared


def _file_of(folder: Path, base: str | None, name: str) -> Path | None:
    if base is None or (folder / "base").is_dir():
        return folder / ("base" if base else "") / name
    if Path(base).is_dir():
        return Path(base) / name
    cached = try_to_load_from_cache(base, name)
    return Path(cached) if isinstance(cached, str) else None


def _ends(tokens: Any) -> Iterator[int]:
    yield from tokens if isinstance(tokens, list) else [tokens] if isinstance(tokens, int) else []


def _end_of(folder: Path) -> int | None:
    """Return the token with which the tokenizer ends an answer; None if it has none, or is no fast one."""
    settings, vocabulary = folder / "tokenizer_config.json", folder / "tokenizer.json"
    if not settings.is_file() or not vocabulary.is_file():
        return None
    end = json.loads(settings.read_text()).get("eos_token")
    text = end.get("content") if isinstance(end, dict) else end
    return Tokenizer.from_file(str(vocabulary)).token_to_id(text) if text else None
