"""Conversion of a role's sampling settings to Transformers' `generation_config.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from tokenizers import Tokenizer

from marl.core.config import Sampling, choices_hint
from marl.scenario.schema import Scenario

GENERATION_CONFIG = "generation_config.json"
_TOKENS = ("bos_token_id", "pad_token_id")


def speaking_roles(scenario: Scenario, policy: str) -> list[str]:
    """Return the roles with the policy `policy`, trainable roles first."""
    roles = [name for name, role in scenario.roles.items() if role.policy == policy]
    return sorted(roles, key=lambda name: not scenario.roles[name].trainable)


def generation_role(scenario: Scenario, policy: str, requested: str | None) -> str | None:
    """Return the role whose sampling settings an exported policy gets: `requested`, else the policy's first role.

    Returns None if no role uses the policy.

    Raises:
        ValueError: if the policy does not answer for `requested`.
    """
    roles = speaking_roles(scenario, policy)
    if requested is not None and requested not in roles:
        raise ValueError(
            f"--role {requested}: policy {policy!r} does not speak for it; {choices_hint(requested, roles)}"
        )
    return requested or next(iter(roles), None)


def write_generation_config(folder: Path, base: str | None, sampling: Sampling) -> None:
    """Write generation_config.json with `sampling` and the end tokens, without the model's own defaults.

    Args:
        folder: folder of the model or adapter.
        base: folder or hub name of the adapter's base model, or None for a full model.
        sampling: sampling settings of the role.
    """
    declared: dict[str, Any] = {}
    for name in ("config.json", GENERATION_CONFIG):  # the second overrides the first
        file = _find_file(folder, base, name)
        if file is not None and file.is_file():
            declared |= {token: value for token, value in json.loads(file.read_text()).items() if value is not None}
    # The model's own end tokens stay: without them generation would run to max_new_tokens.
    ends: set[int] = set()
    declared_end, tokenizer_end = declared.get("eos_token_id"), _end_token(folder)
    if isinstance(declared_end, list | int):
        ends.update(declared_end if isinstance(declared_end, list) else [declared_end])
    if tokenizer_end is not None:
        ends.add(tokenizer_end)
    settings = {
        **{name: declared[name] for name in _TOKENS if name in declared},
        **({"eos_token_id": sorted(ends)} if ends else {}),
        **generation_settings(sampling),
    }
    (folder / GENERATION_CONFIG).write_text(f"{json.dumps(settings, indent=2)}\n")


def generation_settings(sampling: Sampling) -> dict[str, Any]:
    """Return sampling settings as arguments of Transformers' `generate`. In both, a `top_k` of 0 keeps every token."""
    settings: dict[str, Any] = {"do_sample": sampling.temperature > 0, "max_new_tokens": sampling.max_tokens}
    if sampling.temperature > 0:
        settings |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    return settings | ({"stop_strings": list(sampling.stop)} if sampling.stop else {})


def _find_file(folder: Path, base: str | None, name: str) -> Path | None:
    """Return the model's file `name`: in `folder`, in its copied base, or in the base's folder or download cache."""
    if base is None or (folder / "base").is_dir():
        return folder / ("base" if base else "") / name
    if Path(base).is_dir():
        return Path(base) / name
    cached = try_to_load_from_cache(base, name)
    return Path(cached) if isinstance(cached, str) else None


def _end_token(folder: Path) -> int | None:
    """Return the id of the tokenizer's end token, or None if it has no end token or no tokenizer.json."""
    settings, vocabulary = folder / "tokenizer_config.json", folder / "tokenizer.json"
    if not settings.is_file() or not vocabulary.is_file():
        return None
    end = json.loads(settings.read_text()).get("eos_token")
    text = end.get("content") if isinstance(end, dict) else end
    return Tokenizer.from_file(str(vocabulary)).token_to_id(text) if text else None
