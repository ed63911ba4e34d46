"""Everything that a scenario reaches outside its own text, seen without importing, reading or sending any of it.

A scenario is data, but it names code to import, files to read, environment variables to send and hosts to send them to.
What lies in its folder or in an installed package is taken to belong to it; what does not needs the user's consent.
Rules look at the data alone, because classes that could say more would have to be imported.
"""

from __future__ import annotations

import json
import os
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import distributions, entry_points
from ipaddress import ip_address
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

from marl.core.plugins import GROUPS
from marl.host.data_files import write_atomically
from marl.host.paths import FILE_FIELDS, cache_folder, current_resolver, exists, is_possible_hub_name, use_resolver
from marl.scenario.yaml_text import MAX_BYTES, ScenarioError, read_yaml, read_yaml_file

MODEL_FIELDS = frozenset({"model", "base"})
"""Fields whose bare text names a model's folder, or a model on the hub."""
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_CODE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".h5", ".py", ".so"})
"""Files that hold code, or from which code can be loaded."""
_DEFAULT_KEY = "OPENAI_API_KEY"


@dataclass(frozen=True, slots=True)
class ExternalAccess:
    """One thing outside a scenario that it uses."""

    action: str
    """A verb: imports, reads, downloads, sends, runs."""
    target: str
    field: str
    """Dotted path of the field that names it."""
    needs_consent: bool

    def __str__(self) -> str:
        return f"{self.action} {self.target} ({self.field})"


class Entry(NamedTuple):
    """A value of a scenario, its field, and the mapping that it stands in."""

    field: str
    key: str
    value: Any
    parent: Mapping[str, Any]


ConsentCheck = Callable[[Mapping[str, Any], str, Sequence[str]], None]
consent_check: ContextVar[ConsentCheck | None] = ContextVar("gate", default=None)
"""Called with the data of a scenario, their file and the fields that were typed, before any part is imported. It raises
`ScenarioError` where something needs consent and has none. Commands set it; Python code can import what it likes."""


class ScenarioFolder:
    """The folder of a scenario, or of a run, whose resolved scenario lies in it."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.is_run = (path / "metrics.jsonl").exists() or (path / "checkpoints").exists()

    def holds(self, path: Path) -> bool:
        """Return True if `path` lies in the folder, and neither it nor a folder on the way there is hidden."""
        resolved = path.resolve()
        if not resolved.is_relative_to(self.path):
            return False
        return not any(part.startswith(".") for part in resolved.relative_to(self.path).parts)

    def holds_code(self, path: Path) -> bool:
        """Return True if `path` lies in the folder, which is not a run's: nothing that marl writes there is code."""
        return not self.is_run and self.holds(path)


def external_accesses(data: Any, folder: Path, seen: frozenset[Path] = frozenset()) -> list[ExternalAccess]:
    """Return everything a scenario in `folder` reaches, including the runs it builds on. `data` is plain data."""
    home = ScenarioFolder(folder)
    seen |= {home.path}
    reached: list[ExternalAccess] = []
    for entry in _entries(data, "", ""):
        reached += [*_imports(entry, home), *_reads(entry, home, seen), *_sends(entry), *_runs(entry)]
    return list(dict.fromkeys(reached))


def _entries(data: Any, field: str, key: str, parent: Mapping[str, Any] | None = None) -> Iterator[Entry]:
    """Yield every (key, value) inside `data`; items of a list have the key of the list."""
    if field:
        yield Entry(field, key, data, parent or {})
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield from _entries(value, f"{field}.{name}" if field else str(name), str(name), data)
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            yield from _entries(value, f"{field}.{index}", key, parent)


# --- code ------------------------------------------------------------------------------------------------------------


def import_reach(place: str, field: str, folders: Sequence[ScenarioFolder]) -> ExternalAccess | None:
    """Return the reach of importing `place` (`package.module:Name`), or None if there is no such module."""
    module = place.partition(":")[0]
    files = list(_module_files(module))
    if not files:
        return None
    needs_consent = not all(is_installed(file) or any(home.holds_code(file) for home in folders) for file in files)
    return ExternalAccess("imports", f"{place} from {files[-1]}", field, needs_consent)


