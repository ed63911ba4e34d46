"""Findings of `marl doctor` about this machine: packages, accelerators, sandbox, engines, clusters, disks."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from marl.engines.vllm import installation
from marl.host.paths import cache_folder
from marl.sandbox.process import reason_sandbox_is_unusable
from marl.sandbox.settings import Sandbox
from marl.scenario.load import ScenarioError, load

_DISTRIBUTION = "marl-llm"
_UNREPORTED_EXTRAS = frozenset({"dev", "vllm"})
"""Optional-dependency groups that the check of extras skips. vLLM has a check of its own, for builds under any name."""
_MIN_FREE_BYTES = 5e9
"""Free space on disk that checkpoints of a model with 0.6B parameters need, in bytes."""
_FOLDER_ADVICE = {"runs": "start in a folder of yours, or use --out", "cache": "set MARL_CACHE to a folder of yours"}
"""Folder (`runs` or `cache`) -> advice if it is not writable."""
State = Literal["ok", "absent", "wrong"]


@dataclass(frozen=True, slots=True)
class MachineCheckResult:
    """Result of one check of this machine."""

    topic: str
    state: State
    """Verdict of the check (`absent`: an optional feature is missing; `wrong`: a run would fail)."""
    text: str
    advice: str = ""
    """Instruction for the user that repairs the problem, or "" without a problem."""


def check_machine() -> Iterator[MachineCheckResult]:
    """Yield the results of all checks of this machine except the self-test, which trains a model."""
    yield MachineCheckResult(
        "python", "ok", f"{platform.python_version()} on {platform.system()} ({platform.machine()})"
    )
    declared = map(Requirement, requires(_DISTRIBUTION) or ())
    # In the package's metadata, requirements of extras have a marker and are optional.
    required = [requirement for requirement in declared if requirement.marker is None]
    unmet = [requirement for requirement in required if not _is_installed(requirement)]
    for requirement in unmet:
        name, versions, present = requirement.name, requirement.specifier, _installed_version(requirement.name)
        state = f"{present} is installed, {versions} is needed" if present else "is missing"
        yield MachineCheckResult("packages", "wrong", f"{name} {state}", f"pip install '{name}{versions}'")
    if not unmet:
        names = (_DISTRIBUTION, "torch", "transformers", "pettingzoo")
        shown = ", ".join(f"{name} {_installed_version(name)}" for name in names)
        yield MachineCheckResult("packages", "ok", f"{shown}; all {len(required)} required packages fit")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield MachineCheckResult("processor", "ok", f"{os.cpu_count()} cores, {memory / 1e9:.1f} GB of memory")
    import torch  # The import of torch takes seconds, so earlier findings are shown first.

    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(devices):
        device = torch.cuda.get_device_properties(index)
        bfloat16 = "with" if torch.cuda.is_bf16_supported() else "without"
        text = f"cuda:{index}: {device.name}, {device.total_memory / 1e9:.1f} GB, {bfloat16} bfloat16"
        yield MachineCheckResult("accelerator", "ok", text)
    if not torch.cuda.is_available():
        cuda = torch.version.cuda
        advice = "" if cuda is None else f"torch {torch.__version__} is built for CUDA {cuda}: is a driver installed?"
        yield MachineCheckResult("accelerator", "absent", "none: tiny and small models train on the processor", advice)
    mechanisms = [how for how in ("bubblewrap", "unshare") if not reason_sandbox_is_unusable(Sandbox(how=how))]
    if mechanisms:
        yield MachineCheckResult("sandbox", "ok", f"model-written code runs by {' or '.join(mechanisms)}")
    else:
        advice = "only scenarios with `unit_tests` verifiers or the python tool need it; install bubblewrap"
        yield MachineCheckResult("sandbox", "absent", reason_sandbox_is_unusable(Sandbox()), advice)
    if problem := installation.vllm_installation_error():
        yield MachineCheckResult("vllm", "absent", f"engine: {{kind: vllm}} {problem}")
    else:
        kind = "for processors" if installation.is_vllm_cpu_build() else "for accelerators"
        yield MachineCheckResult("vllm", "ok", f"installed, {kind}")
    yield from check_optional_packages()
    yield from check_run_and_cache_folders()
    from huggingface_hub import constants, get_token  # The import takes 0.1 s, and only the check of the hub needs it.

    offline = constants.is_offline_mode()
    token = "a token is set" if get_token() else "no token is set"
    text = f"offline (HF_HUB_OFFLINE), {token}" if offline else f"{constants.ENDPOINT}, {token}"
    yield MachineCheckResult("hub", "ok", f"{text}; models are kept in {constants.HF_HUB_CACHE}")


def check_scenario(file: Path, overrides: Sequence[str]) -> MachineCheckResult:
    """Check whether a scenario can be trained here: its settings, and the requirements of its plug-ins."""
    try:
        load(file, overrides)
    except ScenarioError as error:
        return MachineCheckResult("scenario", "wrong", str(error))
    return MachineCheckResult("scenario", "ok", f"{file} can be trained here", f"marl check {file} plays its prompts")


def check_optional_packages() -> Iterator[MachineCheckResult]:
    """Yield a finding for each extra (group of optional packages), with the command that installs it if incomplete."""
    provided = metadata(_DISTRIBUTION).get_all("Provides-Extra") or ()
    groups: dict[str, list[Requirement]] = {}
    for requirement in map(Requirement, requires(_DISTRIBUTION) or ()):
        for extra in provided:
            if requirement.marker is not None and requirement.marker.evaluate({"extra": extra}):
                groups.setdefault(extra, []).append(requirement)
    for extra, requirements in groups.items():
        if extra in _UNREPORTED_EXTRAS:
            continue
        missing, present = [], []
        for requirement in requirements:
            if _is_installed(requirement):
                present.append(f"{requirement.name} {_installed_version(requirement.name)}")
            else:
                missing.append(requirement.name)
        if missing:
            advice = f"pip install '{_DISTRIBUTION}[{extra}]'"
            yield MachineCheckResult(
                extra, "absent", f"{', '.join(missing)} not installed, or of another version", advice
            )
        else:
            yield MachineCheckResult(extra, "ok", ", ".join(present))


def check_run_and_cache_folders() -> Iterator[MachineCheckResult]:
    """Yield a finding for the folder of runs and one for the cache of built models: free space, or not writable."""
    for topic, folder in (("runs", Path("runs").absolute()), ("cache", cache_folder().absolute())):
        # If the folder does not exist yet, its nearest existing parent must be writable.
        existing = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
        try:
            with tempfile.TemporaryDirectory(dir=existing, prefix=".marl-"):
                free = shutil.disk_usage(existing).free
        except OSError as error:
            yield MachineCheckResult(
                topic, "wrong", f"{folder} cannot be written: {error.strerror}", _FOLDER_ADVICE[topic]
            )
        else:
            state: State = "ok" if free >= _MIN_FREE_BYTES else "absent"
            advice = "" if state == "ok" else "checkpoint.keep limits how many checkpoints stay"
            yield MachineCheckResult(topic, state, f"{folder} can be written, {free / 1e9:.1f} GB free", advice)


def _is_installed(requirement: Requirement) -> bool:
    present = _installed_version(requirement.name)
    return present is not None and requirement.specifier.contains(present, prereleases=True)


def _installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
