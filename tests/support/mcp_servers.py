"""Servers of the Model Context Protocol for tests, and the calls that a test makes; run in an environment with mcp 2.

python mcp_servers.py serve KIND      a server on standard input and output
python mcp_servers.py call            the calls, whose results are printed as JSON
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence


def serve(kind: str) -> None:
    """Serve a tool `add` that sums all numbers it was ever given, with the fault `kind` for the number 13.

    The server is written without the SDK, which would not let a server break the protocol.
    """
    total = 0
    number_schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
    sum_schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    tool = {"name": "add", "inputSchema": number_schema, "outputSchema": sum_schema}
    if kind == "schema":
        tool["inputSchema"] = {"type": "object", "properties": {"number": {"type": "whole"}}}
    server_info: dict[str, object] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
    server_info["serverInfo"] = {"name": "sums", "version": "1"}
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        reply: dict[str, object] = {"jsonrpc": "2.0", "id": request["id"]}
        if request["method"] == "initialize":
            reply["result"] = server_info
        elif request["method"] == "tools/list":
            reply["result"] = {"tools": [tool]}
        elif request["method"] == "tools/call":
            number = request["params"]["arguments"]["number"]
            total += number
            if number == 13 and kind == "hang":
                time.sleep(1000)
            if number == 13 and kind == "die":
                os._exit(3)
            if number == 13 and kind == "print":
                print("debugging", flush=True)
            result = {"sum": "thirteen" if number == 13 and kind == "lie" else total}
            reply["result"] = {"content": [{"type": "text", "text": str(total)}], "structuredContent": result}
        else:
            reply["error"] = {"code": -32601, "message": "no such method"}
        print(json.dumps(reply), flush=True)


def ask(tools: dict[str, dict[str, object]], calls: Sequence[tuple[str, Mapping[str, object]]]) -> list[str]:
    """Return the answers of engine `tools` to calls, one after the other."""
    from marl.core.types import Completion, Request, Sampling
    from marl.engines.workers.settings import Tools

    engine = Tools.model_validate({"tools": tools, "workers": 1}).build(None)
    answers: list[str] = []
    for ticket, (name, arguments) in enumerate(calls):
        state = json.dumps({"name": name, "arguments": arguments})
        engine.submit(ticket, Request("library", (), Sampling(), state=state))
        finished = []
        while not finished:
            finished = engine.step(1.0)
        answer = finished[0][1]
        assert isinstance(answer, Completion), answer
        answers.append(answer.text)
    return answers


def ask_in_episodes(tool: dict[str, object]) -> list[str]:
    """Return the answers to calls of two tools of one server, each after the calls before it in its episode."""
    from marl.core.types import Completion, Message, Request, Sampling
    from marl.engines.workers.settings import Tools

    engine = Tools.model_validate({"tools": {"add": tool, "plus": tool}, "workers": 1}).build(None)

    def call(name: str, number: int) -> str:
        return json.dumps({"name": name, "arguments": {"number": number}})

    def answer(*earlier: tuple[str, str], state: str) -> str:
        messages: list[Message] = []
        for earlier_state, result in earlier:
            messages += [Message("user", earlier_state), Message("assistant", result)]
        engine.submit(0, Request("library", (*messages, Message("user", state)), Sampling(), state=state))
        finished = []
        while not finished:
            finished = engine.step(1.0)
        completion = finished[0][1]
        assert isinstance(completion, Completion), completion
        return completion.text

    two, three, died = (call("add", 2), "2"), (call("plus", 3), "5"), (call("add", 13), "error: died")
    both = f"[{call('add', 1)}, {call('plus', 4)}]"
    return [
        answer(state=call("add", 2)),
        answer(two, state=call("plus", 3)),
        answer(state=call("add", 7)),
        answer(two, three, state=call("add", 4)),
        answer(two, state=call("add", 10)),
        answer(two, three, state=call("add", 13)),
        answer(two, three, died, state=call("add", 1)),
        answer(two, state=both),
        answer(two, (both, '["3", "7"]'), state=call("add", 1)),
    ]


def leave_one_out(tool: dict[str, object]) -> list[str]:
    """Return the credit of each turn of two agents, which add 3 and 5 on one server.

    The second one is paid the sum that it reads.
    """
    from marl.core.types import Deal, Request
    from marl.credit.assign.counterfactual import LeaveOneAgentOut
    from marl.engines.workers.settings import Tools
    from marl.games.team.settings import TeamConfig
    from marl.protocols import Evidence, RoleConfig, Tool
    from marl.roles.answering import SolverRole
    from marl.roles.rule_based import ToolboxRole
    from marl.rollout.casting import RoleRequestBuilder
    from marl.rollout.simulator import RolloutSimulator
    from tests.support.small_games import FunctionEngine

    def adder(number: int) -> FunctionEngine:
        def say(request: Request) -> str:
            result = request.messages[-1].content
            arguments = f'{{"name":"add","arguments":{{"number":{number}}}}}'
            return result if result.isdigit() else f"<tool_call>{arguments}</tool_call>"

        return FunctionEngine(say)

    stages = [{"role": role, "tools": "box", "calls": 1} for role in ("first", "second")]
    task = {"kind": "arithmetic", "digits": [1, 1], "train": 40, "held_out": 8}
    rewards = {"second": {"sum": "own.readable * own.score"}}
    game = TeamConfig.model_validate({"kind": "team", "task": task, "stages": stages, "rewards": rewards})
    settings = {"answer": "last_line", "history": "append", "tools": (Tool(name="add"),)}
    roles: dict[str, RoleConfig] = {name: SolverRole(policy=name, **settings) for name in ("first", "second")}
    roles["box"] = ToolboxRole(policy="box", shows_earlier_calls=True)
    engines = {"first": adder(3), "second": adder(5), "box": Tools.model_validate({"tools": {"add": tool}}).build(None)}
    simulator = RolloutSimulator(game, RoleRequestBuilder(roles, 0), engines)
    played = simulator.play([Deal("e", "e", 0, game.default_role_of_agent())])
    evidence = Evidence(played, "first", simulator=simulator, rule_based_roles=frozenset({"box"}))
    credit = LeaveOneAgentOut().build()(evidence)
    return [f"{turn[1]}: {advantage.value:g}" for turn, advantage in credit.items()]


def main() -> None:
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
        return
    from marl.games.mcp_tool import McpTool

    results: dict[str, list[str]] = {}
    numbers = [2, 3, 13, 5, 7]
    for kind in ("honest", "hang", "die", "print", "lie", "schema"):
        command = [sys.executable, os.path.abspath(__file__), "serve", kind]
        tool = {"kind": "mcp", "command": command, "timeout_s": 20}
        results[kind] = ask({"add": tool}, [("add", {"number": number}) for number in numbers])
        if kind == "honest":
            results["wrong"] = ask({"add": tool}, [("add", {"number": "two"}), ("add", {"number": 2})])
    command = [sys.executable, os.path.abspath(__file__), "serve", "die"]
    kept = {"kind": "mcp", "command": command, "timeout_s": 20, "tool": "add", "lifetime": "episode"}
    results["episodes"] = ask_in_episodes(kept)
    results["credit"] = leave_one_out(kept)
    command = [sys.executable, "-m", "mcp_server_time"]
    clock = {"kind": "mcp", "command": command, "timeout_s": 60, "tool": "convert_time"}
    noon = {"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    results["clock"] = ask({"clock": clock}, [("clock", noon), ("clock", noon | {"source_timezone": "Atlantis"})])
    described = McpTool.model_validate(clock).describe("clock")
    results["description"] = [described.name, described.description, *described.parameters["required"]]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
