"""Base classes of the settings in a scenario, and hints in their error messages."""

import ast
import difflib
import inspect
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PositiveInt,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from marl.host.paths import current_resolver

PEER_NAMES = {
    "learning_rate": "lr",
    "lr_scheduler_type": "schedule",
    "num_generations": "group_size",
    "rollout_n": "group_size",
    "max_new_tokens": "max_tokens",
    "max_completion_length": "max_tokens",
    "max_response_length": "max_tokens",
    "num_train_epochs": "epochs",
    "num_epochs": "epochs",
    "ppo_epochs": "epochs",
    "num_mini_batches": "minibatches",
    "max_grad_norm": "max_norm",
    "hidden_size": "hidden",
    "num_layers": "layers",
    "num_hidden_layers": "layers",
    "lora_rank": "rank",
    "lora_alpha": "alpha",
    "model_name_or_path": "path",
    "max_steps": "steps",
    "total_steps": "steps",
}
"""Name of a setting in TRL, verl, OpenRLHF or PEFT -> name of the same setting here, for error messages."""
FIELD_PREFIX = re.compile(r"[a-z]\w*(\.\w+)*: ")
"""Beginning of an error message that names one setting, such as `columns.answer: `."""
_COMPARED_CHARACTERS = 200
"""Number of leading characters of a name that are compared with the choices (difflib is quadratic)."""
_MIN_SIMILARITY, _MAX_SIMILARITY_GAP = 0.5, 0.15
"""Minimum similarity of a choice that may have been meant, and maximum difference from the most similar choice."""
_MIN_PREFIX, _PREFIX_SIMILARITY = 3, 0.75
"""Minimum length of a name that may abbreviate a choice by its beginning, and the similarity of the two."""
_MAX_MEANT = 3
"""Maximum number of choices that may have been meant."""
_MAX_LISTED, _NEAREST = 16, 6
"""Maximum number of choices that an error message lists in full; of more choices, number of similar ones it lists."""
_Value = TypeVar("_Value")
_Values = TypeVar("_Values", bound=Collection[Any])


def shorten(text: str, max_length: int = 80) -> str:
    """Return `text`, shortened to `max_length` characters that end with `...` if it is longer."""
    return text if len(text) <= max_length else f"{text[: max_length - 3]}..."


def did_you_mean(unknown_name: str, choices: Iterable[str]) -> str:
    """Return the question 'did you mean ...? ' with up to three similar choices, or "" if none is similar.

    Of several similar choices, those much less similar than the best are left out.
    """
    similarities = _similarity_by_choice(unknown_name, choices)
    least = max(_MIN_SIMILARITY, max(similarities.values(), default=0.0) - _MAX_SIMILARITY_GAP)
    close = [choice for choice, similarity in similarities.items() if similarity >= least][:_MAX_MEANT]
    return f"did you mean {' or '.join(map(repr, close))}? " if close else ""


def _similarity_by_choice(unknown_name: str, choices: Iterable[str]) -> dict[str, float]:
    """Return choice -> similarity to `unknown_name` in [0, 1], the most similar choice first.

    Of equally similar choices, those with more of the name's letters come first, so that swapped letters are found.
    """
    compared = unknown_name[:_COMPARED_CHARACTERS].lower()
    similarities: dict[str, float] = {}
    common_letters: dict[str, int] = {}
    for choice in sorted(choices):
        other = choice.lower()
        similarity = difflib.SequenceMatcher(None, compared, other).ratio()
        # Prefixes count as similar: difflib's ratio of `kuhn` and `kuhn_poker` is low, as most letters are missing.
        shorter, longer = sorted((compared, other), key=len)
        if len(shorter) >= _MIN_PREFIX and longer.startswith(shorter):
            similarity = max(similarity, _PREFIX_SIMILARITY)
        similarities[choice] = similarity
        common_letters[choice] = (Counter(compared) & Counter(other)).total()
    ordered = sorted(similarities, key=lambda choice: (-similarities[choice], -common_letters[choice]))
    return {choice: similarities[choice] for choice in ordered}


def choices_hint(unknown_name: str, choices: Iterable[str]) -> str:
    """Return the end of an error message about `unknown_name`: a question with similar choices, then a list."""
    names = sorted(choices)
    return f"{did_you_mean(unknown_name, names)}{list_choices(names, unknown_name)}"


