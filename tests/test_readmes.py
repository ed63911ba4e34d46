"""Everything that READMEs and pages of the site show is run or checked: scenarios, commands, Python, links, paths,
kinds and metrics.

Code is in fenced blocks, and every language has its check:

- `yaml`: a scenario, put through `marl check`, with its graders if they are reward functions. A comment before it,
  `<!-- fragment of scenarios/x.yaml -->`, says which scenario the block changes; mappings are merged, and a part (a
  mapping with `kind`) replaces the one that was there.
- `bash`: commands, run one after the other in a folder of their own with models and schedules made tiny. `make` targets
  must exist, and files that `pip` reads; measurements must accept their arguments. The blocks of a page of the site
  follow one another in one folder. A tiny model stands in for the pretrained one of `scenarios/real`.
- `python`: run; if the first line is a comment with a file's name, it is a module, which other blocks can import.
- `text`: drawings and output, in which no command may hide.

An indented block counts as `bash`. A block in another language fails.
"""

from __future__ import annotations

import argparse
import glob
import importlib
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import marl
from marl.commands import cli
from marl.commands.eval.suite import read_suite
from marl.core.plugins import GROUPS, find_plugin, known_kinds
from marl.scenario.schema import PolicyConfig, Scenario
from tests.support.command_line import marl_output
from tests.support.paths import ROOT
from tests.support.readme_blocks import BLOCKS, DOCUMENTS, TYPED, Block, write_modules

HOME_OF = {
    **dict.fromkeys(("games", "tasks", "verifiers", "tools"), "games/README.md"),
    **dict.fromkeys(("models", "encoders", "engines"), "marl/README.md"),
    **dict.fromkeys(("credit", "baselines"), "credit/README.md"),
    **dict.fromkeys(("trainers", "losses"), "trainers/README.md"),
    **{"roles": "roles/README.md", "experience": "scenarios/README.md"},
}
"""Group of parts -> the document that lists its kinds."""
FILES = {
    "problems.jsonl": "\n".join(
        json.dumps({"problem": f"{n} + 1", "solution": f"so #### {n + 1}"}) for n in range(20000)
    ),
    "critic.jinja2": "Say yes or no.",
}
"""Files that blocks expect where they run."""
RUN_FILES = re.compile(
    r"(runs|RUN|trajectories|credit|checkpoints)/.*|(generation_)?config\.json|(metrics|scenario|environment|curves|status)\.\w+"
)
"""Paths inside a run's folder, which no checkout has."""
SLOW = (
    *("runs/solver", "scenarios/team_arithmetic.yaml --graders", "runs/poker", "runs/only"),
    *("verifiers_environment\n", "import verifiers", "train scenarios/real/", "cluster.simulators=2 cluster.cpus"),
    *("new team --out team.yaml", "solver_critic.yaml --graders", ".verifiers/bin/python"),
)
"""Words in blocks that take long even when they are made small."""
REAL_MODEL = "train scenarios/real/"  # words in blocks that train the pretrained model
RESULTS = sorted((ROOT / "tests" / "bench" / "results").glob("*.json"))


def in_language(language: str) -> list[Any]:
    """The blocks in a language as parameters of a test. Long ones are marked; commands and code take turns."""
    return [
        pytest.param(block, id=f"{block.document}:{block.line}", marks=block_marks(block))
        for block in (runnable() if language == "bash" else BLOCKS)
        if block.language == language
    ]


def block_marks(block: Block) -> list[pytest.MarkDecorator]:
    """`slow` for blocks that take long; other code and commands take turns, but for those of the README."""
    if any(word in block.text for word in SLOW):
        return [pytest.mark.slow]
    return [pytest.mark.one_in(3)] if block.language in ("bash", "python") and block.document != "README.md" else []


def runnable() -> Iterator[Block]:
    """Yield what is run in a folder of its own: a block of a README, all blocks of commands of a page."""
    commands = [block for block in BLOCKS if block.language == "bash" and block.document not in TYPED]
    for document, blocks in groupby(commands, key=lambda block: block.document):
        if document.startswith(".site"):
            first, *more = blocks
            yield first._replace(text="".join(block.text for block in (first, *more)))
        else:
            yield from blocks


