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
_COPIED_TOKENS = ("bos_token_id", "pad_token_id")
"""Settings that are copied from the model's own configuration."""


def roles_of_policy(scenario: Scenario, policy: str) -> list[str]:
    """Return the names of the roles that use `policy`, trainable roles first."""
    roles = [name for name, role in scenario.roles.items() if role.policy == policy]
    return sorted(roles, key=lambda name: not scenario.roles[name].trainable)


def select_generation_role(scenario: Scenario, policy: str, requested_role: str | None) -> str | None:
    """Return the role whose sampling settings an exported policy gets: `requested_role`, or else the policy's first
    role.

    The result is None if no role uses the policy.

    Raises:
        ValueError: if the role `requested_role` does not use the policy.
    """
    roles = roles_of_policy(scenario, policy)
    if requested_role is not None and requested_role not in roles:
        raise ValueError(
            f"--role {requested_role}: policy {policy!r} does not speak for it; {choices_hint(requested_role, roles)}"
        )
    return requested_role or next(iter(roles), None)


def write_generation_config(folder: Path, base_model: str | None, sampling: Sampling) -> None:
    """Write generation_config.json with `sampling` and the end tokens, without the model's own defaults.

    Args:
        folder: folder of the model or adapter.
        base_model: folder or hub name of the adapter's base model, or None for a full model.
        sampling: sampling settings of the role.
    """
    declared: dict[str, Any] = {}
    for name in ("config.json", GENERATION_CONFIG):  # generation_config.json overrides config.json
        file = _find_model_file(folder, base_model, name)
        if file is not None and file.is_file():
            declared |= {token: value for token, value in json.loads(file.read_text()).items() if value is not None}
    # The model's and the tokenizer's end tokens are joined; without one, generation would go on to max_new_tokens.
    ends: set[int] = set()
    declared_end = declared.get("eos_token_id")
    if isinstance(declared_end, list | int):
        ends.update(declared_end if isinstance(declared_end, list) else [declared_end])
    tokenizer_config, vocabulary = folder / "tokenizer_config.json", folder / "tokenizer.json"
    if tokenizer_config.is_file() and vocabulary.is_file():
        end = json.loads(tokenizer_config.read_text()).get("eos_token")
        text = end.get("content") if isinstance(end, dict) else end
        tokenizer_end = Tokenizer.from_file(str(vocabulary)).token_to_id(text) if text else None
        if tokenizer_end is not None:
            ends.add(tokenizer_end)
    settings = {
        **{name: declared[name] for name in _COPIED_TOKENS if name in declared},
        **({"eos_token_id": sorted(ends)} if ends else {}),
        **transformers_generate_kwargs(sampling),
    }
    (folder / GENERATION_CONFIG).write_text(f"{json.dumps(settings, indent=2)}\n")


def transformers_generate_kwargs(sampling: Sampling) -> dict[str, Any]:
    """Return sampling settings as arguments of Transformers' `generate`, whose `top_k` of 0 also keeps all tokens."""
    settings: dict[str, Any] = {"do_sample": sampling.temperature > 0, "max_new_tokens": sampling.max_tokens}
    if sampling.temperature > 0:
        settings |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    return settings | ({"stop_strings": list(sampling.stop)} if sampling.stop else {})


def _find_model_file(folder: Path, base_model: str | None, file_name: str) -> Path | None:
    """Return the path of model file `file_name`, or None if an adapter's base on the hub is not in the local cache.

    The file of a full model (`base_model` is None) is in `folder`. The file of an adapter's base is in `folder`/base if
    the base was copied there, else in the base's own folder or the local cache of the hub.
    """
    if base_model is None or (folder / "base").is_dir():
        return folder / ("base" if base_model else "") / file_name
    if Path(base_model).is_dir():
        return Path(base_model) / file_name
    cached = try_to_load_from_cache(base_model, file_name)
    return Path(cached) if isinstance(cached, str) else None
