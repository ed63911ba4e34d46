"""Transcripts: what four users type, from an empty folder to what they wanted. Each is run as it is written.

A step is a command, or a file that is written by `cat > NAME <<'EOF'`. By default they run in this process, with less
to do; slowly, in a shell, with a fresh clone and every number as written.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.support.command_line import marl_output
from tests.support.paths import ROOT
from tests.support.readme_blocks import TYPED

TUTORIAL, TOOL_TUTORIAL, GRAPH_TUTORIAL = (ROOT / page for page in TYPED)
CLIENTS = ROOT / ".clients"
"""Environment of LangGraph."""
TRANSCRIPTS = [*sorted(Path(__file__).parent.glob("*.md")), TUTORIAL]
LONG = ("adapter_of_another_run", "team_on_your_csv")
"""Transcripts of more than five seconds: only the slow test below runs them."""
MOST_STEPS = 12
_FILE = re.compile(r"cat > (\S+) <<'EOF'\n(.*?)^EOF$", re.DOTALL | re.MULTILINE)
Marl = Callable[..., str]


def script(transcript: Path) -> str:
    """The commands of a transcript."""
    return "".join(re.findall(r"^```bash\n(.*?)^```$", transcript.read_text(), re.DOTALL | re.MULTILINE))


def steps(block: str) -> Iterator[tuple[str, str]]:
    """Yield (file's name, its text), or ("", command)."""
    end = 0
    for match in [*_FILE.finditer(block), None]:
        between = block[end : match.start() if match else len(block)]
        yield from (("", line) for line in between.splitlines() if line.strip())
        if match:
            end = match.end()
            yield match[1], match[2]


@pytest.fixture
def marl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Marl]:
    """`marl("check", FILE)` in an empty folder: what it prints, after it ended well."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    yield partial(marl_output, monkeypatch, capsys)
    torch.set_num_threads(threads)


def typed(block: str, marl: Marl) -> str:
    """Type the steps with less to do; return all that `marl` printed."""
    printed = ""
    for name, text in steps(block):
        if name:
            Path(name).write_text(
                re.sub(r"warm_up: {steps: \d+[^}]*}", "warm_up: {steps: 5, episodes: 32, batch: 8}", text)
            )
            continue
        command, _, target = text.partition(" > ")
        words = shlex.split(command)
        if words[0] == "python":
            with Path(target or os.devnull).open("w") as file, redirect_stdout(file):
                runpy.run_path(words[1], run_name="__main__")
        else:
            assert words[0] == "marl"
            printed += marl(*words[1:], *_smaller(words))
    return printed


def _smaller(words: list[str]) -> list[str]:
    match words[1]:
        case "train":
            return ["schedule.steps=2", "schedule.groups=4", "schedule.group_size=4", *_made_models(words[2])]
        case "eval" if words[2] not in ("suite", "exploitability"):
            return ["--episodes", "8"]
        case "play":
            return ["--episodes", "32"]
    return []


def _made_models(file: str) -> list[str]:
    """Overrides that make the models of a scenario small, where `marl new` wrote it."""
    if Path(file).name != "team.yaml" or "marl check" not in Path(file).read_text():
        return []
    warm_up = "warm_up={steps: 5, episodes: 32, batch: 8}"
    return [f"policies.{name}.model.{warm_up}" for name in ("planner", "solver", "critic")]


@pytest.mark.parametrize(
    "transcript",
    [
        *(file for file in TRANSCRIPTS if file.stem not in LONG),
        # The only test of this tutorial: its training, as written, takes more than a minute.
        pytest.param(TOOL_TUTORIAL, marks=pytest.mark.slow),
    ],
    ids=lambda file: file.stem,
)
def test_every_step_of_a_transcript_works_in_an_empty_folder(transcript: Path, marl: Marl) -> None:
    block = script(transcript)
    assert len(list(steps(block))) <= MOST_STEPS
    printed = typed(block, marl)
    for run in Path("runs").iterdir():
        assert (run / "checkpoints" / "000002" / "manifest.json").is_file()
    for folder in re.findall(r"marl export \S+ .*?--out (\S+)", block):
        assert f"{folder}: policy " in printed


def typed_in_a_shell(transcript: Path, desk: Path, checkout: Path) -> str:
    """Run all commands of a transcript as they are written, in the folder `desk`; return what they printed."""
    shell = f'set -e\nmarl() {{ {sys.executable} -m marl "$@"; }}\npython() {{ {sys.executable} "$@"; }}\n'
    environment = os.environ | {"PYTHONPATH": str(checkout), "MARL_CACHE": str(desk / "cache")}
    done = subprocess.run(
        ["bash", "-c", shell + script(transcript)],
        cwd=desk,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def held_out_successes(printed: str) -> list[float]:
    """Return the success on held-out problems in each evaluation of a run, from what `marl train` printed."""
    return list(map(float, re.findall(r"^step .*eval/held_out/success (\S+)", printed, re.MULTILINE)))


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda file: file.stem)
def test_a_fresh_clone_does_what_a_transcript_shows(transcript: Path, tmp_path: Path) -> None:
    clone, desk = tmp_path / "clone", tmp_path / "desk"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", str(clone)], check=True)
    desk.mkdir()
    printed = typed_in_a_shell(transcript, desk, clone)
    if won := re.findall(r"^eval/random/win +(\S+)", printed, re.MULTILINE):
        assert float(won[-1]) > 0.7
    if transcript == TUTORIAL:
        before, *_, after = held_out_successes(printed)
        assert before < 0.75 < 0.85 < after


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.skipif(not CLIENTS.is_dir(), reason="no .clients: `make clients` sets it up")
def test_one_agent_of_a_langgraph_graph_learns_by_the_commands_of_its_page(tmp_path: Path) -> None:
    (tmp_path / "venv").symlink_to(CLIENTS)
    printed = typed_in_a_shell(GRAPH_TUTORIAL, tmp_path, ROOT)
    before, *_, after = held_out_successes(printed)
    assert before + 0.15 < after
    assert [folder.name for folder in (tmp_path / "runs/graph/checkpoints/000020/policies").iterdir()] == ["solver"]
    assert (tmp_path / "my-solver" / "config.json").is_file()


def test_the_tutorial_takes_ten_commands_and_edits() -> None:
    numbered = re.findall(r"^\*\*([\d and]+)\. ", TUTORIAL.read_text(), re.MULTILINE)
    assert " ".join(numbered).replace("and ", "").split() == [str(n) for n in range(1, 11)]
    assert len(list(steps(script(TUTORIAL)))) == 9  # the first is the installation
