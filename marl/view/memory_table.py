"""Table of a run's memory, with suggested changes if the run does not fit."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table

from marl.memory.preflight import MemoryFitReport
from marl.view.text_table import render_table

_WIDTH = 110
_WHEN = {
    "always": "",
    "awake": "while it plays",
    "play": "while it plays",
    "learn": "while it learns",
    "save": "while it saves",
}
"""Stage of a run -> text in the table's column `when`."""


def memory_table(preflight: MemoryFitReport) -> str:
    """Return the memory of each part, the peak per stage, the device's capacity and suggested changes."""
    table = Table("policies", "holds", "when", box=box.SIMPLE, show_footer=False)
    table.add_column("GB", justify="right")
    stages = ("always", "awake", *preflight.stages)
    items = [item for item in preflight.estimate.items if item.stage in stages]
    for policies in dict.fromkeys(item.policies for item in items):
        for item in items:
            if item.policies == policies:
                table.add_row(" + ".join(policies), item.content, _WHEN[item.stage], format_gigabytes(item.bytes))
        table.add_section()
    table.add_row("", "all that is always held", "", format_gigabytes(preflight.estimate.stage_bytes("always")))
    for stage in preflight.stages:
        table.add_row("", "and at most", _WHEN[stage], format_gigabytes(preflight.estimate.stage_bytes(stage)))
    table.add_row("", "the process itself", "", format_gigabytes(preflight.device.process_overhead_bytes))
    return "\n".join((render_table(table, _WIDTH), *_memory_fit_lines(preflight)))


def format_gigabytes(byte_count: float) -> str:
    """Return `byte_count` [bytes] in GB (10^9) with two decimals."""
    return f"{byte_count / 1e9:,.2f}"


def _memory_fit_lines(preflight: MemoryFitReport) -> Iterator[str]:
    """Yield notes on the estimate, whether the run fits the device, and otherwise the suggested changes."""
    device, total = preflight.device, preflight.peak_bytes + preflight.device.process_overhead_bytes
    spare = device.bytes - device.usable_bytes - device.process_overhead_bytes
    for role in preflight.estimate.guessed_roles:
        yield f"note: roles.{role}: the tokens of its prompts are guessed from their length: no tokenizer is here"
    if preflight.reduced.scenario.cluster:
        yield "note: cluster: this is the memory of a run with all simulators and learners in one process"
    verdict = "fits" if preflight.fits_device else "does not fit"
    yield (
        f"At its peak about {format_gigabytes(total)} GB of the {format_gigabytes(device.bytes)} GB of {device.name}, "
        f"of which {format_gigabytes(spare)} stay free for gaps between tensors: it {verdict}."
    )
    if preflight.fits_device:
        return
    changed = preflight.reduced
    if changed.changes:
        yield "To change, in this order:"
    for change in changed.changes:
        yield f"  {change}  (saves {format_gigabytes(change.saved_bytes)} GB)"
    reduced_size = format_gigabytes(changed.peak_bytes + preflight.device.process_overhead_bytes)
    if changed.peak_bytes <= preflight.device.usable_bytes:
        yield f"Then it takes about {reduced_size} GB and fits."
    else:
        after_changes = " after all that" if changed.changes else ""
        yield f"It would still take about {reduced_size} GB{after_changes}: take a smaller model."
