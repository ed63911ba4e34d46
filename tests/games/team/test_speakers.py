"""Who speaks in a workflow: in an order in which all are heard, by roles and engines that can do what they are to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from marl.scenario.load import ScenarioError, validate
from marl.scenario.schema import Scenario
from tests.support.addition_task import team_config

SOLVE = {"role": "solver", "examples": ["{{ answer }}", "{{ wrong[0] }}"]}
CRITIC = {"role": "critic", "hears": ["solver"], "legal": ["yes", "no"]}
CHECK = {"role": "verifier", "verifies": "solver", "scores": ["correct"]}
TINY = {"model": {"kind": "tiny", "warm_up": {}}, "learner": "grpo"}
SEARCH = {"name": "python"}


def refusal(*stages: Mapping[str, Any], **more: Any) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is compared)
        team_config(*stages, **more)
    return str(caught.value)


# --- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stages",
    [
        [SOLVE | {"hears": ["solver"]}],
        [SOLVE | {"hears": ["solver"], "n": 3}],
        [{"repeat": 1, "stages": [SOLVE | {"hears": ["solver"], "n": 3}]}],
        [{"repeat": 3, "stages": [SOLVE | {"hears": ["solver"]}]}],
    ],
    ids=["once", "several_at_once", "a_loop_of_one_round", "alone_in_a_loop"],
)
def test_a_stage_that_hears_nobody_but_itself_is_refused(stages: list[dict[str, Any]]) -> None:
    assert "stage 'solver': hears: 'solver' speaks there itself, at the same time; choices: " in refusal(*stages)


@pytest.mark.parametrize(
    "stages",
    [
        [SOLVE | {"hears": ["critic"]}, CRITIC],
        [SOLVE | {"hears": ["critic"]}, {"repeat": 1, "stages": [CRITIC]}],
        [{"repeat": 2, "stages": [SOLVE | {"hears": ["critic"]}]}, CRITIC],
    ],
    ids=["later", "in_a_loop_later", "after_its_loop"],
)
def test_a_stage_that_hears_only_a_later_one_is_refused(stages: list[dict[str, Any]]) -> None:
    assert "stage 'solver': hears: 'critic' has not spoken by then; choices: " in refusal(*stages)


def test_a_stage_that_verifies_before_there_is_an_answer_is_refused() -> None:
    assert "stage 'verifier': verifies: 'solver' has not spoken by then; choices: " in refusal(CHECK, SOLVE)


@pytest.mark.parametrize(
    "stages",
    [
        [{"repeat": 2, "stages": [SOLVE | {"hears": ["critic"]}, CRITIC]}],
        [SOLVE | {"hears": ["critic"]}, {"repeat": 2, "stages": [CRITIC, SOLVE | {"hears": ["critic"]}]}],
        [{"repeat": 2, "stages": [SOLVE | {"n": 2, "hears": ["solver"]}]}],
        [SOLVE | {"n": 2}, SOLVE | {"n": 2, "hears": ["solver"], "name": "again"}],
        [SOLVE | {"n": 2}, {**CRITIC, "hears": ["solver_1"]}],
        [{"repeat": 2, "stages": [CHECK, SOLVE]}],
        [SOLVE | {"tools": "toolbox"}, {**CRITIC, "hears": ["solver", "toolbox"]}],
    ],
    ids=["last_round", "listed_again", "last_round_of_others", "twice", "an_agent", "verified_next_round", "a_toolbox"],
)
def test_a_stage_may_hear_earlier_ones_and_the_last_round_of_a_loop(stages: list[dict[str, Any]]) -> None:
    team_config(*stages)


# --- roles and engines -----------------------------------------------------------------------------------------------


def scenario(*stages: Mapping[str, Any], policies: Mapping[str, Any] | None = None, **roles: Any) -> Scenario:
    """Return a small scenario of these stages: `solver` and `critic` learn, `verifier` checks, `toolbox` has a tool."""
    speaking = {role for stage in stages for role in (stage["role"], stage.get("tools")) if role}
    known = {
        "solver": {"kind": "solver", "policy": "actor"},
        "critic": {"kind": "critic", "policy": "actor"},
        "verifier": {"kind": "verifier", "policy": "checker"},
        "toolbox": {"kind": "toolbox", "policy": "tools"},
    }
    cast = {name: known[name] | roles.get(name, {}) for name in known if name in speaking}
    engines: dict[str, Any] = {
        "actor": TINY,
        "checker": {"engine": {"kind": "verifiers", "checks": {"correct": "exact"}}},
        "tools": {"engine": {"kind": "tools", "tools": {"python": "calculator"}}},
    } | dict(policies or {})
    used = {role["policy"] for role in cast.values()}
    return validate(
        {
            "game": {"kind": "team", "task": {"kind": "tests.support.addition_task:AdditionTask"}, "stages": stages},
            "roles": cast,
            "policies": {name: policy for name, policy in engines.items() if name in used},
            "schedule": {"steps": 1, "groups": 2, "group_size": 2},
        }
    )


def problems(*stages: Mapping[str, Any], **more: Any) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        scenario(*stages, **more)
    return [line.strip() for line in str(caught.value).split("\n")[1:]]


OPEN = {"role": "solver"}
MISSING = (
    "game.stages.0.examples: missing: {}, which has nothing to say where any text is a move; give examples of moves, "
    'such as ["{{{{ answer }}}}", "{{{{ wrong[0] }}}}"], or `legal`'
)


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "tiny", "warm_up": {}},
        {"kind": "tiny"},
        {"kind": "tiny", "vocabulary": "bytes", "warm_up": {}},
        {"kind": "adapter", "base": {"kind": "tiny", "warm_up": {}}},
    ],
    ids=["warm_up", "words", "bytes", "adapter"],
)
def test_a_tiny_model_that_would_learn_from_random_play_without_examples_is_refused(model: dict[str, Any]) -> None:
    actor = {"actor": {"model": model, "learner": "grpo"}}
    message = MISSING.format("a tiny model learns words and answers from random play")
    assert problems(OPEN, policies=actor) == [message]
    scenario({**OPEN, "examples": ["1"]}, policies=actor)
    scenario({**OPEN, "legal": ["1", "2"]}, policies=actor)


def test_other_models_need_no_examples() -> None:
    for model in ({"kind": "tiny", "vocabulary": "bytes"}, "someone/model"):
        scenario(OPEN, policies={"actor": {"model": model, "learner": "grpo"}})


def test_a_scripted_player_without_anything_to_say_is_refused() -> None:
    stages = ({"role": "critic"}, SOLVE)
    idle = {"critic": {"policy": "other"}, "policies": {"other": {"engine": {"kind": "random"}}}}
    assert problems(*stages, **idle) == [MISSING.format("'random' plays")]


def test_tools_that_nobody_answers_are_refused() -> None:
    assert problems(SOLVE, solver={"tools": [SEARCH]}) == [
        "game.stages: the role of 'solver' has `tools`, but nobody answers its calls; name the role that does in its "
        "stage, as `tools: ROLE`, and give that one the engine `tools`"
    ]
    stage = SOLVE | {"tools": "toolbox"}
    assert problems(stage) == [
        "game.stages.0.tools: 'toolbox' answers calls, but its role knows of no tool to call; give the role `tools`"
    ]
    assert problems(stage, solver={"tools": [{"name": "pyton"}]}) == [
        "game.stages.0.tools: 'toolbox' has no tool 'pyton'; did you mean 'python'? choices: python"
    ]
    scenario(stage, solver={"tools": [SEARCH]})


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([SEARCH, SEARCH], "tools: 'python' names two tools; give each a name of its own (got "),
        (
            [SEARCH | {"parameters": {"type": "text"}}],
            "tools: parameters of 'python': not a JSON schema: 'text' is not valid under any ",
        ),
        ([SEARCH | {"parameters": 3}], "tools.0.parameters: must be a mapping (`name: value`) (got 3)"),
        ([{"nam": "python"}], "tools.0.nam: unknown field 'nam'; did you mean 'name'? choices: description, name, "),
        ("python", "tools: unknown; choices: auto (got 'python')"),
    ],
)
def test_a_wrong_list_of_tools_is_one_error_that_names_the_tool(tools: Any, message: str) -> None:
    found = problems(SOLVE | {"tools": "toolbox"}, solver={"tools": tools})
    assert any(line.startswith(f"roles.solver.{message}") for line in found), found
    assert len(found) == 1 + (tools == "python"), found


def test_a_score_that_no_check_gives_is_refused() -> None:
    assert problems(SOLVE, CHECK | {"scores": ["corect"]}) == [
        "game.stages.1.scores: no check 'corect' in its engine 'verifiers'; did you mean 'correct'? choices: correct"
    ]
    scenario(SOLVE, CHECK)


# --- settings of a stage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("legal", [[], [""], ["yes", "yes"], ["yes", ""]])
def test_legal_moves_are_different_texts(legal: list[str]) -> None:
    message = refusal({**SOLVE, "legal": legal})
    assert "must be different texts, one at least and none of them empty; null: any text is a move" in message


def test_legal_moves_that_yaml_reads_as_truth_values_are_to_be_quoted() -> None:
    assert problems({"role": "solver", "legal": [True, False]})[:2] == [
        f"game.stages.0.legal.{index}: must be text: YAML reads yes, no, on and off as truth values; quote it "
        f"(got {value})"
        for index, value in enumerate((True, False))
    ]


@pytest.mark.parametrize(
    ("field", "stage"),
    [
        ("n", {**SOLVE, "n": 1_000_000}),
        ("calls.most", {**SOLVE, "calls": 10**12}),
        ("repeat", {"repeat": 10**12, "stages": [SOLVE]}),
    ],
)
def test_an_episode_without_end_is_refused(field: str, stage: dict[str, Any]) -> None:
    assert f"{field}\n  Input should be less than or equal to 1000" in refusal(stage)
