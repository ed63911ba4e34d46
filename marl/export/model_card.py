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

from marl.export.card_metrics import metric_table
from marl.export.generation_config import speaking_roles
from marl.export.loading_snippet import loading_snippet
from marl.export.markdown import Markup, fenced_block, front_matter, write_card
from marl.export.prompt_example import PromptExample, find_prompt_example
from marl.export.saved_policy import SavedPolicy
from marl.export.settings_text import non_default_settings
from marl.host.outside import parse_json
from marl.models.adapter import Adapter
from marl.protocols.models import LANGUAGE_MODEL
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.scenario.schema import PolicyConfig, Scenario
from marl.view.closing_report import alarm_lines
from marl.view.curve_data import Curves, CurveSelection, select_curves
from marl.view.pictures import save_curves

_MAX_INLINE_CHARACTERS = 80
"""Length above which a setting's text gets its own block."""


@dataclass(frozen=True)
class ModelCardFacts:
    """Facts of one export that its model card states."""

    source: SavedPolicy
    """Policy as saved in the run."""
    written: SavedPolicy
    """Policy as exported."""
    scenario: Scenario
    generation_role: str | None
    """Role whose sampling settings are in generation_config.json, or None."""
    load_path: str
    """Name under which users load the folder: a repository, or the folder itself."""

    @cached_property
    def home(self) -> RunFolder:
        return RunFolder(self.source.run)

    @cached_property
    def rows(self) -> list[Mapping[str, Any]]:
        """Rows of metrics.jsonl."""
        return list(self.home.rows())

    @property
    def settings(self) -> PolicyConfig:
        return self.scenario.policies[self.source.policy]

    @property
    def learner(self) -> str:
        """Kind of the policy's learner, or "none"."""
        return self.settings.learner.kind if self.settings.learner else "none"

    @property
    def roles(self) -> list[str]:
        """Roles that use the policy, trainable ones first."""
        return speaking_roles(self.scenario, self.source.policy)

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Package versions and machine of the run, or {} if the run did not record them."""
        file = self.home.path / "environment.json"
        value = parse_json(file.read_text()) if file.is_file() else {}
        return value if isinstance(value, dict) else {}


def write_model_card(facts: ModelCardFacts, folder: Path) -> None:
    """Write README.md into the folder of an exported policy, and curves.png if the run has metrics to draw."""
    scenario, source, settings = facts.scenario, facts.source, facts.settings
    curves: Curves = {}
    with suppress(ScenarioError):  # the run has no metric to draw
        curves, _ = select_curves([source.run], CurveSelection())
    if curves:
        save_curves(folder / "curves.png", curves)
    games = _games(scenario)
    others = sum(policy.learner is not None for policy in scenario.policies.values()) - 1
    teammates = f", while {others} other polic{'ies' if others > 1 else 'y'} learned" if others else ""
    method = f"by reinforcement learning ({facts.learner}) with marl"
    packages = facts.environment.get("packages") or {}
    exchange = find_prompt_example(facts.home, source.policy, source.step)
    game_settings = {}
    for name, view in scenario.by_game().items():
        game_settings[name] = {**non_default_settings(view.game), "seats": dict(view.seats)}
    values = {
        "front": front_matter(_metadata(facts)),
        **{"policy": source.policy, "run": source.run.resolve().name, "step": source.step, "curves": bool(curves)},
        **{"steps": scenario.schedule.steps, "seed": scenario.schedule.seed, "learner_kind": facts.learner},
        "summary": f"A policy trained {method} in {' and '.join(games)}{teammates}.",
        **{"weights": _weights(source, facts.written), "games": ", ".join(games)},
        "versions": ", ".join(f"{name} {number}" for name, number in packages.items()) or "not recorded",
        "machine": facts.environment.get("machine", "not recorded"),
        "snippet": loading_snippet(facts.written, facts.load_path, folder, exchange),
        **{"generation_role": facts.generation_role, "example": exchange and _example(exchange)},
        **{"roles": [*_role_rows(scenario)], "speaking": [_role(scenario, name) for name in facts.roles]},
        "game_settings": _yaml_block(game_settings.get("") or game_settings),
        "credit": _yaml_block(non_default_settings(scenario.credit)),
        "learner": _yaml_block(non_default_settings(settings.learner) if settings.learner else {}),
        "model": _yaml_block(non_default_settings(settings.model) if settings.model else {}),
        "schedule": _yaml_block(non_default_settings(scenario.schedule)),
        "figures": [*metric_table(facts.rows, source.step, facts.roles)],
        "limits": [*_limits(facts)],
    }
    write_card(folder, "model_card", values)


def _example(exchange: PromptExample) -> dict[str, Any]:
    """Return the template's values for `exchange`, with prompt and answer as fenced blocks."""
    prompt = fenced_block("\n\n".join(f"{message.role}: {message.content}" for message in exchange.messages))
    answer = fenced_block(exchange.answer or "(nothing)")
    return {"step": exchange.step, "role": exchange.role, "prompt": prompt, "answer": answer}


