"""Credit in tables: for the terminal and for files."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from marl.errors import Writing
from marl.graph import Trajectory
from marl.judging.agreement import compare
from marl.metrics.collapse import spread
from marl.scenario.load import ScenarioError
from marl.types import Turn

if TYPE_CHECKING:
    from marl.training.rejudge import Verdict

_FIGURES = {
    "zero": "zero",
    "conserved": "conservation",
    "purity": "purity",
    "bias t": "stopping_bias_t",
}
"""Heading -> figure of a role."""
_AGREED = {
    "pearson": "correlation",
    "spearman": "rank_correlation",
    "same sign": "sign_agreement",
    "|difference|": "difference",
}
FORMATS = (".jsonl", ".csv")


def verdict(found: Verdict, trajectories: Sequence[Trajectory]) -> str:
    """A line for each role and agent: what its turns earned, and their advantages. Conservation, purity and bias are
    the role's."""
    turns: dict[tuple[str, str], list[Turn]] = defaultdict(list)
    for turn in _turns(trajectories):
        if turn.id in found.judgement.credit:
            turns[turn.role, turn.agent].append(turn)
    headings = ["role", "agent", "turns", "earned", "std", "advantage", "std", *_FIGURES]
    rows = [[role, agent, *_figures(found, role, own)] for (role, agent), own in sorted(turns.items())]
    return f"{found.rule}\n{_table(headings, rows)}\ntokens spent by credit: {found.tokens:,}"


def _figures(found: Verdict, role: str, turns: Sequence[Turn]) -> Iterator[str]:
    judgement = found.judgement
    yield str(len(turns))
    for credit in (judgement.earned, judgement.credit):
        values = [credit[turn.id].value for turn in turns]
        yield from (_shown(fmean(values)), _shown(spread(values)))
    zero = [not (a := judgement.credit[turn.id]).value and not any(a.tokens) for turn in turns]
    yield _shown(fmean(zero))
    yield from (_shown(judgement.metrics.get(f"credit/{role}/{f}")) for f in list(_FIGURES.values())[1:])


def comparison(found: Sequence[Verdict], trajectories: Sequence[Trajectory]) -> str:
    """How far each two rules agree, role by role, and what each of them cost."""
    rows = [
        [str(i), str(j), role, *(_shown(agreed.get(figure)) for figure in _AGREED.values())]
        for (i, a), (j, b) in combinations(enumerate(found, 1), 2)
        for role, agreed in compare(trajectories, a.judgement.credit, b.judgement.credit).items()
    ]
    rules = [[str(i), each.rule, f"{each.tokens:,}"] for i, each in enumerate(found, 1)]
    return "\n\n".join([_table(["", "rule", "tokens"], rules), _table(["", "", "role", *_AGREED], rows)])


def write(file: Path, found: Verdict, trajectories: Sequence[Trajectory]) -> int:
    """Every turn with its credit, a line each; returns how many. A turn that was not judged has no figures.

    Raises:
        ScenarioError: if the file's name does not end in .jsonl or .csv.
    """
    check_format(file)
    rows = [_row(found, turn) for turn in _turns(trajectories)]
    with Writing(file), file.open("w", newline="") as out:
        if file.suffix == ".csv":
            table = csv.DictWriter(out, [*_COLUMNS])
            table.writeheader()
            table.writerows([{**row, "tokens": " ".join(map(repr, row["tokens"]))} for row in rows])
        else:
            out.writelines(json.dumps(row) + "\n" for row in rows)
    return len(rows)


def check_format(file: Path) -> None:
    """Raises:
    ScenarioError: if there is no such format.
    """
    if file.suffix not in FORMATS:
        raise ScenarioError(f"--out {file}: no such format {file.suffix!r}; choices: {', '.join(FORMATS)}")


_COLUMNS: Sequence[str] = ("episode", "turn", "agent", "role", "action", "earned", "advantage", "tokens")


def _row(found: Verdict, turn: Turn) -> Mapping[str, Any]:
    earned, advantage = found.judgement.earned.get(turn.id), found.judgement.credit.get(turn.id)
    figures = (earned and earned.value, advantage and advantage.value, list(advantage.tokens) if advantage else [])
    return dict(zip(_COLUMNS, (*turn.id, turn.agent, turn.role, turn.action, *figures), strict=True))


def _turns(trajectories: Sequence[Trajectory]) -> Sequence[Turn]:
    """Each once, however many courses of an episode share it."""
    return list({turn.id: turn for trajectory in trajectories for turn in trajectory.turns}.values())


def _shown(value: float | None) -> str:
    # What is left of rounding is nothing to be shown, and neither is the sign of 0.
    return "-" if value is None else f"{round(value, 12) + 0.0:.4g}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width; numbers to the right."""
    lines = [headings, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    right = [all(_numeric(row[i]) for row in rows) for i in range(len(headings))]
    cells = [[c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in cells)


def _numeric(cell: str) -> bool:
    return cell.replace(",", "").lstrip("-")[:1].isdigit() or cell in ("-", "nan", "inf")