def list_choices(choices: Collection[str], unknown_name: str = "") -> str:
    """Return `choices: a, b, c` for an error message.

    Of more than `_MAX_LISTED` choices, only the `_NEAREST` ones most similar to `unknown_name` are listed, with the
    number of all. Without `unknown_name`, all are listed.
    """
    if len(choices) <= _MAX_LISTED or not unknown_name:
        return f"choices: {', '.join(choices) or 'none'}"
    nearest = list(_similarity_by_choice(unknown_name, choices))[:_NEAREST]
    return f"nearest of {len(choices)} choices: {', '.join(nearest)}"


def _is_number_type(annotation: Any) -> bool:
    """Return True if a field with this type annotation takes numbers but no booleans."""
    inner_types = get_args(annotation)
    return annotation in (int, float) or (bool not in inner_types and any(map(_is_number_type, inner_types)))


def field_errors(message_by_field: Mapping[str, str]) -> PydanticCustomError:
    """Return one validation error with the messages of several fields; `message_by_field` is field -> message."""
    return PydanticCustomError(
        "wrong", "{message}", {"message": "; ".join(message_by_field.values()), "below": dict(message_by_field)}
    )


def refuse_repeated_values(values: _Values) -> _Values:
    """Return `values`, a setting with a list that stands for a set.

    Raises:
        ValueError: if a value is listed twice, because it is then likely that another one was meant.
    """
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{value!r} is listed twice; list it once")
        seen.add(value)
    return values


DistinctValues = Annotated[
    tuple[_Value, ...], AfterValidator(refuse_repeated_values), Field(json_schema_extra={"uniqueItems": True})
]
"""Type of a setting with a list of different values, such as `DistinctValues[str]`."""


class Config(BaseModel):
    """Base class of settings: frozen, and with an error for every unknown field, so that no typo is ignored."""

    # Pydantic's `use_attribute_docstrings` would read every source file at import (0.3 s); see `field_descriptions`.
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    example: ClassVar[str] = ""
    """Example of the settings after `kind` in YAML (`path: answers.jsonl, seed: 1`), with all required fields."""

    @model_validator(mode="before")
    @classmethod
    def _check_fields_and_resolve_paths(cls, data: Any) -> Any:
        """Return `data` with absolute paths; unknown fields, and booleans instead of numbers, are errors."""
        if not isinstance(data, Mapping):
            return data
        absolute = dict(data)
        resolver = current_resolver.get()
        if resolver:
            for name in cls.model_fields.keys() & data.keys():
                try:
                    absolute[name] = resolver.resolve_paths_in_field(
                        name, cls.model_fields[name].annotation, data[name]
                    )
                except ValueError as error:
                    raise field_errors({name: str(error)}) from error
        problems: dict[str, str] = {}
        for key, value in absolute.items():
            if key not in cls.model_fields:
                today = PEER_NAMES.get(str(key), "")
                hint = choices_hint(str(key), cls.model_fields)
                if today in cls.model_fields:
                    hint = f"did you mean {today!r}? {list_choices(sorted(cls.model_fields), today)}"
                problems[shorten(str(key))] = f"unknown field {shorten(repr(key))}; {hint}"
            elif isinstance(value, bool) and _is_number_type(cls.model_fields[key].annotation):
                # A bool is an int to Pydantic, which would read `warm_up: true` as 1.
                problems[key] = f"must be a number (got {value})"
        if problems:
            raise field_errors(problems)
        return absolute

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, description in field_descriptions(cls).items():
            if name in properties:
                properties[name].setdefault("description", description)
        return schema


def field_descriptions(settings: type[Config]) -> dict[str, str]:
    """Return field -> description, for the fields of a settings class and of its base classes.

    A description is the text below the field in the source. The source is read on demand, so that commands without
    descriptions start fast.
    """
    texts: dict[str, str] = {}
    for base in reversed(settings.__mro__):
        texts |= _field_descriptions_by_class(base.__module__).get(base.__qualname__, {})
    return {name: text for name, text in texts.items() if name in settings.model_fields}


@cache
def _field_descriptions_by_class(module_name: str) -> dict[str, dict[str, str]]:
    """Return class -> field -> description for the classes of a module; {} for a module without source."""
    with suppress(KeyError, OSError, SyntaxError, TypeError):
        return dict(_iterate_class_descriptions(ast.parse(inspect.getsource(sys.modules[module_name])), ""))
    return {}


