"""Checks of adapters on a common base, for the engines that hold several of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import count
from typing import TypeVar

from marl.models.adapter import AdapterSource
from marl.models.pretrained import PretrainedSource
from marl.protocols import ModelSource

_Adapter = TypeVar("_Adapter")


def adapter_of(policy: str, adapters: Mapping[str, _Adapter]) -> _Adapter:
    """Return the adapter of `policy`.

    Raises:
        ValueError: if the policy has no adapter in this engine.
    """
    if policy not in adapters:
        raise ValueError(f"policy {policy!r} has no adapter here; this engine speaks for {', '.join(adapters)}")
    return adapters[policy]


def check_new_policy(policy: str, policies: Collection[str]) -> None:
    """Check that `policy` is not among the engine's `policies`.

    Raises:
        ValueError: if the policy was added before.
    """
    if policy in policies:
        raise ValueError(f"policy {policy!r} has an adapter here already; remove it first")


def expect_adapter_on(base: PretrainedSource, policy: str, source: ModelSource | None) -> AdapterSource:
    """Return `source`, the adapter of `policy`.

    Raises:
        ValueError: if `source` is no adapter, or an adapter on another base.
    """
    if not isinstance(source, AdapterSource) or source.base_source != base:
        label = f"{base.path!r} in {base.dtype}"
        raise ValueError(f"policy {policy!r}: this engine holds adapters on {label}, and no other weights")
    return source


def lowest_free(used: Collection[int], first: int) -> int:
    """Return the lowest integer from `first` on outside `used`."""
    return next(number for number in count(first) if number not in used)
