"""The OpenAI engine against endpoints that behave and endpoints that do not."""

from __future__ import annotations

import email.utils
import json
import subprocess
import sys
import time
from typing import Any

import pytest
from pydantic import ValidationError

from marl.core.config import Sampling
from marl.core.errors import EndpointError
from marl.core.types import Completion, CompletionFailure
from marl.core.usage import RemoteUsage
from marl.engines.openai.engine import OpenAIEngine
from marl.engines.openai.settings import OpenAI
from tests.support.misbehaving_servers import (
    Act,
    drops_connection,
    floods,
    never_replies,
    replies_with_bytes,
    replies_with_text,
    resets,
    serving,
    trickles,
)
from tests.support.openai_clients import (
    DEADLINE_S,
    Serve,
    build_endpoint,
    collect_answers,
    endpoint_settings,
    make_request,
)

# --- what is sent, and what comes back ---


def test_an_answer_comes_with_what_it_took_and_without_tokens(start_server: Serve) -> None:
    mate = build_endpoint(
        start_server(replies_with_text("[bet]", usage=(1000, 20))), price={"prompt": 2.0, "completion": 50.0}
    )
    usage = RemoteUsage(1000, 20, 0.003, tries=1)
    assert collect_answers(mate, make_request()) == [Completion("[bet]", (), (), (), "stop", usage=usage)]
    assert mate.spent == {"mate": usage}


def test_sampling_seed_and_tools_are_passed_on(start_server: Serve) -> None:
    server = start_server(replies_with_text())
    sampling = Sampling(temperature=0.5, top_p=0.9, top_k=7, max_tokens=5, stop=("END",))
    tool = {"type": "function", "function": {"name": "python", "parameters": {}}}
    mate = build_endpoint(server, extra={"reasoning_effort": "low", "top_p": None})
    collect_answers(mate, make_request("hi", seed=2**63 + 5, sampling=sampling, tools=(json.dumps(tool),)))
    assert server.bodies == [
        {
            "model": "mate-1",
            "messages": [{"role": "user", "content": "hi"}],
            "temperature": 0.5,
            "top_k": 7,
            "max_tokens": 5,
            "stop": ["END"],
            "seed": 5,
            "tools": [tool],
            "reasoning_effort": "low",
        }
    ]


def test_the_key_travels_in_a_header_and_nowhere_else(start_server: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATE_KEY", "sk-secret\n")
    server = start_server(replies_with_text(), replies_with_bytes(b"bad key: sk-secret", 401))
    mate = build_endpoint(server, key_env="MATE_KEY", on_failure="skip")
    collect_answers(mate, make_request())
    [failure] = collect_answers(mate, make_request())
    assert server.headers[0]["authorization"] == "Bearer sk-secret"
    assert isinstance(failure, CompletionFailure)
    assert "bad key: (the key)" in failure.reason
    assert "secret" not in endpoint_settings(server, key_env="MATE_KEY").model_dump_json()


def test_without_a_key_no_authorization_is_sent(start_server: Serve) -> None:
    server = start_server(replies_with_text())
    collect_answers(build_endpoint(server), make_request())
    assert "authorization" not in server.headers[0]


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "aborted"), ("eos", "stop"), (None, "stop")],
)
def test_why_it_ended_is_translated(reason: str | None, finish: str, start_server: Serve) -> None:
    [answer] = collect_answers(build_endpoint(start_server(replies_with_text("text", finish=reason))), make_request())
    assert answer.finish == finish


def test_a_refusal_and_an_answer_cut_before_it_began_are_answers(start_server: Serve) -> None:
    server = start_server(
        replies_with_text(None, refusal="I must not"), replies_with_text(None, finish="length"), replies_with_text("")
    )
    mate = build_endpoint(server)
    completions = [collect_answers(mate, make_request())[0] for _ in range(3)]
    assert [(answer.text, answer.finish) for answer in completions if isinstance(answer, Completion)] == [
        ("I must not", "aborted"),
        ("", "length"),
        ("", "stop"),
    ]


