"""Model card: the README.md of an exported policy, compiled from the run's folder with foreign text escaped."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import yaml
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from marl.export.card_metrics import metric_table_rows
from marl.export.generation_config import roles_of_policy
from marl.export.loading_snippet import loading_snippet
from marl.export.markdown import RawMarkdown, fenced_block, write_card, yaml_front_matter
from marl.export.prompt_example import find_prompt_example
from marl.export.saved_policy import SavedPolicy
from marl.export.settings_text import non_default_settings
from marl.models.adapter import Adapter
from marl.protocols.models import LANGUAGE_MODEL
from marl.runs.run_folder import RunFolder
from marl.runs.run_format import read_environment
from marl.scenario.load import ScenarioError
from marl.scenario.schema import PolicyConfig, Scenario
from marl.view.closing_report import alarm_lines
from marl.view.curve_data import Curves, CurveSelection, select_curves
from marl.view.pictures import save_curves

_MAX_INLINE_CHARACTERS = 80
"""Length of a setting's text [characters] above which the card shows it in a block of its own."""


@dataclass(frozen=True)
class ModelCardFacts:
    """Facts of one export that its model card states."""

    source: SavedPolicy
    """The policy's weights in the run's checkpoint, before the export."""
    written: SavedPolicy
    """The exported policy, as written to the export's folder."""
    scenario: Scenario
    generation_role: str | None
    """Role whose sampling settings are in generation_config.json, or None if there is no such file."""
    load_path: str
    """Argument of `from_pretrained` in the card's example: a repository of the hub, or the path of the folder."""

    @cached_property
    def metrics_rows(self) -> list[Mapping[str, Any]]:
        """Rows of the run's metrics.jsonl."""
        return list(RunFolder(self.source.run).rows())

    @property
    def settings(self) -> PolicyConfig:
        """Settings of the exported policy in the scenario."""
        return self.scenario.policies[self.source.policy]

    @property
    def learner_kind(self) -> str:
        """Kind of the policy's learner, or "none"."""
        return self.settings.learner.kind if self.settings.learner else "none"

    @property
    def roles(self) -> list[str]:
        """Names of the roles that use the exported policy, trainable roles first."""
        return roles_of_policy(self.scenario, self.source.policy)


def write_model_card(facts: ModelCardFacts, folder: Path) -> None:
    """Write README.md into the folder of an exported policy, and curves.png if the run has metrics to draw."""
    scenario, source, settings = facts.scenario, facts.source, facts.settings
    curves: Curves = {}
    with suppress(ScenarioError):  # raised if the run has no metric to draw
        curves, _ = select_curves([source.run], CurveSelection())
    if curves:
        save_curves(folder / "curves.png", curves)
    games = _kinds_by_game(scenario)
    others = sum(policy.learner is not None for policy in scenario.policies.values()) - 1
    teammates = f", while {others} other polic{'ies' if others > 1 else 'y'} learned" if others else ""
    method = f"by reinforcement learning ({facts.learner_kind}) with marl"
    environment = read_environment(source.run)
    packages = environment.get("packages") or {}
    # The card's example is a recorded turn, whose prompt and answer are shown as code blocks.
    example, example_values = find_prompt_example(RunFolder(source.run), source.policy, source.step), None
    if example:
        prompt = "\n\n".join(f"{message.role}: {message.content}" for message in example.messages)
        example_values = {"step": example.step, "role": example.role, "prompt": fenced_block(prompt)}
        example_values["answer"] = fenced_block(example.answer or "(nothing)")
    weights, adapter = "The weights are those of a whole model", facts.written.adapter
    if adapter is not None:
        base = str(facts.written.base)
        shown_base = f"the folder {Path(base).name!r}" if Path(base).is_dir() else base
        kind = "DoRA" if adapter.use_dora else "LoRA"
        weights = f"The weights are a {kind} adapter of rank {adapter.rank} on {shown_base}, in the format of PEFT."
    else:
        weights += ": the base with the adapter merged into it." if source.adapter is not None else "."
    role_settings = []
    for role in facts.roles:
        # Long settings, such as instructions, are shown as blocks below the list.
        short, texts = {}, []
        for field, setting in non_default_settings(scenario.roles[role]).items():
            if isinstance(setting, str) and ("\n" in setting or len(setting) > _MAX_INLINE_CHARACTERS):
                texts.append((field, fenced_block(setting)))
            else:
                short[field] = setting
        role_settings.append({"name": role, "settings": _yaml_block(short), "texts": texts})
    game_settings = {}
    agents: dict[str, list[str]] = defaultdict(list)
    for name, view in scenario.scenario_by_game().items():
        game_settings[name] = {**non_default_settings(view.game), "seats": dict(view.seats)}
        for agent, role in view.seats.items():
            agents[role].append(agent)
    role_rows = []
    for name, role in scenario.roles.items():
        policy = scenario.policies.get(role.policy)
        learner = policy.learner.kind if policy and policy.learner else "nothing: it stays as it is"
        trainable = "yes" if role.trainable and policy and policy.learner else "no"
        seats = ", ".join(dict.fromkeys(agents[name]))
        row = {"name": name, "seats": seats, "policy": role.policy, "learner": learner, "trainable": trainable}
        role_rows.append(row)
    values = {
        "front": yaml_front_matter(_hub_metadata(facts)),
        **{"policy": source.policy, "run": source.run.resolve().name, "step": source.step, "curves": bool(curves)},
        **{"steps": scenario.schedule.steps, "seed": scenario.schedule.seed, "learner_kind": facts.learner_kind},
        "summary": f"A policy trained {method} in {' and '.join(games)}{teammates}.",
        **{"weights": weights, "games": ", ".join(games)},
        "versions": ", ".join(f"{name} {number}" for name, number in packages.items()) or "not recorded",
        "machine": environment.get("machine", "not recorded"),
        "snippet": loading_snippet(facts.written, facts.load_path, folder, example),
        **{"generation_role": facts.generation_role, "example": example_values},
        **{"roles": role_rows, "speaking": role_settings},
        "game_settings": _yaml_block(game_settings.get("") or game_settings),
        "credit": _yaml_block(non_default_settings(scenario.credit)),
        "learner": _yaml_block(non_default_settings(settings.learner) if settings.learner else {}),
        "model": _yaml_block(non_default_settings(settings.model) if settings.model else {}),
        "schedule": _yaml_block(non_default_settings(scenario.schedule)),
        "figures": [*metric_table_rows(facts.metrics_rows, source.step, facts.roles)],
        "limits": [*_limitation_sentences(facts)],
    }
    write_card(folder, "model_card", values)


