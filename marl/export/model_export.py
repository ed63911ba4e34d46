"""Export of a policy: its weights, and beside them generation settings, a card and, if wanted, a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from marl.export.generation import generation_role, write_generation
from marl.export.model_card import CardFacts, write_model_card
from marl.export.weights import Learnt, copy_out, merge_out
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Selection of what is written of a policy."""

    merge: bool | None = None
    """True: one model of an adapter and its base. False: the adapter alone. None: as it is."""
    role: str | None = None
    """Role whose sampling becomes the generation settings. None: the first that the policy speaks for."""
    gguf: bool = False
    """Write the model as a GGUF file as well."""
    place: str | None = None
    """Name by which the card loads it. None: the folder's."""


def export_model(source: Learnt, out: Path, choice: ModelChoice) -> Learnt:
    """Write a policy to the folder `out`, whole or not at all; return what is there.

    Raises:
        ScenarioError: if `out` exists, or the choice does not fit the policy.
        ValueError: if it cannot be merged, or is no model that GGUF files can hold.
        FolderError: if it cannot be written.
    """
    scenario = RunFolder(source.run).scenario()
    if choice.merge is False and source.adapter is None:
        raise ScenarioError(f"--adapter: policy {source.policy!r} of {source.run} is a whole model, no adapter")
    role = generation_role(scenario, source.policy, choice.role)
    if choice.gguf:
        _expect_gguf(source, choice)

    def complete(written: Learnt, folder: Path) -> None:
        language = written.loader == "AutoModelForCausalLM" or written.adapter is not None
        if language and role is not None:
            write_generation(folder, written.base, scenario.roles[role].sampling)
        if choice.gguf:
            from marl.models.gguf_writing import write_gguf

            write_gguf(folder, folder / f"{source.policy}.gguf")
        place = choice.place or out.name
        write_model_card(CardFacts(source, written, scenario, role if language else None, place), folder)

    return (merge_out if choice.merge else copy_out)(source, out, complete)


def _expect_gguf(source: Learnt, choice: ModelChoice) -> None:
    from marl.models.gguf_writing import expect_supported

    if source.adapter is not None and not choice.merge:
        raise ScenarioError("--gguf: an adapter alone makes no GGUF file; give --merge, too")
    if source.loader != "AutoModelForCausalLM" and source.adapter is None:
        raise ScenarioError(f"--gguf: policy {source.policy!r} of {source.run} is no language model")
    expect_supported(Path(str(source.base)) if source.adapter else source.folder)
