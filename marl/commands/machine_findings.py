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
from marl.sandbox.process import unusable_reason
from marl.sandbox.settings import Sandbox
from marl.scenario.load import ScenarioError, load

_DISTRIBUTION = "marl-llm"
_HIDDEN_EXTRAS = frozenset({"dev"})
_LITTLE_SPACE = 5e9
"""Free space [bytes] below which checkpoints of a model with 0.6B parameters do not fit."""
_OTHER_FOLDER = {"runs": "start in a folder of yours, or use --out", "cache": "set MARL_CACHE to a folder of yours"}
"""Advice for a folder that is not writable."""
State = Literal["ok", "absent", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check of this machine."""

    topic: str
    state: State
    """`absent`: an optional feature is missing. `wrong`: a run would fail."""
    text: str
    advice: str = ""
    """Instructions for the user, or "" if nothing needs to be done."""


def machine_findings() -> Iterator[Finding]:
    """Yield the findings about this machine that need no training."""
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} ({platform.machine()})")
    yield from packages()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield Finding("processor", "ok", f"{os.cpu_count()} cores, {memory / 1e9:.1f} GB of memory")
    yield from accelerators()
    yield sandbox()
    if problem := installation.installation_problem():
        yield Finding("vllm", "absent", f"engine: {{kind: vllm}} {problem}")
    else:
        kind = "for processors" if installation.is_cpu_build() else "for accelerators"
        yield Finding("vllm", "ok", f"installed, {kind}")
    yield from extras()
    yield from folders()
    yield hub()


def check_scenario(file: Path, overrides: Sequence[str]) -> Finding:
    """Check whether a scenario can be trained here: its settings, and the requirements of its plug-ins."""
    try:
        load(file, overrides)
    except ScenarioError as error:
        return Finding("scenario", "wrong", str(error))
    return Finding("scenario", "ok", f"{file} can be trained here", f"marl check {file} plays its prompts")


def packages() -> Iterator[Finding]:
    """Yield a finding for each required package that is missing or has an unsupported version, or one if all fit."""
    required = [requirement for requirement in _requirements() if requirement.marker is None]
    all_fit = True
    for requirement in required:
        if _fits(requirement):
            continue
        all_fit = False
        name, versions, present = requirement.name, requirement.specifier, _version(requirement.name)
        state = f"{present} is installed, {versions} is needed" if present else "is missing"
        yield Finding("packages", "wrong", f"{name} {state}", f"pip install '{name}{versions}'")
    if all_fit:
        shown = ", ".join(f"{name} {_version(name)}" for name in (_DISTRIBUTION, "torch", "transformers", "pettingzoo"))
        yield Finding("packages", "ok", f"{shown}; all {len(required)} required packages fit")


def accelerators() -> Iterator[Finding]:
    """Yield a finding for each GPU, or one if there is none."""
    # Takes seconds, so only when the finding is due.
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            bfloat16 = "with" if torch.cuda.is_bf16_supported() else "without"
            text = f"cuda:{index}: {device.name}, {device.total_memory / 1e9:.1f} GB, {bfloat16} bfloat16"
            yield Finding("accelerator", "ok", text)
        return
    cuda = torch.version.cuda
    advice = "" if cuda is None else f"torch {torch.__version__} is built for CUDA {cuda}: is a driver installed?"
    yield Finding("accelerator", "absent", "none: tiny and small models train on the processor", advice)


def sandbox() -> Finding:
    """Return the isolation mechanisms available on this machine for model-written code."""
    mechanisms = [how for how in ("bubblewrap", "unshare") if not unusable_reason(Sandbox(how=how))]
    if mechanisms:
        return Finding("sandbox", "ok", f"model-written code runs by {' or '.join(mechanisms)}")
    return Finding(
        "sandbox",
        "absent",
        unusable_reason(Sandbox()),
        "only scenarios with `unit_tests` verifiers or the python tool need it; install bubblewrap",
    )


def extras() -> Iterator[Finding]:
    """Yield a finding for each extra (group of optional packages), with the command that installs it if incomplete."""
    provided = metadata(_DISTRIBUTION).get_all("Provides-Extra") or ()
    groups: dict[str, list[Requirement]] = {}
    for requirement in _requirements():
        if requirement.marker is not None:
            for extra in provided:
                if extra not in _HIDDEN_EXTRAS and requirement.marker.evaluate({"extra": extra}):
                    groups.setdefault(extra, []).append(requirement)
    for extra, requirements in groups.items():
        # vLLM has builds under other package names, which the finding `vllm` knows.
        if extra == "vllm":
            continue
        missing, present = [], []
        for requirement in requirements:
            if _fits(requirement):
                present.append(f"{requirement.name} {_version(requirement.name)}")
            else:
                missing.append(requirement.name)
        if missing:
            advice = f"pip install '{_DISTRIBUTION}[{extra}]'"
            yield Finding(extra, "absent", f"{', '.join(missing)} not installed, or of another version", advice)
        else:
            yield Finding(extra, "ok", ", ".join(present))


def folders() -> Iterator[Finding]:
    """Yield a finding for the folder of runs and for the cache of built models: writable, and with how much space."""
    for topic, folder in (("runs", Path("runs").absolute()), ("cache", cache_folder().absolute())):
        # The folder may not exist yet; then its nearest existing parent must be writable.
        existing = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
        try:
            with tempfile.TemporaryDirectory(dir=existing, prefix=".marl-"):
                free = shutil.disk_usage(existing).free
        except OSError as error:
            yield Finding(topic, "wrong", f"{folder} cannot be written: {error.strerror}", _OTHER_FOLDER[topic])
        else:
            state: State = "ok" if free >= _LITTLE_SPACE else "absent"
            advice = "" if state == "ok" else "checkpoint.keep limits how many checkpoints stay"
            yield Finding(topic, state, f"{folder} can be written, {free / 1e9:.1f} GB free", advice)


def hub() -> Finding:
    """Return the settings of the Hugging Face hub on this machine, without a request to it."""
    # Takes a tenth of a second, and nothing else here needs it.
    from huggingface_hub import constants, get_token

    offline = constants.is_offline_mode()
    token = "a token is set" if get_token() else "no token is set"
    text = f"offline (HF_HUB_OFFLINE), {token}" if offline else f"{constants.ENDPOINT}, {token}"
    return Finding("hub", "ok", f"{text}; models are kept in {constants.HF_HUB_CACHE}")


def _requirements() -> list[Requirement]:
    return [Requirement(line) for line in requires(_DISTRIBUTION) or ()]


def _fits(requirement: Requirement) -> bool:
    present = _version(requirement.name)
    return present is not None and requirement.specifier.contains(present, prereleases=True)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
