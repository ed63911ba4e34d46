"""The OpenAI engine against endpoints that behave and endpoints that do not."""

from __future__ import annotations

import email.utils
import json
import subprocess
import sys
import time
from typing import Any

import pytest
from asking import DEADLINE_S, Serve, answers, ask, engine, settings
from bad_server import Act, breaks_off, never, pours, resets, says, sends, serving, trickles
from pydantic import ValidationError

from marl.config import Sampling
from marl.engines.openai.endpoint import Endpoint
from marl.engines.openai.settings import OpenAI
from marl.errors import EndpointError
from marl.types import Completion, Failure, Usage

# --- what is sent, and what comes back ---


def test_an_answer_comes_with_what_it_took_and_without_tokens(serve: Serve) -> None:
    mate = engine(serve(says("[bet]", usage=(1000, 20))), price={"prompt": 2.0, "completion": 50.0})
    usage = Usage(1000, 20, 0.003, tries=1)
    assert answers(mate, ask()) == [Completion("[bet]", (), (), (), "stop", usage=usage)]
    assert mate.spent == {"mate": usage}


def test_sampling_seed_and_tools_are_passed_on(serve: Serve) -> None:
    server = serve(says())
    sampling = Sampling(temperature=0.5, top_p=0.9, top_k=7, max_tokens=5, stop=("END",))
    tool = {"type": "function", "function": {"name": "python", "parameters": {}}}
    mate = engine(server, extra={"reasoning_effort": "low", "top_p": None})
    answers(mate, ask("hi", seed=2**63 + 5, sampling=sampling, tools=(json.dumps(tool),)))
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


def test_the_key_travels_in_a_header_and_nowhere_else(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATE_KEY", "sk-secret\n")
    server = serve(says(), sends(b"bad key: sk-secret", 401))
    mate = engine(server, key_env="MATE_KEY", on_failure="skip")
    answers(mate, ask())
    [failure] = answers(mate, ask())
    assert server.headers[0]["authorization"] == "Bearer sk-secret"
    assert isinstance(failure, Failure)
    assert "bad key: (the key)" in failure.reason
    assert "secret" not in settings(server, key_env="MATE_KEY").model_dump_json()


def test_without_a_key_no_authorization_is_sent(serve: Serve) -> None:
    server = serve(says())
    answers(engine(server), ask())
    assert "authorization" not in server.headers[0]


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "aborted"), ("eos", "stop"), (None, "stop")],
)
def test_why_it_ended_is_translated(reason: str | None, finish: str, serve: Serve) -> None:
    [answer] = answers(engine(serve(says("text", finish=reason))), ask())
    assert answer.finish == finish


def test_a_refusal_and_an_answer_cut_before_it_began_are_answers(serve: Serve) -> None:
    server = serve(says(None, refusal="I must not"), says(None, finish="length"), says(""))
    mate = engine(server)
    completions = [answers(mate, ask())[0] for _ in range(3)]
    assert [(answer.text, answer.finish) for answer in completions if isinstance(answer, Completion)] == [
        ("I must not", "aborted"),
        ("", "length"),
        ("", "stop"),
    ]


def test_calls_of_tools_are_spelled_as_local_models_say_them(serve: Serve) -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "python", "arguments": '{"code": "1+1"}'}}]
    broken = [{"id": "2", "type": "function", "function": {"name": "python", "arguments": '{"code": '}}]
    server = serve(
        says(None, tool_calls=calls, finish="tool_calls"),
        says("Let me see.", tool_calls=calls),
        says(None, tool_calls=broken),
    )
    mate = engine(server)
    texts = [answer.text for answer in (answers(mate, ask())[0] for _ in range(3)) if isinstance(answer, Completion)]
    call = '<tool_call>{"name": "python", "arguments": {"code": "1+1"}}</tool_call>'
    assert texts[:2] == [call, f"Let me see.\n{call}"]
    assert texts[2] == '<tool_call>{"name": "python", "arguments": "{\\"code\\": "}</tool_call>'


def test_a_thought_that_the_server_takes_out_of_the_answer_stands_before_it(serve: Serve) -> None:
    server = serve(
        says("5", reasoning_content="2 + 3"),
        says("", reasoning_content=""),
        says(None, reasoning_content="hm, w", finish="length"),
    )
    mate = engine(server)
    texts = [answer.text for answer in (answers(mate, ask())[0] for _ in range(3)) if isinstance(answer, Completion)]
    assert texts == ["<think>\n2 + 3\n</think>\n\n5", "", "<think>\nhm, w"]