def _metadata(facts: ModelCardFacts) -> dict[str, object]:
    """Return the metadata for the hub, with valid repository names only."""
    written, settings = facts.written, facts.settings
    values: dict[str, object] = {"library_name": "peft" if written.adapter else "transformers"}
    if written.loader == "AutoModelForSequenceClassification":
        values["pipeline_tag"] = "text-classification"
    elif written.loader:
        values["pipeline_tag"] = "text-generation"
    else:
        # No class of Transformers loads this policy, such as a Q-network.
        values["library_name"] = "marl"
    initial = settings.model.base if isinstance(settings.model, Adapter) else settings.model
    if initial is not None and initial.kind == "pretrained":
        path = initial.model_dump(mode="json").get("path")
        if _is_hub_name(path) and not Path(path).exists():
            values["base_model"] = path
            values["base_model_relation"] = "adapter" if written.adapter else "finetune"
    if datasets := sorted(set(_hub_datasets(facts.scenario.model_dump(mode="json")))):
        values["datasets"] = datasets
    tags = ["marl", "reinforcement-learning", "multi-agent", *_games(facts.scenario).values(), facts.learner]
    return values | {"tags": [" ".join(tag.split()) for tag in dict.fromkeys(tags)]}


def _is_hub_name(path: object) -> TypeGuard[str]:
    """Return True for a valid name OWNER/NAME. The hub rejects cards with any other name."""
    if not isinstance(path, str):
        return False
    try:
        validate_repo_id(path)
    except HFValidationError:
        return False
    return path.count("/") == 1


def _hub_datasets(settings: Any) -> Iterator[str]:
    """Yield the hub names of the data sets in `settings`, at any depth."""
    if isinstance(settings, Mapping):
        path = settings.get("path")
        if settings.get("kind") == "dataset" and _is_hub_name(path):
            yield path
        settings = list(settings.values())
    if isinstance(settings, list):
        for inner in settings:
            yield from _hub_datasets(inner)


def _weights(source: SavedPolicy, written: SavedPolicy) -> str:
    if written.adapter is not None:
        kind = "DoRA" if written.adapter.use_dora else "LoRA"
        local = Path(str(written.base)).is_dir()
        base = f"the folder {Path(str(written.base)).name!r}" if local else str(written.base)
        return f"The weights are a {kind} adapter of rank {written.adapter.rank} on {base}, in the format of PEFT."
    merged = source.adapter is not None
    return "The weights are those of a whole model" + (": the base with the adapter merged into it." if merged else ".")


def _games(scenario: Scenario) -> dict[str, str]:
    """Return displayed name -> kind for each game of the scenario."""
    kinds = {name: view.game.kind for name, view in scenario.by_game().items()}
    return {f"{name} ({kind})" if name else kind: kind for name, kind in kinds.items()}


def _role_rows(scenario: Scenario) -> Iterator[dict[str, str]]:
    agents: dict[str, list[str]] = defaultdict(list)
    for view in scenario.by_game().values():
        for agent, role in view.seats.items():
            agents[role].append(agent)
    for name, role in scenario.roles.items():
        policy = scenario.policies.get(role.policy)
        learner = policy.learner.kind if policy and policy.learner else "nothing: it stays as it is"
        trainable = "yes" if role.trainable and policy and policy.learner else "no"
        seats = ", ".join(dict.fromkeys(agents[name]))
        yield {"name": name, "seats": seats, "policy": role.policy, "learner": learner, "trainable": trainable}


def _role(scenario: Scenario, name: str) -> dict[str, Any]:
    """Return the template's values for a role. Long texts, such as its instructions, get blocks of their own."""
    short, texts = {}, []
    for field, value in non_default_settings(scenario.roles[name]).items():
        if isinstance(value, str) and ("\n" in value or len(value) > _MAX_INLINE_CHARACTERS):
            texts.append((field, fenced_block(value)))
        else:
            short[field] = value
    return {"name": name, "settings": _yaml_block(short), "texts": texts}


def _yaml_block(settings: Mapping[str, Any]) -> Markup:
    text = yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True, width=100, default_flow_style=False)
    return fenced_block(text, "yaml")


def _limits(facts: ModelCardFacts) -> Iterator[str]:
    """Yield sentences about the limits of the policy and of the run's figures."""
    scenario, model, written = facts.scenario, facts.settings.model, facts.written
    yield "It was trained on the prompts of its roles in this game. Nothing here says how it answers anything else."
    yield f"The figures are of one run with one seed ({scenario.schedule.seed}). Another seed may give others."
    if not any(name.startswith("eval/") for row in facts.rows for name in row):
        yield "The run was never evaluated: its figures are those of training."
    if model is not None and model.family == LANGUAGE_MODEL and not model.knows_language:
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
    # Later alarms concern weights that were not exported.
    for line in alarm_lines([row for row in facts.rows if row["step"] <= facts.source.step]):
        yield f"In training: {line}"
    yield "The run does not record licences. That of the base, and of the data, holds."
