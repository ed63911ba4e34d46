"""List of a scenario's accesses outside its own text, made without importing, reading or sending anything.

A scenario is data, but it names code to import, files to read, environment variables, and hosts that receive them. No
consent is needed for files of data in the scenario's folder, nor for code of installed packages with plug-ins of marl;
everything else needs the user's consent. Consent to code in the scenario's folder is remembered. The rules look at the
data alone, because classes that know more would have to be imported.
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
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib.metadata import distributions, entry_points
from ipaddress import ip_address
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

from marl.core.plugins import GROUPS
from marl.host.data_files import write_atomically
from marl.host.paths import (
    FILE_FIELDS,
    cache_folder,
    current_resolver,
    is_possible_hub_name,
    path_exists,
    use_path_resolver,
)
from marl.scenario.yaml_text import MAX_BYTES, ScenarioError, read_yaml, read_yaml_file

MODEL_FIELDS = frozenset({"model", "base"})
"""Fields whose bare text names a model's folder, or a model on the hub."""
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_REWARD_OR_MEASURE = re.compile(r"(games\.[^.]+\.)?game\.(rewards\.[^.]+|measures)\.[^.]+")
"""Field of a reward component or a measure, whose name may be any word."""
_CODE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".h5", ".py", ".so"})
"""Suffixes of files that are code, or whose loading can run code (pickle)."""
_ARGUMENT = re.compile(r"[=(,]\s*([^\s=(),][^=(),]*)")
"""Argument of a call that is written in a text, such as `efg_game(filename=/path)`."""
_TEXTARENA_DOWNLOADS = re.compile(
    r"DontSayIt|WordLadder|LetterAuction|Codenames|Wordle|Hangman|WordSearch|Crosswords|WordChains|SpellingBee"
)
"""Games of TextArena that call a host for their words when they begin."""
_TEXTARENA_MODELS = re.compile(r"Debate|ScenarioPlanning|TwentyQuestions|GuessWho")
"""Games of TextArena in which models of the host openrouter.ai judge or answer."""
_MAX_MANIFEST_BYTES = 2**24
"""Maximum size of a checkpoint's manifest.json in bytes."""


@dataclass(frozen=True, slots=True)
class ExternalAccess:
    """Access of a scenario to code, a file, a host or an environment variable."""

    action: str
    """Verb of the access: imports, reads, downloads, sends, runs."""
    target: str
    """Description of the accessed code, file, host or variable."""
    field: str
    """Dotted path of the scenario's field that names the accessed code, file, host or variable."""
    needs_consent: bool
    """True if the user must agree to the access."""
    is_code_in_folder: bool = False
    """True if the access imports code that lies in the scenario's folder, which is not the folder of a run."""
    module_file: Path | None = None
    """File of the imported module, or None if the access imports nothing."""

    def __str__(self) -> str:
        return f"{self.action} {self.target} ({self.field})"


class ScenarioValue(NamedTuple):
    """Value in a scenario's plain data, with its position."""

    field: str
    """Dotted path of the value, such as `policies.actor.model`."""
    key: str
    """Last name in the dotted path. Items of a list have the key of the list."""
    value: Any
    parent: Mapping[str, Any]
    """Mapping that contains the key."""


ConsentCheck = Callable[[Mapping[str, Any], str, Sequence[str]], None]
"""Function of a scenario's plain data, its file name, and the dotted paths of fields that the user typed."""
consent_check: ContextVar[ConsentCheck | None] = ContextVar("gate", default=None)
"""Function that is called before any plug-in of a scenario is imported, or None. It raises `ScenarioError` if an access
of the scenario needs consent and has none. Commands set it; Python code may import anything."""


