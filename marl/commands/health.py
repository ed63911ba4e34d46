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
from marl.places import cache_folder
from marl.sandbox.running import unusable
from marl.sandbox.settings import Sandbox
from marl.scenario.load import ScenarioError, load

_DISTRIBUTION = "marl-llm"
_HIDDEN_EXTRAS = frozenset({"dev"})
_LITTLE_SPACE = 5e9
"""Bytes below which checkpoints of a model of 0.6B parameters do not fit."""
_ELSEWHERE = {"runs": "give --out, or start in a folder of yours", "cache": "set MARL_CACHE to a folder of yours"}
State = Literal["ok", "absent", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    topic: str
    state: State
    """`absent`: something optional is not there. `wrong`: a run would fail."""
    text: str
    advice: str = ""
    """Words on what can be done; empty if nothing needs to be."""


def findings() -> Iterator[Finding]:
    """Yield what is known of this machine without training anything."""
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} ({platform.machine()})")
    yield from packages()
    yield processor()
    yield from accelerators()
    yield sandbox()
    yield vllm()
    yield from extras()
    yield from folders()
    yield hub()


def trainable(file: Path, overrides: Sequence[str]) -> Finding:
    """Return whether a scenario can be trained here: its settings, and all that its parts need of this machine."""
    try:
        load(file, overrides)
    except ScenarioError as error:
        return Finding("scenario", "wrong", str(error))
    return Finding("scenario", "ok", f"{file} can be trained here", f"marl check {file} plays its prompts")


def packages() -> Iterator[Finding]:
    """Yield the required packages that are missing or of a version that marl was not made for; or that all fit."""
    required = [each for each in _requirements() if each.marker is None]
    wrong = [each for each in required if not _fits(each)]
    for each in wrong:
        present = _version(each.name)
        state = f"{present} is installed, {each.specifier} is needed" if present else "is missing"
        yield Finding("packages", "wrong", f"{each.name} {state}", f"pip install '{each.name}{each.specifier}'")
    if not wrong:
        shown = ", ".join(f"{name} {_version(name)}" for name in (_DISTRIBUTION, "torch", "transformers", "pettingzoo"))
        yield Finding("packages", "ok", f"{shown}; all {len(required)} required packages fit")


def processor() -> Finding:
    """Return cores and memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Finding("processor", "ok", f"{os.cpu_count()} cores, {memory / 1e9:.1f} GB of memory")


def accelerators() -> Iterator[Finding]:
    """Yield each GPU; or that there is none."""
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            each = torch.cuda.get_device_properties(index)
            bfloat16 = "with" if torch.cuda.is_bf16_supported() else "without"
            text = f"cuda:{index}: {each.name}, {each.total_memory / 1e9:.1f} GB, {bfloat16} bfloat16"
            yield Finding("accelerator", "ok", text)
        return
    cuda = torch.version.cuda
    advice = "" if cuda is None else f"torch {torch.__version__} is built for CUDA {cuda}: is a driver installed?"
    yield Finding("accelerator", "absent", "none: tiny and small models train on the processor", advice)


def sandbox() -> Finding:
    """Return the way in which model-written code would be shut in."""
    mechanisms = [how for how in ("bubblewrap", "unshare") if not unusable(Sandbox(how=how))]
    if mechanisms:
        return Finding("sandbox", "ok", f"model-written code runs by {' or '.join(mechanisms)}")
    return Finding(
        "sandbox",
        "absent",
        unusable(Sandbox()),
        "only scenarios with `unit_tests` verifiers or the python tool need it; install bubblewrap",
    )


def vllm() -> Finding:
    """Return whether roles can be sampled by vLLM."""
    if problem := installation.problem():
        return Finding("vllm", "absent", f"engine: {{kind: vllm}} {problem}")
    kind = "for processors" if installation.made_for_processors() else "for accelerators"
    return Finding("vllm", "ok", f"installed, {kind}")


def extras() -> Iterator[Finding]:
    """Yield each group of optional packages, and how to install what is missing of it."""
    groups: dict[str, list[Requirement]] = {}
    for each in _requirements():
        if each.marker is not None:
            for extra in _extras():
                if each.marker.evaluate({"extra": extra}):
                    groups.setdefault(extra, []).append(each)
    for extra, needed in groups.items():
        if extra == "vllm":  # has builds by other names, see `vllm`
            continue
        missing = [each.name for each in needed if not _fits(each)]
        present = ", ".join(f"{each.name} {_version(each.name)}" for each in needed if _fits(each))
        if missing:
            advice = f"pip install '{_DISTRIBUTION}[{extra}]'"
            yield Finding(extra, "absent", f"{', '.join(missing)} not installed, or of another version", advice)
        else:
            yield Finding(extra, "ok", present)


def folders() -> Iterator[Finding]:
    """Yield whether runs and made models can be written, and how much space is left for them."""
    for topic, folder in (("runs", Path("runs").absolute()), ("cache", cache_folder().absolute())):
        there = next(each for each in (folder, *folder.parents) if each.is_dir())
        try:
            with tempfile.TemporaryDirectory(dir=there, prefix=".marl-"):
                free = shutil.disk_usage(there).free
        except OSError as error:
            advice = (
                "set MARL_CACHE to a folder of yours"
                if topic == "cache"
                else "start in a folder of yours, or use --out"
            )
            yield Finding(topic, "wrong", f"{folder} cannot be written: {error.strerror}", advice)
        else:
            state: State = "ok" if free >= _LITTLE_SPACE else "absent"
            advice = "" if state == "ok" else "checkpoint.keep limits how many checkpoints stay"
            yield Finding(topic, state, f"{folder} can be written, {free / 1e9:.1f} GB free", advice)


def hub() -> Finding:
    """Return how models are had from the Hugging Face hub; nothing is asked there."""
    from huggingface_hub import constants, get_token

    offline = constants.is_offline_mode()
    token = "a token is set" if get_token() else "no token is set"
    text = f"offline (HF_HUB_OFFLINE), {token}" if offline else f"{constants.ENDPOINT}, {token}"
    return Finding("hub", "ok", f"{text}; models are kept in {constants.HF_HUB_CACHE}")


def _requirements() -> list[Requirement]:
    return [Requirement(line) for line in requires(_DISTRIBUTION) or ()]


def _extras() -> list[str]:
    return [extra for extra in metadata(_DISTRIBUTION).get_all("Provides-Extra") or () if extra not in _HIDDEN_EXTRAS]


def _fits(requirement: Requirement) -> bool:
    present = _version(requirement.name)
    return present is not None and requirement.specifier.contains(present, prereleases=True)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