def test_calls_of_tools_are_spelled_as_local_models_say_them(start_server: Serve) -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "python", "arguments": '{"code": "1+1"}'}}]
    broken = [{"id": "2", "type": "function", "function": {"name": "python", "arguments": '{"code": '}}]
    server = start_server(
        replies_with_text(None, tool_calls=calls, finish="tool_calls"),
        replies_with_text("Let me see.", tool_calls=calls),
        replies_with_text(None, tool_calls=broken),
    )
    mate = build_endpoint(server)
    texts = [
        answer.text
        for answer in (collect_answers(mate, make_request())[0] for _ in range(3))
        if isinstance(answer, Completion)
    ]
    call = '<tool_call>{"name": "python", "arguments": {"code": "1+1"}}</tool_call>'
    assert texts[:2] == [call, f"Let me see.\n{call}"]
    assert texts[2] == '<tool_call>{"name": "python", "arguments": "{\\"code\\": "}</tool_call>'


def test_a_thought_that_the_server_takes_out_of_the_answer_stands_before_it(start_server: Serve) -> None:
    server = start_server(
        replies_with_text("5", reasoning_content="2 + 3"),
        replies_with_text("", reasoning_content=""),
        replies_with_text(None, reasoning_content="hm, w", finish="length"),
    )
    mate = build_endpoint(server)
    texts = [
        answer.text
        for answer in (collect_answers(mate, make_request())[0] for _ in range(3))
        if isinstance(answer, Completion)
    ]
    assert texts == ["<think>\n2 + 3\n</think>\n\n5", "", "<think>\nhm, w"]


def test_what_takes_the_model_itself_is_refused(start_server: Serve) -> None:
    mate = build_endpoint(start_server(replies_with_text()))
    with pytest.raises(ValueError, match=r"policy 'mate': the endpoint http.* cannot score a text"):
        mate.submit(0, make_request(forced="[bet]"))
    with pytest.raises(ValueError, match=r"cannot limit thoughts \(sampling.thinking_tokens\)"):
        mate.submit(0, make_request(sampling=Sampling(thinking_tokens=5)))
    with pytest.raises(ValueError, match="cannot continue token ids"):
        mate.submit(0, make_request(continues=(1, 2)))
    with pytest.raises(ValueError, match="no weights to load"):
        mate.load_weights("mate", [], 1)


# --- troubles ---