class ScenarioFolder:
    """Folder of a scenario file, or of a run with its resolved scenario."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.is_run = (path / "metrics.jsonl").exists() or (path / "checkpoints").exists()

    def contains_unhidden_path(self, path: Path) -> bool:
        """Return True if `path` lies in the folder, and no component of its path below the folder is hidden."""
        resolved = path.resolve()
        if not resolved.is_relative_to(self.path):
            return False
        return not any(name.startswith(".") for name in resolved.relative_to(self.path).parts)


def external_accesses(data: Any, folder: Path, listed_runs: frozenset[Path] = frozenset()) -> list[ExternalAccess]:
    """Return all accesses of a scenario in `folder`, including those of the runs that the scenario uses.

    `data` is the scenario's plain data. `listed_runs` has the folders of runs whose accesses are listed already.
    """
    home = ScenarioFolder(folder)
    listed_runs |= {home.path}
    accesses: list[ExternalAccess] = []
    for entry in _iterate_nested_scenario_values(data, "", ""):
        # Text of a scenario names code by an import path, or by the kind of a plug-in that is not installed.
        path = entry.value if isinstance(entry.value, str) else ""
        if not _IMPORT_PATH.fullmatch(path):
            path = _import_path_by_uninstalled_kind().get(path, "")
        if path and path.partition(".")[0].partition(":")[0] not in sys.stdlib_module_names:
            access = import_access(path, entry.field, [home])
            accesses += [access] if access else []
        accesses += _file_accesses(entry, home, listed_runs)
        accesses += _host_accesses(entry)
        if entry.key == "trust_remote_code" and entry.value not in (False, None):
            name = entry.parent.get("path", "the model")
            accesses.append(ExternalAccess("runs", f"code that comes with {name}", entry.field, needs_consent=True))
        accesses += _program_accesses(entry)
        if entry.key in ("sandbox", "how") and entry.value == "none":
            target = "what models write, without a sandbox"
            accesses.append(ExternalAccess("runs", target, entry.field, needs_consent=True))
    return list(dict.fromkeys(accesses))


def _program_accesses(entry: ScenarioValue) -> Iterator[ExternalAccess]:
    """Yield the access of `entry` if it is a program's `call`, or a `run` or `command` that is a list."""
    # The plug-in's kind may be any import path, so fields decide. A `run` that is a text names a folder.
    is_command = isinstance(entry.value, list) and entry.field.endswith((".run", ".command"))
    is_call = entry.key == "call" and isinstance(entry.value, str)
    if is_command or (is_call and not _REWARD_OR_MEASURE.fullmatch(entry.field)):
        command = " ".join(map(str, entry.value)) if is_command else entry.value
        interpreter = f" under {entry.parent['python']}" if entry.parent.get("python") else ""
        target = f"the program {command!r}{interpreter}, which may do anything"
        yield ExternalAccess("runs", target, entry.field, needs_consent=True)


def _iterate_nested_scenario_values(
    data: Any, field: str, key: str, parent: Mapping[str, Any] | None = None
) -> Iterator[ScenarioValue]:
    """Yield an entry for `data`, unless it is the whole scenario, and for each value inside it, at any depth."""
    if field:
        yield ScenarioValue(field, key, data, parent or {})
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield from _iterate_nested_scenario_values(
                value, f"{field}.{name}" if field else str(name), str(name), data
            )
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            yield from _iterate_nested_scenario_values(value, f"{field}.{index}", key, parent)


def import_access(import_path: str, field: str, scenario_folders: Sequence[ScenarioFolder]) -> ExternalAccess | None:
    """Return the access of importing `import_path` (`package.module:Name`), or None if there is no such module.

    `field` names the import path, and `scenario_folders` are those of the scenarios that have been loaded.
    """
    files = list(_module_files(import_path.partition(":")[0]))
    if not files:
        return None
    foreign = [file for file in files if not is_plugin_code(file)]
    # Run folders are left out, because marl never writes code into them.
    homes = [home for home in scenario_folders if not home.is_run]
    in_folder = bool(foreign) and all(any(home.contains_unhidden_path(file) for home in homes) for file in foreign)
    return ExternalAccess("imports", f"{import_path} from {files[-1]}", field, bool(foreign), in_folder, files[-1])


def _module_files(module: str) -> Iterator[Path]:
    """Yield the file of each package that importing `module` would run, and the module's own file, if they exist."""
    search_locations: Any = None
    for name in accumulate(module.split("."), "{}.{}".format):
        try:
            spec = next(filter(None, (finder.find_spec(name, search_locations) for finder in sys.meta_path)), None)
        except KeyError:
            # `find_spec` raises KeyError inside a package without `__init__.py` that has not been imported.
            folders = [Path(location, name.rpartition(".")[2]) for location in search_locations]
            search_locations = [str(folder) for folder in folders if folder.is_dir()]
            yield from map(Path, search_locations)
            continue
        if spec is None:
            return
        search_locations = spec.submodule_search_locations
        if spec.has_location and spec.origin:
            yield Path(spec.origin)
        else:
            yield from map(Path, search_locations or ())


