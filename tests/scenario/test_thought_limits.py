"""Limits of thoughts that cannot be kept, or that never end one, are told before anything is loaded."""

from __future__ import annotations

import pytest

from marl.scenario.credit_checks import credit_notes
from marl.scenario.load import ScenarioError, load
from tests.support.paths import SCENARIOS

KUHN = SCENARIOS / "kuhn_frozen_opponent.yaml"
REMOTE = 'policies.teacher={engine: {kind: openai, base_url: "http://127.0.0.1:1/v1", model: m, key_env: null}}'


def hints(*overrides: str) -> list[str]:
    """Return what is noted about limits of thoughts."""
    return [note for note in credit_notes(load(KUHN, overrides)) if "thinking_tokens" in note]


def test_an_endpoint_is_asked_for_no_limit_of_thoughts() -> None:
    measured = ("evaluate.nashconv=false", "schedule.deadline_s=10000")
    with pytest.raises(ScenarioError, match=r"roles\.teacher\.sampling\.thinking_tokens: 3, .* cannot limit thoughts"):
        load(KUHN, (REMOTE, *measured, "roles.teacher.sampling.thinking_tokens=3"))


def test_a_limit_without_effect_is_noted() -> None:
    assert hints("roles.teacher.sampling.thinking_tokens=3") == []
    assert hints("roles.teacher.sampling.thinking_tokens=6") == [
        "roles.teacher.sampling.thinking_tokens: 6 has no effect: answers end after sampling.max_tokens: 6; give "
        "fewer, or more max_tokens"
    ]
    random = ("policies.teacher={engine: {kind: random}}", "evaluate.nashconv=false")
    assert hints(*random, "roles.teacher.sampling.thinking_tokens=3") == [
        "roles.teacher.sampling.thinking_tokens: 3 has no effect: engine 'random' of policies.teacher does not think; "
        "remove it"
    ]
