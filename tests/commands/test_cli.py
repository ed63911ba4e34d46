"""The command line: what it prints, what it refuses, and what it leaves unloaded."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from jsonschema import Draft202012Validator

import marl
from marl.commands import cli
from marl.commands.command_group import COMMANDS
from marl.core.graph import read_trajectories
from marl.core.plugins import GROUPS, known_kinds
from tests.support.paths import ROOT

KUHN = ROOT / "scenarios" / "kuhn_self_play.yaml"
SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))
SCHEMA_LINE = "# yaml-language-server: $schema=.schema.json"


def python(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, cwd=ROOT, check=False)


# --- check -----------------------------------------------------------------------------------------------------


def test_check_says_what_a_scenario_trains(run: Any) -> None:
    assert run("check", "--quick", KUHN) == (0, f"{KUHN}: fine; game kuhn_poker, trains actor\n", "")


def test_check_notes_what_is_no_error_but_rarely_meant(run: Any) -> None:
    to_go = "credit.assign={kind: outcome, to_go: true}"
    status, said, _ = run("check", KUHN, to_go, "credit.baseline=group")
    assert status == 0
    assert "note: credit: 'outcome' gives an agent's turns different worths and 'group' compares whole episodes" in said
    for other in ("{kind: group, like: prompt}", "rloo"):
        assert "note" not in run("check", KUHN, to_go, f"credit.baseline={other}")[1]


def test_a_kind_that_was_renamed_is_refused_with_its_new_name(run: Any) -> None:
    status, _, errors = run("check", "--quick", KUHN, "credit.baseline=leave_one_out")
    assert status == 2
    assert "kind 'leave_one_out' of baselines is now called 'rloo'" in errors


def test_a_quick_check_loads_no_heavy_library() -> None:
    code = f"""
import sys
from marl.commands.cli import main
sys.argv = ["marl", "check", "--quick", {str(KUHN)!r}]
try:
    main()
except SystemExit as left:
    assert not left.code
print([name for name in ("torch", "transformers", "vllm", "ray", "tokenizers", "networkx") if name in sys.modules])
"""
    done = python("-c", code)
    assert done.stdout.split("\n")[1] == "[]", done.stderr


def test_the_version_is_that_of_the_installed_package(run: Any) -> None:
    assert run("--version") == (0, f"marl {version('marl-llm')}\n", "")


def test_the_module_is_the_command() -> None:
    done = python("-m", "marl", "check", KUHN)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_broken_scenario_is_a_message_and_status_2_and_no_traceback() -> None:
    done = python("-m", "marl", "check", KUHN, "schedule.steps=-1", "game.kind=tic_tac_to")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.split("\n") == [
        f"marl: {KUHN}: 2 problems",
        "  game.kind: unknown kind 'tic_tac_to'; did you mean 'tic_tac_toe'? "
        f"nearest of {len(known_kinds('games'))} choices: tic_tac_toe, taboo, negotiation, two_step, coalition, "
        "textarena, or an import path 'package.module:Name'",
        "  schedule.steps: must be greater than 0 (got -1)",
        "",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check"], "Missing argument"),
        (["chekc", KUHN], "No such command"),
        (["check", "--fast", KUHN], "No such option"),
        (["check", "no_such.yaml"], "no_such.yaml: no such file"),
        (["check", KUHN, "schedule.steps"], "write it as dotted.path=value"),
        (["train", KUHN, "schedule.steps=0"], "schedule.steps: must be greater than 0 (got 0)"),
        (["play", KUHN, "--random", "--as", "player_2"], "no such seat; did you mean 'player_0' or 'player_1'"),
        (["play", KUHN, "--random", "--episodes", "0"], "Invalid value for"),
        (["eval", "no_such_run"], "no_such_run: no run and no scenario; give a run's folder or a scenario (YAML)"),
        (["play", KUHN.with_name("khn_self_play.yaml")], "did you mean 'kuhn_self_play.yaml'"),
        (["eval", ROOT], f"{ROOT}: no run here (no scenario.yaml)"),
        (["eval", KUHN, "--best"], f"--best names a checkpoint, and {KUHN} is no run"),
        (["eval", KUHN, "--step", "3"], f"--step 3 names a checkpoint, and {KUHN} is no run"),
        (["eval", KUHN, "--out", "figures.csv"], "--out figures.csv: no such format '.csv'; choices: .json"),
        (["play", KUHN, "--random", "--seed", "-1"], "Invalid value for '--seed'"),
        (["show", "no_such_run"], "no_such_run: no run here (no scenario.yaml)"),
        (["rerun", "no_such_batch"], "no_such_batch: no kept batch here"),
        (["plot", "no_such_run"], "no_such_run"),
        (
            ["list", "nonsense"],
            "no group of parts 'nonsense'; did you mean 'losses'? choices: baselines, credit, encoders, engines",
        ),
        (["list", "game"], "no group of parts 'game'; did you mean 'games'"),
        (["tiny", "--out", "never", "--hidden", "33"], "hidden: 33 is no multiple of heads: 2; give head_dim"),
        (["tiny", "--out", "never", "--architecture", "lama"], "architecture: unknown; did you mean 'llama'?"),
        (["tiny", "--out", ROOT], f"--out {ROOT}: exists already"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_said_with_status_2(run: Any, words: list[object], message: str) -> None:
    status, _, complaint = run(*words)
    assert status == 2
    assert message in complaint
    assert "Traceback" not in complaint


@pytest.mark.parametrize(
    ("words", "spelling"),
    [
        (["RUN", "--suite", "suite.yaml"], "write `marl eval suite SUITE.yaml TARGET`"),
        (["RUN", "--transfer=other.yaml"], "write `marl eval transfer RUN SCENARIO.yaml`"),
        (["--cross-play", "RUN", "random"], "write `marl eval cross-play PLAYER PLAYER`"),
        (["--exploitability", "RUN"], "write `marl eval exploitability PLAYER`"),
        (
            ["cross-play", "RUN", "--rating", "glicko"],
            "leave it out: ratings of `marl eval cross-play` are Elo",
        ),
    ],
)
def test_former_options_of_eval_are_refused_with_the_new_spelling(run: Any, words: list[str], spelling: str) -> None:
    status, said, complaint = run("eval", *words)
    assert (status, said) == (2, "")
    assert complaint.startswith("marl: marl eval --")
    assert complaint.endswith(f": no such option any more; {spelling}\n")


def test_each_subcommand_of_eval_has_its_own_help(run: Any) -> None:
    for name, option in (
        ("run", "--search"),
        ("suite", "--against"),
        ("transfer", "--best"),
        ("cross-play", "--budget"),
    ):
        status, said, _ = run("eval", name, "--help")
        assert (status, option in said) == (0, True)
    assert "--search" not in run("eval", "suite", "--help")[1]
    assert "--budget" not in run("eval", "exploitability", "--help")[1]


def test_the_list_of_commands_has_the_first_paragraph_of_each_commands_help() -> None:
    group: Any = typer.main.get_command(cli.app)
    for name, (_, line) in COMMANDS.items():
        command = group.get_command(None, name)
        first_paragraph = " ".join((command.help or "").split("\n\n")[0].split())
        assert (command.name, line) == (name, first_paragraph)


def test_the_list_of_commands_imports_none_of_them() -> None:
    code = """
