"""Writes the figures that READMEs show from the files in `results/`, so that no number is typed by hand.

    python tests/bench/figures.py [--check]

A README holds `<!-- figures NAME -->`, lines, `<!-- end of figures -->`: the lines are what `figures/NAME.md.jinja`
renders. `--check` writes nothing and fails if a README would change.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from marl.commands.credit_check.measure import CreditMethodResult
from marl.commands.credit_check.report import method_markdown_table

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "tests" / "bench"
READMES = (
    *("README.md", "tests/bench/README.md", "credit/README.md", "games/README.md", "scenarios/README.md"),
    *("scenarios/real/README.md", "marl/README.md", "marl/engines/vllm/README.md", "marl/cluster/README.md"),
    "marl/gateway/README.md",
    *(f".site/pages/{name}.md" for name in ("which_algorithm", "papers")),
    *(f".site/pages/tutorials/{name}.md" for name in ("self_play", "one_role")),
)
_BLOCK = re.compile(r"(<!-- figures (\w+) -->\n).*?\n?(<!-- end of figures -->)", re.DOTALL)
DASH, MINUS = "\u2013", "\u2212"
METRIC_SCOPES = (
    *("step", "time", "episode", "game", "role", "alarm", "credit", "policy", "eval", "tree", "search", "cluster"),
    *("queue", "dynamic", "pool", "league", "neupl", "written", "recorded", "..._low"),
)
"""First words of metrics' names, in the order of the table."""
_BUSY = 1.5
"""Load of two cores before a measurement from which other work is mentioned."""


NOT_MEASURED = "Example, not measured"
"""Words in the first comment of a scenario without a result."""
_read: set[str] = set()
"""Names of the result files that the block being rendered has read."""


def result(name: str) -> dict[str, Any]:
    """Return the content of a result file, and record that the block being rendered reads it."""
    _read.add(name)
    return _content(name)


@cache
def _content(name: str) -> dict[str, Any]:
    return json.loads((BENCH / "results" / f"{name}.json").read_text())


def result_names() -> list[str]:
    """Return the names of all result files."""
    return sorted(file.stem for file in (BENCH / "results").glob("*.json"))


def changed_before_rule() -> list[str]:
    """Return the results of checkouts with uncommitted changes that are older than the field `changed`."""
    return [name for name in result_names() if "+" in _content(name)["commit"] and "changed" not in _content(name)]


def unmeasured() -> list[str]:
    """Return the scenarios whose first comment says that they have no result, as paths in `scenarios/`."""
    files = sorted((ROOT / "scenarios").rglob("*.yaml"))
    names = [str(file.relative_to(ROOT / "scenarios")) for file in files if says_not_measured(file)]
    return [name for name in names if not name.startswith("suites/")]


def says_not_measured(scenario: Path) -> bool:
    """Return True if the first comment of the file `scenario` says that the scenario has no result."""
    return NOT_MEASURED in scenario.read_text().partition("\ngame")[0]


def watched_results() -> dict[str, dict[str, list[int]]]:
    """Return result of `learning.py` that counts steps with an alarm -> alarm -> its steps in each run, 0 if quiet.

    These are the results with held-out measures. A result without an alarm has an empty mapping.
    """
    counts: dict[str, dict[str, list[int]]] = {}
    for name in result_names():
        runs = _content(name)["figures"].get("runs", []) if "learning.py" in _content(name)["command"] else []
        if not any(key.startswith("held_out/") for run in runs for key in run):
            continue
        alarms = sorted({key for run in runs for key in run if key.startswith("alarm/")})
        counts[name] = {alarm.removeprefix("alarm/"): [round(run.get(alarm, 0)) for run in runs] for alarm in alarms}
    return counts


def figures(name: str) -> Any:
    """Return the figures of a result file."""
    return result(name)["figures"]


def values(name: str, key: str) -> list[float]:
    """Return one figure of every seed.

    Raises:
        KeyError: if the runs have no such figure.
    """
    return [run[key] for run in figures(name)["runs"]]


