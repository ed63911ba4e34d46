"""Consent: nothing outside a scenario's folder and marl's plug-ins is imported, read or sent without it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

import marl
from marl.commands import cli, consent
from marl.core.plugins import GROUPS, find_plugin, known_kinds
from marl.host.paths import FILE_FIELDS
from marl.scenario.schema import Scenario
from marl.scenario.trust import MODEL_FIELDS, ExternalAccess, ScenarioFolder, external_accesses, is_plugin_code
from tests.support.paths import ROOT

NIM: Mapping[str, Any] = {
    "game": "nim",
    "seats": {"player_0": "player", "player_1": "player"},
    "roles": {"player": {"kind": "player", "policy": "actor", "sampling": {"max_tokens": 6}}},
    "policies": {"actor": {"model": {"kind": "tiny"}, "learner": {"kind": "grpo", "lr": 0.001}}},
    "schedule": {"steps": 10, "groups": 4, "group_size": 4},
}
GAME = "from pathlib import Path\nPath({trace!r}).touch()\nfrom games.nim import NimConfig as Mine\n"


class Terminal(io.StringIO):
    """A terminal at which somebody types."""

    def isatty(self) -> bool:
        return True


class Home:
    """A folder with a scenario, beside a folder that is not its own; commands are typed in the latter."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.own, self.other, self.trace = top / "own", top / "other", top / "imported"
        self.own.mkdir()
        self.other.mkdir()
        self._patch = monkeypatch
        monkeypatch.chdir(self.other)

    def module(self, folder: Path, name: str) -> str:
        """Write a module that leaves a trace when it is imported; return the import path of its game."""
        (folder / f"{name}.py").write_text(GAME.format(trace=str(self.trace)))
        return f"{name}:Mine"

    def write(self, **changes: Any) -> Path:
        file = self.own / "scenario.yaml"
        file.write_text(yaml.safe_dump({**NIM, **changes}, sort_keys=False))
        return file

    def run(self, *words: object, typed: str | None = None) -> int:
        """Return the exit status of a command; `typed` at a terminal, where there is one."""
        self._patch.setattr(sys, "argv", ["marl", *map(str, words)])
        self._patch.setattr(sys, "path", [*sys.path])
        self._patch.setattr(sys, "stdin", io.StringIO() if typed is None else Terminal(typed))
        if typed is not None:
            self._patch.setattr(sys, "stderr", Terminal())
        with pytest.raises(SystemExit) as left:
            cli.main()
        return int(left.value.code or 0)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(tmp_path, monkeypatch)


