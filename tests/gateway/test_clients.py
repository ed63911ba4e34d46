"""Clients as programs use them: `openai` (chat, stream, responses, n), the Agents SDK, `anthropic`."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from typing import Any

import openai
import pytest

from marl.core.types import CompletionFailure, Message, ToolCall
from tests.gateway.conftest import AnsweredGateway

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>{"name": "add", "arguments": {"b": 2, "a": 1}}</tool_call>'


def ask(client: Any, text: str = "hello", model: str = "solver", **more: Any) -> Any:
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], **more)


def test_a_chat_completion_comes_from_the_caller_that_the_model_names(served: AnsweredGateway) -> None:
    answer = ask(served.clients(openai.OpenAI), model="openai/solver")
    assert answer.choices[0].message.content == "solver read 'hello'"
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 3)
    assert tuple(served.calls[0].messages) == (Message("user", "hello"),)
    assert served.calls[0].parent == 7


def test_token_ids_and_logprobs_are_those_of_the_engine(served: AnsweredGateway) -> None:
    answer = ask(served.clients(openai.OpenAI), logprobs=True, extra_body={"return_token_ids": True})
    assert answer.prompt_token_ids == [1, 2, 3]
    assert answer.choices[0].token_ids == [0, 1, 2]
    tokens = [(token.token, token.logprob) for token in answer.choices[0].logprobs.content]
    assert tokens == [("token_id:0", -0.5), ("token_id:1", -0.5), ("token_id:2", -0.5)]


def test_a_stream_has_the_text_the_finish_and_the_usage(served: AnsweredGateway) -> None:
    stream = ask(served.clients(openai.OpenAI), stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "solver read 'hello'"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None, "stop"]
    assert chunks[-1].usage.total_tokens == 6


def test_n_answers_are_n_calls(served: AnsweredGateway) -> None:
    answer = ask(served.clients(openai.OpenAI), n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({call.id for call in served.calls}) == 3


def test_a_tool_call_is_parsed_and_its_result_names_the_turn_that_called(served: AnsweredGateway) -> None:
    served.say = lambda call: "it is 3" if len(call.messages) > 1 else CALL
    client = served.clients(openai.OpenAI)
    first = ask(client, tools=[TOOL]).choices[0]
    assert first.finish_reason == "tool_calls"
    call = first.message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1, "b": 2})
    chat = [
        {"role": "user", "content": "hello"},
        first.message,
        {"role": "tool", "tool_call_id": call.id, "content": "3"},
    ]
    assert client.chat.completions.create(model="solver", messages=chat, tools=[TOOL]).choices[0].message.content
    second = served.calls[1]
    assert second.tool_sources == ((2, served.calls[0].id),)
    call = ToolCall("add", '{"a":1,"b":2}', "000000000")
    assert tuple(second.messages) == (
        Message("user", "hello"),
        Message("assistant", "", (call,)),
        Message("tool", "3", call_id=call.id, name="add"),
    )
    assert json.loads(second.tools[0])["function"]["name"] == "add"


def test_a_tool_call_that_does_not_parse_reaches_the_client_as_text(served: AnsweredGateway) -> None:
    served.say = lambda call: "<tool_call>add 1 and 2</tool_call>"
    choice = ask(served.clients(openai.OpenAI), tools=[TOOL]).choices[0]
    assert choice.message.content == "<tool_call>add 1 and 2</tool_call>"
    assert choice.finish_reason == "stop"


def test_without_declared_tools_an_answer_that_spells_a_call_is_a_text(served: AnsweredGateway) -> None:
    served.say = lambda call: CALL
    choice = ask(served.clients(openai.OpenAI)).choices[0]
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (CALL, None, "stop")


def test_a_caller_is_known_by_path_by_header_by_pattern_or_because_it_is_alone(served: AnsweredGateway) -> None:
    base = served.gateway.address
    by_path = openai.OpenAI(base_url=f"{base}/agents/planner/v1", api_key=served.key)
    ask(by_path, model="gpt-5")
    ask(served.clients(openai.OpenAI, default_headers={"X-Marl-Agent": "planner"}), model="gpt-5")
    served.begin(planner={"system": "You are the planner*"}, solver={"model": "gpt-*"})
    client = served.clients(openai.OpenAI)
    chat = [{"role": "system", "content": "You are the planner. Plan."}, {"role": "user", "content": "go"}]
    client.chat.completions.create(model="x", messages=chat)
    ask(client, model="gpt-5")
    served.begin(solver={})
    ask(client, model="whatever")
    assert [call.agent for call in served.calls] == ["planner", "planner", "planner", "solver", "solver"]
    assert [call.recognised_by for call in served.calls] == ["path", "header", "match", "match", "only agent"]


def test_responses_continue_each_other_and_stream(served: AnsweredGateway) -> None:
    client = served.clients(openai.OpenAI)
    first = client.responses.create(model="solver", instructions="be brief", input="hello")
    assert first.output_text == "solver read 'hello'"
    client.responses.create(model="solver", input="more", previous_response_id=first.id)
    assert tuple(served.calls[1].messages) == (
        Message("user", "hello"),
        Message("assistant", "solver read 'hello'"),
        Message("user", "more"),
    )
    with client.responses.stream(model="solver", input="hello") as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == "solver read 'hello'"
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"


def test_the_agents_sdk_hands_off_calls_tools_and_streams(served: AnsweredGateway, monkeypatch: Any) -> None:
    agents = pytest.importorskip("agents")

    def say(call: Any) -> str:
        if call.agent == "planner":
            return '<tool_call>{"name": "transfer_to_solver", "arguments": {}}</tool_call>'
        is_result = call.messages[-1].role == "tool" and "3" in call.messages[-1].content
        return "3" if is_result else CALL

    served.say = say
    agents.set_tracing_disabled(True)
    model = lambda name: agents.OpenAIResponsesModel(name, served.clients(openai.AsyncOpenAI))  # noqa: E731

    @agents.function_tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    solver = agents.Agent("solver", instructions="Solve.", tools=[add], model=model("solver"))
    planner = agents.Agent("planner", instructions="Plan.", handoffs=[solver], model=model("planner"))

    async def run() -> list[str]:
        plain = await agents.Runner.run(planner, "1 + 2")
        streamed = agents.Runner.run_streamed(planner, "1 + 2")
        async for _ in streamed.stream_events():
            pass
        return [plain.final_output, streamed.final_output]

    assert asyncio.run(run()) == ["3", "3"]
    assert [call.agent for call in served.calls] == ["planner", "solver", "solver"] * 2
    assert served.calls[2].tool_sources[-1][1] == served.calls[1].id


def test_anthropic_messages_call_tools_and_stream(served: AnsweredGateway) -> None:
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=served.gateway.address, api_key=served.key)
    served.say = lambda call: "done" if len(call.messages) > 2 else f"let me add {CALL}"
    tool = {"name": "add", "input_schema": {"type": "object"}}
    chat: list[Any] = [{"role": "user", "content": "1 + 2"}]
    first = client.messages.create(model="solver", max_tokens=64, system="Solve.", messages=chat, tools=[tool])
    assert [block.type for block in first.content] == ["text", "tool_use"]
    assert first.content[1].input == {"a": 1, "b": 2}
    assert first.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": first.content[1].id, "content": "3"}
    chat += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    with client.messages.stream(model="solver", max_tokens=64, messages=chat) as stream:
        assert "".join(stream.text_stream) == "done"
    assert served.calls[0].sampling.max_tokens == 64
    assert served.calls[1].tool_sources == ((2, served.calls[0].id),)


def test_text_completions_and_models(served: AnsweredGateway) -> None:
    client = served.clients(openai.OpenAI)
    assert client.completions.create(model="solver", prompt="hello").choices[0].text == "solver read 'hello'"
    streamed = list(client.completions.create(model="solver", prompt="hello", stream=True))
    assert [chunk.choices[0].text for chunk in streamed] == ["solver read 'hello'"]
    assert [model.id for model in client.models.list()] == ["planner", "solver"]


def test_models_and_rewards_are_below_the_path_of_an_agent_too(served: AnsweredGateway) -> None:
    client = openai.OpenAI(base_url=f"{served.gateway.address}/agents/planner/v1", api_key=served.key)
    assert [model.id for model in client.models.list()] == ["planner", "solver"]
    client.put("/marl/rewards", cast_to=object, body={"name": "brief", "value": 0.5, "key": "a"})
    assert served.session.rewards == {"a": ("planner", "brief", 0.5)}


def test_the_id_of_a_tool_call_anywhere_in_a_prompt_names_the_turn_that_called(served: AnsweredGateway) -> None:
    served.say = lambda call: "it is 3" if len(served.calls) > 1 else CALL
    client = served.clients(openai.OpenAI)
    [call] = ask(client, tools=[TOOL]).choices[0].message.tool_calls
    ask(client, text=f"Observation of {call.id}: 3", model="planner")
    assert served.calls[1].tool_sources == ((0, served.calls[0].id),)
    ask(client, text=f"Observation of x{call.id}: 3")
    assert served.calls[2].tool_sources == ()


def test_a_reward_is_counted_once_for_each_key(served: AnsweredGateway) -> None:
    client = served.clients(openai.OpenAI)
    turn = ask(client).id
    for value in (1.0, 5.0):
        client.put(
            "/marl/rewards", cast_to=object, body={"agent": "solver", "name": "brief", "value": value, "key": "a"}
        )
    client.put("/marl/rewards", cast_to=object, body={"turn": turn, "name": "brief", "value": 2, "key": "b"})
    assert served.session.rewards == {"a": ("solver", "brief", 1.0), "b": ("solver", "brief", 2.0)}
    with pytest.raises(openai.NotFoundError, match="planner, solver"):
        client.put("/marl/rewards", cast_to=object, body={"agent": "x", "name": "b", "value": 2, "key": "c"})


def wait_for_calls(served: AnsweredGateway, count: int) -> None:
    end = time.monotonic() + 20
    while len(served.calls) < count and time.monotonic() < end:
        time.sleep(0.01)
    assert len(served.calls) == count


def test_an_equal_request_takes_over_an_answer_that_nobody_took(served: AnsweredGateway) -> None:
    served.say = lambda call: None
    impatient = served.clients(openai.OpenAI, timeout=0.3)
    with pytest.raises(openai.APITimeoutError):
        ask(impatient)
    time.sleep(0.2)
    answers: list[str] = []
    again = threading.Thread(
        target=lambda: answers.append(ask(served.clients(openai.OpenAI)).choices[0].message.content)
    )
    again.start()
    time.sleep(0.3)
    served.give(0, "late")
    again.join(5)
    assert answers == ["late"]
    assert len(served.calls) == 1
    ask_again = threading.Thread(target=lambda: ask(served.clients(openai.OpenAI)))
    ask_again.start()
    # A delivered answer is not given twice.
    wait_for_calls(served, 2)
    served.give(1, "new")
    ask_again.join(5)
    assert served.end() == []


def test_a_waiting_stream_is_kept_alive_by_comments(served: AnsweredGateway, monkeypatch: Any) -> None:
    monkeypatch.setattr("marl.gateway.server._COMMENT_S", 0.1)
    served.say = lambda call: None
    threading.Timer(0.5, lambda: served.give(0, "here")).start()
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in ask(served.clients(openai.OpenAI), stream=True))
        == "here"
    )


def test_a_prompt_beyond_the_context_is_refused_by_its_code(served: AnsweredGateway) -> None:
    served.say = lambda call: CompletionFailure("overflow", "9 tokens of prompt; the context holds 8")
    with pytest.raises(openai.BadRequestError) as caught:
        ask(served.clients(openai.OpenAI))
    assert caught.value.code == "context_length_exceeded"


def lose_answer(served: AnsweredGateway) -> None:
    """Send a call, and close the connection, hence by a reset, before all of the answer is read."""
    body = json.dumps({"model": "solver", "messages": [{"role": "user", "content": "hello"}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{served.gateway.port}\r\n"
    head += f"Authorization: Bearer {served.key}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.gateway.port)) as stream:
        stream.sendall(head.encode() + body)
        assert stream.recv(1) == b"H"
        time.sleep(0.3)


def test_an_answer_that_a_reset_connection_lost_is_given_to_an_equal_request(served: AnsweredGateway) -> None:
    lose_answer(served)
    time.sleep(0.2)
    ask(served.clients(openai.OpenAI))
    assert len(served.calls) == 1
    ask(served.clients(openai.OpenAI))
    assert len(served.calls) == 2


def test_an_answer_counts_although_its_connection_is_reset_later(served: AnsweredGateway) -> None:
    lose_answer(served)
    time.sleep(0.2)
    # The reset may as well have lost the next request of a program that has read the answer.
    assert served.end() == []
