"""Check that the Hugging Face hub has a model before Transformers loads it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import httpx2
from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import build_hf_headers

_PATIENCE_S = 10.0
"""Timeout of the connection to the hub, and of its reply [seconds]."""
_ABSENT_STATUSES = (401, 404)
"""HTTP statuses of the hub for a model that does not exist; 401 if the model might be private."""


def hub_obstacle(name: str) -> str | None:
    """Return the hub's obstacle to loading the model `name`, or None if loading may be tried.

    A model in the hub's local cache is available. One short request replaces Transformers' own, which are repeated for
    each file for half a minute: too long for a mistyped folder.
    """
    url = f"{constants.ENDPOINT}/api/models/{name}"
    try:
        if constants.HF_HUB_OFFLINE or isinstance(try_to_load_from_cache(name, "config.json"), str):
            return None
        answer = httpx2.head(url, headers=build_hf_headers(), timeout=_PATIENCE_S, follow_redirects=True)
    except HFValidationError as error:
        return f"there is no such folder, and it is no name on a hub: {error}"
    except httpx2.HTTPError as error:
        return f"there is no such folder, and {url} cannot be asked for such a model: {error}"
    return f"there is no such folder, and no such model at {url}" if answer.status_code in _ABSENT_STATUSES else None


def cached_folder(name: str) -> Path | None:
    """Return the folder of the model `name` in the hub's local cache, or None if it is not there."""
    with suppress(HFValidationError):  # the path cannot be a repository's name on the hub
        cached = try_to_load_from_cache(name, "config.json")
        return Path(cached).parent if isinstance(cached, str) else None
    return None


def cache_config_and_tokenizer(name: str) -> str | None:
    """Download the configuration and the tokenizer of a model into the hub's local cache, without weights.

    Return the reason of a failure, or None on success. Tokenizer files may be absent, the configuration may not.
    """
    if problem := hub_obstacle(name):
        return problem
    try:
        hf_hub_download(name, "config.json")
    except (OSError, ValueError) as error:
        return f"there is no such folder, and the hub does not give its settings: {error}"
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        with suppress(OSError):
            hf_hub_download(name, file)
    return None
