"""Segments that nobody marks, or that nobody can mark, are told before anything is loaded."""

from __future__ import annotations

import pytest

from marl.scenario.load import ScenarioError, load
from tests.support.paths import SCENARIOS

TEAM, CRITIC = SCENARIOS / "team_arithmetic.yaml", SCENARIOS / "critic_verdict.yaml"
LINES = tuple(f"roles.{role}.segments={{by: line}}" for role in ("planner", "solver", "critic"))
RATER = (
    "roles.verifier.kind=rater",
    "policies.checker.engine={kind: reward_model, path: somewhere, name: correct, level: segment}",
)
PRM = "policies.solver.learner={kind: reward_modeling, objective: prm, level: segment}"


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ("roles.verifier.segments={by: line}",),
            r"roles\.verifier\.segments: by: line, but engine 'verifiers' of policies\.checker generates no tokens .*"
            r"choices of engines: .*transformers.*vllm",
        ),
        (
            ("credit.assign={kind: replay, level: segment}",),
            r"credit\.assign\.level: 'segment' credits segments of answers, but roles\.planner has none; give it "
            r"`segments: \{by: line\}`",
        ),
        (
            (*LINES[1:], "credit.assign={kind: gae, level: tri_level, values: none}"),
            r"credit\.assign\.level: 'tri_level' credits segments of answers, but roles\.planner has none",
        ),
        (
            ("credit.compare.process.assign={kind: process, level: segment, scores: {verifier: [correct]}}",),
            r"credit\.compare\.process\.assign\.level: 'segment' credits segments of answers, but roles\.planner",
        ),
        (
            (PRM, "credit.assign={kind: replay, level: segment}", *LINES[:1], *LINES[2:]),
            r"policies\.solver\.learner\.level: 'segment' learns from segments, but roles\.solver has none",
        ),
        ((PRM, *LINES), r"labels segments by their credit, but credit\.assign 'outcome' credits none; choices: replay"),
        (
            (PRM, *LINES, "credit.assign={kind: replay, level: segment}"),
            r"labels segments by their credit, but credit\.baseline 'group' changes it; choices: none",
        ),
        (RATER, r"policies\.checker\.engine\.level: 'segment' scores segments, but no role has any"),
    ],
)
def test_segments_that_are_missing_are_named(overrides: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ScenarioError, match=problem):
        load(TEAM, overrides)


def test_only_roles_that_are_credited_need_segments() -> None:
    replay = "credit.assign={kind: replay, level: segment, roles: [solver]}"
    assert load(TEAM, (LINES[1], replay)).roles["solver"].segments
    own = "credit.roles.solver.assign={kind: replay, level: segment}"
    assert load(TEAM, (LINES[1], own)).roles["planner"].segments is None


def test_answers_to_a_prompt_with_a_random_tag_cannot_be_continued() -> None:
    replay = "credit.assign={kind: replay, level: segment, roles: [critic]}"
    critic = "{kind: critic, policy: critic, verdict: {form: yes_no, tag: nonce}, segments: {by: line}}"
    with pytest.raises(ScenarioError, match=r"roles\.critic\.verdict\.tag: 'nonce' is new in each request, .* fixed"):
        load(CRITIC, (f"roles.critic={critic}", replay))


@pytest.mark.parametrize(
    ("learner", "problem"),
    [
        (
            "{kind: reward_modeling, objective: orm, level: segment}",
            r"level: 'segment' scores steps, but objective: 'orm'",
        ),
        ("{kind: reward_modeling, objective: prm, labels: soft}", r"labels: 'soft' has no effect at level 'turn'"),
    ],
)
def test_labels_of_segments_belong_to_process_reward_models(learner: str, problem: str) -> None:
    with pytest.raises(ScenarioError, match=problem):
        load(TEAM, (f"policies.solver.learner={learner}",))