@cache
def _plugin_code_folders() -> tuple[Path, ...]:
    """Return the files and folders of packages whose code may be imported without consent.

    These are marl's own package and the packages of installed distributions with an entry point of marl. Any other
    installed package may do harm when a module of it is imported.
    """
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        installed.add(site.getusersitepackages())
    folders = {Path(__file__).parents[1]}
    for distribution in distributions(path=sorted(installed)):
        points = [point for point in distribution.entry_points if point.group.startswith("marl.")]
        if not points:
            continue
        record = json.loads(distribution.read_text("direct_url.json") or "{}")
        is_editable = record.get("dir_info", {}).get("editable", False)
        roots = {url2pathname(urlsplit(record["url"]).path)} if is_editable else installed
        names = {point.module.partition(".")[0] for point in points}
        names |= set((distribution.read_text("top_level.txt") or "").split())
        for file in chain.from_iterable(map(_module_files, names)):
            # A package in the working folder may have the same name, so the file must be under `roots`.
            if any(map(file.resolve().is_relative_to, map(Path.resolve, map(Path, roots)))):
                folders.add(file.parent if file.name == "__init__.py" else file)
    return tuple(folders | set(map(Path.resolve, folders)))


@cache
def folders_of_pythonpath_variable() -> tuple[Path, ...]:
    """Return the folders of the environment variable PYTHONPATH, as written and as resolved."""
    folders = {Path(name) for name in os.environ.get("PYTHONPATH", "").split(os.pathsep) if name}
    return tuple(folders | set(map(Path.resolve, folders)))


def is_plugin_code(module_file: Path) -> bool:
    """Return True if `module_file`, the file of a module, belongs to marl or to an installed package with plug-ins of
    marl.

    Files in the folders of PYTHONPATH, which the user has set, count as well, except in a virtual environment there.
    """
    if any(map(module_file.is_relative_to, _plugin_code_folders())):
        return True
    return "site-packages" not in module_file.parts and any(
        map(module_file.is_relative_to, folders_of_pythonpath_variable())
    )


@cache
def _import_path_by_uninstalled_kind() -> Mapping[str, str]:
    """Return kind -> import path, for entry points of packages that are not installed.

    A package in the working directory may have such entry points.
    """
    kinds: dict[str, str] = {}
    installed: dict[str, bool] = {}
    for group in GROUPS:
        for point in entry_points(group=f"marl.{group}"):
            package = point.module.partition(".")[0]
            if package not in installed:
                installed[package] = all(map(is_plugin_code, _module_files(package)))
            if not installed[package]:
                kinds[point.name] = point.value
    return kinds


def _file_accesses(
    entry: ScenarioValue, scenario_folder: ScenarioFolder, listed_runs: frozenset[Path]
) -> Iterator[ExternalAccess]:
    """Yield the accesses of `entry` if its text names a file, a folder, a run, or a model on the hub."""
    text, resolver = entry.value, current_resolver.get()
    if not isinstance(text, str):
        return
    files: list[Path] = []
    # A text that is no path may be too long, contain a null character, or name an unknown user's home.
    with suppress(OSError, ValueError, RuntimeError):
        names = {resolver.absolute_setting_path(entry.key, text)} if resolver else set()
        # An unknown plug-in may also resolve relative paths against the working directory.
        if not (resolver and entry.key in FILE_FIELDS | MODEL_FIELDS):
            names.add(str(Path(text).expanduser()))
        files += [Path(name) for name in sorted(names) if "\n" not in name and path_exists(name)]
    is_model = entry.key in MODEL_FIELDS and "base_url" not in entry.parent
    if not files and (is_model or entry.key == "path") and is_possible_hub_name(text):
        yield ExternalAccess("downloads", f"{text} from the Hugging Face hub", entry.field, needs_consent=False)
    above = entry.field.split(".")[-2:-1]
    # `is_argument`: the setting is passed to the constructor of a wrapped environment.
    is_argument = ".settings." in entry.field or ".parameters." in entry.field
    is_weights = is_model or (entry.key == "path" and not MODEL_FIELDS.isdisjoint(above))
    for path in files:
        if is_model or entry.key in FILE_FIELDS:
            if entry.key == "run" and path.resolve() not in listed_runs:
                yield from _accesses_of_run(path, entry.field, listed_runs)
            # Folders of weights or runs may be read without consent if a field for weights or runs names them.
            # Folders that other fields name need consent, because a folder of documents may also hold a config.json.
            is_harmless = (entry.key == "run" and _is_run_folder(path)) or (is_weights and _contains_only_weights(path))
            needs_consent = not scenario_folder.contains_unhidden_path(path) and not is_harmless
            yield ExternalAccess("reads", str(path.resolve()), entry.field, needs_consent)
            for target in _link_targets_outside(path, scenario_folder):
                yield ExternalAccess("reads", str(target), entry.field, needs_consent=True)
        # None of marl's settings names a file in this field, but a plug-in or wrapped environment may open it.
        elif (is_argument or (os.sep in text and not path.is_dir())) and not scenario_folder.contains_unhidden_path(
            path
        ):
            yield ExternalAccess("reads", str(path.resolve()), entry.field, needs_consent=True)
    leads_out = text.startswith(("/", "~")) or ".." in text.split(os.sep)
    if is_argument and leads_out and not files:
        # The path does not exist, but a wrapped game library may add a suffix, or resolve it against another folder.
        yield ExternalAccess("reads", text, entry.field, needs_consent=True)
    # OpenSpiel's games take files as parameters, as in efg_game(filename=/path).
    for argument in map(str.strip, _ARGUMENT.findall(text)) if entry.key == "name" else ():
        # OpenSpiel does not expand `~`, and resolves relative paths against the working directory.
        if os.path.isfile(argument) and not scenario_folder.contains_unhidden_path(Path(argument)):
            yield ExternalAccess("reads", str(Path(argument).resolve()), entry.field, needs_consent=True)


