"""Tool `mcp`: servers of the Model Context Protocol, in an environment of its own (`make mcp`)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from marl.games.mcp_tool import McpTool

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
    ],
)
def test_a_server_is_a_command_or_on_this_machine(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        McpTool.model_validate(settings)
    assert McpTool(url="http://127.0.0.1:8000/mcp").url


def test_what_is_missing_is_named_before_play() -> None:
    assert "command: no program 'no-such-server'" in list(McpTool(command=("no-such-server",)).unmet_requirements())


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
