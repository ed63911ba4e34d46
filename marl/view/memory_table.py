"""A run's memory as a table, and what to change where it does not fit."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table

from marl.memory.preflight import Preflight
from marl.view.text_table import rendered

_WIDTH = 110
_WHEN = {
    "always": "",
    "awake": "while it plays",
    "play": "while it plays",
    "learn": "while it learns",
    "save": "while it saves",
}


def memory_table(checked: Preflight) -> str:
    """Return what a run holds in memory, the sum at its peak, the device's memory, and what to change."""
    return "\n".join((rendered(_table(checked), _WIDTH), *_verdict(checked), *_changes(checked)))


def gigabytes(size: float) -> str:
    """Return bytes in GB (10^9) with two decimals."""
    return f"{size / 1e9:,.2f}"


def _table(checked: Preflight) -> Table:
    table = Table("policies", "holds", "when", box=box.SIMPLE, show_footer=False)
    table.add_column("GB", justify="right")
    stages = ("always", "awake", *checked.stages)
    shown = [each for each in checked.needed.holdings if each.stage in stages]
    for policies in dict.fromkeys(each.policies for each in shown):
        for each in (each for each in shown if each.policies == policies):
            table.add_row(" + ".join(policies), each.content, _WHEN[each.stage], gigabytes(each.bytes))
        table.add_section()
    table.add_row("", "all that is always held", "", gigabytes(checked.needed.stage_bytes("always")))
    for stage in checked.stages:
        table.add_row("", "and at most", _WHEN[stage], gigabytes(checked.needed.stage_bytes(stage)))
    table.add_row("", "the process itself", "", gigabytes(checked.device.process))
    return table


def _verdict(checked: Preflight) -> Iterator[str]:
    device, total = checked.device, checked.bytes + checked.device.process
    spare = device.bytes - device.room - device.process
    for role in checked.needed.guessed:
        yield f"note: roles.{role}: the tokens of its prompts are guessed from their length: no tokenizer is here"
    if checked.leaner.scenario.cluster:
        yield "note: cluster: this is the memory of a run with all simulators and learners in one process"
    verdict = "fits" if checked.fits else "does not fit"
    yield (
        f"At its peak about {gigabytes(total)} GB of the {gigabytes(device.bytes)} GB of {device.name}, of which "
        f"{gigabytes(spare)} stay free for gaps between tensors: it {verdict}."
    )


def _changes(checked: Preflight) -> Iterator[str]:
    if checked.fits:
        return
    changed = checked.leaner
    if changed.changes:
        yield "To change, in this order:"
    for change in changed.changes:
        yield f"  {change}  (saves {gigabytes(change.saves)} GB)"
    left = gigabytes(changed.needed + checked.device.process)
    if changed.needed <= checked.device.room:
        yield f"Then it takes about {left} GB and fits."
    else:
        yield f"It would still take about {left} GB{' after all that' * bool(changed.changes)}: take a smaller model."
