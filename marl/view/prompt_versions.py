"""Versions of learned instructions as text: the descent of the version in use, or all versions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from marl.host.untrusted_text import escape_for_terminal
from marl.protocols.learning import VERSIONS_FILE
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError

_STYLES = {"+": "green", "-": "red", "@": "dim"}
"""First character of a line of a difference -> its style."""


def prompt_version_lines(run: Path, step: int | None, *, whole: bool) -> Iterator[Text]:
    """Yield the versions of all learned instructions at a checkpoint, line by line.

    Args:
        run: folder of the run.
        step: step of the checkpoint, or None for the newest intact one.
        whole: True for all versions, False for those from which the version in use descends.

    Raises:
        ScenarioError: if the run has no learned instructions, or no checkpoint.
        CheckpointError: if the checkpoint is damaged.
    """
    home = RunFolder(run)
    policies = home.scenario().policies
    names = [name for name, policy in policies.items() if policy.learner and not policy.learner.trains_weights]
    if not names:
        raise ScenarioError(f"{run} learns no instructions: no policy has `learner: {{kind: prompt}}`")
    chosen = home.latest_checkpoint()[0] if step is None else step
    if not chosen:
        raise ScenarioError(f"{run} has no checkpoint yet")
    folder = home.verified_policies_folder(chosen)
    for name in names:
        record = json.loads((folder / name / VERSIONS_FILE).read_text())
        versions: list[dict[str, Any]] = record["versions"]
        shown = versions if whole else _descent(versions, record["incumbent"])
        yield Text(
            f"{run}: step {chosen}, policy {name}: version {record['incumbent']} is in use; {len(versions)} versions, "
            f"of which {len(shown)} are shown{'' if whole else ' (--whole: all)'}"
        )
        for version in shown:
            yield from _version_lines(version)


def _descent(versions: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """Return the version `number` and the versions that it descends from, oldest first."""
    chain: list[dict[str, Any]] = []
    current: int | None = number
    while current is not None:
        chain.append(versions[current])
        current = versions[current]["parent"]
    return chain[::-1]


def _version_lines(version: Mapping[str, Any]) -> Iterator[Text]:
    """Yield the fate, the mean score and the difference of a version; the whole text of the first one."""
    known = [score for score in version["scores"] if score is not None]
    score = f", mean score {sum(known) / len(known):.3g} of {len(known)} starts" if known else ""
    origin = "" if version["parent"] is None else f" from version {version['parent']}, search {version['search']}"
    reason = f" ({escape_for_terminal(version['reason'])})" if version["reason"] else ""
    yield Text(f"version {version['number']}{origin}: {version['status']}{reason}{score}", "bold")
    if version["parent"] is None:
        for role, instructions in version["instructions"].items():
            yield Text(f"  role {role}:")
            yield from (Text(f"  {escape_for_terminal(line)}") for line in instructions.splitlines())
    for line in version["diff"][2:]:
        yield Text(f"  {escape_for_terminal(line)}", _STYLES.get(line[:1], ""))
