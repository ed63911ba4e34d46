"""Nested states as JSON: their leaves, such as tensors, are moved out into a mapping by name, and put in again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_TENSOR = "__tensor__"
"""Key of the JSON object that represents a leaf. The value is the leaf's name."""
_QUOTE = "'"
"""Prefix that escapes a key of the state that equals `_TENSOR`. An escaped key in the state gets one more prefix."""


def extract_leaves(value: Any, is_leaf: Callable[[Any], bool], leaves: dict[str, Any], name_prefix: str = "") -> Any:
    """Return `value` as JSON, with its leaves moved to `leaves` under names that begin with `name_prefix`.

    Raises:
        TypeError: if a key of a mapping is no string.
    """
    if is_leaf(value):
        # Two paths can be equal, because keys may contain the separator "/".
        while name_prefix in leaves:
            name_prefix += _QUOTE
        leaves[name_prefix] = value
        return {_TENSOR: name_prefix}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"state {name_prefix or 'root'!r} has the key {key!r}: keys must be strings")
        plain: dict[str, Any] = {}
        for key, child in value.items():
            is_ambiguous = key.lstrip(_QUOTE) == _TENSOR
            plain[_QUOTE + key if is_ambiguous else key] = extract_leaves(
                child, is_leaf, leaves, f"{name_prefix}/{key}"
            )
        return plain
    if isinstance(value, list | tuple):
        return [extract_leaves(child, is_leaf, leaves, f"{name_prefix}/{index}") for index, child in enumerate(value)]
    return value


def insert_leaves(json_value: Any, leaves: Mapping[str, Any]) -> Any:
    """Return the state from which `extract_leaves` made the JSON `json_value` and `leaves`.

    Raises:
        ValueError: if a leaf is missing.
    """
    if isinstance(json_value, list):
        return [insert_leaves(child, leaves) for child in json_value]
    if not isinstance(json_value, dict):
        return json_value
    if _TENSOR in json_value:
        name = json_value[_TENSOR]
        if not isinstance(name, str) or name not in leaves:
            raise ValueError(f"the state names the tensor {name!r}, which no file of tensors has")
        return leaves[name]
    state: dict[str, Any] = {}
    for key, child in json_value.items():
        is_quoted = key.lstrip(_QUOTE) == _TENSOR
        state[key.removeprefix(_QUOTE) if is_quoted else key] = insert_leaves(child, leaves)
    return state