def _link_targets_outside(folder: Path, scenario_folder: ScenarioFolder) -> Iterator[Path]:
    """Yield the targets of the symbolic links in `folder` that lead out of the scenario's folder.

    Nothing is yielded for a `folder` that itself lies elsewhere: the author of the scenario made no links in it.
    """
    if not scenario_folder.contains_unhidden_path(folder):
        return
    for directory, folders, files in os.walk(folder):
        for path in (Path(directory, name) for name in (*folders, *files)):
            if path.is_symlink() and not scenario_folder.contains_unhidden_path(path):
                yield path.resolve()


def _accesses_of_run(run_folder: Path, field: str, listed_runs: frozenset[Path]) -> Iterator[ExternalAccess]:
    """Yield the accesses of the resolved scenario in the folder `run_folder`. `field`: path of the setting with the
    folder."""
    # A run's scenario has absolute paths, so no resolver is needed. Errors appear when the run itself is read.
    with suppress(FileNotFoundError, ScenarioError), use_path_resolver(None):
        consented = stored_consent(run_folder / "scenario.yaml")
        for access in external_accesses(read_yaml_file(run_folder / "scenario.yaml"), run_folder, listed_runs):
            needs_consent = access.needs_consent and (access.action, access.target) not in consented
            yield replace(access, field=f"{field} -> {access.field}", needs_consent=needs_consent)


def _contains_only_weights(path: Path) -> bool:
    """Return True if `path` is the folder of a model in safetensors or GGUF files, or of a run, without code."""
    if not path.is_dir() or any(file.suffix in _CODE_SUFFIXES for file in path.rglob("*")):
        return False
    has_config = any((path / name).is_file() for name in ("config.json", "adapter_config.json"))
    has_tensors = any(path.glob("*.safetensors"))
    return (has_config and has_tensors) or any(path.glob("*.gguf")) or _is_run_folder(path)


def _is_run_folder(path: Path) -> bool:
    """Return True if `path` is the folder of a run with a readable manifest of a checkpoint, and without code."""
    if not (path / "scenario.yaml").is_file() or any(file.suffix in _CODE_SUFFIXES for file in path.rglob("*")):
        return False
    for manifest in path.glob("checkpoints/*/manifest.json"):
        # Only regular files are opened: opening a named pipe would wait for a writer.
        if not manifest.is_file() or manifest.stat().st_size > _MAX_MANIFEST_BYTES:
            continue
        with suppress(OSError, ValueError, RecursionError):
            written = json.loads(manifest.read_text())
            if isinstance(written, dict) and isinstance(written.get("sha256"), dict) and "format" in written:
                return True
    return False