def prose(document: str) -> str:
    """The text of a document without its blocks."""
    return re.sub(r"^\s*```.*?^\s*```$", "", (ROOT / document).read_text(), flags=re.MULTILINE | re.DOTALL)


# --- where blocks run ------------------------------------------------------------------------------------------------

Run = Callable[..., str]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Path) -> Path:
    """A folder to work in that has the scenarios, and nothing else of the checkout: no command writes there."""
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("MARL_CACHE", str(made))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`command("check", FILE)`: what `marl` prints, after it ended well."""
    return partial(marl_output, monkeypatch, capsys)


# --- yaml ------------------------------------------------------------------------------------------------------------


def merged(base: Any, change: Any) -> Any:
    """The base with a fragment's settings."""
    if not isinstance(base, dict) or not isinstance(change, dict) or "kind" in (base | change):
        return change
    return base | {key: merged(base.get(key), value) for key, value in change.items()}


@pytest.mark.parametrize("block", in_language("yaml"))
def test_scenarios_and_their_fragments_pass_check(block: Block, desk: Path, command: Run) -> None:
    write_modules(block.document, desk)
    text, data = block.text, yaml.safe_load(block.text)
    if block.base:
        text = yaml.safe_dump(merged(yaml.safe_load((ROOT / block.base).read_text()), data))
    (desk / "block.yaml").write_text(text)
    if "tests" in data:
        assert read_suite(desk / "block.yaml").tests
        return
    graders = ["--graders"] if "kind: reward_function" in text else []  # calls the functions of the page
    # A page with code of its own says that commands ask for consent to run it.
    trust = ["--trust"] if any(other.module for other in BLOCKS if other.document == block.document) else []
    assert command("check", "block.yaml", *graders, *trust).startswith(
        ("block.yaml: fine;", "block.yaml: valid, but read ")
    )


# --- python ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", in_language("python"))
def test_python_runs(block: Block, desk: Path) -> None:
    write_modules(block.document, desk)
    if block.module:
        importlib.import_module(block.module)
    else:
        exec(compile(block.text, f"{block.document}:{block.line}", "exec"), {"__name__": "block"})


# --- bash ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", in_language("bash"))
def test_commands_run(block: Block, desk: Path, command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = list(commands_of(block.text))
    assert commands
    if REAL_MODEL in block.text:
        # Paths in these scenarios lead out of their folder.
        (desk / "scenarios").unlink()
        shutil.copytree(ROOT / "scenarios", desk / "scenarios")
        monkeypatch.setenv("MARL_CACHE", str(desk / "cache"))
        command("tiny", "--out", str(desk / "cache" / "real" / "SmolLM2-135M-Instruct"))
    for words in commands:
        if words[0] == "pip":
            assert all((ROOT / file).is_file() for option, file in pairwise(words) if option in ("-c", "-r"))
        elif words[0] == "make":
            assert (
                subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, check=False).returncode == 0
            )
        elif words[0] == "python":
            parse_arguments(words[1:], monkeypatch)
        else:
            assert words[0] == "marl", f"no check for the command {words[0]!r}"
            command(*small_command(words[1:]))
    for run in filter(Path.is_dir, desk.glob("runs/*")):
        assert not [name for name in metric_names(run) if not any(p.fullmatch(name) for p in metric_patterns())]


def commands_of(text: str) -> Iterator[list[str]]:
    """Yield the words of every command; a loop over files is unrolled."""
    for line in text.replace("\\\n", " ").splitlines():
        loop = re.fullmatch(r"for (\w+) in (\S+); do (.+); done", line.strip())
        for file in sorted(glob.glob(loop[2])) if loop else [""]:
            words = shlex.split(loop[3].replace(f"${loop[1]}", file) if loop else line, comments=True)
            if words:
                yield words


def small_command(words: list[str]) -> list[str]:
    """The same command with less to do."""
    match words[0]:
        case "train":
            overrides = [word for word in words[2:] if re.match(r"[\w.]+=", word)]
            return [*words, *small_settings(marl.load(words[1], overrides))]
        case "eval" if words[1] not in ("suite", "exploitability"):
            return [*words, "--episodes", "4"]
        case "credit-check":
            return [*words, "--task", "hint", "--method", "outcome"]
    return words


