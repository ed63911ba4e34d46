"""Copies of the attributes of a running game."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from gymnasium import Env
from pettingzoo import AECEnv, ParallelEnv

from marl.core.config import Config

_Value = TypeVar("_Value")
IMMUTABLE_TYPES = frozenset((bool, int, float, str, bytes, type(None), frozenset))
"""Types whose objects need no copy."""


def fast_deepcopy(value: _Value, memo: dict[int, Any]) -> _Value:
    """Return a deep copy of an attribute of a game, for plain data many times faster than `copy.deepcopy`.

    `memo` maps the id of a container to its copy: two attributes with a common container have a common copy of it.
    """
    kind = type(value)
    if kind in IMMUTABLE_TYPES:
        return value
    if kind is tuple:
        # Most tuples of a game hold moves or agents: texts, which need no copy.
        if IMMUTABLE_TYPES.issuperset(map(type, value)):  # type: ignore[call-overload]
            return value
        return tuple([fast_deepcopy(item, memo) for item in value])  # type: ignore[attr-defined,return-value]
    if id(value) in memo:
        return memo[id(value)]
    if kind is dict:
        copied = value.copy()  # type: ignore[attr-defined]
        if not IMMUTABLE_TYPES.issuperset(map(type, copied.values())):
            for key, item in copied.items():
                copied[key] = fast_deepcopy(item, memo)
        memo[id(value)] = copied
    elif kind is list or kind is set:
        copied = value.copy()  # type: ignore[attr-defined]
        if not IMMUTABLE_TYPES.issuperset(map(type, copied)):
            copied = kind([fast_deepcopy(item, memo) for item in copied])  # type: ignore[call-arg]
        memo[id(value)] = copied
    elif isinstance(value, Config):
        return value
    elif isinstance(value, AECEnv | ParallelEnv | Env):
        # Most PettingZoo environments inherit `EzPickle`, so `copy.deepcopy` would construct them anew, without state.
        memo[id(value)] = environment = object.__new__(kind)
        for name, item in vars(value).items():
            vars(environment)[name] = fast_deepcopy(item, memo)
    else:
        return copy.deepcopy(value, memo)
    return memo[id(value)]
