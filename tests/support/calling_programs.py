"""Programs as Python generators, which an engine runs in this process: calls arrive in a chosen order."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import count
from typing import Any

from marl.core.types import Completion, CompletionFailure, Message, Request, Ticket
from marl.games.team.settings import TeamConfig
from marl.protocols import IneffectiveCallsNotice, ModelCallingEngine, ProgramAnswer, ProgramModelCall
from marl.protocols.programs import ProgramAttemptCounts, ProgramCallerResult
from marl.roles.programs import CallerRole, ProgramRole
from marl.rollout.simulator import RolloutSimulator
from tests.support.addition_task import Reader, grade_answer, team_config
from tests.support.small_games import FunctionEngine, make_simulator

Ask = tuple[str, str | Sequence[tuple[str, str]]]
"""(agent, text of the user's message, or (role, content) of each message)."""
GeneratorProgram = Callable[[dict[str, Any]], Generator[list[Ask], list[str], Any]]
"""Function of the task whose generator yields parallel calls, gets their texts, and returns the answer."""
ASK = """
import json, os, urllib.request

def ask(text, agent="solver"):
    body = json.dumps({"model": agent, "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as response:
        return json.load(response)["choices"][0]["message"]["content"]
"""
"""Beginning of a program's source: `ask` sends a model call over HTTP, by the standard library."""
CREW = {"role": "crew", "callers": {"planner": {}, "solver": {}}}
CHECK = {"role": "verifier", "verifies": "solver", "scores": ["correct"]}


class GeneratorEngine(ModelCallingEngine):
    """Runs generators. `order` permutes the calls that a program makes at once; `crashes` attempts are lost first."""

    def __init__(
        self, program: GeneratorProgram, order: Callable[[list[Any]], list[Any]] = list, crashes: int = 0
    ) -> None:
        self._program, self._order, self._crashes = program, order, crashes
        self._ids = count(1)
        self._calls: list[ProgramModelCall | IneffectiveCallsNotice] = []
        self._ended: list[tuple[Ticket, Completion | CompletionFailure]] = []
        self._waiting: dict[int, tuple[Any, dict[int, str | None], Ticket]] = {}
        self.runs = 0

    def submit(self, ticket: Ticket, request: Request) -> None:
        self._start(ticket, json.loads(request.state))

    def _start(self, ticket: Ticket, state: dict[str, Any]) -> None:
        self.runs += 1
        self._advance(self._program({**state["task"], "state": state}), None, ticket, state)

    def _advance(self, run: Any, texts: list[str] | None, ticket: Ticket, state: dict[str, Any]) -> None:
        try:
            asks: list[Ask] = run.send(texts)
        except StopIteration as stop:
            if self._crashes:
                self._crashes -= 1
                self._calls.append(IneffectiveCallsNotice(ticket))
                self._start(ticket, state)
                return
            answer = stop.value if isinstance(stop.value, ProgramAnswer) else ProgramAnswer(answer=str(stop.value))
            self._ended.append((ticket, Completion(answer.to_canonical_json(), (), (), (), "stop")))
            return
        ids = [next(self._ids) for _ in asks]
        batch: dict[int, str | None] = dict.fromkeys(ids)
        numbered = [(number, *ask) for number, ask in zip(ids, asks, strict=True)]
        for number, agent, prompt in self._order(numbered):
            chat = [("user", prompt)] if isinstance(prompt, str) else prompt
            messages = tuple(Message(role, text) for role, text in chat)  # type: ignore[arg-type]
            self._waiting[number] = ((run, state), batch, ticket)
            self._calls.append(ProgramModelCall(number, ticket, state["callers"][agent]["agent"], messages))

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        ended, self._ended = self._ended, []
        return ended

    def take_model_calls_and_notices(self) -> list[ProgramModelCall | IneffectiveCallsNotice]:
        calls, self._calls = self._calls, []
        return calls

    def is_computing(self) -> bool:
        return False

    def program_attempt_counts(self) -> ProgramAttemptCounts:
        return ProgramAttemptCounts(self.runs, 0, len(self._waiting), 0.0)

    def deliver_model_call_answer(self, call_id: int, answer: Completion | CompletionFailure) -> None:
        (run, state), batch, ticket = self._waiting.pop(call_id)
        batch[call_id] = answer.text if isinstance(answer, Completion) else ""
        if None not in batch.values():
            self._advance(run, [text or "" for text in batch.values()], ticket, state)

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        gone = set(tickets)
        self._ended = [answer for answer in self._ended if answer[0] not in gone]


def crew_game(*stages: Any, **more: Any) -> TeamConfig:
    """A program with a planner and a solver, and a verifier of the solver, unless stages say otherwise."""
    return team_config(*(stages or (CREW, CHECK)), **more)


def crew_simulator(game: TeamConfig, engine: ModelCallingEngine, say: Any, **caller: Any) -> RolloutSimulator:
    """A table at which `engine` runs the program, and `say` answers its calls."""
    roles: dict[str, Any] = {}
    for role in game.team_seats.agents_of:
        if role in game.team_seats.program_roles:
            roles[role] = ProgramRole(policy="program")
        elif role in game.team_seats.caller_roles:
            roles[role] = CallerRole(policy="actor", **caller)
        else:
            roles[role] = Reader(policy="grader")
    voice: Any = say
    if callable(say):
        answer: Any = say
        voice = FunctionEngine(answer)
    engines: dict[str, Any] = {"actor": voice, "program": engine, "grader": FunctionEngine(grade_answer)}
    return make_simulator(game, engines, **roles)


def reported(answer: str, **rewards: dict[str, float]) -> ProgramAnswer:
    """A program's answer with rewards for callers."""
    return ProgramAnswer(
        answer=answer, callers={name: ProgramCallerResult(reported=amounts) for name, amounts in rewards.items()}
    )
