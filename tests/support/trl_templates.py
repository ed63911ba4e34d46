"""Chat templates that TRL ships and one in Mistral's format, with byte tokenizers that have their control tokens."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import AddedToken, PreTrainedTokenizerFast

from marl.models.chat_template import ChatTokenizer
from tests.support.chat_templates import byte_level_bpe

_TRL = find_spec("trl")
_FOLDER = Path(_TRL.origin).parent / "chat_templates" if _TRL and _TRL.origin else None
TEMPLATES = {file.stem: file for file in sorted(_FOLDER.glob("*.jinja"))} if _FOLDER else {}
"""Name -> file of a template; empty if TRL is not installed."""
MISTRAL = """{{ bos_token }}{% for message in messages %}{% if message.role == "user" %}
{%- if tools and loop.first %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif -%}
[INST] {{ message.content }}[/INST]
{%- elif message.role == "tool" -%}
[TOOL_RESULTS] {"content": {{ message.content | tojson }}, "call_id": "{{ message.tool_call_id }}"}[/TOOL_RESULTS]
{%- elif message.tool_calls %}[TOOL_CALLS] [{% for call in message.tool_calls %}
{%- if (call.id or "") | length != 9 %}{{ raise_exception("ids of calls must have nine characters") }}{% endif -%}
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}
{{- ", " if not loop.last }}{% endfor %}]{{ eos_token }}
{%- else %} {{ message.content }}{{ eos_token }}{% endif %}{% endfor %}"""
"""Template written for tests, in the format of tool calls of Mistral 7B Instruct v0.3; TRL ships none of Mistral."""
_SPECIAL = re.compile(r"<\|[^|<>\s]{1,40}\|>|<｜[^<>｜]{1,40}｜>|<(?:start|end)_of_turn>|<\|?turn\|?>|<eos>|</s>")  # noqa: RUF001
_ENDS = ("<|im_end|>", "<|eot_id|>", "<turn|>", "<end_of_turn>", "<|call|>", "<|END_OF_TURN_TOKEN|>", "<|end|>", "</s>")


@cache
def chat(name: str) -> ChatTokenizer:
    """Return a tokenizer of bytes with the template `name` and the control tokens in it."""
    template = MISTRAL if name == "mistral" else TEMPLATES[name].read_text(encoding="utf-8")
    special = [
        "<s>",
        *(["</s>", "[TOOL_CALLS]"] if name == "mistral" else []),
        *dict.fromkeys(_SPECIAL.findall(template)),
        "<|endoftext|>",
    ]
    ends = [token for token in _ENDS if token in special] or ["<|endoftext|>"]
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=byte_level_bpe(tuple(special)), bos_token="<s>", eos_token=ends[0]
    )
    tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken(t, special=True) for t in special]})
    tokenizer.chat_template = template
    return ChatTokenizer(tokenizer, frozenset(tokenizer.convert_tokens_to_ids(ends)))
