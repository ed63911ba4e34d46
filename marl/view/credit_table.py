"""Tables of credit, for the terminal and for files."""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from marl.core.errors import RaiseRunFolderErrorOnFailedWrite
from marl.core.graph import Trajectory
from marl.core.types import TurnId
from marl.credit_stage.diagnostics import credit_rule_agreement_by_role
from marl.credit_stage.records import CreditRecord, RecomputedCredit, TurnCreditRecord
from marl.metrics.collapse import population_standard_deviation
from marl.scenario.load import ScenarioError
from marl.view.number_format import format_metric_value

_ROLE_FIGURES = {"conserved": "conservation", "purity": "purity", "bias t": "stopping_bias_t"}
"""Heading -> metric below `credit/ROLE/`, or below `game/GAME/credit/ROLE/` with several games."""
_AGREEMENT = {
    "pearson": "correlation",
    "spearman": "rank_correlation",
    "same sign": "sign_agreement",
    "|difference|": "difference",
}
"""Column heading -> key in the result of `credit_rule_agreement_by_role`."""
_COLUMNS: Sequence[str] = ("episode", "turn", "agent", "role", "action", "earned", "advantage", "tokens")
_FORMULA, _NUMBER = re.compile(r"[=+\-@\t\r]"), re.compile(r"[+-]?[\d.,]+")
TABLE_SUFFIXES = (".jsonl", ".csv")


def credit_summary_by_agent(recomputed_credit: RecomputedCredit, trajectories: Iterable[Trajectory] = ()) -> str:
    """Return a line per role and agent: mean and deviation of earned reward and advantage, and diagnostics.

    Conservation, purity of the peer groups and stopping bias are computed per role. With several games, named by
    `trajectories`, each game has its own lines.
    """
    game_of = {trajectory.id: trajectory.deal.game for trajectory in trajectories}
    turns_of: dict[tuple[str, str, str], list[TurnCreditRecord]] = defaultdict(list)
    for episode in recomputed_credit.record.episodes:
        for turn in episode.turns:
            turns_of[game_of.get(episode.episode, ""), turn.role, turn.agent].append(turn)
    several_games = any(game_of.values())
    headings = ["game"] * several_games + ["role", "agent", "turns", "earned", "std", "advantage", "std", "zero"]
    rows: list[list[str]] = []
    for (game, role, agent), turns in sorted(turns_of.items()):
        figures: list[float | None] = [*credit_statistics(turns).values()]
        scope = f"game/{game}/credit/{role}" if game else f"credit/{role}"
        for figure in _ROLE_FIGURES.values():
            figures.append(recomputed_credit.metrics.get(f"{scope}/{figure}"))
        rows.append([game] * several_games + [role, agent, str(len(turns)), *map(_format_number, figures)])
    table = _aligned_table([*headings, *_ROLE_FIGURES], rows)
    differences = [f"  {line}" for line in recomputed_credit.differences]
    if differences:
        differences.insert(0, "differs from the run's own rule in:")
    return "\n".join(
        [recomputed_credit.rule, *differences, table, f"tokens spent by credit: {recomputed_credit.tokens:,}"]
    )


def credit_statistics(credited_turns: Sequence[TurnCreditRecord]) -> dict[str, float]:
    """Return mean and standard deviation of the earned rewards and advantages of `credited_turns`, and the share of
    zeros."""
    earned, advantages, is_zero = list[float](), list[float](), list[bool]()
    for turn in credited_turns:
        earned.append(turn.earned)
        advantages.append(turn.advantage)
        is_zero.append(not turn.advantage and not any(turn.token_advantages))
    return {
        "earned": fmean(earned),
        "earned_std": population_standard_deviation(earned),
        "advantage": fmean(advantages),
        "advantage_std": population_standard_deviation(advantages),
        "zero": fmean(is_zero),
    }