def _imports(entry: Entry, home: ScenarioFolder) -> Iterator[ExternalAccess]:
    if not isinstance(entry.value, str):
        return
    place = entry.value if _IMPORT_PATH.fullmatch(entry.value) else _outside_kinds().get(entry.value, "")
    if place and place.partition(".")[0].partition(":")[0] not in sys.stdlib_module_names:
        reach = import_reach(place, entry.field, [home])
        if reach:
            yield reach


def _module_files(module: str) -> Iterator[Path]:
    """Yield the file of each package that importing `module` would run, and its own, as far as they are there."""
    search: Any = None
    for name in accumulate(module.split("."), "{}.{}".format):
        spec = next(filter(None, (finder.find_spec(name, search) for finder in sys.meta_path)), None)
        if spec is None:
            return
        search = spec.submodule_search_locations
        yield from [Path(spec.origin)] if spec.has_location and spec.origin else map(Path, search or ())


@cache
def _installed_folders() -> tuple[Path, ...]:
    """Return the folders of installed packages, of projects that are installed in place, and those of PYTHONPATH."""
    folders = {sysconfig.get_path(name) for name in ("purelib", "platlib")} | {*site.getsitepackages()}
    folders |= {site.getusersitepackages()} if site.ENABLE_USER_SITE else set()
    editable = [
        url2pathname(urlsplit(record["url"]).path)
        for distribution in distributions(path=sorted(folders))
        if (record := json.loads(distribution.read_text("direct_url.json") or "{}")).get("dir_info", {}).get("editable")
    ]
    chosen = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    places = {Path(place) for place in (*folders, *editable, *chosen)} | {Path(__file__).parents[2]}
    return tuple({*places, *(place.resolve() for place in places)})


def is_installed(file: Path) -> bool:
    """Return True if a module's file belongs to an installed package."""
    return any(file.is_relative_to(folder) for folder in _installed_folders())


@cache
def _outside_kinds() -> Mapping[str, str]:
    """Return kind -> import path, for entry points of packages that are not installed, such as those of a folder that
    merely is the working folder."""
    points = [point for group in GROUPS for point in entry_points(group=f"marl.{group}")]
    tops = {point.module.partition(".")[0] for point in points}
    outside = {top for top in tops if not all(map(is_installed, _module_files(top)))}
    return {point.name: point.value for point in points if point.module.partition(".")[0] in outside}


# --- files and models ------------------------------------------------------------------------------------------------


def _reads(entry: Entry, home: ScenarioFolder, seen: frozenset[Path]) -> Iterator[ExternalAccess]:
    text = entry.value
    if not isinstance(text, str):
        return
    is_model = entry.key in MODEL_FIELDS and "base_url" not in entry.parent
    files = list(_files(entry.key, text))
    if not files and (is_model or entry.key == "path") and is_possible_hub_name(text):
        yield ExternalAccess("downloads", f"{text} from the Hugging Face hub", entry.field, needs_consent=False)
    for path in files:
        if is_model or entry.key in FILE_FIELDS:
            if entry.key == "run" and path.resolve() not in seen:
                yield from _run_reaches(path, entry.field, seen)
            yield ExternalAccess(
                "reads", str(path.resolve()), entry.field, not (home.holds(path) or _holds_data_only(path))
            )
        elif os.sep in text and not path.is_dir() and not home.holds(path):
            # No field of ours, but perhaps one of a part that is not.
            yield ExternalAccess("reads", str(path.resolve()), entry.field, needs_consent=True)


def _files(key: str, text: str) -> Iterator[Path]:
    """Yield the file or folder that a text names, if there is one. What no field of ours names may begin anywhere."""
    places = current_resolver()
    with suppress(OSError, ValueError, RuntimeError):  # too long a name, a null character, no such user
        names = {places.resolve(key, text)} if places else set()
        if not (places and key in FILE_FIELDS | MODEL_FIELDS):
            names.add(str(Path(text).expanduser()))
        yield from (Path(path) for path in sorted(names) if "\n" not in path and exists(path))