def test_a_module_elsewhere_is_not_imported_without_consent(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    place = home.module(home.other, "elsewhere_1")
    file = home.write(game=place)
    assert home.run("check", file) == 2
    said = capsys.readouterr().err
    assert not home.trace.exists()
    assert f"imports {place} from {home.other}/elsewhere_1.py (game)" in said
    assert "--trust" in said
    assert home.run("check", file, "--trust") == 0
    assert home.trace.exists()
    assert f"imports {place} from" in capsys.readouterr().out


def test_the_packages_above_a_module_need_consent_too(home: Home) -> None:
    (home.other / "package_2").mkdir()
    (home.other / "package_2" / "__init__.py").write_text(GAME.format(trace=str(home.trace)))
    assert home.run("check", home.write(game="package_2.nothing.at_all:Mine")) == 2
    assert not home.trace.exists()


def test_a_package_without_an_init_file_needs_consent_too(home: Home) -> None:
    (home.other / "package_3").mkdir()
    home.module(home.other / "package_3", "inner")
    assert home.run("check", home.write(game="package_3.inner:Mine")) == 2
    assert not home.trace.exists()


def test_code_beside_a_scenario_needs_consent_once(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(home.other / "cache"))
    monkeypatch.chdir(home.own)
    file = home.write(game=home.module(home.own, "own_4"))
    assert home.run("check", file) == 2
    said = capsys.readouterr().err
    assert f"imports own_4:Mine from {home.own}/own_4.py (game)" in said
    assert "asked once for code in the scenario's folder" in said
    assert not home.trace.exists()
    assert home.run("check", file, "--trust") == 0
    assert home.trace.exists()
    assert home.run("check", home.write(game="own_4:Mine", schedule={**NIM["schedule"], "steps": 2})) == 0, "asked once"
    # Consent holds for this code in this folder: neither for other code, nor for a copy elsewhere.
    assert home.run("check", home.write(game=home.module(home.own, "own_5"))) == 2
    monkeypatch.chdir(home.other)
    (home.other / "scenario.yaml").write_text(home.write(game=home.module(home.other, "own_4")).read_text())
    assert home.run("check", home.other / "scenario.yaml") == 2


def test_code_in_a_folder_of_pythonpath_needs_none(home: Home) -> None:
    home.module(home.own, "own_6")
    file = home.write(game="own_6:Mine")
    settings = {**os.environ, "PYTHONPATH": f"{home.own}{os.pathsep}{ROOT}", "MARL_CACHE": str(home.other)}
    assert subprocess.run([sys.executable, "-m", "marl", "check", file], env=settings).returncode == 0


def test_a_hidden_folder_is_not_the_scenarios(home: Home) -> None:
    (home.own / ".ssh").mkdir()
    (home.own / ".ssh" / "key").write_text("secret")
    assert not ScenarioFolder(home.own).contains_unhidden_path(home.own / ".ssh" / "key")
    assert home.run("check", home.write(game={"kind": "taboo", "file": str(home.own / ".ssh" / "key")})) == 2


def test_a_link_leads_out_of_the_scenarios_folder(home: Home) -> None:
    (home.other / "words.txt").write_text("word\n")
    (home.own / "words.txt").symlink_to(home.other / "words.txt")
    assert home.run("check", home.write(game={"kind": "taboo", "file": str(home.own / "words.txt")})) == 2


def test_kinds_of_a_package_that_lies_in_the_working_folder_need_consent(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.module(home.other, "innocent_5")
    (home.other / "innocent-1.0.dist-info").mkdir()
    (home.other / "innocent-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: innocent\nVersion: 1\n"
    )
    points = "[marl.games]\nnimble = innocent_5:Mine\n"
    (home.other / "innocent-1.0.dist-info" / "entry_points.txt").write_text(points)
    monkeypatch.setattr(sys, "path", [*sys.path, str(home.other)])
    from marl.core import plugins
    from marl.scenario import trust

    for cached in (plugins._installed_import_paths_by_kind, trust._import_path_by_uninstalled_kind):
        cached.cache_clear()
    try:
        assert home.run("check", home.write(game="nimble")) == 2
        assert not home.trace.exists()
    finally:
        for cached in (plugins._installed_import_paths_by_kind, trust._import_path_by_uninstalled_kind):
            cached.cache_clear()


def test_a_module_in_folders_that_are_no_packages_is_not_imported_without_consent(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = home.other / "runs" / "stranger" / "code"
    folder.mkdir(parents=True)
    path = f"runs.stranger.code.{home.module(folder, 'evil')}"
    file = home.write(game={"kind": path})
    assert home.run("check", file) == 2
    assert f"imports {path} from {folder / 'evil.py'} (game.kind)" in capsys.readouterr().err
    assert not home.trace.exists()
    assert home.run("check", file, "--trust") == 0
    assert home.trace.exists()


def test_what_no_rule_has_seen_is_stopped_where_it_would_be_imported(home: Home) -> None:
    place = home.module(home.other, "elsewhere_6")
    sys.path.append(str(home.other))
    with consent.require_consent_to_external_accesses(), pytest.raises(ValueError, match="reaches outside"):
        find_plugin("games", place)
    assert not home.trace.exists()
    sys.path.remove(str(home.other))


def test_what_is_typed_needs_no_further_consent(home: Home) -> None:
    place = home.module(home.other, "elsewhere_7")
    assert home.run("check", home.write(), f"game={place}") == 0
    assert home.trace.exists()


@pytest.mark.parametrize(("typed", "status"), [("y\n", 0), ("n\n", 2), ("\n", 2)])
def test_at_a_terminal_the_user_is_asked_once(home: Home, typed: str, status: int) -> None:
    place = home.module(home.other, f"elsewhere_8_{status}_{len(typed)}")
    (home.other / "prompt.jinja2").write_text("{{ observation }}")
    roles = {"player": {**NIM["roles"]["player"], "prompt": {"file": str(home.other / "prompt.jinja2")}}}
    assert home.run("check", home.write(game=place, roles=roles), typed=typed) == status
    assert home.trace.exists() == (status == 0)


def test_a_file_elsewhere_is_not_read_without_consent(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    (home.other / "words.txt").write_text("zyzzyva\n")
    file = home.write(game={"kind": "taboo", "file": "../other/words.txt"})
    assert home.run("check", file) == 2
    said = capsys.readouterr().err
    assert f"reads {home.other / 'words.txt'} (game.file)" in said
    assert "zyzzyva" not in said


def run_folder(home: Home, **changes: Any) -> Path:
    """Return a folder like that of a run, as somebody may have sent it."""
    run = home.other / "run"
    (run / "checkpoints" / "000001" / "policies" / "actor").mkdir(parents=True)
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1}) + "\n")
    (run / "scenario.yaml").write_text(yaml.safe_dump({**NIM, **changes}))
    return run


@pytest.mark.parametrize(
    "words",
    [("eval", "RUN"), ("why", "RUN", "a:1"), ("play", "RUN", "--random"), ("credit", "RUN"), ("eval", "RUN", "--best")],
)
def test_the_scenario_of_a_run_folder_needs_consent_too(
    home: Home, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_folder(home, game=home.module(home.other, "elsewhere_9"))
    assert home.run(*(str(run) if word == "RUN" else word for word in words)) == 2
    assert "imports elsewhere_9:Mine" in capsys.readouterr().err
    assert not home.trace.exists()


def test_code_in_a_run_folder_is_not_taken_for_its_own(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_folder(home, game="elsewhere_10:Mine")
    home.module(run, "elsewhere_10")
    monkeypatch.chdir(run)
    assert home.run("eval", run) == 2
    assert not home.trace.exists()


def test_a_run_that_a_scenario_builds_on_is_looked_into(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(home, game=home.module(home.other, "elsewhere_11"))
    policies = {"actor": {**NIM["policies"]["actor"], "model": {"kind": "trained", "run": str(run), "policy": "actor"}}}
    assert home.run("check", home.write(policies=policies)) == 2
    assert "(policies.actor.model.run -> game)" in capsys.readouterr().err
    assert not home.trace.exists()


def test_runs_that_build_on_each_other_in_a_circle_come_to_an_end(home: Home) -> None:
    run = run_folder(home, policies={"actor": {"model": {"kind": "trained", "run": "run", "policy": "actor"}}})
    assert external_accesses({"model": {"run": str(run)}}, home.own)


def test_an_access_that_two_scenarios_have_is_listed_once() -> None:
    own = ExternalAccess("imports", "mine:Mine from mine.py", "game.kind", needs_consent=True, is_code_in_folder=True)
    of_a_run = ExternalAccess("imports", "mine:Mine from mine.py", "game.kind", needs_consent=True)
    assert consent._format_access_lines([own, of_a_run]) == "  imports mine:Mine from mine.py (game.kind)"


def test_a_link_out_of_a_models_folder_needs_consent_although_the_folder_is_the_scenarios_own(home: Home) -> None:
    secret, model = home.other / "secret", home.own / "model"
    secret.write_text("{{ messages }}")
    (model / "more").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"")
    (model / "more" / "same.json").symlink_to(model / "config.json")
    data = {"policies": {"actor": {"model": str(model)}}}
    assert [access.needs_consent for access in external_accesses(data, home.own)] == [False]
    (model / "chat_template.jinja").symlink_to(secret)
    accesses = external_accesses(data, home.own)
    assert [(access.target, access.needs_consent) for access in accesses] == [(str(model), False), (str(secret), True)]


def test_a_models_folder_needs_consent_only_if_it_may_hold_code(home: Home) -> None:
    model = home.other / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"")
    data = {"policies": {"actor": {"model": str(model)}}}
    assert [reach.needs_consent for reach in external_accesses(data, home.own)] == [False]
    for name in ("pytorch_model.bin", "modeling.py"):
        (model / name).write_bytes(b"")
        assert [reach.needs_consent for reach in external_accesses(data, home.own)] == [True]
        (model / name).unlink()
    (model / "model.safetensors").unlink()
    assert [reach.needs_consent for reach in external_accesses(data, home.own)] == [True]
    (model / "model.gguf").write_bytes(b"GGUF")
    assert [reach.needs_consent for reach in external_accesses(data, home.own)] == [False]


ENGINE = {"kind": "openai", "model": "m"}


@pytest.mark.parametrize(
    ("url", "key", "needs_consent"),
    [
        ("http://127.0.0.1:8000/v1", {}, False),
        ("http://localhost/v1", {"key_env": "PATH"}, False),
        ("http://[::1]/v1", {}, False),
        ("https://api.example/v1", {"key_env": None}, True),
        ("https://api.example/v1", {}, True),
        ("https://localhost.example/v1", {}, True),
        ("https://127.0.0.1.example/v1", {}, True),
        ("https://2130706433.example", {"key_env": "PATH"}, True),
        ("https://[half", {}, True),
    ],
)
def test_variables_go_to_other_machines_only_with_consent(
    home: Home, url: str, key: Mapping[str, Any], needs_consent: bool
) -> None:
    (reach,) = external_accesses({"engine": {**ENGINE, "base_url": url, **key}}, home.own)
    assert reach.needs_consent == needs_consent
    assert ("environment variable" in str(reach)) == (key != {"key_env": None})


def test_check_lists_what_needs_no_consent_too(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home.own / "wandb.py").touch()  # as if it were installed
    monkeypatch.syspath_prepend(home.own)
    (home.own / "prompt.jinja2").write_text("{{ observation }}")
    roles = {"player": {**NIM["roles"]["player"], "prompt": {"file": str(home.own / "prompt.jinja2")}}}
    policies = {"actor": {**NIM["policies"]["actor"], "model": "someone/model"}}
    assert home.run("check", "--quick", home.write(roles=roles, policies=policies, track=["wandb"])) == 0
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "It reaches beyond its own text:",
        f"  reads {home.own / 'prompt.jinja2'} (roles.player.prompt.file)",
        "  downloads someone/model from the Hugging Face hub (policies.actor.model)",
        "  sends metrics to wandb (track.0)",
    ]


def test_nothing_that_needs_consent_is_left_out_of_the_list(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    places = [home.module(home.other, f"elsewhere_13_{number}") for number in range(100)]
    policies = {f"p{number}": {"engine": place} for number, place in enumerate(places)}
    assert home.run("check", home.write(policies=policies)) == 2
    said = capsys.readouterr().err
    assert all(place in said for place in places)


def test_a_long_rule_on_the_command_line_is_no_file(home: Home) -> None:
    with consent.require_consent_to_external_accesses() as agreed:
        agreed.require_consent_to_settings(NIM, "--with " + "x" * 5000, ())


def test_from_python_nobody_is_asked(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    place = home.module(home.other, "elsewhere_12")
    monkeypatch.setattr(sys, "path", [*sys.path, str(home.other)])
    assert marl.load(home.write(game=place)).game.kind == place


def fields_of_files() -> set[str]:
    """Return the names of fields of installed parts that name files, by their type or by their name."""
    found: set[str] = set()
    for group in GROUPS:
        for kind in known_kinds(group):
            found |= {
                name
                for name, field in find_plugin(group, kind).model_fields.items()
                if "Path" in str(field.annotation) or name.endswith(("path", "file", "folder", "run"))
            }
    return found


def test_every_field_of_ours_that_names_a_file_is_known() -> None:
    in_the_models_folder = {"gguf_file"}  # a name without slashes; `path` names the folder
    assert fields_of_files() - in_the_models_folder <= FILE_FIELDS
    assert "model" in MODEL_FIELDS
    assert issubclass(Scenario, BaseModel)


def test_only_marl_and_packages_with_plug_ins_may_be_imported_without_consent(tmp_path: Path) -> None:
    assert is_plugin_code(Path(marl.__file__))
    assert is_plugin_code(Path(marl.__file__).parent / "games" / "nim.py")
    assert not is_plugin_code(Path(yaml.__file__))
    assert not is_plugin_code(tmp_path / "x.py")
    assert not is_plugin_code(Path("/etc/passwd"))


@pytest.mark.parametrize(
    ("data", "module"),
    [
        ({"game": "numpy.testing:X"}, "numpy.testing:X"),
        (
            {"game": {"kind": "verifiers", "env": "verifiers.types:load_environment"}},
            "verifiers.types:load_environment",
        ),
        ({"rewards": ["yaml.reader:Reader"]}, "yaml.reader:Reader"),
    ],
)
def test_other_installed_packages_are_imported_with_consent_only(home: Home, data: Any, module: str) -> None:
    (access,) = external_accesses(data, home.own)
    assert access.needs_consent
    assert str(access).startswith(f"imports {module} from")


def test_a_module_main_is_never_imported(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert home.run("check", home.write(game="numpy.f2py.__main__:X"), "--trust") == 2
    assert "importing a module __main__ runs a program" in capsys.readouterr().err
    with pytest.raises(ValueError, match="importing a module __main__ runs a program"):
        find_plugin("games", "numpy.f2py.__main__:X")


def test_a_folder_of_data_that_looks_like_a_models_needs_consent(home: Home) -> None:
    business = home.other / "business"
    business.mkdir()
    for name in ("config.json", "scenario.yaml", "model.gguf", "model.safetensors", "secrets.csv"):
        (business / name).write_text("{}")
    task = {"game": {"kind": "team", "task": {"kind": "dataset", "path": str(business)}}}
    (access,) = external_accesses(task, home.own)
    assert access.needs_consent
    assert str(access) == f"reads {business} (game.task.path)"


def test_a_cluster_elsewhere_gets_code_and_prompts_only_with_consent(home: Home) -> None:
    for address, expected in (("10.0.0.1:6379", [True]), ("127.0.0.1:6379", [True]), ("auto", [False]), (None, [])):
        accesses = external_accesses({"cluster": {"kind": "ray", "address": address}}, home.own)
        assert [access.needs_consent for access in accesses] == expected


def test_files_that_games_open_and_hosts_that_games_call_need_consent(home: Home) -> None:
    (home.other / "game.efg").write_text("EFG 2 R")
    game = {"kind": "openspiel", "name": f"efg_game(filename={home.other}/game.efg)"}
    (access,) = external_accesses({"game": game}, home.own)
    assert (access.action, access.needs_consent) == ("reads", True)
    assert not external_accesses({"prompt": f"Say (={home.other}/game.efg) aloud."}, home.own)
    # A relative path without a slash starts at the working directory, which is not the scenario's folder.
    games = [
        {"kind": "openspiel", "name": "efg_game(filename=game.efg)"},
        {"kind": "openspiel", "name": "efg_game", "parameters": {"filename": "game.efg"}},
        {"kind": "textarena", "id": "Taboo-v0", "settings": {"data_path": "game.efg"}},
    ]
    for game in games:
        (access,) = external_accesses({"game": game}, home.own)
        assert (access.action, access.target) == ("reads", f"{home.other}/game.efg")
        assert access.needs_consent
    (access,) = external_accesses({"game": {"kind": "textarena", "id": "Hangman-v0"}}, home.own)
    assert (access.action, access.needs_consent) == ("downloads", True)
    assert not external_accesses({"game": {"kind": "textarena", "id": "TicTacToe-v0"}}, home.own)
