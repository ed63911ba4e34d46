"""Checks that the Hugging Face hub has a model, before Transformers loads it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import httpx2
from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import build_hf_headers

_REQUEST_TIMEOUT_S = 10.0
"""Timeout of the connection to the hub, and of the hub's reply, in seconds."""
_ABSENT_STATUSES = (401, 404)
"""HTTP statuses of the hub for a model that does not exist. The status is 401 if the model might be private."""


def hub_model_error(hub_name: str) -> str | None:
    """Return an error message if the hub cannot provide the model `hub_name`, or None if loading may be tried.

    One short request is sent, unless the model is in the hub's local cache. Transformers itself repeats requests
    for half a minute per file, which is too long for a mistyped folder.
    """
    url = f"{constants.ENDPOINT}/api/models/{hub_name}"
    try:
        if constants.HF_HUB_OFFLINE or isinstance(try_to_load_from_cache(hub_name, "config.json"), str):
            return None
        answer = httpx2.head(url, headers=build_hf_headers(), timeout=_REQUEST_TIMEOUT_S, follow_redirects=True)
    except HFValidationError as error:
        return f"there is no such folder, and it is no name on a hub: {error}"
    except httpx2.HTTPError as error:
        return f"there is no such folder, and {url} cannot be asked for such a model: {error}"
    return f"there is no such folder, and no such model at {url}" if answer.status_code in _ABSENT_STATUSES else None


def cached_hub_folder(hub_name: str) -> Path | None:
    """Return the folder of the model `hub_name` in the hub's local cache, or None if the cache lacks the model."""
    # Raised if `hub_name` is no valid name of a repository.
    with suppress(HFValidationError):
        cached = try_to_load_from_cache(hub_name, "config.json")
        return Path(cached).parent if isinstance(cached, str) else None
    return None


def download_config_and_tokenizer(hub_name: str) -> str | None:
    """Download the configuration and the tokenizer of the model `hub_name`, without weights, to the hub's local cache.

    Return an error message, or None on success. The configuration must exist; tokenizer files may be absent.
    """
    if problem := hub_model_error(hub_name):
        return problem
    try:
        hf_hub_download(hub_name, "config.json")
    except (OSError, ValueError) as error:
        return f"there is no such folder, and the hub does not give its settings: {error}"
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        with suppress(OSError):
            hf_hub_download(hub_name, file)
    return None