FAULTS: dict[str, tuple[Act, str]] = {
    "never": (never_replies, r"no answer within 0\.35 s \(engine\.timeout_s\)"),
    "trickles": (trickles, r"no answer within 0\.35 s"),
    "breaks_off": (drops_connection, "the connection failed: RemoteProtocolError"),
    "resets": (resets, "the connection failed: (ReadError|RemoteProtocolError)"),
    "429": (replies_with_bytes(b"slow down", 429), "HTTP 429: 'slow down'"),
    "500": (replies_with_bytes(b'{"error": "oops"}', 500), "HTTP 500: .*oops"),
    "empty": (replies_with_bytes(b""), "no chat completion: Invalid JSON"),
    "not_json": (replies_with_bytes(b'{"choices": ['), "no chat completion: Invalid JSON"),
    "html": (replies_with_bytes(b"<html>gateway</html>"), "no chat completion: Invalid JSON.*<html>"),
    "a_list": (replies_with_bytes(b"[1, 2]"), "no chat completion: must be an object, got list"),
    "no_choices": (replies_with_bytes(b'{"choices": []}'), "choices: List should have at least 1 item"),
    "other_schema": (replies_with_bytes(b'{"answer": "hi"}'), "choices: Field required"),
    "wrong_type": (replies_with_text({"text": "hi"}), r"choices\.0\.message\.content: Input should be a valid string"),
    "null": (replies_with_text(None), "a chat completion without content"),
    "pours": (floods, "more than 16 MiB"),
    "bad_gzip": (
        replies_with_bytes(b"not gzip", content_encoding="gzip"),
        r"the body is packed \('gzip'\), although that was not asked for",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_passes_is_overcome(fault: str, start_server: Serve) -> None:
    server = start_server(FAULTS[fault][0], replies_with_text("at last"))
    mate = build_endpoint(server)
    [answer] = collect_answers(mate, make_request())
    assert isinstance(answer, Completion)
    assert answer.text == "at last"
    assert mate.spent["mate"].tries == len(server.bodies) == 2


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_stays_is_named_with_policy_and_address(fault: str, start_server: Serve) -> None:
    act, why = FAULTS[fault]
    server = start_server(act)
    with pytest.raises(
        EndpointError, match=f"policy 'mate': {server.url} gave no answer in 2 tries; the last: .*{why}"
    ):
        collect_answers(build_endpoint(server, retries=1, timeout_s=0.35 if fault != "pours" else 5), make_request())
    assert len(server.bodies) == 2


def test_an_address_where_nobody_listens_is_named() -> None:
    with serving(replies_with_text()) as server:
        gone = endpoint_settings(server, retries=1)
    mate = gone.build(None)
    assert isinstance(mate, OpenAIEngine)
    with pytest.raises(EndpointError, match="the connection failed: ConnectError"):
        collect_answers(mate, make_request())


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_no_retry_can_mend_is_not_tried_again(status: int, start_server: Serve) -> None:
    server = start_server(replies_with_bytes(b"no", status))
    with pytest.raises(EndpointError, match=f"in 1 try; the last: HTTP {status}"):
        collect_answers(build_endpoint(server), make_request())


@pytest.mark.parametrize(
    "body", [b'{"error": {"code": "context_length_exceeded"}}', b"This model's maximum context length is 16"]
)
def test_a_prompt_that_is_too_long_is_an_overflow_and_ends_no_run(body: bytes, start_server: Serve) -> None:
    [answer] = collect_answers(build_endpoint(start_server(replies_with_bytes(body, 400))), make_request())
    assert isinstance(answer, CompletionFailure)
    assert answer.finish == "overflow"


def test_a_wait_that_is_asked_for_is_kept(start_server: Serve) -> None:
    server = start_server(replies_with_bytes(b"", 429, retry_after="0.3"), replies_with_text())
    started = time.monotonic()
    collect_answers(build_endpoint(server), make_request())
    assert 0.3 <= time.monotonic() - started < DEADLINE_S


TOMORROW = email.utils.formatdate(time.time() + 86400, usegmt=True)


@pytest.mark.parametrize("wait", ["86400", TOMORROW, "-1", "nan", "x"], ids=["seconds", "date", "past", "nan", "text"])
def test_no_wait_is_longer_than_a_try(wait: str, start_server: Serve) -> None:
    started = time.monotonic()
    collect_answers(
        build_endpoint(start_server(replies_with_bytes(b"", 429, retry_after=wait), replies_with_text())),
        make_request(),
    )
    assert time.monotonic() - started < DEADLINE_S


def test_one_that_may_be_skipped_is_an_unreadable_turn_until_there_are_too_many(start_server: Serve) -> None:
    server = start_server(replies_with_bytes(b"no", 500))
    mate = build_endpoint(server, retries=1, on_failure="skip", max_failures=2)
    for _ in range(2):
        [answer] = collect_answers(mate, make_request())
        assert isinstance(answer, CompletionFailure)
        assert (answer.finish, answer.usage) == ("aborted", RemoteUsage(tries=2, failed=1))
    with pytest.raises(
        EndpointError, match=r"HTTP 500: 'no'; 3 requests were given up so far \(engine.max_failures: 2\)$"
    ):
        collect_answers(mate, make_request())


# --- waiting ---


def test_submit_and_a_step_without_patience_return_at_once(start_server: Serve) -> None:
    mate = build_endpoint(start_server(never_replies), timeout_s=30)
    started = time.monotonic()
    for ticket in range(50):
        mate.submit(ticket, make_request())
        assert mate.step(0.0) == []
    assert time.monotonic() - started < 10
    assert mate.step(0.2) == []
    assert time.monotonic() - started < 20


def test_waiting_takes_no_time_of_the_processor(start_server: Serve) -> None:
    mate = build_endpoint(start_server(never_replies), timeout_s=30)
    mate.submit(0, make_request())
    mate.step(0.2)
    before = time.process_time()
    mate.step(0.6)
    assert time.process_time() - before < 0.2


def test_no_more_requests_are_in_flight_than_allowed(start_server: Serve) -> None:
    server = start_server(never_replies)
    mate = build_endpoint(server, concurrency=3, timeout_s=30)
    for ticket in range(9):
        mate.submit(ticket, make_request())
    mate.step(0.5)
    assert len(server.bodies) == 3


def test_a_cancelled_request_is_given_up_and_never_answered(start_server: Serve) -> None:
    server = start_server(never_replies, replies_with_text("next"))
    mate = build_endpoint(server, timeout_s=30, concurrency=1)
    mate.submit(0, make_request())
    mate.step(0.3)
    mate.cancel([0])
    assert server.left.wait(DEADLINE_S), "the connection was closed"
    mate.submit(1, make_request())
    answered = mate.step(DEADLINE_S) or mate.step(DEADLINE_S)
    assert [ticket for ticket, _ in answered] == [1]


def test_an_open_request_does_not_keep_the_process_alive(start_server: Serve) -> None:
    code = f"""
from marl.core.config import Sampling
from marl.engines.openai.settings import OpenAI
from marl.core.types import Message, Request
mate = OpenAI(base_url={start_server(never_replies).url!r}, model="m", key_env=None).build(None)
mate.submit(0, Request("mate", (Message("user", "x"),), Sampling()))
assert mate.step(0.3) == []
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")


# --- money ---

PRICE = {"prompt": 0.0, "completion": 1e6}
"""1 per completion token."""


def test_a_budget_is_never_exceeded_however_many_are_in_flight(start_server: Serve) -> None:
    server = start_server(replies_with_text(usage=(5, 4)))
    mate = build_endpoint(server, price=PRICE, budget=30.0, concurrency=8)
    with pytest.raises(EndpointError, match=r"policy 'mate': 24 of 30 are spent \(engine.budget\), and one more .* 9$"):
        collect_answers(mate, *[make_request() for _ in range(20)])
    # 4 each, and 9 (max_tokens) must fit before one is sent: 0, 4, ... 20 and the last one at 20 + 9 <= 30.
    assert mate.spent["mate"].cost == 24.0
    assert len(server.bodies) == 6


def test_an_answer_that_does_not_say_what_it_took_counts_as_much_as_it_may_have_taken(start_server: Serve) -> None:
    mate = build_endpoint(start_server(replies_with_text(usage=None)), price=PRICE)
    [answer] = collect_answers(mate, make_request())
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.usage.cost) == (9, 9.0)


def test_tries_that_were_paid_for_in_vain_are_counted(start_server: Serve) -> None:
    mate = build_endpoint(start_server(replies_with_text(None, usage=(3, 2)), replies_with_text("now")), price=PRICE)
    [answer] = collect_answers(mate, make_request())
    assert answer.usage == RemoteUsage(6, 4, 4.0, tries=2)


@pytest.mark.parametrize(
    ("fault", "cost"),
    [
        (replies_with_bytes(b'{"choices": []}'), 9.0),
        (never_replies, 9.0),
        (drops_connection, 9.0),
        (replies_with_bytes(b"no", 500), 0.0),
    ],
    ids=["broken", "late", "dropped", "refused"],
)
def test_an_attempt_that_may_have_been_billed_counts_as_the_most_that_it_may_have_cost(
    fault: Act, cost: float, start_server: Serve
) -> None:
    mate = build_endpoint(start_server(fault, replies_with_text("now", usage=(3, 2))), price=PRICE)
    [answer] = collect_answers(mate, make_request())
    assert answer.usage is not None
    assert (answer.usage.cost, answer.usage.tries) == (cost + 2.0, 2)


# --- settings ---


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"base_url": "localhost:8000"}, "no URL of an endpoint"),
        ({"base_url": "http://me:secret@host/v1"}, "user or password"),
        ({"base_url": "http://host/v1?key=secret"}, "ends in a query"),
        ({"extra": {"bias": float("nan")}}, "cannot be sent as JSON"),
        ({"budget": 5.0}, "budget: needs `price`"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"retries": -1}, "retries"),
    ],
)
def test_bad_settings_are_named(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        OpenAI.model_validate({"base_url": "http://127.0.0.1:1/v1", "model": "m", **fields})


def test_a_missing_key_is_reported_before_anything_starts(start_server: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MATE_KEY", raising=False)
    lacking = endpoint_settings(start_server(replies_with_text()), key_env="MATE_KEY")
    assert list(lacking.unmet_requirements()) == [
        "key_env: the environment variable 'MATE_KEY' is not set (null, if the endpoint needs no key)"
    ]
    with pytest.raises(ValueError, match="'MATE_KEY' is not set"):
        lacking.build(None)