def small_settings(scenario: Scenario) -> Iterator[str]:
    """Yield overrides with which a scenario trains in seconds: few episodes, tiny models, as few steps as teach all."""
    policies, schedule, evaluate = scenario.policies, scenario.schedule, scenario.evaluate
    learning = [policy for policy in policies.values() if policy.learner]
    steps = next(n for n in range(1, 100) if all(policy.count_updates(n) for policy in learning))
    yield from (f"schedule.steps={steps}", f"schedule.groups={min(4, schedule.groups)}", f"checkpoint.every={steps}")
    yield f"schedule.group_size={min(4, schedule.group_size)}"
    yield from (f"evaluate.against.{name}=4" for name in evaluate.against)
    if evaluate.held_out:
        yield "evaluate.held_out=4"
    for name, policy in policies.items():
        yield from (f"policies.{name}.{setting}" for setting in _small_model(policy))


def _small_model(policy: PolicyConfig) -> Iterator[str]:
    model = policy.model and (policy.model.shared_base() or policy.model)
    if model and model.kind == "tiny":
        field = "model" if model is policy.model else "model.base"
        yield from (f"{field}.hidden=16", f"{field}.layers=1")
        yield f"{field}.warm_up={{steps: 100, episodes: 256, batch: 32, lr: 0.02}}"


class _ParsedError(Exception):
    """A script's arguments were parsed, so its work would begin now."""


