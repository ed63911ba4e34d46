"""Tool `mcp`: servers of the Model Context Protocol, in an environment of its own (`make mcp`)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from marl.core.types import Message, Request, Sampling
from marl.engines.workers.settings import Tools
from marl.games.mcp_tool import McpTool
from marl.roles.rule_based import ToolboxRole
from marl.scenario.load import validate
from tests.support.paths import SCENARIOS

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".mcp" / "bin" / "python"


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({}, "command: give either the command of a server or its `url`"),
        ({"command": ["a"], "url": "http://localhost:1/mcp"}, "command: give either"),
        ({"url": "http://example.org/mcp"}, "'http://example.org/mcp' is not on this machine"),
        ({"url": "http://127.0.0.1.example.org/mcp"}, "is not on this machine"),
        ({"url": "http://10.0.0.1/mcp"}, "is not on this machine"),
        ({"url": "http://127.0.0.1:1/mcp", "lifetime": "episode"}, "lifetime: 'episode' starts servers.*choices"),
    ],
)
def test_a_server_is_a_command_or_on_this_machine(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        McpTool.model_validate(settings)
    assert McpTool(url="http://127.0.0.1:8000/mcp").url


def test_what_is_missing_is_named_before_play() -> None:
    assert "command: no program 'no-such-server'" in list(McpTool(command=("no-such-server",)).unmet_requirements())


@pytest.mark.parametrize(("lifetime", "shows"), [("worker", False), ("episode", True)])
def test_the_role_of_a_tool_with_a_state_shows_the_earlier_calls(lifetime: str, shows: bool) -> None:
    tools = {"notes": {"kind": "mcp", "command": ["notes"], "lifetime": lifetime}, "sum": {"kind": "calculator"}}
    data = yaml.safe_load((SCENARIOS / "calculator_team.yaml").read_text())
    data["policies"]["calculator"] = {"engine": {"kind": "tools", "tools": tools}}
    role = validate(data).roles["calculator"]
    assert isinstance(role, ToolboxRole)
    assert role.shows_earlier_calls == shows


def test_calls_that_share_a_state_are_asked_with_those_before_them() -> None:
    kept = {"kind": "mcp", "command": ["notes"], "lifetime": "episode"}
    tools = {"write": kept | {"tool": "w"}, "read": kept | {"tool": "r"}, "other": kept | {"command": ["other"]}}
    engine = Tools.model_validate({"tools": tools | {"sum": {"kind": "calculator"}}})

    def call(name: str, number: int) -> str:
        return json.dumps({"name": name, "arguments": {"number": number}})

    conversation = [(call("write", 1), "ok"), (call("other", 2), "ok"), (call("write", 3), "error: full")]
    conversation += [(f"[{call('read', 4)}, {call('sum', 5)}]", '["1", "5"]'), ("no call", "error: a call is written")]
    messages: list[Message] = []
    for calls, results in conversation:
        messages += [Message("user", calls), Message("assistant", results)]
    state = f"[{call('write', 6)}, {call('read', 7)}, {call('sum', 8)}]"
    asked = engine.questions(Request("box", (*messages, Message("user", state)), Sampling(), state=state))
    earlier = [["w", {"number": 1}], ["r", {"number": 4}]]
    assert [question[0] for question in asked] == ["write", "read", "sum"]
    questions = [json.loads(question[1]) for question in asked]
    assert questions[0] == {"earlier": earlier, "arguments": {"number": 6}}
    assert questions[1] == {"earlier": [*earlier, ["w", {"number": 6}]], "arguments": {"number": 7}}
    assert questions[2] == {"number": 8}, "a tool without a state"
    assert [question[2] for question in asked] == [3, 4, 1], "the time of all calls that may be repeated"


@pytest.fixture(scope="module")
def answers() -> dict[str, list[str]]:
    """Answers to the calls of `tests/support/mcp_servers.py`, by kind of server."""
    if not PYTHON.exists():
        pytest.skip("no environment with mcp 2; make mcp")
    script = ROOT / "tests" / "support" / "mcp_servers.py"
    done = subprocess.run(
        [PYTHON, script, "call"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_server_keeps_its_state_between_calls(answers: dict[str, list[str]]) -> None:
    assert answers["honest"] == ["2", "5", "18", "23", "30"]
    assert answers["wrong"] == ["error: 'two' is not of type 'integer'", "2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("hang", "Request 'tools/call' timed out"),
        ("die", "Connection closed"),
        ("print", "the server wrote a line to its standard output that is no message of the protocol"),
        ("lie", "Invalid structured content returned by tool add"),
    ],
)
def test_a_server_that_fails_costs_one_call_and_is_started_anew(
    answers: dict[str, list[str]], kind: str, fault: str
) -> None:
    """The third call fails. The sum then begins again, as the server is a new one."""
    assert answers[kind][2].startswith("error: ")
    assert fault in answers[kind][2]
    assert answers[kind][:2] + answers[kind][3:] == ["2", "5", "5", "12"]


@pytest.mark.slow
def test_a_server_of_an_episode_has_got_its_calls_alone(answers: dict[str, list[str]]) -> None:
    """2, 2 + 3, 7, 2 + 3 + 4, 2 + 10 (a fork), 13 (the server dies), 2 + 3 + 1, 2 + 1 and 2 + 1 + 4, 2 + 1 + 4 + 1."""
    *sums, died, after, both, last = answers["episodes"]
    assert sums == ["2", "5", "7", "9", "12"]
    assert died.startswith("error: ")
    assert (after, both, last) == ("6", '["3", "7"]', "8")


@pytest.mark.slow
def test_credit_by_forks_works_with_a_server_that_keeps_a_state(answers: dict[str, list[str]]) -> None:
    """The first agent adds 3, the second one adds 5 and is paid 8: 5 without the first, 0 without the second."""
    assert answers["credit"] == ["0: 3", "2: 3", "3: 8", "5: 8"]


@pytest.mark.slow
def test_a_schema_that_is_none_is_an_error_of_every_call(answers: dict[str, list[str]]) -> None:
    assert all("the schema of tool 'add' is no JSON schema" in answer for answer in answers["schema"])


@pytest.mark.slow
def test_the_official_server_of_the_time_converts_a_time(answers: dict[str, list[str]]) -> None:
    """Tokyo is 8 hours ahead of Berlin in November, and 7 in summer."""
    noon, atlantis = answers["clock"]
    assert json.loads(noon)["target"]["datetime"][11:16] in ("20:00", "19:00")
    assert atlantis.startswith("error: ")
    assert "Atlantis" in atlantis
    name, description, *required = answers["description"]
    assert (name, {*required}) == ("clock", {"source_timezone", "time", "target_timezone"})
    assert "timezone" in description.lower()
