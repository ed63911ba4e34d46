"""Tables of credit, for the terminal and for files."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from marl.errors import Writing
from marl.graph import Trajectory
from marl.judging.diagnostics import compare
from marl.judging.records import RejudgedStep, TurnRecord
from marl.metrics.collapse import standard_deviation
from marl.scenario.load import ScenarioError
from marl.types import Turn

_ROLE_FIGURES = {"conserved": "conservation", "purity": "purity", "bias t": "stopping_bias_t"}
"""Heading -> `credit/ROLE/...`, of several games `game/GAME/credit/ROLE/...`."""
_AGREEMENT = {
    "pearson": "correlation",
    "spearman": "rank_correlation",
    "same sign": "sign_agreement",
    "|difference|": "difference",
}
"""Heading -> figure of `compare`."""
_COLUMNS: Sequence[str] = ("episode", "turn", "agent", "role", "action", "earned", "advantage", "tokens")
FORMATS = (".jsonl", ".csv")


def credit_table(step: RejudgedStep, trajectories: Iterable[Trajectory] = ()) -> str:
    """Return a line for each role and agent: means of what its turns earned and of their advantages, and diagnostics.

    Conservation, purity and bias are the role's. With several games, which `trajectories` name, each has its own lines.
    """
    game_of = {trajectory.id: trajectory.deal.game for trajectory in trajectories}
    turns_of: dict[tuple[str, str, str], list[TurnRecord]] = defaultdict(list)
    for episode in step.record.episodes:
        for turn in episode.turns:
            turns_of[game_of.get(episode.episode, ""), turn.role, turn.agent].append(turn)
    several = any(game_of.values())
    headings = ["game"] * several + ["role", "agent", "turns", "earned", "std", "advantage", "std", "zero"]
    rows = [
        [*([game] * several), role, agent, *_figures(step, f"game/{game}/credit" if game else "credit", role, turns)]
        for (game, role, agent), turns in sorted(turns_of.items())
    ]
    return f"{step.rule}\n{_table([*headings, *_ROLE_FIGURES], rows)}\ntokens spent by credit: {step.tokens:,}"


def _figures(step: RejudgedStep, scope: str, role: str, turns: Sequence[TurnRecord]) -> Iterator[str]:
    yield str(len(turns))
    for values in ([turn.earned for turn in turns], [turn.advantage for turn in turns]):
        yield from (_number(fmean(values)), _number(standard_deviation(values)))
    yield _number(fmean([not turn.advantage and not any(turn.token_advantages) for turn in turns]))
    yield from (_number(step.metrics.get(f"{scope}/{role}/{figure}")) for figure in _ROLE_FIGURES.values())


def comparison_table(steps: Sequence[RejudgedStep], trajectories: Sequence[Trajectory]) -> str:
    """Return how far each two rules agree, role by role, and the cost of each rule."""
    rows = [
        [str(i), str(j), role, *(_number(agreement.get(figure)) for figure in _AGREEMENT.values())]
        for (i, a), (j, b) in combinations(enumerate(steps, 1), 2)
        for role, agreement in compare(trajectories, a.credit(), b.credit()).items()
    ]
    rules = [[str(i), step.rule, f"{step.tokens:,}"] for i, step in enumerate(steps, 1)]
    return "\n\n".join([_table(["", "rule", "tokens"], rules), _table(["", "", "role", *_AGREEMENT], rows)])


def write_credit(file: Path, step: RejudgedStep, trajectories: Sequence[Trajectory]) -> int:
    """Write every turn with its credit, a line each; return their number. A turn that was not judged has no figures.

    Raises:
        ScenarioError: if the file's name does not end in .jsonl or .csv.
    """
    check_format(file)
    records = step.record.turns()
    rows = [_row(turn, records.get(turn.id)) for turn in _turns(trajectories)]
    with Writing(file), file.open("w", newline="", encoding="utf-8") as out:
        if file.suffix == ".csv":
            table = csv.DictWriter(out, _COLUMNS)
            table.writeheader()
            table.writerows([{**row, "tokens": " ".join(map(repr, row["tokens"]))} for row in rows])
        else:
            out.writelines(json.dumps(row) + "\n" for row in rows)
    return len(rows)


def check_format(file: Path) -> None:
    """Check the ending of the file's name.

    Raises:
        ScenarioError: if there is no such format.
    """
    if file.suffix not in FORMATS:
        raise ScenarioError(f"--out {file}: no such format {file.suffix!r}; choices: {', '.join(FORMATS)}")


def _row(turn: Turn, record: TurnRecord | None) -> Mapping[str, Any]:
    figures = (record.earned, record.advantage, list(record.token_advantages)) if record else (None, None, [])
    return dict(zip(_COLUMNS, (*turn.id, turn.agent, turn.role, turn.action, *figures), strict=True))


def _turns(trajectories: Sequence[Trajectory]) -> Sequence[Turn]:
    """Return each turn once, however many courses of an episode share it."""
    return list({turn.id: turn for trajectory in trajectories for turn in trajectory.turns}.values())


def _number(value: float | None) -> str:
    # Rounded, so that neither rounding errors nor the sign of 0 are shown.
    return "-" if value is None else f"{round(value, 12) + 0.0:.4g}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return columns of equal width, numbers to the right."""
    lines = [headings, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    right = [all(_is_number(row[i]) for row in rows) for i in range(len(headings))]
    cells = [[c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in cells)


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").lstrip("-")[:1].isdigit() or cell in ("-", "nan", "inf")