def _run_reaches(run: Path, field: str, seen: frozenset[Path]) -> Iterator[ExternalAccess]:
    # A run's own paths are absolute. Errors are reported when it is read.
    with suppress(FileNotFoundError, ScenarioError), use_resolver(None):
        agreed = stored_consent(run / "scenario.yaml")
        for reach in external_accesses(read_yaml_file(run / "scenario.yaml"), run, seen):
            open_question = reach.needs_consent and (reach.action, reach.target) not in agreed
            yield ExternalAccess(reach.action, reach.target, f"{field} -> {reach.field}", open_question)


def _holds_data_only(path: Path) -> bool:
    """Return True for the folder of a model or run that holds weights as safetensors or GGUF, and JSON: nothing to
    execute."""
    marks = ("config.json", "adapter_config.json", "scenario.yaml", "*.gguf")
    if not path.is_dir() or not any(next(path.glob(mark), None) for mark in marks):
        return False
    return not any(file.suffix in _CODE_SUFFIXES for file in path.rglob("*"))


# --- hosts, and code that comes with data ----------------------------------------------------------------------------


def _sends(entry: Entry) -> Iterator[ExternalAccess]:
    key, parent = entry.key, entry.parent
    if key == "base_url" and isinstance(entry.value, str):
        variable, host = parent.get("key_env", _DEFAULT_KEY), _host(entry.value)
        if variable is None:
            yield ExternalAccess("sends", f"prompts to {host}", entry.field, needs_consent=False)
        else:
            content = f"prompts and the environment variable {variable} to {host}"
            yield ExternalAccess("sends", content, entry.field, not _is_loopback(host))
    elif key.endswith("_env") and "base_url" not in parent and entry.value:
        yield ExternalAccess("sends", f"the environment variable {entry.value}", entry.field, needs_consent=True)
    elif key == "track" and isinstance(entry.value, str):
        yield ExternalAccess("sends", f"metrics to {entry.value}", entry.field, needs_consent=False)


def _host(url: str) -> str:
    with suppress(ValueError):
        return urlsplit(url).hostname or url
    return url


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def _runs(entry: Entry) -> Iterator[ExternalAccess]:
    if entry.key == "trust_remote_code" and entry.value not in (False, None):
        name = entry.parent.get("path", "the model")
        yield ExternalAccess("runs", f"code that comes with {name}", entry.field, needs_consent=True)
    if entry.key in ("sandbox", "how") and entry.value == "none":
        yield ExternalAccess("runs", "what models write, without a sandbox", entry.field, needs_consent=True)


# --- runs of the user's own ------------------------------------------------------------------------------------------


def store_consent(resolved: str, run: Path) -> None:
    """Keep in mind that the user trains this resolved scenario in the folder `run`, so that looking at it asks nothing.

    This is kept in the user's cache and not in the run, which somebody else could have made, and is tied to the very
    bytes of the scenario. Where it cannot be kept, consent is asked for again.
    """
    reached = [
        (each.action, each.target)
        for each in external_accesses(read_yaml(resolved, "scenario"), run)
        if each.needs_consent
    ]
    file = _memory(resolved.encode())
    if reached:
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, json.dumps(reached).encode())


def stored_consent(resolved: Path) -> set[tuple[str, str]]:
    """Return (action, target) of all that the user trained the run with this file of a resolved scenario to reach."""
    with suppress(OSError, ValueError):
        with resolved.open("rb") as file:
            pairs = json.loads(_memory(file.read(MAX_BYTES + 1)).read_text())
        return {(action, target) for action, target in pairs}
    return set()


def _memory(resolved: bytes) -> Path:
    return cache_folder() / "agreed" / f"{sha256(resolved).hexdigest()}.json"