def _host_accesses(entry: ScenarioValue) -> Iterator[ExternalAccess]:
    """Yield the access of `entry` if it names an endpoint, an environment variable or a tracker."""
    key, parent = entry.key, entry.parent
    if key == "base_url" and isinstance(entry.value, str):
        host, is_loopback = entry.value, False
        # `urlsplit` raises ValueError for a text that is no URL, and `ip_address` for the name of a host.
        with suppress(ValueError):
            host = urlsplit(entry.value).hostname or entry.value
            is_loopback = host == "localhost"
            is_loopback = is_loopback or ip_address(host).is_loopback
        variable = parent.get("key_env", None if parent.get("kind") == "vllm_server" else "OPENAI_API_KEY")
        # Data leaves the machine with prompts, which may contain rows of a data set or other files.
        content = "prompts" if variable is None else f"prompts and the environment variable {variable}"
        yield ExternalAccess("sends", f"{content} to {host}", entry.field, not is_loopback)
    elif key == "address" and entry.field.endswith("cluster.address") and isinstance(entry.value, str):
        # `auto` means a Ray cluster on this machine, which the user has started, so it needs no consent.
        target = f"code, prompts and weights to the Ray cluster {entry.value}, whose answers run code here"
        yield ExternalAccess("sends", target, entry.field, needs_consent=entry.value != "auto")
    elif key == "id" and parent.get("kind") == "textarena" and isinstance(entry.value, str):
        if _TEXTARENA_DOWNLOADS.match(entry.value):
            yield ExternalAccess("downloads", f"words for TextArena's {entry.value}", entry.field, needs_consent=True)
        elif _TEXTARENA_MODELS.match(entry.value):
            target = "what players say and the environment variable OPENROUTER_API_KEY to openrouter.ai"
            yield ExternalAccess("sends", target, entry.field, needs_consent=True)
    elif key.endswith("_env") and "base_url" not in parent and entry.value:
        yield ExternalAccess("sends", f"the environment variable {entry.value}", entry.field, needs_consent=True)
    elif key in ("track", "url") and isinstance(entry.value, str):
        content = "metrics" if key == "track" else "calls of tools"
        yield ExternalAccess("sends", f"{content} to {entry.value}", entry.field, needs_consent=key == "url")


def store_consent(scenario_text: str, run_folder: Path) -> None:
    """Store the user's consent to all accesses of the scenario text `scenario_text`, which is trained in the folder
    `run_folder`.

    Later commands on the run then ask for nothing. The consent is stored in the user's cache and not in the run, which
    another person could have made, and holds for these bytes of the scenario alone.
    """
    accesses = external_accesses(read_yaml(scenario_text, "scenario"), run_folder)
    _store_consent_under_key(scenario_text.encode(), [access for access in accesses if access.needs_consent])


def store_consent_to_code_in_folder(scenario_folder: Path, accesses: Sequence[ExternalAccess]) -> None:
    """Store the user's consent to those of `accesses` that import code in `scenario_folder`."""
    _store_consent_under_key(_folder_key(scenario_folder), [access for access in accesses if access.is_code_in_folder])


def stored_consent(scenario_file: Path) -> set[tuple[str, str]]:
    """Return (action, target) of each access that the user agreed to for the scenario in the file `scenario_file`."""
    consented = _accesses_consented_under_key(_folder_key(scenario_file.parent))
    with suppress(OSError), scenario_file.open("rb") as file:
        consented |= _accesses_consented_under_key(file.read(MAX_BYTES + 1))
    return consented


def _store_consent_under_key(key: bytes, accesses: Sequence[ExternalAccess]) -> None:
    """Add `accesses` to the user's consent under `key`."""
    targets = {(access.action, access.target) for access in accesses}
    stored, file = _accesses_consented_under_key(key), _consent_file(key)
    if targets <= stored:
        return
    # Without a writable cache, the user is asked again the next time.
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(sorted(targets | stored)).encode())


def _accesses_consented_under_key(key: bytes) -> set[tuple[str, str]]:
    """Return (action, target) of each access that the user agreed to under `key`."""
    with suppress(OSError, ValueError):
        return {(action, target) for action, target in json.loads(_consent_file(key).read_text())}
    return set()


def _folder_key(folder: Path) -> bytes:
    return b"code in the folder " + os.fsencode(folder.resolve())


def _consent_file(key: bytes) -> Path:
    return cache_folder() / "agreed" / f"{sha256(key).hexdigest()}.json"
