"""Schemas of tools in prompts: through the chat template if it takes them, in the system message if not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from marl.core.config import Sampling
from marl.core.types import Message, Request
from marl.models.chat_template import ChatTokenizer
from marl.models.pretrained import PretrainedSource
from marl.models.tiny_build import make_tiny_tokenizer
from marl.protocols import Tool
from tests.support.transformers_engines import answers, engine

SCHEMA = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
PYTHON = json.dumps({"type": "function", "function": Tool(name="python", parameters=SCHEMA).model_dump(mode="json")})
CALCULATOR = json.dumps({"type": "function", "function": Tool(name="calculator").model_dump(mode="json")})
# The head of Qwen2.5's own template, and its messages without tool turns.
QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are provided \
with function signatures within <tools></tools> XML tags:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n\
</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role != 'system' or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
PLAIN = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"
HELLO = (Message("system", "Be brief."), Message("user", "2**10?"))


def prompts(template: str | dict[str, str] | None) -> ChatTokenizer:
    tokenizer: Any = make_tiny_tokenizer("bytes")
    tokenizer.chat_template = template
    return ChatTokenizer(tokenizer, frozenset([tokenizer.eos_token_id]))


def read(
    chat: ChatTokenizer, *tools: str, messages: tuple[Message, ...] = HELLO, continues: tuple[int, ...] = ()
) -> str:
    request = Request("actor", messages, Sampling(), tools=tools, continues=continues)
    return chat.tokenizer.decode(chat.prompt(request).ids, skip_special_tokens=False)


def test_a_template_that_takes_tools_gets_their_schemas() -> None:
    text = read(prompts(QWEN), PYTHON, CALCULATOR)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    listed = text.split("<tools>\n")[1].split("\n</tools>")[0].splitlines()
    assert [json.loads(line) for line in listed] == [json.loads(PYTHON), json.loads(CALCULATOR)]
    assert "Functions:" not in text, "said once"


def test_of_several_templates_the_one_for_tools_is_taken() -> None:
    chat = prompts({"default": PLAIN, "tool_use": QWEN})
    assert "<tools>" in read(chat, PYTHON)
    assert read(chat) == "<system>Be brief.<user>2**10?<assistant>"


@pytest.mark.parametrize("template", [PLAIN, None])
def test_a_template_that_does_not_take_tools_says_them_in_the_system_message(template: str | None) -> None:
    text = read(prompts(template), PYTHON, CALCULATOR)
    before, after = text.split("2**10?")[0], text.split("2**10?")[1]
    assert "Be brief.\n\nTo call a function, answer with <tool_call>" in before
    assert f"Functions:\n{PYTHON}\n{CALCULATOR}" in before
    assert "tool" not in after


def test_without_a_system_message_there_is_one_for_the_tools() -> None:
    text = read(prompts(PLAIN), PYTHON, messages=(Message("user", "hi"),))
    assert text.startswith("<system>To call a function")
    assert text.endswith(f"{PYTHON}<user>hi<assistant>")


def test_equal_messages_with_other_tools_are_other_prompts() -> None:
    chat = prompts(QWEN)
    assert len({read(chat), read(chat, PYTHON), read(chat, CALCULATOR), read(chat, PYTHON, CALCULATOR)}) == 4


@pytest.mark.parametrize("template", [QWEN, PLAIN, None])
def test_what_continues_an_earlier_prompt_does_not_say_the_tools_again(template: str | None) -> None:
    chat = prompts(template)
    earlier = chat.prompt(Request("actor", HELLO, Sampling(), tools=(PYTHON,))).ids
    continued = (*earlier, *chat.tokenizer("1024").input_ids)
    assert read(chat, PYTHON, continues=continued).count('"code"') == read(chat, PYTHON).count('"code"') > 0


def test_a_tiny_model_reads_the_names_of_tools(bytewise: PretrainedSource) -> None:
    sampler = engine(bytewise)
    requests = [Request("actor", HELLO, Sampling(max_tokens=2), tools=tools) for tools in ((), (PYTHON, CALCULATOR))]
    plain, with_tools = [
        sampler.chat_tokenizer.tokenizer.decode(answer.prompt_ids) for answer in answers(sampler, requests)
    ]
    assert with_tools == "python calculator\n" + plain
