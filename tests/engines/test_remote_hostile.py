"""Endpoints that mean harm: bombs, floods, answers that no reader survives, and echoes of the key."""

from __future__ import annotations

import base64
import gc
import gzip
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from marl.core.config import Sampling
from marl.core.errors import EndpointError
from marl.core.types import Completion, CompletionFailure, Message, Request
from marl.core.usage import RemoteUsage
from marl.engines.openai.client import _retry_pause_s
from tests.support.misbehaving_servers import Act, RequestHandler, chat, replies_with_bytes, replies_with_text
from tests.support.openai_clients import Serve, build_endpoint, collect_answers, endpoint_settings, make_request

MIB = 2**20
BOMB = gzip.compress(bytes(MIB)) * 512
"""A whole file of its own for each MiB, which is as good as one for all."""
KEY = "sk-proj-Q7+tz/4Lw9=xB2mN8vR5"


def skipping(start_server: Serve, *acts: Act, **more: Any) -> Completion | CompletionFailure:
    """Return what becomes of a request that may be given up."""
    [answer] = collect_answers(
        build_endpoint(start_server(*acts), on_failure="skip", **{"retries": 0, "timeout_s": 8.0, **more}),
        make_request(),
    )
    return answer


def reason(start_server: Serve, *acts: Act, **more: Any) -> str:
    answer = skipping(start_server, *acts, **more)
    assert isinstance(answer, CompletionFailure)
    return answer.reason


def text(start_server: Serve, *acts: Act, **more: Any) -> str:
    answer = skipping(start_server, *acts, **more)
    assert isinstance(answer, Completion)
    return answer.text


