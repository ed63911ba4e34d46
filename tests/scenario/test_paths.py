"""Paths: those in a file are relative to it, typed ones to the working directory, and a run keeps them absolute."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import marl
from marl.games.tasks.dataset import FileTask
from marl.host.paths import PathResolver, use_path_resolver
from marl.models.pretrained import Pretrained
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario
from marl.scenario.trust import external_accesses
from tests.support.run_processes import kuhn_scenario, tiny_model


class Project:
    """A folder with a scenario in `scenarios/`, of which commands are typed in the folder above."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.scenarios = folder, folder / "scenarios"
        self.scenarios.mkdir()

    def write(self, name: str = "mine.yaml", **changes: Any) -> Path:
        file = self.scenarios / name
        file.write_text(yaml.safe_dump(kuhn_scenario() | changes))
        return file


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Path) -> Project:
    monkeypatch.setenv("MARL_CACHE", str(made))
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


def questions(path: str = "sums.csv") -> dict[str, Any]:
    """A scenario about the questions of a file."""
    return {
        "game": {"kind": "team", "task": {"kind": "file", "path": path}, "stages": [{"role": "solver"}],
                 "rewards": {"solver": {"correct": "own.readable"}}},
        "seats": {},
        "roles": {"solver": {"kind": "solver", "policy": "actor"}},
        "policies": {"actor": {"model": "someone/model", "learner": "grpo"}},
        "evaluate": {},
    }  # fmt: skip


def task(scenario: Scenario) -> FileTask:
    game: Any = scenario.game
    assert isinstance(game.task, FileTask)
    return game.task


def message(project: Project, *overrides: str, **changes: Any) -> str:
    with pytest.raises(ScenarioError) as caught:
        marl.load(project.write(**changes), overrides)
    return str(caught.value)


def test_data_lie_beside_their_scenario_wherever_it_is_started(project: Project) -> None:
    (project.scenarios / "sums.csv").write_text("question,answer\n1 + 1,2\n1 + 2,3\n")
    assert task(marl.load(project.write(**questions()))).path == project.scenarios / "sums.csv"


def test_a_path_above_the_scenario_is_written_without_dots(project: Project) -> None:
    (project.folder / "sums.csv").write_text("question,answer\n1 + 1,2\n1 + 2,3\n")
    assert task(marl.load(project.write(**questions("../sums.csv")))).path == project.folder / "sums.csv"


def test_what_is_typed_is_relative_to_the_working_directory(project: Project) -> None:
    for folder in (project.folder, project.scenarios):
        (folder / "sums.csv").write_text("question,answer\n1 + 1,2\n1 + 2,3\n")
    file = project.write(**questions())
    assert task(marl.load(file, ["game.task.path=sums.csv"])).path == project.folder / "sums.csv"
    assert task(marl.load(file, ["game.task={kind: file, path: sums.csv}"])).path == project.folder / "sums.csv"
    (project.folder / "sums.csv").write_text("question,answer\n2 + 2,4\n")
    both = task(marl.load(file, ["game.task.held_out_path=sums.csv"]))
    assert (both.path, both.held_out_path) == (project.scenarios / "sums.csv", project.folder / "sums.csv")


