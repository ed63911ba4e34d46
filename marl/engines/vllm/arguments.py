"""Arguments of vLLM that a scenario may pass on (`args`), checked against the installed vLLM without importing it."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from marl.core.config import choices_hint

ArgumentValue = bool | int | float | str

_OWNED = {
    "model": "the policy's `model` gives it",
    "tokenizer": "texts are tokenized outside vLLM, by the policy's `model`",
    "skip_tokenizer_init": "texts are tokenized outside vLLM",
    "trust_remote_code": "the policy's `model` gives it",
    "dtype": "the setting `dtype` gives it",
    "max_model_len": "the setting `max_context` gives it",
    "max_num_seqs": "the setting `max_sequences` gives it",
    "max_num_batched_tokens": "the setting `prefill_tokens` gives it",
    "block_size": "the setting `block_size` gives it",
    "gpu_memory_utilization": "the setting `memory_share` gives it",
    "kv_cache_memory_bytes": "the setting `kv_cache_mib` gives it",
    "tensor_parallel_size": "the setting `tensor_parallel` gives it",
    "enforce_eager": "the setting `eager` gives it",
    "enable_sleep_mode": "the setting `sleep` gives it",
    "enable_lora": "the policies' adapters determine it",
    "max_loras": "the setting `max_adapters` gives it",
    "max_lora_rank": "the policies' adapters determine it",
    "seed": "each request has a seed of its own",
    "logprobs_mode": "log-probabilities must be those of the sampling distribution",
    "max_logprobs": "a completion takes the log-probability of each sampled token alone",
    "generation_config": "the role's `sampling` gives all settings of sampling",
    "override_generation_config": "the role's `sampling` gives all settings of sampling",
    "structured_outputs_config": "`sampling.structured` works with one backend",
    "enable_chunked_prefill": "vLLM reads prompts in chunks wherever it can",
    "stream_interval": "stop texts and thinking budgets are checked after each token",
    "disable_log_stats": "vLLM logs nothing here",
    "use_tqdm_on_load": "vLLM prints nothing here",
    "tokens_only": "vLLM gets token ids alone already",
    "runner": "a policy generates text",
    "convert": "a policy generates text",
    "enable_return_routed_experts": "no learner reads it",
    "return_sampling_mask": "no learner reads it",
}
"""Argument that the engine sets itself -> reason for which `args` may not."""
_OWNED_PREFIXES = {
    "data_parallel_": "an engine is one replica; give the scenario `cluster.simulators` instead",
    "mm_": "a policy reads text alone",
    "node": "vLLM's own launcher gives it; several nodes take `distributed_executor_backend: ray`",
    "nnodes": "vLLM's own launcher gives it; several nodes take `distributed_executor_backend: ray`",
    "master_": "vLLM's own launcher gives it; several nodes take `distributed_executor_backend: ray`",
    "_": "it is vLLM's own",
}
_WORDS = (
    "all2all_backend",
    "attention_backend",
    "distributed_executor_backend",
    "kv_cache_dtype",
    "linear_backend",
    "mamba_cache_dtype",
    "moe_backend",
    "performance_mode",
    "quantization",
)
"""Arguments that take a word of vLLM's. Other texts may name a file, a host or code, so they are refused."""
_WORD_CHOICES = {"distributed_executor_backend": ("mp", "ray")}
"""Argument -> words among which it must be, where vLLM imports any other word as code."""
_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {"bool": (bool,), "int": (int,), "float": (int, float)}
"""Type in vLLM's source -> types of values that it accepts."""
_CLASS = "EngineArgs"
"""Class of vLLM whose fields are the arguments."""


@cache
def installed_argument_types() -> Mapping[str, frozenset[str]]:
    """Return the name of each argument of the installed vLLM -> names in its type, such as `int` and `None`.

    A type that is more than a union of names has the value `frozenset()`. The result is empty if vLLM is not installed.
    """
    spec = find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return {}
    # vLLM takes seconds to import, and loads torch.
    source = Path(spec.submodule_search_locations[0], "engine", "arg_utils.py").read_text()
    [arguments] = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == _CLASS]
    types: dict[str, frozenset[str]] = {}
    for node in arguments.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            words = [word.strip(" ()") for word in ast.unparse(node.annotation).split("|")]
            types[node.target.id] = frozenset(words if all(word.isidentifier() for word in words) else ())
    return types


def check_arguments(arguments: Mapping[str, ArgumentValue]) -> None:
    """Check the names and types of `arguments` of vLLM's `EngineArgs`; unknown names only if vLLM is installed.

    Raises:
        ValueError: if vLLM has no argument of a name, the engine sets it itself, or it may name a file, a host or code;
            or if a value has another type.
    """
    types = installed_argument_types() if arguments else {}
    allowed: list[str] = []
    for name, type_names in types.items():
        if (name in _WORDS or _is_number(type_names)) and not _reason_to_refuse(name):
            allowed.append(name)
    for name, value in arguments.items():
        if reason := _reason_to_refuse(name):
            raise ValueError(f"args.{name}: {value!r}, but {reason}")
        if types and name not in types:
            hint = choices_hint(name, allowed)
            raise ValueError(f"args.{name}: {value!r}, but vLLM has no argument of this name; {hint}")
        if types and name not in allowed:
            problem = "vLLM takes a file, a host, code or a table there; choices: numbers and single words"
            raise ValueError(f"args.{name}: {value!r}, but {problem}")
        _check_value(name, value, types.get(name, frozenset()))


def _reason_to_refuse(name: str) -> str:
    """Return the reason for which a scenario may not pass argument `name` of vLLM, or "" if there is none."""
    if name in _OWNED:
        return _OWNED[name]
    return next((reason for prefix, reason in _OWNED_PREFIXES.items() if name.startswith(prefix)), "")


def _is_number(type_names: frozenset[str]) -> bool:
    """Return True if an argument takes a number or a truth value, and nothing else but None."""
    return bool(type_names) and type_names <= {*_PYTHON_TYPES, "None"}


def _check_value(name: str, value: ArgumentValue, type_names: frozenset[str]) -> None:
    if name in _WORDS or not _is_number(type_names):
        choices = _WORD_CHOICES.get(name)
        if choices and value not in choices:
            raise ValueError(f"args.{name}: {value!r}; {choices_hint(str(value), choices)}")
        if isinstance(value, str) and not re.fullmatch(r"[\w-]+", value):
            raise ValueError(f"args.{name}: {value!r} is not one word")
        return
    accepted: set[type] = set()
    for type_name in type_names - {"None"}:
        accepted.update(_PYTHON_TYPES[type_name])
    if type(value) not in accepted:
        wanted = " or ".join(sorted(type_names - {"None"}))
        raise ValueError(f"args.{name}: {value!r} is no {wanted}")
