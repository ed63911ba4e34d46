"""Protocol of parts that survive a restart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Stateful(Protocol):
    """Survives a restart. Its state is a nest of dicts with string keys, numbers, strings, lists and tensors."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