def _hub_metadata(facts: ModelCardFacts) -> dict[str, object]:
    """Return the card's metadata for the hub: library, task, base model, data sets and tags."""
    written, settings = facts.written, facts.settings
    values: dict[str, object] = {"library_name": "peft" if written.adapter else "transformers"}
    if written.loader == "AutoModelForSequenceClassification":
        values["pipeline_tag"] = "text-classification"
    elif written.loader:
        values["pipeline_tag"] = "text-generation"
    else:
        # Transformers has no class for this policy (a Q-network, for example).
        values["library_name"] = "marl"
    initial = settings.model.base if isinstance(settings.model, Adapter) else settings.model
    if initial is not None and initial.kind == "pretrained":
        path = initial.model_dump(mode="json").get("path")
        if _is_hub_name(path) and not Path(path).exists():
            values["base_model"] = path
            values["base_model_relation"] = "adapter" if written.adapter else "finetune"
    if datasets := sorted(set(_hub_datasets(facts.scenario.model_dump(mode="json")))):
        values["datasets"] = datasets
    tags = [
        "marl",
        "reinforcement-learning",
        "multi-agent",
        *_kinds_by_game(facts.scenario).values(),
        facts.learner_kind,
    ]
    return values | {"tags": [" ".join(tag.split()) for tag in dict.fromkeys(tags)]}


def _is_hub_name(path: object) -> TypeGuard[str]:
    """Return True if `path` is a valid name OWNER/NAME, since the hub rejects cards with any other name."""
    if not isinstance(path, str):
        return False
    try:
        validate_repo_id(path)
    except HFValidationError:
        return False
    return path.count("/") == 1


def _hub_datasets(settings: Any) -> Iterator[str]:
    """Yield the hub names of all data sets in `settings`, which may be nested to any depth."""
    if isinstance(settings, Mapping):
        path = settings.get("path")
        if settings.get("kind") == "dataset" and _is_hub_name(path):
            yield path
        settings = list(settings.values())
    if isinstance(settings, list):
        for inner in settings:
            yield from _hub_datasets(inner)


def _kinds_by_game(scenario: Scenario) -> dict[str, str]:
    """Return displayed name -> kind, for each game of the scenario."""
    kinds = {}
    for name, view in scenario.scenario_by_game().items():
        kinds[f"{name} ({view.game.kind})" if name else view.game.kind] = view.game.kind
    return kinds


def _yaml_block(settings: Mapping[str, Any]) -> RawMarkdown:
    text = yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True, width=100, default_flow_style=False)
    return fenced_block(text, "yaml")


def _limitation_sentences(facts: ModelCardFacts) -> Iterator[str]:
    """Yield sentences about the limits of the policy and of the run's figures."""
    scenario, model, written = facts.scenario, facts.settings.model, facts.written
    yield "It was trained on the prompts of its roles in this game. Nothing here says how it answers anything else."
    yield f"The figures are of one run with one seed ({scenario.schedule.seed}). Another seed may give others."
    if not any(name.startswith("eval/") for row in facts.metrics_rows for name in row):
        yield "The run was never evaluated: its figures are those of training."
    if model is not None and model.family == LANGUAGE_MODEL and not model.understands_instructions:
        yield "It was made as a tiny model, from a seed: it knows the words of its game and no language."
    if written.loader == "AutoModelForSequenceClassification":
        yield "It is a reward model: it scores answers and writes none."
    if written.base is not None and Path(written.base).is_absolute():
        yield "Its base is a folder, by an absolute path: where that is not, merge the adapter (`marl export --merge`)."
    if written.loader == "AutoModelForCausalLM" or written.adapter:
        yield (
            "In training, text that spells special tokens stayed text. A plain chat template takes it for the tokens: "
            "put no text from strangers into its messages unchecked."
        )
    for name in facts.roles if facts.generation_role else ():
        sampling = scenario.roles[name].sampling
        if sampling != scenario.roles[str(facts.generation_role)].sampling:
            yield f"Role {name} was sampled otherwise: {json.dumps(non_default_settings(sampling))}."
        if sampling.thinking_tokens is not None or sampling.structured:
            settings = non_default_settings(sampling)
            yield f"Role {name} was sampled with limits that generation_config.json cannot say: {settings}."
    # Alarms after the exported step concern weights that were not exported.
    for line in alarm_lines([row for row in facts.metrics_rows if row["step"] <= facts.source.step]):
        yield f"In training: {line}"
    yield "The run does not record licences. That of the base, and of the data, holds."
