"""Install marl in fresh environments as the page on installation says, and train for three steps: seconds and disk.

    python tests/bench/installation.py [--only NAME …] [--out FILE]

The commands are those of `.site/pages/installation.md`, run one after the other in a copy of the committed files, each
section's in an environment of its own (`python -m venv`). `install_s` and `train_s`: wall time of the commands of `pip`
and of `marl`. `disk_mib`: size of the environment afterwards, and of its largest packages. Packages come from where
`pip` is configured to find them, so seconds depend on the network.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _bench import ROOT, parser, report

PAGE = ROOT / ".site" / "pages" / "installation.md"
TIMEOUT_S = 3600.0
"""Maximum duration of one command."""


def documented_commands(page: Path) -> dict[str, list[str]]:
    """Return section -> its commands, for each section of the page with commands of `pip` and `marl`."""
    sections: dict[str, list[str]] = {}
    for section in page.read_text().split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        blocks = text.split("```bash\n")[1:]
        lines = [line for block in blocks for line in block.partition("```")[0].splitlines() if line]
        if lines:
            sections[title] = lines
    return sections


def install_and_train(commands: list[str], folder: Path) -> dict[str, Any]:
    """Run `commands` in a fresh environment and a copy of the committed files, both in `folder`.

    Raises:
        RuntimeError: if a command fails.
    """
    environment, checkout = folder / "venv", folder / "marl"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    variables |= {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    variables["MARL_CACHE"] = str(folder / "cache")
    seconds = {"pip": 0.0, "marl": 0.0}
    output = ""
    for command in commands:
        started = time.perf_counter()
        output = output_of(command, checkout, variables)
        seconds[command.split()[0]] += time.perf_counter() - started
    packages = next((environment / "lib").glob("python*")) / "site-packages"
    sizes = {entry.name: mebibytes(entry) for entry in packages.iterdir() if entry.is_dir()}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:4]
    return {
        "install_s": round(seconds["pip"]),
        "train_s": round(seconds["marl"]),
        "disk_mib": mebibytes(environment),
        "largest_mib": {name: sizes[name] for name in largest},
        "printed": [line for line in output.splitlines() if line.startswith("NashConv")],
    }


def output_of(command: str, folder: Path, variables: dict[str, str]) -> str:
    """Return the output of a command of the shell that runs in `folder` with these environment variables.

    Raises:
        RuntimeError: if the command fails; the message holds the end of its output.
    """
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command}\n{done.stdout[-3000:]}")
    return done.stdout


def mebibytes(folder: Path) -> int:
    """Return the size of the files in a folder on disk."""
    return round(sum(file.lstat().st_blocks * 512 for file in folder.rglob("*")) / 2**20)


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--only", nargs="+", help="sections of the page (default: all)")
    options = line.parse_args()
    sections = documented_commands(PAGE)
    if unknown := set(options.only or ()) - sections.keys():
        line.error(f"--only: no section {sorted(unknown)}; choices: {', '.join(sections)}")
    figures: dict[str, Any] = {}
    for name in options.only or sections:
        with tempfile.TemporaryDirectory() as folder:
            figures[name] = install_and_train(sections[name], Path(folder))
        print(name, figures[name], file=sys.stderr)
    report(figures, options.out, seeds=[0])


if __name__ == "__main__":
    main()
