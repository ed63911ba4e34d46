"""What a running program gets and what is recorded: its task, a prompt that is too long, the end of its time."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

from marl.core.graph import Trajectory, write_trajectories
from marl.core.types import CompletionFailure, Request
from marl.engines.program.settings import Program
from marl.games.team.settings import TeamConfig
from marl.roles.programs import CallerRole, ProgramRole
from marl.rollout.simulator import RolloutSimulator
from tests.support.addition_task import team_config, team_deal
from tests.support.small_games import FunctionEngine, make_simulator

SOURCE = """
    import json, os, urllib.error, urllib.request

    def send(messages, path="/chat/completions"):
        body = json.dumps({"model": "solver", "messages": messages}).encode()
        headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
        request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, body, headers)
        try:
            with urllib.request.urlopen(request) as response:
                return [response.status, json.load(response)["choices"][0]["message"]["content"], None]
        except urllib.error.HTTPError as error:
            return [error.code, json.load(error)["error"], error.headers.get("x-should-retry")]

    def main(task):
"""


def play_program(folder: Path, main: str, say: Any, game: TeamConfig | None = None) -> tuple[Trajectory, Any]:
    """Return an episode of a program with the function body `main`, and what the function has returned."""
    (folder / "asking.py").write_text(textwrap.dedent(SOURCE) + textwrap.indent(textwrap.dedent(main), "    "))
    program: Any = Program(call="asking:main", folder=folder, workers=1).build(None)
    game = game or team_config({"role": "crew", "callers": {"solver": {}}})
    engines = {"program": program, "solver": FunctionEngine(say)}
    roles = {"crew": ProgramRole(policy="program"), "solver": CallerRole(policy="solver")}
    simulator: RolloutSimulator = make_simulator(game, engines, **roles)
    [episode] = simulator.play([team_deal(game)])
    program.close()
    return episode, json.loads(json.loads(episode.turns[-1].completion.text)["answer"])


def test_a_prompt_that_is_too_long_is_an_error_with_its_code_and_a_turn_that_overflows(tmp_path: Path) -> None:
    def say(request: Request) -> str | CompletionFailure:
        is_long = len(request.messages[-1].content) > 100
        return CompletionFailure("overflow", "500 tokens of prompt; the context holds 64") if is_long else "4"

    main = """
        long = send([{"role": "user", "content": "word " * 100}])
        return json.dumps([long, send([{"role": "user", "content": "2 + 2"}])])
    """
    episode, (long, short) = play_program(tmp_path, main, say)
    assert long[0] == 400
    assert long[1]["code"] == "context_length_exceeded"
    assert long[1]["message"] == "500 tokens of prompt; the context holds 64"
    assert long[2] == "false"
    assert short == [200, "4", None]
    recorded = {turn.completion.finish: turn.action for turn in episode.turns if turn.inner}
    assert recorded == {"overflow": None, "stop": "4"}


def test_a_program_gets_its_task_without_secret_facts(tmp_path: Path) -> None:
    _, task = play_program(tmp_path, "return json.dumps(task)", lambda _: "4")
    assert (task["question"], task["given"]) == ("2 + 2", {"left": 2})
    # Value and steps of arithmetic would reveal the answer.
    stages = [{"role": "crew", "callers": {"solver": {}}}]
    arithmetic = {"kind": "arithmetic", "numbers": [10, 99], "train": 8, "held_out": 4}
    game = TeamConfig.model_validate({"kind": "team", "task": arithmetic, "stages": stages})
    assert {"value", "steps"} <= game.secret_fact_names
    _, task = play_program(tmp_path, "return json.dumps(task)", lambda _: "4", game)
    assert task["question"]
    assert not {"value", "steps"} & task["given"].keys()


def test_the_key_of_a_program_is_in_no_recorded_file(tmp_path: Path) -> None:
    main = """
        answer = send([{"role": "user", "content": "2 + 2"}])
        return json.dumps([answer, os.environ["OPENAI_API_KEY"], os.environ["ANTHROPIC_API_KEY"]])
    """
    episode, (_, *keys) = play_program(tmp_path, main, lambda _: "4")
    assert keys == ["[key]", "[key]"]
    write_trajectories(tmp_path / "e.jsonl", [episode])
    assert not re.search(rb"marl-[0-9a-f]{32}", (tmp_path / "e.jsonl").read_bytes())