import sys
from marl.commands.cli import main
sys.argv = ["marl", "--help"]
try:
    main()
except SystemExit as left:
    assert not left.code
print([name for name in sys.modules if name.startswith("marl.commands.") or name in ("torch", "numpy")])
"""
    done = python("-c", code)
    loaded = {f"marl.commands.{name}" for name in ("cli", "command_group", "consent")}
    # The credit check is found by its entry point, whose help is in its module.
    loaded |= {"marl.commands.credit_check", "marl.commands.credit_check.command"}
    assert "best-response" in done.stdout, done.stderr
    assert set(ast.literal_eval(done.stdout.splitlines()[-1])) == loaded


def test_overrides_reach_any_depth(run: Any) -> None:
    status, said, _ = run(
        "check", "--quick", KUHN, "game={kind: nim}", "evaluate={}", "policies.actor.learner.magnet=null"
    )
    assert (status, said) == (0, f"{KUHN}: fine; game nim, trains actor\n")
    scenario = marl.load(
        KUHN, ["game.illegal.retry=2", "evaluate.against.random=7", "roles.player.sampling.stop=['!']"]
    )
    assert scenario.game.model_dump()["illegal"]["retry"] == 2
    assert scenario.evaluate.against == {"random": 7}
    assert scenario.roles["player"].sampling.stop == ("!",)


# --- list, schema ----------------------------------------------------------------------------------------------


def test_list_names_every_part_with_one_line(run: Any) -> None:
    _, said, _ = run("list")
    lines = [line.split(maxsplit=2) for line in said.splitlines()]
    assert [(group, kind) for group, kind, _ in lines] == [
        (group, kind) for group in GROUPS for kind in known_kinds(group)
    ]
    assert all(text for _, _, text in lines)


def test_list_of_one_group_names_only_its_parts(run: Any) -> None:
    _, said, _ = run("list", "tools")
    tools = ("calculator", "expand", "mcp", "python", "search")
    assert [line.split()[:2] for line in said.splitlines()] == [["tools", name] for name in tools]


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json.loads(python("-m", "marl", "schema").stdout)


def nodes(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nodes(item)


def test_every_reference_in_the_schema_resolves(schema: dict[str, Any]) -> None:
    wanted = {node["$ref"] for node in nodes(schema) if isinstance(node.get("$ref"), str)}
    assert wanted
    assert {name.removeprefix("#/$defs/") for name in wanted} <= set(schema["$defs"])


@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.name)
def test_the_schema_accepts_the_scenarios(schema: dict[str, Any], file: Path) -> None:
    assert not list(Draft202012Validator(schema).iter_errors(yaml.safe_load(file.read_text())))


@pytest.mark.parametrize(
    "override",
    ["gamee=1", "game.kind=kuhn", "game.illega=1", "schedule.steps=many", "policies.actor.learner.lrr=1", "seats=[1]"],
)
def test_the_schema_refuses_what_check_refuses(schema: dict[str, Any], override: str) -> None:
    data = yaml.safe_load(KUHN.read_text())
    field, value = override.split("=")
    *above, last = field.split(".")
    here = data
    for key in above:
        here = here[key]
    here[last] = yaml.safe_load(value)
    assert not Draft202012Validator(schema).is_valid(data)


def test_the_schema_beside_the_scenarios_is_current(schema: dict[str, Any]) -> None:
    kept = json.loads((ROOT / "scenarios" / ".schema.json").read_text())
    assert kept == schema, "run `make schema` (marl schema > scenarios/.schema.json)"


@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.name)
def test_every_scenario_passes_check_and_tells_editors_its_schema(run: Any, file: Path) -> None:
    assert file.read_text().split("\n")[0] == SCHEMA_LINE
    status, said, complaint = run("check", file)
    assert (status, complaint) == (0, "")
    assert re.match(r": (fine|valid, but read \d+ warnings?); games? ", said.removeprefix(str(file)))


# --- play, tiny ------------------------------------------------------------------------------------------------


def test_play_random_shows_an_episode_and_loads_no_torch() -> None:
    code = f"""