def _iterate_class_descriptions(syntax_tree: ast.AST, name_prefix: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (qualified name, field -> description) for each class in the syntax tree `syntax_tree`."""
    for node in ast.iter_child_nodes(syntax_tree):
        if isinstance(node, ast.ClassDef):
            texts = {}
            for field, text in pairwise(node.body):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(description))):
                        # "None:" becomes "Null:", because settings are written in YAML.
                        texts[name] = " ".join(description.split()).replace("None:", "Null:")
            yield f"{name_prefix}{node.name}", texts
            yield from _iterate_class_descriptions(node, f"{name_prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _iterate_class_descriptions(node, f"{name_prefix}{node.name}.<locals>.")


class PluginConfig(Config):
    """Base class of the settings of a plug-in, which a scenario names by `kind` (see `marl.core.plugins`)."""

    kind: str
    """Name of the plug-in, or its import path `package.module:Name`."""
    group: ClassVar[str] = ""
    """Group of the plug-in, such as `games`. Installed plug-ins have entry points of the group `marl.<group>`."""

    def unmet_requirements(self) -> Iterable[str]:
        """Yield an error message for each missing requirement outside the settings, such as a file or a package."""
        return ()


class Segments(Config):
    """Division of a role's completions into segments: steps inside an answer, which can have credit of their own.

    A segment ends with the token that contains its last character. Blank text belongs to the segment before it.
    """

    example = "by: line"
    by: Literal["line", "sentence", "tag", "tokens"]
    """End of a segment. `line`: a line break. `sentence`: `.`, `!` or `?` before a blank, or a line break. `tag`: the
    closing tag `</TAG>`. `tokens`: every `length` tokens."""
    tag: str = Field(default="step", pattern=r"^[A-Za-z][\w-]*$")
    """Name of the tag that ends a segment, with `by: tag`: `step` for `</step>`."""
    length: PositiveInt = 64
    """Number of tokens of a segment, with `by: tokens`."""

    @model_validator(mode="after")
    def _check_settings_fit_by(self) -> Self:
        # A resolved scenario contains the defaults of all settings, so only other values are refused.
        for name, value, default, owner in (("tag", self.tag, "step", "tag"), ("length", self.length, 64, "tokens")):
            if value != default and self.by != owner:
                raise ValueError(f"{name}: {value!r} has no effect with by: {self.by}; use by: {owner}, or remove it")
        return self


class ContextLimit(Config):
    """Limit of a role's prompts, and the shorter prompt that replaces one above it.

    Without a shorter prompt, or if the shortest is too long, the answer is empty (`role/ROLE/overflow` counts them).
    """

    example = "when_full: truncate"
    limit: PositiveInt | None = None
    """Maximum number of tokens of a prompt (default: the model's context)."""
    when_full: Literal["overflow", "drop_tool_results", "truncate", "summarize"] = "overflow"
    """Shorter prompt. `drop_tool_results`: `(dropped)` stands for the oldest results of tools. `truncate`: without the
    agent's oldest answers and the messages that follow each. `summarize`: the agent writes a summary of the
    conversation, which replaces it, and is learned from. `overflow`: none."""
    ask: str = Field(default="Summarize this conversation. Keep all that is needed to go on.", min_length=1)
    """Message with which `summarize` asks for a summary."""


class Sampling(Config):
    """Settings of a role's token sampling: temperature, truncation, length limits and stop texts."""

    temperature: float = Field(default=1.0, ge=0, le=100)
    """Sampling temperature, the divisor of logits. 1: the model's own distribution. 0: always the most likely token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Total probability of the most likely tokens from which each token is sampled. 1 keeps every token."""
    top_k: int = Field(default=0, ge=0)
    """Number of most likely tokens from which each token is sampled. 0 keeps every token."""
    max_tokens: int = Field(default=256, ge=1, le=10_000_000)
    """Maximum number of tokens of a completion. A longer completion is cut off."""
    thinking_tokens: int | None = Field(default=None, ge=0)
    """Maximum number of tokens between `<think>` and `</think>`, which also count in `max_tokens`. At the limit,
    `</think>` is inserted and not trained on. None: only `max_tokens` limits thoughts."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion, in addition to the model's end tokens."""
    structured: Literal["json", "legal_moves"] | None = None
    """Constraint on completions. `json`: a JSON object, matching the role's `json_schema` if it has one. `legal_moves`:
    the text of a legal move. No learner can compute the constrained log-probabilities, so the turns are not trained on.
    Needs engine `vllm`."""

    @model_validator(mode="after")
    def _check_thought_limit(self) -> Self:
        if self.structured and self.thinking_tokens is not None:
            raise ValueError(f"structured: {self.structured!r} leaves no room for thoughts; remove thinking_tokens")
        return self

    @property
    def truncates_distribution(self) -> bool:
        """Return True if `top_p` or `top_k` gives some tokens probability 0."""
        return self.top_p < 1 or self.top_k > 0
