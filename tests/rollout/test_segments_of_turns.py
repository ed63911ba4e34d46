"""Segments from the engine to the turn, to the seats that score it, and to disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marl.core.config import Sampling, Segments
from marl.core.graph import read_trajectories, write_trajectories
from marl.core.types import Request, Verdict, VerifierCase
from marl.engines.workers.process import run_plugin
from marl.engines.workers.settings import verifier_case_to_json
from marl.models.pretrained import PretrainedSource
from marl.protocols import VerifierConfig
from marl.protocols.tasks import decode_verifier_case
from marl.roles.rule_based import VerifierRole
from tests.support.addition_task import VerbatimRole, team_config, team_deal
from tests.support.small_games import FunctionEngine, make_simulator
from tests.support.tiny_models import bytewise, one_thread
from tests.support.transformers_engines import answers, ask, engine

__all__ = ["bytewise", "one_thread"]


class SegmentLengths(VerifierConfig):
    """Scores each segment by its length, or the whole answer by `fixed` scores."""

    kind: str = "tests.rollout.test_segments_of_turns:SegmentLengths"
    fixed: tuple[float, ...] = ()

    def __call__(self, case: VerifierCase) -> Verdict:
        return Verdict(self.fixed or [len(segment) / 100 for segment in case.segments], "by length")


def test_segments_reach_the_turn_its_verifier_and_the_disk(bytewise: PretrainedSource, tmp_path: Path) -> None:
    cases: list[VerifierCase] = []

    def grade(request: Request) -> str:
        cases.append(decode_verifier_case(request))
        return json.dumps({"scores": {"steps": [0.5] * len(cases[-1].segments)}})

    stages: tuple[dict[str, Any], ...] = (
        {"role": "solver"},
        {"role": "grader", "verifies": "solver", "scores": ["steps"]},
    )
    game = team_config(*stages, rewards={"solver": {"steps": "own.steps"}})
    segments = Segments(by="tokens", length=4)
    roles = {
        "solver": VerbatimRole(policy="actor", segments=segments, sampling=Sampling(max_tokens=18)),
        "grader": VerifierRole(policy="grader"),
    }
    voices = {"actor": engine(bytewise), "grader": FunctionEngine(grade)}
    [episode] = make_simulator(game, voices, 5, **roles).play([team_deal(game)])
    said, graded = episode.turns
    completion = said.completion
    assert said.request.segments == segments
    count = len(completion.token_ids)
    assert completion.segments == (*range(3, count - 1, 4), count - 1)
    assert len(completion.segments) > 1
    assert graded.request.segment_offsets == completion.segment_offsets
    assert len(cases[0].segments) == len(completion.segments)
    assert "".join(cases[0].segments) == completion.text == graded.request.messages[-1].content
    # Expressions of the game read the mean of a list.
    assert [reward.value for reward in episode.rewards] == [0.5]
    write_trajectories(tmp_path / "t.jsonl.zst", [episode])
    assert list(read_trajectories(tmp_path / "t.jsonl.zst")) == [episode]


def test_segments_change_no_token(bytewise: PretrainedSource) -> None:
    plain = [ask("say", seed, max_tokens=12) for seed in range(4)]
    divided = [replace(request, segments=Segments(by="tokens", length=5)) for request in plain]
    sampler = engine(bytewise)
    for without, completion in zip(answers(sampler, plain), answers(sampler, divided), strict=True):
        assert without == replace(completion, segments=(), segment_offsets=())
        assert completion.segments


@pytest.mark.parametrize(
    ("fixed", "reply"),
    [
        ((), {"value": ([0.01, 0.02], "by length")}),
        ((1.0,), {"error": "gave 1 scores for 2 segments"}),
        ((0.0, 2.0), {"error": "gave a score of 2.0; scores lie between -1 and 1"}),
    ],
)
def test_a_verifier_gives_one_score_a_segment(fixed: tuple[float, ...], reply: dict[str, Any]) -> None:
    problem = team_config({"role": "solver"}).task.build().problem("train", 0)
    case = verifier_case_to_json(VerifierCase(problem, "abc", "abc", segments=("a", "bc")))
    assert run_plugin(SegmentLengths(fixed=fixed), case) == reply