import sys
from marl.commands.cli import main
sys.argv = ["marl", "play", {str(KUHN)!r}, "--random"]
try:
    main()
except SystemExit as left:
    assert not left.code
assert "torch" not in sys.modules
"""
    done = python("-c", code)
    assert done.stderr == ""
    assert "player_0  role player, policy actor, version 0\n    asked      card " in done.stdout
    assert re.search(r"  reward       [+-]\d outcome to player_0: ", done.stdout)


def test_play_random_writes_many_episodes_and_sums_them_up(run: Any, tmp_path: Path) -> None:
    out = tmp_path / "random.jsonl.zst"
    status, said, _ = run("play", KUHN, "--random", "--episodes", 50, "--out", out)
    assert status == 0
    assert "50 episodes, " in said
    assert len(list(read_trajectories(out))) == 50


@pytest.mark.parametrize(
    "absent", ["policies.actor.model=/no/such/model", "experience={kind: recorded, path: /no/such.jsonl.zst}"]
)
def test_random_players_need_no_weights_and_no_data_to_learn_from(run: Any, absent: str) -> None:
    status, shown, complaint = run("play", KUHN, absent, "--random")
    assert (status, complaint) == (0, "")
    assert "outcome to player_0: " in shown
    assert run("play", KUHN, absent)[0] == 2, "policies that speak need them"


def test_a_seed_decides_deals_and_answers_of_random_players(run: Any) -> None:
    said = {seed: run("play", KUHN, "--random", "--episodes", 3, "--seed", seed)[1] for seed in (3, 4)}
    assert said[3] == run("play", KUHN, "--random", "--episodes", 3, "--seed", 3)[1]
    assert said[3] != said[4]


def test_a_person_plays_a_seat_by_typing_moves(run: Any, tmp_path: Path) -> None:
    out = tmp_path / "mine.jsonl.zst"
    words = ("play", KUHN, "--random", "--as", "player_0", "--episodes", 2, "--out", out)
    status, said, _ = run(*words, typed="nonsense\nBET\n[bet]\n")
    assert status == 0
    assert said.count("your move (check, bet): ") == 3
    assert "'nonsense' is no legal move" in said
    first = [trajectory.turns[0] for trajectory in read_trajectories(out)]
    assert [(turn.agent, turn.role, turn.action) for turn in first] == [("player_0", "person", "bet")] * 2


def test_a_person_who_leaves_ends_the_game_with_a_message(run: Any) -> None:
    status, _, complaint = run("play", KUHN, "--random", "--as", "player_0", typed="")
    assert status == 1
    assert complaint == "marl: the input ended before the game did, so nobody speaks for this seat\n"


def test_tiny_makes_a_folder_that_a_scenario_can_name(run: Any, tmp_path: Path) -> None:
    out = tmp_path / "model"
    status, said, _ = run("tiny", "--out", out, "--hidden", 16, "--layers", 1)
    assert status == 0
    assert said.startswith(f"{out}: ")
    assert said.endswith(" parameters\n")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in out.iterdir()}
    assert run("check", KUHN, f"policies.actor.model={out}")[0] == 0


def test_a_model_folder_without_a_tokenizer_is_refused_by_check(run: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    status, _, complaint = run("check", KUHN, f"policies.actor.model={tmp_path}")
    assert status == 2
    assert f"policies.actor.model.path: '{tmp_path}': has no tokenizer: none of tokenizer.json" in complaint