def test_what_takes_the_model_itself_is_refused(serve: Serve) -> None:
    mate = engine(serve(says()))
    with pytest.raises(ValueError, match=r"policy 'mate': the endpoint http.* cannot score a text"):
        mate.submit(0, ask(forced="[bet]"))
    with pytest.raises(ValueError, match=r"cannot limit thoughts \(sampling.thinking_tokens\)"):
        mate.submit(0, ask(sampling=Sampling(thinking_tokens=5)))
    with pytest.raises(ValueError, match="cannot continue token ids"):
        mate.submit(0, ask(continues=(1, 2)))
    with pytest.raises(ValueError, match="no weights to load"):
        mate.load_weights("mate", [], 1)


# --- troubles ---

FAULTS: dict[str, tuple[Act, str]] = {
    "never": (never, r"no answer within 0\.35 s \(engine\.timeout_s\)"),
    "trickles": (trickles, r"no answer within 0\.35 s"),
    "breaks_off": (breaks_off, "the connection failed: RemoteProtocolError"),
    "resets": (resets, "the connection failed: (ReadError|RemoteProtocolError)"),
    "429": (sends(b"slow down", 429), "HTTP 429: 'slow down'"),
    "500": (sends(b'{"error": "oops"}', 500), "HTTP 500: .*oops"),
    "empty": (sends(b""), "no chat completion: Invalid JSON"),
    "not_json": (sends(b'{"choices": ['), "no chat completion: Invalid JSON"),
    "html": (sends(b"<html>gateway</html>"), "no chat completion: Invalid JSON.*<html>"),
    "a_list": (sends(b"[1, 2]"), "no chat completion: must be an object, got list"),
    "no_choices": (sends(b'{"choices": []}'), "choices: List should have at least 1 item"),
    "other_schema": (sends(b'{"answer": "hi"}'), "choices: Field required"),
    "wrong_type": (says({"text": "hi"}), r"choices\.0\.message\.content: Input should be a valid string"),
    "null": (says(None), "a chat completion without content"),
    "pours": (pours, "more than 16 MiB"),
    "bad_gzip": (
        sends(b"not gzip", content_encoding="gzip"),
        r"the body is packed \('gzip'\), although that was not asked for",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_passes_is_overcome(fault: str, serve: Serve) -> None:
    server = serve(FAULTS[fault][0], says("at last"))
    mate = engine(server)
    [answer] = answers(mate, ask())
    assert isinstance(answer, Completion)
    assert answer.text == "at last"
    assert mate.spent["mate"].tries == len(server.bodies) == 2


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_stays_is_named_with_policy_and_address(fault: str, serve: Serve) -> None:
    act, why = FAULTS[fault]
    server = serve(act)
    with pytest.raises(
        EndpointError, match=f"policy 'mate': {server.url} gave no answer in 2 tries; the last: .*{why}"
    ):
        answers(engine(server, retries=1, timeout_s=0.35 if fault != "pours" else 5), ask())
    assert len(server.bodies) == 2


def test_an_address_where_nobody_listens_is_named() -> None:
    with serving(says()) as server:
        gone = settings(server, retries=1)
    mate = gone.build(None)
    assert isinstance(mate, Endpoint)
    with pytest.raises(EndpointError, match="the connection failed: ConnectError"):
        answers(mate, ask())


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_no_retry_can_mend_is_not_tried_again(status: int, serve: Serve) -> None:
    server = serve(sends(b"no", status))
    with pytest.raises(EndpointError, match=f"in 1 try; the last: HTTP {status}"):
        answers(engine(server), ask())


@pytest.mark.parametrize(
    "body", [b'{"error": {"code": "context_length_exceeded"}}', b"This model's maximum context length is 16"]
)
def test_a_prompt_that_is_too_long_is_an_overflow_and_ends_no_run(body: bytes, serve: Serve) -> None:
    [answer] = answers(engine(serve(sends(body, 400))), ask())
    assert isinstance(answer, Failure)
    assert answer.finish == "overflow"


def test_a_wait_that_is_asked_for_is_kept(serve: Serve) -> None:
    server = serve(sends(b"", 429, retry_after="0.3"), says())
    started = time.monotonic()
    answers(engine(server), ask())
    assert 0.3 <= time.monotonic() - started < DEADLINE_S


TOMORROW = email.utils.formatdate(time.time() + 86400, usegmt=True)


@pytest.mark.parametrize("wait", ["86400", TOMORROW, "-1", "nan", "x"], ids=["seconds", "date", "past", "nan", "text"])
def test_no_wait_is_longer_than_a_try(wait: str, serve: Serve) -> None:
    started = time.monotonic()
    answers(engine(serve(sends(b"", 429, retry_after=wait), says())), ask())
    assert time.monotonic() - started < DEADLINE_S


def test_one_that_may_be_skipped_is_an_unreadable_turn_until_there_are_too_many(serve: Serve) -> None:
    server = serve(sends(b"no", 500))
    mate = engine(server, retries=1, on_failure="skip", max_failures=2)
    for _ in range(2):
        [answer] = answers(mate, ask())
        assert isinstance(answer, Failure)
        assert (answer.finish, answer.usage) == ("aborted", Usage(tries=2, failed=1))
    with pytest.raises(
        EndpointError, match=r"HTTP 500: 'no'; 3 requests were given up so far \(engine.max_failures: 2\)$"
    ):
        answers(mate, ask())


# --- waiting ---


def test_submit_and_a_step_without_patience_return_at_once(serve: Serve) -> None:
    mate = engine(serve(never), timeout_s=30)
    started = time.monotonic()
    for ticket in range(50):
        mate.submit(ticket, ask())
        assert mate.step(0.0) == []
    assert time.monotonic() - started < 1.0
    assert mate.step(0.2) == []
    assert time.monotonic() - started < 5.0


def test_waiting_takes_no_time_of_the_processor(serve: Serve) -> None:
    mate = engine(serve(never), timeout_s=30)
    mate.submit(0, ask())
    mate.step(0.2)
    before = time.process_time()
    mate.step(0.6)
    assert time.process_time() - before < 0.2


def test_no_more_requests_are_in_flight_than_allowed(serve: Serve) -> None:
    server = serve(never)
    mate = engine(server, concurrency=3, timeout_s=30)
    for ticket in range(9):
        mate.submit(ticket, ask())
    mate.step(0.5)
    assert len(server.bodies) == 3


def test_a_cancelled_request_is_given_up_and_never_answered(serve: Serve) -> None:
    server = serve(never, says("next"))
    mate = engine(server, timeout_s=30, concurrency=1)
    mate.submit(0, ask())
    mate.step(0.3)
    mate.cancel([0])
    assert server.left.wait(DEADLINE_S), "the connection was closed"
    mate.submit(1, ask())
    answered = mate.step(DEADLINE_S) or mate.step(DEADLINE_S)
    assert [ticket for ticket, _ in answered] == [1]


def test_an_open_request_does_not_keep_the_process_alive(serve: Serve) -> None:
    code = f"""
from marl.config import Sampling
from marl.engines.openai.settings import OpenAI
from marl.types import Message, Request
mate = OpenAI(base_url={serve(never).url!r}, model="m", key_env=None).build(None)
mate.submit(0, Request("mate", (Message("user", "x"),), Sampling()))
assert mate.step(0.3) == []
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")


# --- money ---

PRICE = {"prompt": 0.0, "completion": 1e6}
"""1 per completion token."""


def test_a_budget_is_never_exceeded_however_many_are_in_flight(serve: Serve) -> None:
    server = serve(says(usage=(5, 4)))
    mate = engine(server, price=PRICE, budget=30.0, concurrency=8)
    with pytest.raises(EndpointError, match=r"policy 'mate': 24 of 30 are spent \(engine.budget\), and one more .* 9$"):
        answers(mate, *[ask() for _ in range(20)])
    # 4 each, and 9 (max_tokens) must fit before one is sent: 0, 4, ... 20 and the last one at 20 + 9 <= 30.
    assert mate.spent["mate"].cost == 24.0
    assert len(server.bodies) == 6


def test_an_answer_that_does_not_say_what_it_took_counts_as_much_as_it_may_have_taken(serve: Serve) -> None:
    mate = engine(serve(says(usage=None)), price=PRICE)
    [answer] = answers(mate, ask())
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.usage.cost) == (9, 9.0)


def test_tries_that_were_paid_for_in_vain_are_counted(serve: Serve) -> None:
    mate = engine(serve(says(None, usage=(3, 2)), says("now")), price=PRICE)
    [answer] = answers(mate, ask())
    assert answer.usage == Usage(6, 4, 4.0, tries=2)


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


def test_a_missing_key_is_reported_before_anything_starts(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MATE_KEY", raising=False)
    lacking = settings(serve(says()), key_env="MATE_KEY")
    assert list(lacking.missing()) == [
        "key_env: the environment variable 'MATE_KEY' is not set (null, if the endpoint needs no key)"
    ]
    with pytest.raises(ValueError, match="'MATE_KEY' is not set"):
        lacking.build(None)
