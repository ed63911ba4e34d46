"""Tasks of `marl credit-check` whose answers have several steps: one agent writes lines, each `a` or `b`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from marl.core.types import Problem, Verdict, VerifierCase
from marl.protocols import Split, TaskConfig, TaskProblems, VerifierConfig

Steps = tuple[str, ...]
"""Steps of an answer, or its first steps."""
RIGHT: Steps = ("b", "a", "b")
"""Right steps of the answer to each of the `SEGMENT_TASKS`, in order."""
ANSWERS: tuple[Steps, ...] = tuple(product("ab", repeat=len(RIGHT)))
"""All legal answers to each of the `SEGMENT_TASKS`."""


class OneQuestion(TaskConfig):
    """Task with a single question for training, and another one that is held out."""

    kind: str = "marl.commands.credit_check.segment_tasks:OneQuestion"
    right: Steps = RIGHT
    """Right steps of the answer, in order."""

    def build(self) -> TaskProblems:
        return self

    def problem_count(self, split: Split) -> int:
        return 1

    def problem(self, split: Split, index: int) -> Problem:
        return Problem(split, "go" if split == "train" else "now", "\n".join(self.right))

    def parse_posed_problem(self, text: str) -> Problem | None:
        return None


class StepScores(VerifierConfig):
    """Scores each segment: 1 if it is the right step at its position, else 0."""

    kind: str = "marl.commands.credit_check.segment_tasks:StepScores"

    def __call__(self, case: VerifierCase) -> Verdict:
        steps = tuple([segment.strip() for segment in case.segments])
        return Verdict(step_scores(steps, tuple(case.problem.answer.split("\n"))), "step by step")


def step_scores(steps: Steps, right: Steps = RIGHT) -> list[float]:
    """Return the score of each of `steps`: 1 if it is the step of `right` at its position, else 0."""
    return [float(step == expected) for step, expected in zip(steps, (*right, *[""] * len(steps)), strict=False)]


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """Game of one writer, whose answer is paid by the number of right steps, or only if all steps are right."""

    name: str
    needs_all: bool
    """True if the reward is 1 for right steps alone and 0 for all other answers; False if it is their share."""
    right: Steps = RIGHT
    """Right steps of the answer, in order."""

    def reward(self, steps: Steps) -> float:
        """Return the reward of an answer with these steps."""
        share = sum(step_scores(steps, self.right)) / len(self.right)
        return float(share == 1) if self.needs_all else share

    def scenario(self, steps: int, groups: int, group_size: int, seed: int) -> Mapping[str, Any]:
        """Return a scenario of this task, with a tiny model that has learned only the format of answers."""
        answers = ["\n".join(answer) for answer in product("ab", repeat=len(self.right))]
        reward = "(own.steps > 0.99) * 1.0" if self.needs_all else "own.steps"
        writer = {
            **{"kind": "solver", "policy": "actor", "instructions": "", "prompt": "{{ observation }}"},
            **{"answer": "whole", "segments": {"by": "line"}},
            "sampling": {"max_tokens": 2 * len(self.right) + 2, "temperature": 0.5},
        }
        model = {
            **{"kind": "tiny", "vocabulary": "bytes", "hidden": 32, "layers": 1},
            "warm_up": {"steps": 120, "lr": 1e-2},
        }
        return {
            "game": {
                **{"kind": "team", "task": {"kind": OneQuestion().kind, "right": self.right}},
                "stages": [
                    {"role": "writer", "examples": answers},
                    {"role": "checker", "verifies": "writer", "scores": ["steps"]},
                ],
                "rewards": {"writer": {"outcome": reward}},
            },
            "roles": {"writer": writer, "checker": {"kind": "verifier", "policy": "checker"}},
            "policies": {
                "actor": {"model": model, "learner": {"kind": "grpo"}},
                "checker": {
                    "engine": {"kind": "verifiers", "workers": 1, "checks": {"steps": {"kind": StepScores().kind}}}
                },
            },
            "schedule": {"steps": steps, "groups": groups, "group_size": group_size, "seed": seed, "threads": 1},
        }


SEGMENT_TASKS = (SegmentTask("sum of steps", needs_all=False), SegmentTask("all steps", needs_all=True))