def peak_growth(do: Callable[[], object]) -> int:
    """Return by how many bytes this process was larger at most than before, as Linux counts."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    do()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


# --- bodies that are larger than they look ---


@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_packed_bomb_is_never_unpacked(status: int, start_server: Serve) -> None:
    said: list[str] = []
    grown = peak_growth(
        lambda: said.append(reason(start_server, replies_with_bytes(BOMB, status, content_encoding="gzip")))
    )
    assert "the body is packed ('gzip'), although that was not asked for" in said[0]
    assert grown < 100 * MIB


def test_no_packed_answer_is_asked_for(start_server: Serve) -> None:
    server = start_server(replies_with_text())
    collect_answers(build_endpoint(server), make_request())
    assert server.headers[0]["accept-encoding"] == "identity"


def pours_with(status: int) -> Act:
    def pours(visit: RequestHandler) -> None:
        visit.send_response(status)
        visit.send_header("transfer-encoding", "chunked")
        visit.end_headers()
        while not visit.server.over.is_set():
            visit.wfile.write(b"100000\r\n" + b" " * MIB + b"\r\n")

    return pours


@pytest.mark.parametrize("status", [200, 302, 400, 429, 500])
def test_a_body_without_end_is_cut_off_whatever_its_status(status: int, start_server: Serve) -> None:
    said: list[str] = []
    grown = peak_growth(lambda: said.append(reason(start_server, pours_with(status))))
    assert "more than 16 MiB, beginning with '    " in said[0]
    assert len(said[0]) < 500
    assert grown < 150 * MIB


def floods_headers(visit: RequestHandler) -> None:
    visit.send_response(200)
    while not visit.server.over.is_set():
        visit.wfile.write(b"x-more: " + b"a" * 4000 + b"\r\n")


def floods_one_header(visit: RequestHandler) -> None:
    visit.wfile.write(b"HTTP/1.1 200 OK\r\nx-more: ")
    while not visit.server.over.is_set():
        visit.wfile.write(b"a" * 2**16)


def floods_interim_responses(visit: RequestHandler) -> None:
    while not visit.server.over.is_set():
        visit.wfile.write(b"HTTP/1.1 102 Processing\r\n\r\n" * 100)


@pytest.mark.parametrize("flood", [floods_headers, floods_one_header, floods_interim_responses])
def test_a_flood_before_the_body_ends_within_the_deadline_and_without_memory(flood: Act, start_server: Serve) -> None:
    said: list[str] = []
    grown = peak_growth(lambda: said.append(reason(start_server, flood, timeout_s=1.0)))
    assert "the connection failed" in said[0] or "no answer within 1 s" in said[0]
    assert len(said[0]) < 1000
    assert grown < 100 * MIB


def test_cookies_are_not_carried_back(start_server: Serve) -> None:
    server = start_server(replies_with_bytes(chat(), set_cookie="a=" + "b" * 4000))
    mate = build_endpoint(server)
    for _ in range(2):
        collect_answers(mate, make_request())
    assert "cookie" not in server.headers[1]


# --- answers that no reader survives ---

DEEP = "[" * 100_000
CALL = {"id": "1", "type": "function"}
BODIES = {
    "deep": (DEEP.encode(), "Invalid JSON"),
    "deep_and_closed": ((b"[" * 500 + b"]" * 500), "Invalid JSON: nested deeper than 100"),
    "deep_inside": (b'{"choices": ' + b'{"a": ' * 50_000, "Invalid JSON"),
    "long_integer": (b'{"choices": [], "usage": {"prompt_tokens": ' + b"9" * 10**6 + b"}}", "Invalid JSON"),
    "a_million_choices": (b'{"choices": [' + b"{}," * 10**6 + b"{}]}", "choices: List should have at most 128 items"),
    "a_million_calls": (chat(None, tool_calls=[0] * 10**6), "tool_calls: List should have at most 128 items"),
    "content_object": (chat({"a": 1}), "content: Input should be a valid string"),
    "content_number": (chat(5), "content: Input should be a valid string"),
    "finish_list": (chat(finish=["stop"]), "finish_reason: Input should be a valid string"),
    "calls_text": (chat(None, tool_calls="x"), "tool_calls: Input should be a valid list"),
    "call_without_function": (chat(None, tool_calls=[CALL]), "function: Field required"),
    "choices_object": (b'{"choices": {"0": {}}}', "choices: Input should be a valid list"),
    "no_utf8": (b'{"choices": "\xff"}', "Invalid JSON: 'utf-8' codec"),
    "nothing_said": (chat(None, reasoning="x" * 10**6), "a chat completion without content"),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_is_no_chat_completion_is_a_request_given_up_and_no_more(name: str, start_server: Serve) -> None:
    body, why = BODIES[name]
    server = start_server(replies_with_bytes(body), replies_with_text("and on"))
    mate = build_endpoint(server, on_failure="skip", retries=0, timeout_s=8.0)
    started = time.monotonic()
    [failure] = collect_answers(mate, make_request())
    assert time.monotonic() - started < 5.0
    assert isinstance(failure, CompletionFailure)
    assert re.search(why, failure.reason), failure.reason
    assert len(failure.reason) < 600
    [answer] = collect_answers(mate, make_request())
    assert isinstance(answer, Completion)
    assert answer.text == "and on"


def test_the_first_of_several_choices_counts_and_repeated_fields_are_the_last_ones(start_server: Serve) -> None:
    body = b'{"choices": [], "choices": [{"message": {"content": "x", "content": "first"}}, {"message": {}}]}'
    assert text(start_server, replies_with_bytes(body)) == "first"


@pytest.mark.parametrize(
    "usage",
    [
        *("null", "[]", '"much"', "{}", '{"prompt_tokens": null, "completion_tokens": null}', '{"prompt_tokens": 3}'),
        *('{"prompt_tokens": -5, "completion_tokens": 1}', '{"prompt_tokens": 2.5, "completion_tokens": 1}'),
        *('{"prompt_tokens": NaN, "completion_tokens": 1}', '{"prompt_tokens": 3, "completion_tokens": 1e999}'),
        '{"prompt_tokens": 3, "completion_tokens": 1' + "0" * 300 + "}",
    ],
)
def test_a_usage_that_cannot_be_counted_does_not_discard_an_answer_and_counts_as_the_most_it_may_be(
    usage: str, start_server: Serve
) -> None:
    mate = build_endpoint(
        start_server(replies_with_bytes(chat("fine", usage=None)[:-1] + b', "usage": ' + usage.encode() + b"}"))
    )
    [answer] = collect_answers(mate, make_request())
    assert isinstance(answer, Completion)
    assert answer.text == "fine"
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.usage.tries) == (9, 1)


def test_a_usage_of_whole_numbers_that_are_written_as_fractions_counts(start_server: Serve) -> None:
    mate = build_endpoint(start_server(replies_with_bytes(chat(usage=(3.0, 2.0)))))
    [answer] = collect_answers(mate, make_request())
    assert answer.usage == RemoteUsage(3, 2, tries=1)


@pytest.mark.parametrize("logprobs", ["NaN", "-Infinity", "1e999", '{"content": [{"logprob": NaN}]}', '"x"'])
def test_fields_that_are_not_needed_may_hold_anything(logprobs: str, start_server: Serve) -> None:
    body = chat("fine").replace(b'"index"', b'"logprobs": ' + logprobs.encode() + b', "index"')
    assert text(start_server, replies_with_bytes(body)) == "fine"


def call(arguments: str, name: str = "python") -> bytes:
    return chat(None, tool_calls=[{**CALL, "function": {"name": name, "arguments": arguments}}])


@pytest.mark.parametrize(
    "arguments",
    [DEEP, "[" * 150 + "]" * 150, '{"a":' * 20_000, "9" * 10**6, '{"x": 1e999}', '{"x": NaN}', "\x00", ""],
    ids=["deep", "closed", "objects", "integer", "infinite", "nan", "null", "empty"],
)
def test_arguments_that_no_reader_survives_are_text_for_the_role_to_see(arguments: str, start_server: Serve) -> None:
    said = text(start_server, replies_with_bytes(call(arguments)))
    assert json.loads(said.removeprefix("<tool_call>").removesuffix("</tool_call>")) == {
        "name": "python",
        "arguments": arguments,
    }


def test_lone_surrogates_in_text_names_and_arguments_become_replacement_characters(start_server: Serve) -> None:
    assert text(start_server, replies_with_bytes(chat("half \ud83d"))) == "half \ufffd"
    assert text(start_server, replies_with_bytes(chat("whole \U0001f600"))) == "whole \U0001f600"
    said = text(start_server, replies_with_bytes(call(r'{"code": "\udc00"}', name="\ud800")))
    assert said == r'<tool_call>{"name": "\ufffd", "arguments": {"code": "\ufffd"}}</tool_call>'


def test_lone_surrogates_of_a_prompt_are_sent_as_replacement_characters(start_server: Serve) -> None:
    server = start_server(replies_with_text())
    collect_answers(build_endpoint(server), Request("mate", (Message("user", "half \ud83d"),), Sampling()))
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "half \ufffd"}]


@pytest.mark.parametrize("wait", ["Mon, 01 Jan 2020 00:00:00 +999999999999999999", "9" * 5000, "1e999", "\u0663"])
def test_a_wait_that_no_clock_can_tell_is_none(wait: str) -> None:
    assert _retry_pause_s({"retry-after": wait}) in (0.0, 3.0)


# --- the key ---


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MATE_KEY", KEY)
    return "MATE_KEY"


def pieces(shown: str) -> list[str]:
    """Return the pieces of the key, of eight characters or more, that a text shows in any spelling."""
    spelled = (KEY, quote(KEY, safe=""), base64.b64encode(KEY.encode()).decode())
    return [s[i : i + 8] for s in spelled for i in range(len(s) - 7) if s[i : i + 8].lower() in shown.lower()]


ECHOES = {
    "plain": KEY,
    "cut_by_the_excerpt": "x" * (200 - len(KEY) // 3) + KEY,
    "cut_by_the_server": "bad key " + KEY[:20] + "...",
    "end": "..." + KEY[9:],
    "percent": f"https://host/?key={quote(KEY, safe='')}",
    "base64": "Basic " + base64.b64encode(KEY.encode()).decode(),
    "upper": KEY.upper(),
    "often": KEY * 100,
    "html": f"<b>{KEY[:14]}</b>{KEY[14:]}",
}


@pytest.mark.parametrize("status", [200, 401, 500])
@pytest.mark.parametrize("echo", ECHOES)
def test_no_piece_of_the_key_survives_in_a_message(echo: str, status: int, start_server: Serve, keyed: str) -> None:
    said = reason(start_server, replies_with_bytes(ECHOES[echo].encode(), status), key_env=keyed)
    assert "(the key)" in said
    assert not pieces(said)


def test_no_piece_of_the_key_survives_in_messages_about_connections_and_redirects(
    start_server: Serve, keyed: str
) -> None:
    def breaks_protocol(visit: RequestHandler) -> None:
        visit.wfile.write(b"HTTP/1.1 " + KEY.encode() + b" OK\r\n\r\n")

    moved = replies_with_bytes(b"", 307, location=f"http://127.0.0.1:1/?key={KEY}")
    packed = replies_with_bytes(b"", content_encoding=KEY)
    for act in (breaks_protocol, moved, packed):
        assert not pieces(reason(start_server, act, key_env=keyed))


def test_an_answer_that_echoes_the_key_does_not_pass_it_on(start_server: Serve, keyed: str) -> None:
    assert text(start_server, replies_with_text(f"my key is {KEY}"), key_env=keyed) == "my key is (the key)"


def test_a_short_key_that_may_be_a_word_leaves_answers_as_they_are(
    start_server: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MATE_KEY", "EMPTY")
    assert text(start_server, replies_with_text("the set is EMPTY"), key_env="MATE_KEY") == "the set is EMPTY"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed_and_the_key_stays(status: int, start_server: Serve, keyed: str) -> None:
    elsewhere = start_server(replies_with_text("stolen"))
    server = start_server(replies_with_bytes(b"", status, location=f"{elsewhere.url}/chat/completions"))
    with pytest.raises(EndpointError, match=rf"in 1 try; the last: HTTP {status}: redirected to 'http.*not followed"):
        collect_answers(build_endpoint(server, key_env=keyed), make_request())
    assert not elsewhere.bodies


def test_the_key_is_in_no_representation_of_the_engine(start_server: Serve, keyed: str) -> None:
    mate = build_endpoint(start_server(replies_with_text()), key_env=keyed)
    client: Any = mate._client
    parts = [
        mate,
        client,
        *vars(mate).values(),
        *vars(client).values(),
        endpoint_settings(start_server(replies_with_text()), key_env=keyed),
    ]
    assert not pieces(" ".join(map(repr, parts)))


@pytest.mark.parametrize("key", ["two words", "line\nfeed", "sm\u00f6rg\u00e5s", " ", "\x1b[2J"])
def test_a_key_that_no_header_can_hold_is_refused_without_showing_it(
    key: str, start_server: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MATE_KEY", key)
    with pytest.raises(ValueError, match=r"'MATE_KEY' holds signs that a header of HTTP cannot have$"):
        endpoint_settings(start_server(replies_with_text()), key_env="MATE_KEY").build(None)


def test_debug_logs_of_the_http_libraries_do_not_show_the_key(start_server: Serve) -> None:
    code = f"""
import logging
logging.basicConfig(level=0)
from marl.core.config import Sampling
from marl.engines.openai.settings import OpenAI
from marl.core.types import Message, Request
mate = OpenAI(base_url={start_server(replies_with_text()).url!r}, model="m", key_env="MATE_KEY").build(None)
mate.submit(0, Request("mate", (Message("user", "x"),), Sampling()))
assert mate.step(5.0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True, env={"MATE_KEY": KEY}
    )
    assert "receive_response_headers" in done.stderr
    assert not pieces(done.stdout + done.stderr)
