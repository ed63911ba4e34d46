"""An installed wheel brings the package `marl` alone, and folders of a user's own never hide its plug-ins."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.slow
FOLDERS = ("games", "roles", "credit", "trainers")
SCRIPT = """
import marl
env = marl.env("kuhn_poker")
env.reset(seed=0)
print(env.observe(env.agent_selection)["text"])
print(marl.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    # A clone, as the build leaves files beside the source.
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(source)]
    subprocess.run(command, check=True)
    (file,) = folder.glob("*.whl")
    return file


def test_a_wheel_installs_nothing_but_marl(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"marl"}
    assert {"marl/games/kuhn_poker.py", "marl/roles/prompts/solver.jinja2", "marl/py.typed"} <= set(names)


def test_a_script_and_a_prompt_run_in_a_folder_that_has_all_four_names(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    home = tmp_path / "home"
    for folder in FOLDERS:
        (home / folder).mkdir(parents=True)
        (home / folder / "__init__.py").write_text(f"raise SystemExit('{folder} of the user was imported')")
    (home / "script.py").write_text(SCRIPT)
    # Without this checkout: the libraries of the environment alone, and the unpacked wheel before them.
    libraries = sysconfig.get_paths()["purelib"]
    start = f"import sys; sys.path[1:1] = [{str(site)!r}, {libraries!r}]\n"
    (home / "script.py").write_text(start + SCRIPT)
    for words, text in (["script.py"], ""), (["-"], start + SCRIPT):
        command = [sys.executable, "-S", *words]
        done = subprocess.run(command, input=text, cwd=home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert str(site) in done.stdout
        assert "card" in done.stdout
