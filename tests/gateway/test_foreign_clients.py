"""Programs around foreign clients, run as their documentation shows them in the environments of `make clients-all`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from marl.core.graph import Trajectory
from marl.core.types import Request
from marl.engines.program.settings import Program
from marl.protocols import ProgramAnswer, RoleConfig
from marl.protocols.programs import parse_program_answer
from marl.roles.programs import CallerRole, ProgramRole
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator
from tests.support.addition_task import team_config, team_deal
from tests.support.paths import ROOT
from tests.support.small_games import FunctionEngine

FOLDER = Path(__file__).parent / "foreign"
AGENTS = ("planner", "solver", "critic")
pytestmark = pytest.mark.slow


def tool_call(name: str, **arguments: Any) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>'


def say(request: Request) -> str:
    """A model that uses the tools that it is given, and else says who it is and how often it has been asked."""
    last, is_result = request.messages[-1].content, request.messages[-1].role == "tool"
    tools = [json.loads(tool)["function"]["name"] for tool in request.tools]
    if is_result and "transfer" not in last and "Solver" not in last:
        return "the tool says " + "".join(filter(str.isdigit, last))
    match tools:
        case ["add"]:
            # LangChain, the Agents SDK and others spell arguments anew: other spaces, another order.
            return tool_call("add", b=2, a=2)
        case ["transfer_to_solver"]:
            return tool_call("transfer_to_solver")
        case ["ask_solver"]:
            return tool_call("ask_solver", input="2 + 2")
        case ["add", "final_answer"]:
            return tool_call("final_answer", answer="4") if "Observation" in last else tool_call("add", a=2, b=2)
    return f"the {request.policy} says {request.seed % 10**6}"


class Played(NamedTuple):
    """One episode of a program."""

    trajectory: Trajectory
    answer: ProgramAnswer

    @property
    def agents(self) -> list[str]:
        return [turn.agent for turn in self.trajectory.turns if turn.inner]

    @property
    def texts(self) -> list[str]:
        return [turn.completion.text for turn in self.trajectory.turns]

    @property
    def edges(self) -> set[tuple[int, int, str]]:
        """(turn, later inner turn, kind of the edge)."""
        edges = self.trajectory.graph.edges(data="kinds")
        return {(u[1], v[1], kind) for u, v, kinds in edges for kind in kinds if self.trajectory.turns[v[1]].inner}

    @property
    def continued(self) -> list[int]:
        """Indices of the turns that continue their agent's own tokens."""
        return [turn.id[1] for turn in self.trajectory.turns if turn.request.continues]


def interpreter(call: str) -> Path:
    """The interpreter whose environment has the framework of a program."""
    module, _, function = call.partition(":")
    if module != "frameworks":
        return ROOT / ".clients" / "bin" / "python"
    return ROOT / (".clients-crewai" if function == "crewai" else ".clients-all") / "bin" / "python"


def play(call: str, match: Mapping[str, Mapping[str, str]] | None = None) -> Played:
    callers = {agent: {"match": (match or {}).get(agent, {})} for agent in AGENTS}
    game = team_config({"role": "crew", "callers": callers})
    roles: dict[str, RoleConfig] = {"crew": ProgramRole(policy="program")}
    roles |= {agent: CallerRole.model_validate({"policy": agent, "history": "append"}) for agent in AGENTS}
    program: Any = Program(call=call, python=interpreter(call), folder=FOLDER, workers=1, attempts=1).build(None)
    engines = {"program": program} | {agent: FunctionEngine(say) for agent in AGENTS}
    simulator = RolloutSimulator(game, RoleRequestBuilder(roles, 0), engines)
    try:
        episodes = simulator.play([team_deal(game)])
        assert episodes, simulator.take_failure_messages()
    finally:
        program.close()
    answer = parse_program_answer(episodes[0].turns[-1].completion.text)
    assert answer is not None
    assert not answer.failed, answer.why
    return Played(episodes[0], answer)


class Expected(NamedTuple):
    """Inner turns of a program: their agents in order, edges between them, and turns that continue own tokens."""

    agents: str
    """First letters of the agents."""
    edges: set[tuple[int, int, str]]
    continued: list[int]
    last: int
    """Index of a turn whose text the program's answer contains; -1 if a tool made the answer."""


