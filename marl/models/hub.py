"""Question whether the Hugging Face hub has a model, before Transformers is told to load it."""

from __future__ import annotations

from contextlib import suppress

_PATIENCE_S = 10.0
"""Longest wait for a connection, and for an answer."""
_NONE = (401, 404)
"""Answers of the hub where there is no such model; 401 if it might be a private one."""


def absence(name: str) -> str | None:
    """Return why a model that is no folder cannot be had from the hub; None if nothing speaks against it.

    Whatever is in the cache of the hub counts as there. The hub is asked once: Transformers would ask for each file,
    and each time again for half a minute, which is long for a folder's name that was mistyped.
    """
    import httpx2
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import build_hf_headers

    place = f"{constants.ENDPOINT}/api/models/{name}"
    try:
        if constants.HF_HUB_OFFLINE or isinstance(try_to_load_from_cache(name, "config.json"), str):
            return None
        answer = httpx2.head(place, headers=build_hf_headers(), timeout=_PATIENCE_S, follow_redirects=True)
    except HFValidationError as error:
        return f"there is no such folder, and it is no name on a hub: {error}"
    except httpx2.HTTPError as error:
        return f"there is no such folder, and {place} cannot be asked for such a model: {error}"
    return f"there is no such folder, and no such model at {place}" if answer.status_code in _NONE else None


def fetch_settings(name: str) -> str | None:
    """Put the settings and the tokenizer of a model on the hub into the hub's cache, without weights.

    Return why they cannot be had; None if they are there. The settings alone must be.
    """
    from huggingface_hub import hf_hub_download

    if problem := absence(name):
        return problem
    try:
        hf_hub_download(name, "config.json")
    except (OSError, ValueError) as error:
        return f"there is no such folder, and the hub does not give its settings: {error}"
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        with suppress(OSError):
            hf_hub_download(name, file)
    return None
