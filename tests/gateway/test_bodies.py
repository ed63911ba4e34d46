"""Bodies that continue earlier ones: parsed without the earlier messages, with the same result."""

from __future__ import annotations

import json
import random
from itertools import count
from typing import Any

import pytest

from marl.gateway import server
from marl.gateway.anthropic import AnthropicRequest
from marl.gateway.bodies import json_list_bounds
from marl.gateway.calls import ApiError
from marl.gateway.chat import ChatCompletionRequest
from marl.gateway.responses import ResponsesRequest
from marl.gateway.sessions import ProgramSession

Api = type[ChatCompletionRequest | ResponsesRequest | AnthropicRequest]
CALL = {"id": "call_1fx0", "type": "function", "function": {"name": "add", "arguments": '{"a": "]}, \\" \\u00e9"}'}}
PIECES: dict[Api, list[dict[str, Any]]] = {
    ChatCompletionRequest: [
        {"role": "user", "content": 'a "quoted" ] } , {'},
        {"role": "user", "content": [{"type": "text", "text": "señor 你好 😀"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1fx0", "content": "3"},
    ],
    AnthropicRequest: [
        {"role": "user", "content": "[{,}]"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1fx0", "name": "add", "input": {"a": [1]}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1fx0", "content": "3"}]},
    ],
    ResponsesRequest: [
        {"role": "user", "content": "{]"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "let me ü"}]},
        {"type": "function_call", "call_id": "call_1fx0", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1fx0", "output": "3"},
    ],
}


def session() -> ProgramSession:
    return ProgramSession(1, {}, lambda call: None, count(1))


@pytest.mark.parametrize("api", PIECES)
def test_a_dialogue_is_parsed_as_if_each_of_its_bodies_came_alone(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MIN_KNOWN_LENGTH", 0)
    generator, shortened = random.Random(0), 0
    for _ in range(40):
        messages: list[Any] = [PIECES[api][0]]
        together = session()
        for turn in range(6):
            if generator.random() < 0.1:
                messages[generator.randrange(len(messages))] = {"role": "user", "content": "edited"}
            fields = {api.list_field: messages, "model": "solver"}
            fields |= {
                "max_tokens": turn + 1,
                ("instructions" if api is ResponsesRequest else "x"): f"system {turn // 3}",
            }
            names = generator.sample(sorted(fields), len(fields))
            body = {name: fields[name] for name in names}
            indent, ascii_only = generator.choice([None, None, None, 1]), generator.random() < 0.9
            encoded = json.dumps(body, indent=indent, ensure_ascii=ascii_only).encode()
            shortened += together.bodies.find_cached_body_continued_by(api.__name__, encoded) is not None
            call = server._parse_api_request(api, encoded, together).call
            alone = server._parse_api_request(api, encoded, session()).call
            assert (tuple(call.messages), call.tool_sources, call.equality_key) == (
                tuple(alone.messages),
                alone.tool_sources,
                alone.equality_key,
            )
            messages = [*messages, *generator.choices(PIECES[api], k=generator.randint(1, 3))]
    assert shortened > 10


def test_an_error_names_its_place_in_the_full_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MIN_KNOWN_LENGTH", 0)
    open_session, messages = session(), [{"role": "user", "content": "x"}] * 5
    first, wrong = (json.dumps({"messages": [*messages, *more]}) for more in ([], [{"role": "oracle"}]))
    server._parse_api_request(ChatCompletionRequest, first.encode(), open_session)
    with pytest.raises(ApiError) as caught:
        server._parse_api_request(ChatCompletionRequest, wrong.encode(), open_session)
    assert caught.value.field == "messages.5.role"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"messages": [ {"a": [1]} , 2 ] }', '{"a": [1]} , 2'),
        (' { "x" : {"messages": [3]}, "messages":[1],"y":[]}', "1"),
        ('{"messages": []}', None),
        ('{"messages": "[1]"}', None),
        ('{"messages": [1], "messages": [2]}', None),
        ("{}", None),
        (r'{"\u006dessages": ["]"]}', '"]"'),
    ],
)
def test_the_bounds_of_a_list_are_those_of_its_elements(text: str, expected: str | None) -> None:
    bounds = json_list_bounds(text, "messages")
    assert (bounds and text[slice(*bounds)]) == expected
