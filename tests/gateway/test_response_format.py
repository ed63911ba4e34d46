"""Answers in JSON (`response_format`): which roles give them, how they are read, and how a call is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from marl.core.config import Sampling
from marl.core.types import Message, Request
from marl.engines.program.settings import Program
from marl.protocols import RoleConfig
from marl.protocols.programs import parse_program_answer
from marl.roles.programs import CallerRole, ProgramRole
from marl.rollout.casting import ProgramCallPrompt, RefusedModelCallError, RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator
from tests.gateway.conftest import AnsweredGateway
from tests.support.addition_task import team_config, team_deal
from tests.support.small_games import FunctionEngine

SCHEMA = {"type": "object", "required": ["sum"], "properties": {"sum": {"type": "integer"}}}
PROGRAM = f"""
import json, os, urllib.error, urllib.request

def ask(agent):
    form = {{"type": "json_schema", "json_schema": {{"name": "sum", "schema": {SCHEMA}}}}}
    chat = [{{"role": "user", "content": "2 + 2 in JSON"}}]
    body = json.dumps({{"model": agent, "messages": chat, "response_format": form}}).encode()
    headers = {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as response:
            return json.load(response)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        return str(error.code) + " " + json.load(error)["error"]["message"]

def main(task):
    return json.dumps([ask("planner"), ask("solver")])
"""


class Sum(BaseModel):
    """Answer that a client asks for by its class."""

    sum: int


def test_clients_that_ask_for_a_class_get_an_instance(served: AnsweredGateway) -> None:
    served.say = lambda call: '{"sum": 4}'
    client: Any = served.clients(openai.OpenAI)
    chat = client.chat.completions.parse(
        model="solver", messages=[{"role": "user", "content": "2 + 2"}], response_format=Sum
    )
    assert chat.choices[0].message.parsed == Sum(sum=4)
    assert client.responses.parse(model="solver", input="2 + 2", text_format=Sum).output_parsed == Sum(sum=4)
    schemas = [json.loads(call.answer_schema or "") for call in served.calls]
    assert [schema["required"] for schema in schemas] == [["sum"], ["sum"]]


def test_any_object_and_a_text_are_asked_for_without_a_schema(served: AnsweredGateway) -> None:
    client: Any = served.clients(openai.OpenAI)
    for form in ({"type": "json_object"}, {"type": "text"}):
        client.chat.completions.create(
            model="solver", messages=[{"role": "user", "content": "x"}], response_format=form
        )
    assert [call.answer_schema for call in served.calls] == ["", None]


def test_anthropics_output_format_is_the_same(served: AnsweredGateway) -> None:
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=served.gateway.address, api_key=served.key, max_retries=0)
    client.messages.create(
        model="solver",
        max_tokens=9,
        messages=[{"role": "user", "content": "x"}],
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )
    assert json.loads(served.calls[0].answer_schema or "") == SCHEMA


@pytest.mark.parametrize(("said", "move"), [('so: {"sum": 4}', '{"sum":4}'), ('{"sum": "four"}', None)])
def test_a_role_that_reads_json_is_asked_for_it_and_another_one_is_not(
    tmp_path: Path, said: str, move: str | None
) -> None:
    (tmp_path / "json_program.py").write_text(PROGRAM)
    game = team_config({"role": "crew", "callers": {"planner": {}, "solver": {}}})
    roles: dict[str, RoleConfig] = {"crew": ProgramRole(policy="program")}
    roles |= {"planner": CallerRole(policy="actor"), "solver": CallerRole(policy="actor", answer="json")}
    program: Any = Program(call="json_program:main", folder=tmp_path, workers=1).build(None)
    engines = {"program": program, "actor": FunctionEngine(lambda request: said)}
    [trajectory] = RolloutSimulator(game, RoleRequestBuilder(roles, 0), engines).play([team_deal(game)])
    program.close()
    answer = parse_program_answer(trajectory.turns[-1].completion.text)
    assert answer
    refused, given = json.loads(answer.answer)
    assert refused.startswith("400 response_format: 'planner' cannot be asked for this JSON")
    assert "set answer: json" in refused
    assert given == said, "the program reads the answer as it was sampled"
    assert [(turn.agent, turn.action) for turn in trajectory.turns[:-1]] == [("solver", move)]


def request_of(role: CallerRole, schema: str | None) -> Request:
    prompt = ProgramCallPrompt((Message("user", "add"),), (), (), (), Sampling(temperature=0.5), schema)
    return RoleRequestBuilder({"solver": role}, 0).build_call_request("solver", prompt, (), 0)


def test_sampling_is_limited_to_the_programs_schema_if_the_role_limits_it() -> None:
    fields = {"policy": "actor", "answer": "json", "trainable": False}
    limited = CallerRole.model_validate(fields | {"sampling": {"structured": "json"}})
    request = request_of(limited, json.dumps(SCHEMA))
    assert (request.sampling.structured, request.sampling.temperature) == ("json", 0.5)
    assert json.loads(request.answer_schema) == SCHEMA
    assert request_of(limited, None).sampling.structured == "json"
    assert request_of(CallerRole.model_validate(fields), "").sampling.structured is None


def test_a_schema_that_cannot_be_checked_is_refused() -> None:
    role = CallerRole(policy="actor", answer="json")
    with pytest.raises(RefusedModelCallError, match=r"response_format: 'solver' .* refers to 'http://elsewhere/x'"):
        request_of(role, json.dumps({"$ref": "http://elsewhere/x"}))