def credit_statistics_by_role(record: CreditRecord) -> dict[str, dict[str, float]]:
    """Return role -> number of credited turns and their `credit_statistics`."""
    turns_of: dict[str, list[TurnCreditRecord]] = defaultdict(list)
    for turn in record.turns().values():
        turns_of[turn.role].append(turn)
    return {role: {"turns": len(turns), **credit_statistics(turns)} for role, turns in turns_of.items()}


def credit_agreement_table(recomputed_credits: Sequence[RecomputedCredit], trajectories: Sequence[Trajectory]) -> str:
    """Return the agreement of each pair of credit rules by role, and the token cost of each rule."""
    rows: list[list[str]] = []
    for (i, first), (j, second) in combinations(enumerate(recomputed_credits, 1), 2):
        for role, agreement in credit_rule_agreement_by_role(trajectories, first.credit(), second.credit()).items():
            rows.append([str(i), str(j), role, *map(_format_number, map(agreement.get, _AGREEMENT.values()))])
    rules = [[str(i), step.rule, f"{step.tokens:,}"] for i, step in enumerate(recomputed_credits, 1)]
    return "\n\n".join(
        [_aligned_table(["", "rule", "tokens"], rules), _aligned_table(["", "", "role", *_AGREEMENT], rows)]
    )


def write_credit_table(file: Path, recomputed_credit: RecomputedCredit, trajectories: Sequence[Trajectory]) -> int:
    """Write a row for each turn with its credit to `file`; return the number of rows.

    A turn without credit has empty values. A turn shared by branched episodes has one row. In a CSV file, an apostrophe
    stands before a text that a spreadsheet would take for a formula, since models write the moves.

    Raises:
        ScenarioError: if the file's suffix is neither .jsonl nor .csv.
    """
    check_table_suffix(file)
    records, rows = recomputed_credit.record.turns(), dict[TurnId, list[Any]]()
    for turn in chain.from_iterable(trajectory.turns for trajectory in trajectories):
        record, figures = records.get(turn.id), [None, None, []]
        if record:
            figures = [record.earned, record.advantage, list(record.token_advantages)]
        rows[turn.id] = [*turn.id, turn.agent, turn.role, turn.action, *figures]
    with RaiseRunFolderErrorOnFailedWrite(file), file.open("w", newline="", encoding="utf-8") as out:
        if file.suffix == ".csv":
            table = csv.writer(out)
            table.writerow(_COLUMNS)
            for *fields, tokens in rows.values():
                table.writerow([*map(_escape_spreadsheet_formula, fields), " ".join(map(repr, tokens))])
        else:
            for row in rows.values():
                out.write(json.dumps(dict(zip(_COLUMNS, row, strict=True))) + "\n")
    return len(rows)


def _escape_spreadsheet_formula(cell: Any) -> Any:
    """Return `cell`, with an apostrophe in front if it is a text that begins like a formula and is no number."""
    is_formula = isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


def check_table_suffix(file: Path) -> None:
    """Check the suffix of `file`.

    Raises:
        ScenarioError: if the suffix is neither .jsonl nor .csv.
    """
    if file.suffix not in TABLE_SUFFIXES:
        raise ScenarioError(f"--out {file}: no such format {file.suffix!r}; choices: {', '.join(TABLE_SUFFIXES)}")


def _format_number(value: float | None) -> str:
    """Return a number as `format_metric_value` does, or "-" for None."""
    # Rounding hides float errors such as 1e-17, and adding 0.0 turns -0.0 into 0.0.
    return "-" if value is None else format_metric_value(round(value, 12) + 0.0)


def _aligned_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text, with columns of equal width and numbers aligned to the right."""
    lines = [""] * (len(rows) + 1)
    for column in zip(headings, *rows, strict=True):
        width, cells = max(map(len, column)), column[1:]
        is_numeric = all(cell.lstrip("-")[:1].isdigit() or cell in ("-", "nan", "inf") for cell in cells)
        for index, cell in enumerate(column):
            lines[index] += (cell.rjust(width) if is_numeric else cell.ljust(width)) + "  "
    return "\n".join(map(str.rstrip, lines))
