"""Credit of steps inside an answer, measured against exact values by enumeration of all answers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pvariance
from typing import Any

from marl.commands.credit_check.measure import (
    GROUP,
    RECOVERED,
    SPREAD,
    STEPS,
    AnswerCountingEngine,
    CreditMethodResult,
    weighted_mean,
    weighted_pearson_correlation,
    weighted_spearman_correlation,
    weighted_std,
)
from marl.commands.credit_check.segment_tasks import ANSWERS, RIGHT, SegmentTask, Steps, step_scores
from marl.core.graph import Trajectory
from marl.core.types import Completion, Reading, Turn, TurnId
from marl.credit_stage.stage import CreditStage
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import CreditConfig, Scenario
from marl.training.build import build


class AnswerValues:
    """Exact values of a segment task: expectations over all answers, given their first steps."""

    def __init__(self, task: SegmentTask, chances: Mapping[Steps, float]) -> None:
        """`chances`: probability of each answer."""
        self.task, self._chances = task, chances

    def chance(self, first_steps: Steps) -> float:
        """Return the probability that an answer begins with `first_steps`."""
        return math.fsum([p for steps, p in self._chances.items() if steps[: len(first_steps)] == first_steps])

    def mean(self, figure: Callable[[Steps], float], first_steps: Steps) -> float:
        """Return the expectation of `figure` of an answer that begins with `first_steps`."""
        terms = [p * figure(steps) for steps, p in self._chances.items() if steps[: len(first_steps)] == first_steps]
        return math.fsum(terms) / self.chance(first_steps)

    def value(self, first_steps: Steps) -> float:
        """Return V: the expected reward after `first_steps`."""
        return self.mean(self.task.reward, first_steps)

    def advantage(self, first_steps: Steps) -> float:
        """Return V after the last of `first_steps` minus V before it."""
        return self.value(first_steps) - self.value(first_steps[:-1])

    def reward_to_go(self, first_steps: Steps) -> float:
        """Return the expected sum of scores from the last of `first_steps` on, plus the reward."""
        last = len(first_steps) - 1
        return self.mean(lambda steps: sum(step_scores(steps)[last:]) + self.task.reward(steps), first_steps)


@dataclass(frozen=True, slots=True)
class SegmentMethod:
    """Credit rule by segments, and the exact expectation of its credit after the first steps of an answer."""

    name: str
    assign: Mapping[str, Any]
    estimand: Callable[[AnswerValues, Steps], float]


SEGMENT_METHODS = (
    SegmentMethod("outcome", {"kind": "outcome"}, AnswerValues.value),
    SegmentMethod(
        "process (segments)",
        {"kind": "process", "level": "segment", "scores": {"checker": ["steps"]}},
        AnswerValues.reward_to_go,
    ),
    # Exact values stand in for a critic, so the estimand is the exact advantage for every lambda.
    SegmentMethod("gae (segments)", {"kind": "gae", "level": "segment", "lam": 0.5}, AnswerValues.advantage),
    SegmentMethod("replay (segments)", {"kind": "replay", "level": "segment", "samples": 1}, AnswerValues.advantage),
)


class SegmentMeasurement:
    """Measures methods on one segment task. All methods share the task's exact values and sampled episodes."""

    def __init__(self, task: SegmentTask, samples: int, seed: int) -> None:
        """Sample about `samples` episodes for each legal answer of `task`."""
        self.task, self.samples = task, samples
        groups = -(-samples * len(ANSWERS) // (STEPS * GROUP))
        self.run = build(Scenario.model_validate(task.scenario(STEPS, groups, GROUP, seed)))
        self._steps = [self.run.simulator.play(self.run.deals(step)) for step in range(STEPS)]
        request = _answer_turn(self._steps[0][0]).request
        forced = [replace(request, forced="\n".join(answer)) for answer in ANSWERS]
        chances: dict[Steps, float] = {}
        for answer, scored in zip(ANSWERS, self.run.simulator.score_forced_texts(forced), strict=True):
            assert isinstance(scored, Completion)
            chances[answer] = math.exp(math.fsum(scored.logprobs))
        self.exact = AnswerValues(task, chances)

    def __call__(self, method: SegmentMethod) -> CreditMethodResult:
        """Assign credit to all episodes by `method`, step by step, and return the method's metrics."""
        shared = self.run.simulator
        assert isinstance(shared, RolloutSimulator)
        engines = {name: AnswerCountingEngine(engine) for name, engine in shared.engines.items()}
        stage = CreditStage(CreditConfig.model_validate({"assign": method.assign, "baseline": {"kind": "none"}}))
        run = replace(self.run, simulator=shared.variant(shared.casting, engines), credit_stage=stage)
        tokens_before = shared.tokens["credit"]
        samples: dict[Steps, list[float]] = defaultdict(list)
        credited = 0
        for trajectories in self._steps:
            readings = dict(map(self._reading, trajectories))
            credit = run.credit_stage(run.evidence(trajectories, readings)).credit
            for turn in map(_answer_turn, trajectories):
                steps = _steps_of(turn)
                credited += 1
                if steps not in ANSWERS or turn.id not in credit:
                    continue
                advantage = credit[turn.id]
                for index, last in enumerate(turn.completion.segments):
                    value = advantage.tokens[last] if advantage.tokens else advantage.value
                    samples[steps[: index + 1]].append(value)
        answers = engines["actor"].sampled
        tokens = shared.tokens["credit"] - tokens_before
        return self._result(method, samples, answers / credited, tokens / credited)

    def _reading(self, trajectory: Trajectory) -> tuple[TurnId, Reading]:
        """Return the answer's turn with a reading whose values are the exact values before each of its segments."""
        turn = _answer_turn(trajectory)
        steps, ends = _steps_of(turn), turn.completion.segments
        values: list[float] = []
        for index, last in enumerate(ends):
            # An illegal answer has no exact value, and is left out of the result.
            value = self.exact.value(steps[:index]) if steps in ANSWERS else 0.0
            values += [value] * (last + 1 - len(values))
        return turn.id, Reading(turn.completion.logprobs, tuple(values))

    def _result(
        self, method: SegmentMethod, samples: Mapping[Steps, Sequence[float]], generations: float, tokens: float
    ) -> CreditMethodResult:
        """Return the metrics of a method that credited the last of the first steps of answers with `samples`."""
        cells = list(samples)
        values = [samples[cell][: self.samples] for cell in cells]
        means, weights = list(map(fmean, values)), list(map(self.exact.chance, cells))
        exact = list(map(self.exact.advantage, cells))
        goal = [method.estimand(self.exact, cell) for cell in cells]
        gaps = [mean - expected for mean, expected in zip(means, goal, strict=True)]
        similarity, spread = weighted_pearson_correlation(means, goal, weights), weighted_std(goal, weights)
        return CreditMethodResult(
            method=method.name,
            task=self.task.name,
            own_pearson=similarity,
            own_spread=spread,
            recovered=None if spread < _MIN_SPREAD else (similarity or 0.0) >= RECOVERED,
            pearson=weighted_pearson_correlation(means, exact, weights),
            spearman=weighted_spearman_correlation(means, exact, weights),
            exact_pearson=weighted_pearson_correlation(goal, exact, weights),
            bias=weighted_mean(gaps, weights),
            error=weighted_mean([gap**2 for gap in gaps], weights) ** 0.5,
            variance=weighted_mean(list(map(pvariance, values)), weights),
            fewest=min(map(len, values)),
            generations=generations,
            tokens=tokens,
        )


_MIN_SPREAD = SPREAD / len(RIGHT)
"""Minimum standard deviation of an estimand: a third of that of other tasks, as a step is one of three."""


def _answer_turn(trajectory: Trajectory) -> Turn:
    return next(turn for turn in trajectory.turns if turn.role == "writer")


def _steps_of(turn: Turn) -> Steps:
    """Return the segments of an answer as steps, without blanks."""
    text, ends = turn.completion.text, turn.completion.segment_offsets
    return tuple([text[begin:end].strip() for begin, end in zip((0, *ends), ends, strict=False)])
