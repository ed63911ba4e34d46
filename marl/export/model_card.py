"""Model card: the README.md of an exported policy, compiled from the run's folder with foreign text escaped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from marl.export.card_metrics import card_metrics, draw_curves, table_rows
from marl.export.generation_config import speaking_roles
from marl.export.loading_snippet import loading_snippet
from marl.export.markdown import Markup, fenced_block, front_matter, write_card
from marl.export.prompt_example import find_prompt_example
from marl.export.saved_policy import SavedPolicy
from marl.export.settings_text import as_yaml, non_default_settings, split_long_texts
from marl.host.outside import parse_json
from marl.models.adapter import Adapter
from marl.protocols.models import LANGUAGE_MODEL, ModelConfig
from marl.runs.run_folder import RunFolder
from marl.scenario.schema import PolicyConfig, Scenario
from marl.view.closing_report import alarm_lines


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
    def roles(self) -> list[str]:
        """Roles that the policy answers for."""
        return speaking_roles(self.scenario, self.source.policy)

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Package versions and machine of the run, or {} if the run did not record them."""
        file = self.home.path / "environment.json"
        value = parse_json(file.read_text()) if file.is_file() else {}
        return value if isinstance(value, dict) else {}


def write_model_card(facts: ModelCardFacts, folder: Path) -> None:
    """Write README.md into the folder of an exported policy, and curves.png if the run has metrics to draw."""
    write_card(folder, "model_card", _values(facts, curves=draw_curves(facts.source.run, folder), folder=folder))


def _values(facts: ModelCardFacts, *, curves: bool, folder: Path) -> dict[str, Any]:
    scenario, source = facts.scenario, facts.source
    packages = facts.environment.get("packages") or {}
    exchange = find_prompt_example(facts.home, source.policy, source.step)
    return {
        "front": front_matter(_metadata(facts)),
        **{"policy": source.policy, "run": source.run.resolve().name, "step": source.step, "curves": curves},
        **{"steps": scenario.schedule.steps, "seed": scenario.schedule.seed, "summary": _summary(facts)},
        **{"weights": _weights(facts), "learner_kind": _learner(facts), "games": ", ".join(_games(scenario))},
        "versions": ", ".join(f"{name} {number}" for name, number in packages.items()) or "not recorded",
        "machine": facts.environment.get("machine", "not recorded"),
        "snippet": loading_snippet(facts.written, facts.load_path, folder, exchange),
        "generation_role": facts.generation_role,
        "example": exchange and exchange.template_values(),
        **{"roles": [*_role_rows(scenario)], "speaking": [_role(scenario, name) for name in facts.roles]},
        "game_settings": _settings(_game_settings(scenario)),
        "credit": _settings(non_default_settings(scenario.credit)),
        "learner": _settings(non_default_settings(facts.settings.learner) if facts.settings.learner else {}),
        "model": _settings(non_default_settings(facts.settings.model) if facts.settings.model else {}),
        "schedule": _settings(non_default_settings(scenario.schedule)),
        "figures": [*table_rows(card_metrics(facts.rows, source.step, facts.roles))],
        "limits": [*_limits(facts)],
    }


def _metadata(facts: ModelCardFacts) -> dict[str, object]:
    """Return the metadata for the hub, with valid repository names only."""
    written, kinds = facts.written, [*_games(facts.scenario).values(), _learner(facts)]
    values: dict[str, object] = {"library_name": "peft" if written.adapter else "transformers"}
    if written.loader == "AutoModelForSequenceClassification":
        values["pipeline_tag"] = "text-classification"
    elif written.loader:
        values["pipeline_tag"] = "text-generation"
    else:
        # No class of Transformers loads this policy, such as a Q-network.
        values["library_name"] = "marl"
    if base := _hub_name(facts.settings.model):
        values["base_model"] = base
        values["base_model_relation"] = "adapter" if written.adapter else "finetune"
    if datasets := sorted(set(_hub_datasets(facts.scenario.model_dump(mode="json")))):
        values["datasets"] = datasets
    tags = ["marl", "reinforcement-learning", "multi-agent", *kinds]
    return values | {"tags": [" ".join(tag.split()) for tag in dict.fromkeys(tags)]}


def _hub_name(model: ModelConfig | None) -> str | None:
    """Return the hub name of the policy's initial model, or None for a local folder or a model initialized from a
    seed."""
    inner = model.base if isinstance(model, Adapter) else model
    path = inner.model_dump(mode="json").get("path") if inner is not None and inner.kind == "pretrained" else None
    return path if isinstance(path, str) and _is_hub_name(path) and not Path(path).exists() else None


def _is_hub_name(path: str) -> bool:
    """Return True for a valid name OWNER/NAME. The hub rejects cards with any other name."""
    try:
        validate_repo_id(path)
    except HFValidationError:
        return False
    return path.count("/") == 1