def parse_arguments(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a measurement read its command line, and go no further."""

    def stopping(parse: Callable[..., Any]) -> Callable[..., None]:
        def parse_and_stop(*arguments: Any, **options: Any) -> None:
            parse(*arguments, **options)
            raise _ParsedError

        return parse_and_stop

    with monkeypatch.context() as patch:
        for name in ("parse_args", "parse_intermixed_args"):
            patch.setattr(argparse.ArgumentParser, name, stopping(getattr(argparse.ArgumentParser, name)))
        patch.setattr(sys, "argv", words)
        patch.setattr(sys, "path", [str(ROOT / "tests" / "bench"), *sys.path])
        with pytest.raises(_ParsedError):
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")


# --- text and languages ----------------------------------------------------------------------------------------------


def test_every_block_is_in_a_language_that_is_checked() -> None:
    unknown = [
        f"{b.document}:{b.line} {b.language!r}" for b in BLOCKS if b.language not in ("yaml", "python", "bash", "text")
    ]
    assert not unknown
    assert {block.document for block in BLOCKS} == set(DOCUMENTS)
    for document in DOCUMENTS:
        assert not re.search(r"~~~|<pre|<code", (ROOT / document).read_text()), "code stands in ``` blocks"


@pytest.mark.parametrize("block", in_language("text"))
def test_no_command_hides_in_plain_text(block: Block) -> None:
    assert not re.search(r"^\s*(\$ )?(marl|make|python3?|pip) ", block.text, flags=re.MULTILINE)


def test_every_fragment_names_a_scenario_that_there_is() -> None:
    whole = {"game", "policies", "schedule"}
    for block in BLOCKS:
        if block.language == "yaml":
            keys = yaml.safe_load(block.text).keys()
            assert block.base or whole <= keys or "tests" in keys, f"{block.document}:{block.line}"
        assert not block.base or (ROOT / block.base).is_file()


# --- links, paths, names ---------------------------------------------------------------------------------------------


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", prose(document)) if "://" not in target]
    for target in targets:
        path, _, anchor = target.partition("#")
        file = (ROOT / document).parent / path if path else ROOT / document
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def anchors(file: Path) -> list[str]:
    """The names by which GitHub links to the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(), flags=re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_are_named_exist(document: str) -> None:
    blocks = [block for block in BLOCKS if block.document == document]
    own = {f"{block.module}.py" for block in blocks}
    own |= {word for block in blocks if block.language == "bash" for word in block.text.split()}  # files that are made
    missing = [
        name
        for name in re.findall(
            r"`([\w.-]+(?:/[\w.-]+)*(?:/|\.(?:py|yaml|md|json|jsonl|png|toml|txt|jinja2)))`", prose(document)
        )
        if not RUN_FILES.fullmatch(name) and name not in own and not _exists(name, (ROOT / document).parent)
    ]
    assert not missing


def _exists(name: str, folder: Path) -> bool:
    return (
        (folder / name).exists()
        or (ROOT / name).exists()
        or name in _file_names()
        or re.search(r"\s", name) is not None
    )


@cache
def _file_names() -> frozenset[str]:
    """The names of all files of the checkout, without their folders."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name not in (".git", ".venv", "runs")]
    return frozenset(file.name for folder in folders for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("group", GROUPS)
def test_every_kind_is_described(group: str) -> None:
    codes = " ".join(re.findall(r"`([^`\n]+)`", prose(HOME_OF[group])))
    assert not [kind for kind in known_kinds(group) if not re.search(rf"\b{kind}\b", codes)]


GROUP_OF = {
    **{
        "model": "models",
        "encoder": "encoders",
        "learner": "trainers",
        "engine": "engines",
        "experience": "experience",
    },
    **{"assign": "credit", "baseline": "baselines", "loss": "losses", "task": "tasks", "game": "games"},
}
"""Setting -> the group of parts that it names."""


@pytest.mark.parametrize("document", DOCUMENTS)
def test_parts_in_the_text_are_accepted_as_they_are_written(document: str) -> None:
    for setting, fields in re.findall(r"`(\w+): (\{[^`\n]+\})`", prose(document)):
        if setting in GROUP_OF and "\N{HORIZONTAL ELLIPSIS}" not in fields:
            settings = yaml.safe_load(fields)
            assert "kind" in settings, f"{setting}: {fields} is refused without a kind"
            find_plugin(GROUP_OF[setting], settings["kind"]).model_validate(settings)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_in_the_text_have_these_options(document: str) -> None:
    for code in re.findall(r"`marl ([^`\n]+)`", prose(document)):
        name, *words = code.replace("[", " ").replace("]", " ").replace("\\|", " ").split()
        options = {*options_of(name), "--trust"}  # an option of every command
        assert not [word for word in words if word.startswith("--") and word not in options], code


def test_the_readme_has_every_command() -> None:
    shown = {code.split()[0] for code in re.findall(r"`marl ([^`\n]+)`", prose("README.md"))}
    group, context = _root()
    assert shown == set(group.list_commands(context))


def _root() -> tuple[Any, Any]:
    group: Any = typer.main.get_command(cli.app)
    return group, group.make_context("marl", [], resilient_parsing=True)


def options_of(name: str) -> set[str]:
    """The options of a subcommand, and of the subcommands that it has."""
    group, context = _root()
    chosen = group.get_command(context, name)
    assert chosen is not None, f"marl {name}"
    below = getattr(chosen, "commands", {}).values()
    return {option for each in (chosen, *below) for p in each.params for option in (*p.opts, *p.secondary_opts)}


# --- metrics ---------------------------------------------------------------------------------------------------------


@cache
def metric_patterns() -> list[re.Pattern[str]]:
    """The names in the table of metrics, in which capitals stand for any name."""
    patterns = []
    table = prose("marl/README.md").split("## Metrics")[1]
    for cell in re.findall(r"^\| (`.+?) \|", table, flags=re.MULTILINE):
        first, *more = re.findall(r"`([^`]+)`", cell)
        scope = "".join(first.rpartition("/")[:2])
        for name in (first, *(scope + other for other in more)):
            text = re.escape(name).replace(re.escape("..."), ".+")
            patterns.append(re.compile(re.sub(r"\b[A-Z]{3,}\b", "[^/]+", text)))
    return patterns


def metric_names(run: Path) -> set[str]:
    """The names of all metrics of a run."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {name for row in rows for name in row} - {"step", "crc32"}


def test_no_metric_is_in_the_table_twice() -> None:
    patterns = [pattern.pattern for pattern in metric_patterns()]
    assert len(patterns) == len(set(patterns)) > 80


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_results_hold_commands_that_anyone_can_run(file: Path) -> None:
    program, first, *words = shlex.split(json.loads(file.read_text())["command"])
    assert not [word for word in (first, *words) if "=" not in word and (word.startswith("/") or ".." in word)]
    if program == "marl":
        assert {word for word in words if word.startswith("--")} <= options_of(first)
    else:
        assert program == "python"
        assert (ROOT / first).is_file()


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_measurements_take_the_arguments_of_their_results(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *words = shlex.split(json.loads(file.read_text())["command"])
    if program == "python":
        parse_arguments(words, monkeypatch)
