"""Versions of learned instructions: the descent of the version in use, or all versions, as text and for the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from pydantic import BaseModel, Field, model_validator
from rich.text import Text

from marl.core.errors import RunFolderError
from marl.host.untrusted_text import escape_for_terminal
from marl.protocols.learning import VERSIONS_FILE
from marl.runs.checkpoint import checkpoint_steps
from marl.runs.run_folder import RunFolder
from marl.runs.symlinks import path_within
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario

_STYLES = {"+": "green", "-": "red", "@": "dim"}
"""First character of a line of a difference -> its style."""
_MOST_ON_PAGE = 100
"""Maximum number of versions on the page beside those from which the version in use descends."""


class _Version(BaseModel):
    """Version of the learner `prompt`, as it is stored."""

    number: int
    parent: int | None
    search: int
    role: str
    instructions: dict[str, str]
    status: str
    reason: str
    scores: list[float | None]
    gain: list[float] | None = None
    diff: list[str]

    @property
    def known_scores(self) -> list[float]:
        """Scores on the starts with an outcome."""
        return [score for score in self.scores if score is not None]

    @property
    def changed_lines(self) -> list[str]:
        """Lines of the difference from the parent, without the two that name the versions."""
        return self.diff[2:]


class _VersionRecord(BaseModel):
    """All versions of a policy's instructions. The file may be a stranger's, so its numbers are checked."""

    incumbent: int = Field(ge=0)
    versions: list[_Version]

    @model_validator(mode="after")
    def _check_numbers(self) -> Self:
        for index, version in enumerate(self.versions):
            if version.number != index or (version.parent is not None and not 0 <= version.parent < index):
                raise ValueError(f"version {index}: number {version.number}, parent {version.parent}")
        if self.incumbent >= len(self.versions):
            raise ValueError(f"incumbent {self.incumbent} of {len(self.versions)} versions")
        return self

    def descent(self) -> list[_Version]:
        """Return the version in use and the versions that it descends from, oldest first."""
        chain: list[_Version] = []
        current: int | None = self.incumbent
        while current is not None:
            chain.append(self.versions[current])
            current = self.versions[current].parent
        return chain[::-1]


def policies_with_learned_instructions(scenario: Scenario) -> list[str]:
    """Return the names of the policies that learn instructions instead of weights."""
    policies = scenario.policies.items()
    return [name for name, policy in policies if policy.learner and not policy.learner.trains_weights]


def prompt_versions_json(run: RunFolder, policies: Sequence[str]) -> list[dict[str, Any]]:
    """Return the versions of each policy's instructions at the newest checkpoint as JSON data: those from which the
    version in use descends, and the newest others. If they cannot be read, there is a `problem` instead."""
    step = next(reversed(checkpoint_steps(run.checkpoints)), None)
    described: list[dict[str, Any]] = []
    for name in policies if step is not None else ():
        try:
            file = path_within(run.path, "checkpoints", f"{step:06d}", "policies", name, VERSIONS_FILE)
            record = _VersionRecord.model_validate_json(file.read_bytes())
        except (OSError, ValueError, RunFolderError):
            problem = f"the versions of policy {name} in checkpoint {step} cannot be read"
            described.append({"policy": name, "step": step, "problem": problem})
            continue
        newest = {version.number: version for version in [*record.descent(), *record.versions[-_MOST_ON_PAGE:]]}
        shown = [_version_json(version) for _, version in sorted(newest.items())]
        counts = {"incumbent": record.incumbent, "count": len(record.versions)}
        described.append({"policy": name, "step": step, **counts, "versions": shown})
    return described


def _version_json(version: _Version) -> dict[str, Any]:
    scores = version.known_scores
    return {
        **version.model_dump(include={"number", "parent", "search", "role", "status", "reason", "gain"}),
        **{"mean_score": fmean(scores) if scores else None, "starts": len(scores)},
        # The first version has no parent to differ from.
        "instructions": version.instructions if version.parent is None else {},
        "diff": version.changed_lines,
    }


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
    names = policies_with_learned_instructions(home.scenario())
    if not names:
        raise ScenarioError(f"{run} learns no instructions: no policy has `learner: {{kind: prompt}}`")
    chosen = home.latest_checkpoint()[0] if step is None else step
    if not chosen:
        raise ScenarioError(f"{run} has no checkpoint yet")
    folder = home.verified_policies_folder(chosen)
    for name in names:
        record = _VersionRecord.model_validate_json((folder / name / VERSIONS_FILE).read_bytes())
        shown = record.versions if whole else record.descent()
        yield Text(
            f"{run}: step {chosen}, policy {name}: version {record.incumbent} is in use; {len(record.versions)} "
            f"versions, of which {len(shown)} are shown{'' if whole else ' (--whole: all)'}"
        )
        for version in shown:
            yield from _version_lines(version)


def _version_lines(version: _Version) -> Iterator[Text]:
    """Yield the fate, the mean score and the difference of a version; the whole text of the first one."""
    scores = version.known_scores
    score = f", mean score {fmean(scores):.3g} of {len(scores)} starts" if scores else ""
    origin = "" if version.parent is None else f" from version {version.parent}, search {version.search}"
    reason = f" ({escape_for_terminal(version.reason)})" if version.reason else ""
    yield Text(f"version {version.number}{origin}: {version.status}{reason}{score}", "bold")
    if version.parent is None:
        for role, instructions in version.instructions.items():
            yield Text(f"  role {role}:")
            yield from (Text(f"  {escape_for_terminal(line)}") for line in instructions.splitlines())
    for line in version.changed_lines:
        yield Text(f"  {escape_for_terminal(line)}", _STYLES.get(line[:1], ""))
