"""How thoroughly properties are tried: on a few examples by default, on many in slow runs."""

from __future__ import annotations

import pytest


@pytest.fixture(params=[pytest.param(1, id="few"), pytest.param(5, id="many", marks=pytest.mark.slow)])
def factor(request: pytest.FixtureRequest) -> int:
    """Return the factor by which more examples are tried than by default."""
    return request.param