def _rounded(value: Decimal, digits: int) -> str:
    return str(value.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def plain(value: float, digits: int = 2) -> str:
    """Return a number without its leading zero: `.84`, `1.00`, `-.05`."""
    text = _rounded(abs(Decimal(str(value))), digits)
    return (MINUS if value < 0 and float(text) else "") + (text[1:] if text.startswith("0.") else text)


def seeds(name: str, key: str, digits: int = 2) -> str:
    """Return a figure of all seeds, such as `.84, .93, .92`."""
    return ", ".join(plain(value, digits) for value in values(name, key))


def mean(name: str, key: str, digits: int = 2) -> str:
    """Return a figure's mean over all seeds."""
    return plain(fmean(values(name, key)), digits)


def before_and_after(name: str, key: str = "held_out/success", digits: int = 2) -> str:
    """Return two cells of a table: a figure of all seeds at the start and at the end."""
    return f"{seeds(name, f'{key}/start', digits)} | {seeds(name, f'{key}/end', digits)}"


def span(numbers: Sequence[float], digits: int = 0) -> str:
    """Return the least and the greatest number, such as `120-174`."""
    ends = [f"{end:.{digits}f}" for end in (min(numbers), max(numbers))]
    return DASH.join(dict.fromkeys(ends))


def effort(name: str, seconds: str = "seconds") -> str:
    """Return steps, and seconds a seed, such as `400, 250-374`; says if other work ran beside."""
    busy = " (other work beside it)" if result(name)["machine"]["load_before"][0] > _BUSY else ""
    return f"{figures(name)['runs'][0]['steps']:.0f}, {span(values(name, seconds))}{busy}"


def percent(interval: Sequence[float]) -> str:
    """Return a share with its interval (low, share, high), such as `99.6 % (99.2-99.8)`."""
    low, share, high = (_rounded(100 * Decimal(str(value)), 1) for value in interval)
    return f"{share} % ({low}{DASH}{high})"


def thousands(tokens: Sequence[float | None]) -> str:
    """Return numbers in thousands, such as `89, -, 74`; a dash for what was never reached."""
    return ", ".join(DASH if number is None else f"{number / 1000:.0f}" for number in tokens)


def credit_rules() -> str:
    """Return a line for each assign rule of the credit check."""
    rows: list[dict[str, Any]] = [row for row in figures("credit_check")["methods"] if "/" not in row["method"]]
    names = {"own": "own_pearson"}
    return method_markdown_table(
        [CreditMethodResult(**{names.get(key, key): value for key, value in row.items()}) for row in rows]
    )


def metric_rows() -> list[tuple[str, str, str, str]]:
    """Return the rows of the table of metrics: names, unit, meaning and modules, from every module's text `METRICS`.

    Rows are ordered by scope (the first word of a metric's name), then by module.
    """
    modules: dict[tuple[str, str, str], list[str]] = {}
    for folder in ("marl", "games", "roles", "credit", "trainers"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            table = re.search(r'^METRICS = """\n(.*?)^"""', file.read_text(), re.DOTALL | re.MULTILINE)
            # An indented line continues the row above it.
            for line in table[1].replace("\n    ", " ").splitlines() if table else ():
                names, unit, meaning = line.split(" | ")
                modules.setdefault((names, unit, meaning), []).append(str(file.relative_to(ROOT)))
    rows = [
        (", ".join(f"`{name}`" for name in names.split(", ")), unit, meaning, ", ".join(f"`{file}`" for file in files))
        for (names, unit, meaning), files in modules.items()
    ]
    scopes = list(METRIC_SCOPES)
    return sorted(rows, key=lambda row: scopes.index(re.split("[/`]", row[0])[1]))


def with_interval(name: str, key: str, when: str, scope: str = "held_out") -> str:
    """Return a figure of all seeds with its 95 % interval, such as `.77 [.65, .86], .80 [.68, .88]`."""
    parts = zip(*(values(name, f"{scope}/{key}{bound}/{when}") for bound in ("", "_low", "_high")), strict=True)
    return ", ".join(f"{plain(value)} [{plain(low)}, {plain(high)}]" for value, low, high in parts)


def converged(game: str, method: str, name: str = "convergence") -> str:
    """Return NashConv of the last policy and of the average one, means over seeds, such as `.045 / .031`."""
    runs = figures(name)[game]["methods"][method]
    return " / ".join(plain(fmean(run[key] for run in runs), 3) for key in ("last", "average"))


def quoted(text: str) -> str:
    """Return what a model said as a cell of a table: on one line, as code, so that nothing of it is Markdown."""
    line = re.sub("``+", lambda ticks: " ".join(ticks[0]), " ".join(text.split()).replace("|", "\\|"))
    return f"`` {line} ``"


HELPERS: tuple[Callable[..., Any], ...] = (
    *(figures, values, plain, seeds, mean, before_and_after, span, effort, percent, thousands, credit_rules, min, max),
    *(with_interval, quoted, result, converged, metric_rows, changed_before_rule, unmeasured, watched_results),
)


def rendered(name: str) -> str:
    """Return the lines of a block."""
    environment = Environment(
        loader=FileSystemLoader(BENCH / "figures"), undefined=StrictUndefined, trim_blocks=True, autoescape=False
    )
    environment.globals |= {helper.__name__: helper for helper in HELPERS}
    return environment.get_template(f"{name}.md.jinja").render().strip()


def written(text: str) -> str:
    """Return a README with its figures as they are in the result files, and the commits that they were measured at."""

    def block(found: re.Match[str]) -> str:
        _read.clear()
        lines = rendered(found[2])
        return f"{found[1]}{lines}\n{_commits(sorted(_read))}{found[3]}"

    return _BLOCK.sub(block, text)


def _commits(names: Sequence[str]) -> str:
    """Return a paragraph that names the commit of each result file in `names`, or "" without names."""
    by_commit: dict[str, list[str]] = {}
    for name in names:
        by_commit.setdefault(_content(name)["commit"], []).append(name)
    groups = [f"{commit} ({', '.join(results)})" for commit, results in by_commit.items()]
    return f"\nMeasured at commit {'; '.join(groups)}.\n" if groups else ""


def main() -> None:
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("--check", action="store_true", help="write nothing; fail if a README would change")
    check = line.parse_args().check
    texts = {ROOT / name: (ROOT / name).read_text() for name in READMES}
    changed = {file: new for file, text in texts.items() if (new := written(text)) != text}
    for file, text in changed.items():
        print(f"{file.relative_to(ROOT)}: figures differ from the result files")
        if not check:
            file.write_text(text)
    sys.exit(check and bool(changed))


if __name__ == "__main__":
    main()
