"""A task that is small enough to be worked out by hand, and the seats around it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from marl.core.types import Deal, Message, Problem, Request
from marl.games.team.settings import TeamConfig
from marl.protocols import Engine, RoleConfig, Split, TaskConfig, TaskProblems
from marl.protocols.tasks import decode_verifier_case
from marl.roles.base import BaseRole
from marl.rollout.simulator import RolloutSimulator
from tests.support.small_games import FunctionEngine, make_simulator


class AdditionTask(TaskConfig):
    """a + b for a and b up to 4; the two splits hold even and odd a."""

    kind: str = "tests.support.addition_task:AdditionTask"

    @property
    def problem_posing_instructions(self) -> str:
        return "two numbers with + between them"

    def build(self) -> TaskProblems:
        return self

    def problem_count(self, split: Split) -> int:
        return 15 if split == "train" else 10

    def problem(self, split: Split, index: int) -> Problem:
        return _sum(index // 5 * 2 + (split == "held_out"), index % 5)

    def parse_posed_problem(self, text: str) -> Problem | None:
        left, plus, right = text.partition("+")
        if not plus or not left.strip().isdigit() or not right.strip().isdigit():
            return None
        return _sum(int(left), int(right))


def _sum(a: int, b: int) -> Problem:
    question = f"{a} + {b}"
    return Problem(question, question, str(a + b), (str(a + b + 1), str(a + b + 2)), {"left": a})


class VerbatimRole(BaseRole):
    """Says its move, and shows all it hears."""

    kind: str = "plain"
    prompt: str = "{{ observation }}{% for turn in heard %} | {{ turn.agent }}: {{ turn.text }}{% endfor %}"


class Reader(BaseRole):
    """Hands the last turn that it heard on, as a verifier does."""

    kind: str = "reader"

    def messages(self, view: Any) -> tuple[Message, ...]:
        return (Message("user", view.new_turns[-1].completion.text),)


def team_config(*stages: Mapping[str, Any], **more: Any) -> TeamConfig:
    return TeamConfig.model_validate(
        {"kind": "team", "task": {"kind": AdditionTask().kind}, "stages": list(stages), **more}
    )


def grade_answer(request: Request) -> str:
    """The verdict of a seat that verifies: whether the answer is the problem's."""
    case = decode_verifier_case(request)
    return json.dumps({"scores": {"correct": float(case.answer == case.problem.answer)}})


def team_simulator(game: TeamConfig, say: Callable[[Request], str] | Engine, **roles: RoleConfig) -> RolloutSimulator:
    """A table at which `say` speaks for everyone but verifiers, who grade."""
    verifying = {stage.role for stage in game.team_seats.all_stages if stage.verifies}
    cast: dict[str, RoleConfig] = {role: VerbatimRole(policy="actor") for role in game.team_seats.agents_of}
    cast |= {role: Reader(policy="grader") for role in verifying}
    voice = FunctionEngine(say) if callable(say) else say
    return make_simulator(game, {"actor": voice, "grader": FunctionEngine(grade_answer)}, **{**cast, **roles})


def team_deal(game: TeamConfig, name: str = "e", **options: Any) -> Deal:
    return Deal(name, name, 0, game.default_role_of_agent(), options={"index": 7, **options})
