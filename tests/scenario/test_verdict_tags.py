"""Which judging roles have a tag of their own in each request, and what `marl check` says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from marl.scenario.load import ScenarioError, load, validate
from marl.scenario.role_defaults import verdict_tag_notes
from marl.scenario.schema import Scenario
from tests.support.paths import SCENARIOS

ENDPOINT = {"engine": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "m", "key_env": None}}
TINY = {"model": {"kind": "tiny"}}
PRETRAINED = {"model": {"kind": "pretrained", "path": "example/no-such-model"}}


def judged(judge: Mapping[str, Any], role: Mapping[str, Any] | None = None, **sections: Any) -> Scenario:
    """Return a scenario whose critic speaks with the policy `judge`."""
    settings = {
        "game": {
            "kind": "team",
            "task": {"kind": "arithmetic"},
            "stages": [
                {"role": "solver", "examples": ["1"]},
                {"role": "critic", "hears": ["solver"], "legal": ["yes", "no"]},
            ],
            "rewards": {"solver": {"praise": "critic.readable * critic.score"}},
        },
        "roles": {
            "solver": {"kind": "solver", "policy": "solver"},
            "critic": {"kind": "critic", "policy": "critic", **(role or {})},
        },
        "policies": {"solver": {**TINY, "learner": {"kind": "grpo"}}, "critic": judge},
        "schedule": {"steps": 1, "groups": 2, "group_size": 2, "deadline_s": 100000},
        **sections,
    }
    return validate(settings)


@pytest.mark.parametrize("judge", [ENDPOINT, PRETRAINED, {**PRETRAINED, "learner": {"kind": "grpo"}}])
def test_a_model_with_a_general_vocabulary_judges_under_a_nonce(judge: dict[str, Any]) -> None:
    scenario = judged(judge)
    assert dict(scenario.roles["critic"])["verdict"].tag == "nonce"
    assert list(verdict_tag_notes(scenario)) == [
        "roles.critic.verdict.tag: nonce: each request has a tag of its own for the verdict, which no solver can know"
    ]
    assert validate(scenario.model_dump(mode="json")) == scenario


@pytest.mark.parametrize(
    ("judge", "role", "sections", "reason"),
    [
        (TINY, {}, {}, "its tiny model"),
        ({"engine": {"kind": "random"}}, {}, {}, "no language model judges"),
        (ENDPOINT, {"verdict": {"tag": "fixed"}}, {}, "as the scenario says"),
        (ENDPOINT, {"answer": "boxed"}, {}, "answer: boxed has no tag"),
        (ENDPOINT, {"instructions": "Say <verdict>yes</verdict> or no."}, {}, "does not show the tag"),
        (PRETRAINED, {"history": "append"}, {}, "history: append"),
        (
            {**PRETRAINED, "learner": {"kind": "grpo"}},
            {},
            {"credit": {"baseline": {"kind": "group", "like": "prompt"}}},
            "compares turns with equal prompts",
        ),
    ],
)
def test_a_tag_is_fixed_where_a_nonce_could_not_be_written(
    judge: dict[str, Any], role: dict[str, Any], sections: dict[str, Any], reason: str
) -> None:
    scenario = judged(judge, role, **sections)
    assert dict(scenario.roles["critic"])["verdict"].tag == "fixed"
    [note] = verdict_tag_notes(scenario)
    assert note.startswith("roles.critic.verdict.tag: fixed (")
    assert reason in note


def test_a_nonce_that_cannot_be_shown_is_refused_with_its_field() -> None:
    with pytest.raises(ScenarioError, match=r"roles\.critic.*verdict\.tag: 'nonce', but answer: boxed has no tag"):
        judged(ENDPOINT, {"verdict": {"tag": "nonce"}, "answer": "boxed"})


def test_a_nonce_for_a_tiny_model_is_noted_as_doubtful() -> None:
    [note] = verdict_tag_notes(judged(TINY, {"instructions": "Say <{{ tag }}>.", "verdict": {"tag": "nonce"}}))
    assert "nonce (although its tiny model writes the words of its warm-up alone)" in note


def test_no_committed_scenario_of_tiny_models_has_a_nonce() -> None:
    for file in SCENARIOS.glob("*.yaml"):
        assert not any(": nonce" in note for note in verdict_tag_notes(load(file))), file