def test_a_path_may_begin_at_the_cache_of_made_models(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = project.folder / "cache"
    monkeypatch.setenv("MARL_CACHE", str(cache))
    (cache / "here").mkdir(parents=True)
    (cache / "here" / "sums.csv").write_text("question,answer\n1 + 1,2\n1 + 2,3\n")
    assert task(marl.load(project.write(**questions("$MARL_CACHE/here/sums.csv")))).path == cache / "here" / "sums.csv"
    policies = {"actor": {"model": {"kind": "pretrained", "path": "$MARL_CACHE/no/model"}, "learner": "grpo"}}
    assert f"'{cache}/no/model': there is no such folder" in message(project, policies=policies)
    assert "no such file: " + str(project.scenarios / "$MARL_CACHES") in message(
        project, **questions("$MARL_CACHES/sums.csv")
    )


def test_data_in_python_begin_at_the_working_directory(project: Project) -> None:
    (project.folder / "sums.csv").write_text("question,answer\n1 + 1,2\n1 + 2,3\n")
    assert task(marl.load(kuhn_scenario() | questions())).path == project.folder / "sums.csv"


def test_a_model_folder_beside_the_scenario_is_no_name_on_the_hub(project: Project) -> None:
    def path(model: Any) -> str:
        loaded = (
            marl.load(project.write(policies={"actor": {"model": model, "learner": "grpo"}})).policies["actor"].model
        )
        assert isinstance(loaded, Pretrained)
        return loaded.path

    assert path("someone/model") == "someone/model"
    folder = project.scenarios / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    assert path("models/mine") == path({"kind": "pretrained", "path": "./models/mine"}) == str(folder)
    assert path("someone/model") == "someone/model"


def test_a_model_folder_of_the_working_directory_is_not_taken_in_silence(project: Project) -> None:
    (project.folder / "models" / "mine").mkdir(parents=True)
    said = message(project, policies={"actor": {"model": "models/mine", "learner": "grpo"}})
    assert f"policies.actor.model.path: {project.scenarios}/models/mine: no such file or folder" in said
    assert f"there is {project.folder}/models/mine: write ../models/mine" in said


def test_a_missing_file_is_named_in_full_with_where_its_path_begins(project: Project) -> None:
    file = f"{project.scenarios}/sums.csv"
    said = message(project, **questions())
    assert f"no such file: {file}" in said
    assert f"(path: sums.csv is relative to {project.scenarios}, the scenario's folder)" in said
    (project.folder / "sums.csv").touch()
    assert f"there is {project.folder}/sums.csv: write ../sums.csv" in message(project, **questions())
    said = message(project, "game.task.path=nothing.csv", **questions())
    assert f"(path: nothing.csv is relative to {project.folder}, the working directory)" in said


def test_a_template_lies_beside_its_scenario_too(project: Project) -> None:
    (project.scenarios / "prompt.jinja2").write_text("{{ observation }}")
    roles = {"player": kuhn_scenario()["roles"]["player"] | {"prompt": {"file": "prompt.jinja2"}}}
    assert marl.load(project.write(roles=roles)).roles["player"].model_dump()["prompt"] == "{{ observation }}"


def test_names_that_look_like_fields_are_no_paths(project: Project) -> None:
    """Seats, rewards, measures and facts may be called what they like."""
    changes = questions()
    (project.scenarios / "sums.csv").write_text("question,answer,run\n1 + 1,2,x\n1 + 2,3,y\n")
    changes["game"] |= {"measures": {"path": "solver.readable", "run": "solver.readable"}}
    changes["game"]["task"]["columns"] = {"facts": {"path": "run", "file": "answer"}}
    loaded = marl.load(project.write(**changes))
    assert list(loaded.game.build().possible_agents)
    assert task(loaded).columns.facts == {"path": "run", "file": "answer"}
    assert loaded.game.model_dump()["measures"]["run"] == "solver.readable"


def test_trust_looks_where_the_scenario_reads(project: Project) -> None:
    for folder in (project.folder, project.scenarios):
        (folder / "secret.txt").touch()
    with use_path_resolver(PathResolver(project.scenarios)):
        found = external_accesses({"game": {"kind": "taboo", "file": "secret.txt"}}, project.scenarios)
        assert [(reach.target, reach.needs_consent) for reach in found] == [(f"{project.scenarios}/secret.txt", False)]
        found = external_accesses({"game": {"kind": "taboo", "file": "../secret.txt"}}, project.scenarios)
        assert [(reach.target, reach.needs_consent) for reach in found] == [(f"{project.folder}/secret.txt", True)]


# --- runs that are moved, resumed from elsewhere, built upon ---------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, made: Path) -> Path:
    """A project in which one step was trained, with a word list beside the scenario."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "prompt.jinja2").write_text("{{ observation }}")
    (folder / "words.txt").write_text("apple\npear\n")
    taboo = {
        "game": {"kind": "taboo", "file": "words.txt", "max_turns": 1},
        "seats": {"attacker": "player", "defender": "player"},
        "policies": {"actor": {"model": tiny_model(warm_up=None), "learner": {"kind": "grpo", "lr": 1e-3}}},
        "schedule": {"steps": 1, "groups": 1, "group_size": 2, "threads": 1},
        "evaluate": {},
    }
    (folder / "taboo.yaml").write_text(yaml.safe_dump(kuhn_scenario() | taboo))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_CACHE", str(made))
        patch.chdir(folder)
        marl.train(marl.load("taboo.yaml"), "runs/first")
    return folder


def test_a_run_is_resumed_from_another_folder(trained: Path, project: Project) -> None:
    scenario = marl.load(trained / "taboo.yaml", ["schedule.steps=2"])
    assert marl.train(scenario, trained / "runs" / "first", resume="auto", force=True)
    assert RunFolder(trained / "runs" / "first").setting_differences(scenario) == []


def test_a_run_that_was_moved_still_finds_its_data(trained: Path, project: Project) -> None:
    shutil.copytree(trained / "runs" / "first", project.folder / "moved")
    scenario = RunFolder(project.folder / "moved").scenario()
    assert scenario.game.model_dump()["file"] == trained / "words.txt"
    assert marl.load(trained / "taboo.yaml").game == scenario.game


def test_the_bare_name_of_a_run_is_in_runs_and_a_path_begins_at_the_file(
    trained: Path, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(text: str) -> Path:
        policies = {"actor": {"model": {"kind": "trained", "run": text, "policy": "actor"}, "learner": "grpo"}}
        model: Any = marl.load(project.write(policies=policies)).policies["actor"].model
        return Path(model.run)

    monkeypatch.chdir(trained)
    assert run("first") == trained / "runs" / "first"
    shutil.copytree(trained / "runs" / "first", project.scenarios / "old")
    assert run("./old") == project.scenarios / "old"
    with pytest.raises(ScenarioError, match=rf"there is {project.scenarios}/old: write ./old\)"):
        run("old")
    with pytest.raises(ScenarioError, match=rf"no run in '{project.scenarios}/runs/first'"):
        run("runs/first")


def test_what_a_run_was_trained_to_reach_asks_no_second_time(
    trained: Path, project: Project, monkeypatch: pytest.MonkeyPatch, made: Path
) -> None:
    from marl.commands.consent import require_consent_to_external_accesses

    run = RunFolder(trained / "runs" / "first")
    with require_consent_to_external_accesses():
        assert run.scenario().game.kind == "taboo"
    # Another's cache, one more byte, or other files: consent is needed.
    monkeypatch.setenv("MARL_CACHE", str(project.folder))
    with require_consent_to_external_accesses(), pytest.raises(ScenarioError, match=r"words.txt \(game.file\)"):
        run.scenario()
    monkeypatch.setenv("MARL_CACHE", str(made))
    copied = shutil.copytree(run.path, project.folder / "copy")
    with require_consent_to_external_accesses():
        assert RunFolder(copied).scenario().game.kind == "taboo"
    with (copied / "scenario.yaml").open("a") as file:
        file.write("\n")
    with require_consent_to_external_accesses(), pytest.raises(ScenarioError, match=r"words.txt \(game.file\)"):
        RunFolder(copied).scenario()


def test_nobody_else_can_say_what_the_user_agreed_to(trained: Path, made: Path) -> None:
    kept = [json.loads(file.read_text()) for file in (made / "agreed").iterdir()]
    assert [["reads", str(trained / "words.txt")]] in kept
    assert not list(trained.rglob("agreed*"))


def test_a_file_with_a_space_in_its_name_is_seen_among_the_parameters_of_a_game(tmp_path: Path) -> None:
    secret = tmp_path / "my file.efg"
    secret.touch()
    (tmp_path / "scenario").mkdir()
    for name in (f"efg_game(filename={secret})", f"repeated_game(stage_game=nfg_game(filename= {secret} ))"):
        accesses = external_accesses({"game": {"kind": "openspiel", "name": name}}, tmp_path / "scenario")
        assert [(access.action, access.target, access.needs_consent) for access in accesses] == [
            ("reads", str(secret), True)
        ]
