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

from marl.core.errors import Writing
from marl.core.graph import Trajectory
from marl.core.types import Turn
from marl.credit_stage.diagnostics import agreement_by_role
from marl.credit_stage.records import RecomputedCredit, TurnCreditRecord
from marl.metrics.collapse import standard_deviation
from marl.scenario.load import ScenarioError

_ROLE_FIGURES = {"conserved": "conservation", "purity": "purity", "bias t": "stopping_bias_t"}
"""Heading -> metric below `credit/ROLE/`, or below `game/GAME/credit/ROLE/` with several games."""
_AGREEMENT = {
    "pearson": "correlation",
    "spearman": "rank_correlation",
    "same sign": "sign_agreement",
    "|difference|": "difference",
}
"""Heading -> key of `agreement_by_role`."""
_COLUMNS: Sequence[str] = ("episode", "turn", "agent", "role", "action", "earned", "advantage", "tokens")
TABLE_SUFFIXES = (".jsonl", ".csv")


def credit_table(step: RecomputedCredit, trajectories: Iterable[Trajectory] = ()) -> str:
    """Return a line per role and agent: mean and deviation of earned reward and advantage, and diagnostics.

    Conservation, purity and bias are computed per role. With several games, named by `trajectories`, each game has its
    own lines.
    """
    game_of = {trajectory.id: trajectory.deal.game for trajectory in trajectories}
    turns_of: dict[tuple[str, str, str], list[TurnCreditRecord]] = defaultdict(list)
    for episode in step.record.episodes:
        for turn in episode.turns:
            turns_of[game_of.get(episode.episode, ""), turn.role, turn.agent].append(turn)
    several = any(game_of.values())
    headings = ["game"] * several + ["role", "agent", "turns", "earned", "std", "advantage", "std", "zero"]
    rows = []
    for (game, role, agent), turns in sorted(turns_of.items()):
        scope = f"game/{game}/credit" if game else "credit"
        rows.append([*([game] * several), role, agent, *_figures(step, scope, role, turns)])
    return f"{step.rule}\n{_table([*headings, *_ROLE_FIGURES], rows)}\ntokens spent by credit: {step.tokens:,}"


def _figures(step: RecomputedCredit, scope: str, role: str, turns: Sequence[TurnCreditRecord]) -> Iterator[str]:
    yield str(len(turns))
    for values in ([turn.earned for turn in turns], [turn.advantage for turn in turns]):
        yield from (_number(fmean(values)), _number(standard_deviation(values)))
    yield _number(fmean([not turn.advantage and not any(turn.token_advantages) for turn in turns]))
    yield from (_number(step.metrics.get(f"{scope}/{role}/{figure}")) for figure in _ROLE_FIGURES.values())


def comparison_table(steps: Sequence[RecomputedCredit], trajectories: Sequence[Trajectory]) -> str:
    """Return the agreement of each pair of credit rules by role, and the token cost of each rule."""
    rows = []
    for (i, first), (j, second) in combinations(enumerate(steps, 1), 2):
        for role, agreement in agreement_by_role(trajectories, first.credit(), second.credit()).items():
            numbers = [_number(agreement.get(key)) for key in _AGREEMENT.values()]
            rows.append([str(i), str(j), role, *numbers])
    rules = [[str(i), step.rule, f"{step.tokens:,}"] for i, step in enumerate(steps, 1)]
    return "\n\n".join([_table(["", "rule", "tokens"], rules), _table(["", "", "role", *_AGREEMENT], rows)])


def write_credit_table(file: Path, step: RecomputedCredit, trajectories: Sequence[Trajectory]) -> int:
    """Write one line per turn with its credit; return the number of lines. Turns without credit have empty values.

    Raises:
        ScenarioError: if the file's suffix is neither .jsonl nor .csv.
    """
    check_table_suffix(file)
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


def check_table_suffix(file: Path) -> None:
    """Check the suffix of `file`.

    Raises:
        ScenarioError: if the suffix is neither .jsonl nor .csv.
    """
    if file.suffix not in TABLE_SUFFIXES:
        raise ScenarioError(f"--out {file}: no such format {file.suffix!r}; choices: {', '.join(TABLE_SUFFIXES)}")


def _row(turn: Turn, record: TurnCreditRecord | None) -> Mapping[str, Any]:
    figures = (record.earned, record.advantage, list(record.token_advantages)) if record else (None, None, [])
    return dict(zip(_COLUMNS, (*turn.id, turn.agent, turn.role, turn.action, *figures), strict=True))


def _turns(trajectories: Sequence[Trajectory]) -> Sequence[Turn]:
    """Return every turn once, although branched episodes share turns."""
    return list({turn.id: turn for trajectory in trajectories for turn in trajectory.turns}.values())


def _number(value: float | None) -> str:
    # Rounding hides float errors such as 1e-17, and adding 0.0 turns -0.0 into 0.0.
    return "-" if value is None else f"{round(value, 12) + 0.0:.4g}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return columns of equal width, with numbers aligned to the right."""
    lines = [headings, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    right = [all(_is_number(row[i]) for row in rows) for i in range(len(headings))]
    cells = [[c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in cells)


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").lstrip("-")[:1].isdigit() or cell in ("-", "nan", "inf")
