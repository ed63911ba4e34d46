"""Checks for engines that hold several adapters on a common base."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import count
from typing import TypeVar

from marl.models.adapter import AdapterSource
from marl.models.pretrained import PretrainedSource
from marl.protocols import ModelSource

_Adapter = TypeVar("_Adapter")


def get_policy_adapter(policy: str, adapters: Mapping[str, _Adapter]) -> _Adapter:
    """Return the adapter of `policy` in `adapters`, the adapters of an engine by policy.

    Raises:
        ValueError: if the policy has no adapter in this engine.
    """
    if policy not in adapters:
        raise ValueError(f"policy {policy!r} has no adapter here; this engine speaks for {', '.join(adapters)}")
    return adapters[policy]


def check_policy_is_new(policy: str, known_policies: Collection[str]) -> None:
    """Check that `policy` is not among `known_policies`, the policies of an engine.

    Raises:
        ValueError: if the policy was added before.
    """
    if policy in known_policies:
        raise ValueError(f"policy {policy!r} has an adapter here already; remove it first")


def require_adapter_on_base(base: PretrainedSource, policy: str, source: ModelSource | None) -> AdapterSource:
    """Return `source`, the source of `policy`, if `source` is an adapter on `base`.

    Raises:
        ValueError: if `source` is no adapter, or an adapter on another base.
    """
    if not isinstance(source, AdapterSource) or source.base_source != base:
        label = f"{base.path!r} in {base.dtype}"
        raise ValueError(f"policy {policy!r}: this engine holds adapters on {label}, and no other weights")
    return source


def lowest_unused_integer(used_integers: Collection[int], first: int) -> int:
    """Return the lowest integer of at least `first` that is not in `used_integers`."""
    return next(number for number in count(first) if number not in used_integers)