def _hub_datasets(value: Any) -> Iterator[str]:
    """Yield the hub names of the data sets from which tasks take problems."""
    if isinstance(value, Mapping):
        path = value.get("path")
        if value.get("kind") == "dataset" and isinstance(path, str) and _is_hub_name(path):
            yield path
        for inner in value.values():
            yield from _hub_datasets(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _hub_datasets(inner)


def _summary(facts: ModelCardFacts) -> str:
    games = " and ".join(_games(facts.scenario))
    count = sum(policy.learner is not None for policy in facts.scenario.policies.values()) - 1
    teammates = f", while {count} other polic{'ies' if count > 1 else 'y'} learned" if count else ""
    return f"A policy trained by reinforcement learning ({_learner(facts)}) with marl in {games}{teammates}."


def _weights(facts: ModelCardFacts) -> str:
    source, written = facts.source, facts.written
    if written.adapter is not None:
        kind = "DoRA" if written.adapter.use_dora else "LoRA"
        local = Path(str(written.base)).is_dir()
        base = f"the folder {Path(str(written.base)).name!r}" if local else str(written.base)
        return f"The weights are a {kind} adapter of rank {written.adapter.rank} on {base}, in the format of PEFT."
    merged = source.adapter is not None
    return "The weights are those of a whole model" + (": the base with the adapter merged into it." if merged else ".")


def _games(scenario: Scenario) -> dict[str, str]:
    """Return displayed name -> kind for each game of the scenario."""
    kinds = {name: of_one.game.kind for name, of_one in scenario.by_game().items()}
    return {f"{name} ({kind})" if name else kind: kind for name, kind in kinds.items()}


def _game_settings(scenario: Scenario) -> dict[str, Any]:
    games = {
        name: {**non_default_settings(view.game), "seats": dict(view.seats)}
        for name, view in scenario.by_game().items()
    }
    return games.get("") or games


def _learner(facts: ModelCardFacts) -> str:
    return facts.settings.learner.kind if facts.settings.learner else "none"


def _role_rows(scenario: Scenario) -> Iterator[dict[str, str]]:
    seated: dict[str, list[str]] = {}
    for of_one in scenario.by_game().values():
        for agent, role in of_one.seats.items():
            seated.setdefault(role, []).append(agent)
    for name, role in scenario.roles.items():
        policy = scenario.policies.get(role.policy)
        learner = policy.learner.kind if policy and policy.learner else "nothing: it stays as it is"
        yield {
            **{"name": name, "seats": ", ".join(dict.fromkeys(seated.get(name, ()))), "policy": role.policy},
            **{"learner": learner, "trainable": "yes" if role.trainable and policy and policy.learner else "no"},
        }


def _role(scenario: Scenario, name: str) -> dict[str, Any]:
    settings, texts = split_long_texts(non_default_settings(scenario.roles[name]))
    blocks = {field: fenced_block(text) for field, text in texts.items()}
    return {"name": name, "settings": _settings(settings), "texts": list(blocks.items())}


def _settings(settings: Mapping[str, Any]) -> Markup:
    return fenced_block(as_yaml(settings), "yaml")


def _limits(facts: ModelCardFacts) -> Iterator[str]:
    scenario, settings = facts.scenario, facts.settings
    yield "It was trained on the prompts of its roles in this game. Nothing here says how it answers anything else."
    yield f"The figures are of one run with one seed ({scenario.schedule.seed}). Another seed may give others."
    if not any(name.startswith("eval/") for row in facts.rows for name in row):
        yield "The run was never evaluated: its figures are those of training."
    yield from _limits_of_model(settings, facts.written)
    yield from _limits_of_sampling(scenario, facts)
    # Later alarms concern weights that were not exported.
    rows_before_export = [row for row in facts.rows if row["step"] <= facts.source.step]
    for line in alarm_lines(rows_before_export):
        yield f"In training: {line}"
    yield "The run does not record licences. That of the base, and of the data, holds."


def _limits_of_model(settings: PolicyConfig, written: SavedPolicy) -> Iterator[str]:
    model = settings.model
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


def _limits_of_sampling(scenario: Scenario, facts: ModelCardFacts) -> Iterator[str]:
    chosen = facts.generation_role
    for name in facts.roles if chosen else ():
        sampling = scenario.roles[name].sampling
        if sampling != scenario.roles[str(chosen)].sampling:
            yield f"Role {name} was sampled otherwise: {json.dumps(non_default_settings(sampling))}."
        if sampling.thinking_tokens is not None or sampling.structured:
            settings = non_default_settings(sampling)
            yield f"Role {name} was sampled with limits that generation_config.json cannot say: {settings}."
