"""Table of a run's memory, with suggested changes if the run does not fit."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table

from marl.memory.preflight import Preflight
from marl.view.text_table import render_table

_WIDTH = 110
_WHEN = {
    "always": "",
    "awake": "while it plays",
    "play": "while it plays",
    "learn": "while it learns",
    "save": "while it saves",
}


def memory_table(checked: Preflight) -> str:
    """Return the memory of each part, the peak per stage, the device's capacity and suggested changes."""
    return "\n".join((render_table(_table(checked), _WIDTH), *_verdict(checked), *_changes(checked)))


def format_gigabytes(size: float) -> str:
    """Return `size` [bytes] in GB (10^9) with two decimals."""
    return f"{size / 1e9:,.2f}"


def _table(checked: Preflight) -> Table:
    table = Table("policies", "holds", "when", box=box.SIMPLE, show_footer=False)
    table.add_column("GB", justify="right")
    stages = ("always", "awake", *checked.stages)
    items = [item for item in checked.estimate.items if item.stage in stages]
    for policies in dict.fromkeys(item.policies for item in items):
        for item in items:
            if item.policies != policies:
                continue
            table.add_row(" + ".join(policies), item.content, _WHEN[item.stage], format_gigabytes(item.bytes))
        table.add_section()
    table.add_row("", "all that is always held", "", format_gigabytes(checked.estimate.stage_bytes("always")))
    for stage in checked.stages:
        table.add_row("", "and at most", _WHEN[stage], format_gigabytes(checked.estimate.stage_bytes(stage)))
    table.add_row("", "the process itself", "", format_gigabytes(checked.device.process_bytes))
    return table


def _verdict(checked: Preflight) -> Iterator[str]:
    device, total = checked.device, checked.bytes + checked.device.process_bytes
    spare = device.bytes - device.usable_bytes - device.process_bytes
    for role in checked.estimate.guessed_roles:
        yield f"note: roles.{role}: the tokens of its prompts are guessed from their length: no tokenizer is here"
    if checked.reduced.scenario.cluster:
        yield "note: cluster: this is the memory of a run with all simulators and learners in one process"
    verdict = "fits" if checked.fits else "does not fit"
    yield (
        f"At its peak about {format_gigabytes(total)} GB of the {format_gigabytes(device.bytes)} GB of {device.name}, "
        f"of which {format_gigabytes(spare)} stay free for gaps between tensors: it {verdict}."
    )


def _changes(checked: Preflight) -> Iterator[str]:
    if checked.fits:
        return
    changed = checked.reduced
    if changed.changes:
        yield "To change, in this order:"
    for change in changed.changes:
        yield f"  {change}  (saves {format_gigabytes(change.saved_bytes)} GB)"
    reduced_size = format_gigabytes(changed.needed + checked.device.process_bytes)
    if changed.needed <= checked.device.usable_bytes:
        yield f"Then it takes about {reduced_size} GB and fits."
    else:
        after_changes = " after all that" if changed.changes else ""
        yield f"It would still take about {reduced_size} GB{after_changes}: take a smaller model."