CASES = {
    "openai_client:chat": Expected("pss", {(0, 1, "heard"), (1, 2, "self")}, [2], 2),
    "openai_client:stream": Expected("s", set(), [], 0),
    "openai_client:tools": Expected("ss", {(0, 1, "self"), (0, 1, "tool")}, [1], 1),
    "openai_client:responses": Expected("pss", {(1, 2, "self")}, [], 2),
    "openai_client:response_tools": Expected("ss", {(0, 1, "self"), (0, 1, "tool")}, [1], 1),
    "openai_client:choices": Expected("sssss", set(), [], 0),
    "openai_client:parallel": Expected("pppps", {(plan, 4, "heard") for plan in range(4)}, [], 4),
    "agents_sdk:responses": Expected("p", set(), [], 0),
    "agents_sdk:streamed": Expected("ss", {(0, 1, "self"), (0, 1, "tool")}, [1], 1),
    "agents_sdk:hand_off": Expected("pss", {(0, 1, "tool"), (1, 2, "self"), (1, 2, "tool")}, [2], 2),
    "agents_sdk:agent_as_tool": Expected(
        "pssp", {(1, 2, "self"), (1, 2, "tool"), (0, 3, "self"), (0, 3, "tool"), (2, 3, "heard")}, [2, 3], 3
    ),
    "agents_sdk:session": Expected("pp", {(0, 1, "self")}, [1], 1),
    "agents_sdk:chat_completions": Expected("ss", {(0, 1, "self"), (0, 1, "tool")}, [1], 1),
    "anthropic_client:messages": Expected("pss", {(0, 1, "heard"), (1, 2, "self")}, [2], 2),
    "anthropic_client:stream": Expected("s", set(), [], 0),
    "anthropic_client:tools": Expected("ss", {(0, 1, "self"), (0, 1, "tool")}, [1], 1),
    "langgraph_team:branches": Expected(
        "pssc", {(0, 1, "heard"), (0, 2, "heard"), (1, 3, "heard"), (2, 3, "heard")}, [], 3
    ),
    "langgraph_team:streamed": Expected(
        "pssc", {(0, 1, "heard"), (0, 2, "heard"), (1, 3, "heard"), (2, 3, "heard")}, [], 3
    ),
    "langgraph_team:with_tools": Expected("ss", {(0, 1, "self"), (0, 1, "tool")}, [1], 1),
    "frameworks:ag2": Expected("psps", {(0, 2, "self"), (1, 3, "self"), (1, 3, "tool")}, [2, 3], 3),
    "frameworks:autogen": Expected(
        "psscp", {(0, 3, "heard"), (0, 4, "self"), (3, 4, "heard"), (1, 2, "self"), (1, 2, "tool")}, [2, 4], 4
    ),
    "frameworks:pydantic_ai": Expected("psps", {(0, 2, "self"), (1, 3, "self"), (1, 3, "tool")}, [2, 3], 3),
    # smolagents spells its own calls anew, in prose with their ids, so nothing is continued.
    "frameworks:smolagents": Expected("ss", {(0, 1, "tool")}, [], -1),
    "frameworks:crewai": Expected("ps", {(0, 1, "heard")}, [], 1),
}
PROMPTS = {agent: {"system": f"You are the {agent}*"} for agent in AGENTS}
"""Patterns by which calls to one shared model are told apart."""


def cases() -> Iterator[Any]:
    """Programs to run; those without an environment are skipped."""
    for call in CASES:
        target = "clients-all" if call.startswith("frameworks") else "clients"
        missing = not interpreter(call).is_file()
        reason = f"no {interpreter(call).relative_to(ROOT)}: `make {target}` sets it up"
        yield pytest.param(call, marks=pytest.mark.skipif(missing, reason=reason))


@pytest.mark.parametrize("call", cases())
def test_a_program_as_its_documentation_shows_it_becomes_turns_with_edges(call: str) -> None:
    played, expected = play(call, PROMPTS if call.startswith("langgraph") else None), CASES[call]
    assert "".join(agent[0] for agent in played.agents) == expected.agents
    assert played.edges == expected.edges
    assert played.continued == expected.continued
    if expected.last < 0:
        assert played.answer.answer == "4"
    else:
        assert played.texts[expected.last] in played.answer.answer
