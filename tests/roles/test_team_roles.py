"""Solvers, critics, judges and other team roles: `parse` and `phrase`."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from marl.core.types import Message
from marl.protocols import RoleConfig, Tool
from marl.roles.answering import AggregatorRole, AnsweringRole, ChallengerRole, DebaterRole, PlannerRole, SolverRole
from marl.roles.judging import CriticRole, JudgeRole
from marl.roles.rule_based import ToolboxRole, VerifierRole
from tests.support.role_views import fence_lines, make_turn, make_view

PYTHON = Tool(name="python", description="runs Python", parameters={"type": "object", "properties": {"code": {}}})
CALL = '<tool_call>\n{"name": "python", "arguments": {"code": "print(1)"}}\n</tool_call>'
CALLED = 'call {"name":"python","arguments":{"code":"print(1)"}}'
ROLES: list[type[AnsweringRole]] = [
    SolverRole,
    PlannerRole,
    CriticRole,
    JudgeRole,
    ChallengerRole,
    AggregatorRole,
    DebaterRole,
]
FORMS = ("tag", "boxed", "bracket", "json", "code", "last_line", "whole")


def make_role(kind: type[RoleConfig], **settings: Any) -> Any:
    """A role from plain data, as in a scenario."""
    return kind.model_validate({"policy": "actor", **settings})


@pytest.mark.parametrize(
    ("form", "text", "move", "shortest"),
    [
        ("tag", "So: <answer> 42 </answer>.", "42", "<answer>42</answer>"),
        ("boxed", r"So $\boxed{\frac12}$.", r"\frac12", r"\boxed{\frac12}"),
        ("bracket", "So [80 5]", "80 5", "[80 5]"),
        ("json", 'So {"n": 42, "why": "é"}.', '{"n":42,"why":"é"}', '{"n":42,"why":"é"}'),
        ("code", "So\n```python\nx = 1\n```\n.", "x = 1", "```python\nx = 1\n```"),
        ("last_line", "So:\n42\n", "42", "42"),
        ("whole", " 42 is\nit ", "42 is\nit", "42 is\nit"),
    ],
)
def test_a_solver_answers_in_the_form_that_is_agreed_upon(form: str, text: str, move: str, shortest: str) -> None:
    solver = make_role(SolverRole, answer=form)
    assert solver.parse(text, None) == move
    assert solver.phrase(move) == shortest
    assert solver.parse("", None) is None
    if form not in ("last_line", "whole"):
        assert solver.parse("So it is 42.", None) is None


def test_a_tag_has_the_name_that_the_scenario_gives_it() -> None:
    assert make_role(SolverRole, tag="result").parse("<result>3</result>", None) == "3"
    assert make_role(ChallengerRole).parse("<question>1 + 1?</question>", None) == "1 + 1?"
    assert make_role(PlannerRole).parse(" First this,\nthen that. ", None) == "First this,\nthen that."
    assert make_role(PlannerRole, answer="tag").phrase("this") == "<plan>this</plan>"


def test_in_a_finite_game_an_answer_is_one_of_its_moves() -> None:
    solver = make_role(SolverRole)
    assert solver.parse("<answer>NF3</answer>", ("Nf3", "e4")) == "Nf3"
    assert solver.parse("<answer>d4</answer>", ("Nf3", "e4")) is None
    assert make_role(CriticRole).parse("<verdict>yes</verdict>", ("no",)) is None


def test_an_object_that_does_not_fit_its_schema_is_unreadable() -> None:
    solver = make_role(
        SolverRole, answer="json", json_schema={"required": ["n"], "properties": {"n": {"type": "integer"}}}
    )
    assert solver.parse('{"n": 3}', None) == '{"n":3}'
    assert solver.parse('{"n": "three"}', None) is None
    assert '{"required":["n"]' in solver.messages(make_view())[0].content


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"tag": "think"}, "'think' marks something else"),
        ({"tag": "a b"}, "must begin with a letter"),
        ({"language": "c "}, "must have only letters, digits and the signs"),
        ({"json_schema": {"type": "objct"}}, "not a JSON schema"),
        ({"answer": "tga"}, "'tag'"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make_role(SolverRole, **settings)


# --- critics and judges --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "move"),
    [
        ("Fine. <verdict>yes</verdict>", "yes"),
        ("<verdict>No.</verdict>", "no"),
        ("<verdict>yes and no</verdict>", None),
        ("yes", None),
        ("", None),
    ],
)
def test_a_critic_says_yes_or_no(text: str, move: str | None) -> None:
    assert make_role(CriticRole).parse(text, None) == move
    assert make_role(CriticRole).phrase("no") == "<verdict>no</verdict>"


@pytest.mark.parametrize(
    ("scale", "text", "move"),
    [
        ("unit", "0.75", "0.75"),
        ("unit", "1", "1"),
        ("unit", "-0", "0"),
        ("unit", "7/10", "0.7"),
        ("unit", "7", None),
        ("ten", "1", "0"),
        ("ten", "7", "0.6667"),
        ("ten", "10/10", "1"),
        ("ten", "0.5", None),
        ("sage", "0.5", "0.5"),
        ("sage", "1", "1"),
        ("sage", "7", "0.6667"),
        ("sage", "10", "1"),
        ("sage", "11", None),
        ("sage", "good", None),
        ("sage", "", None),
    ],
)
def test_a_score_is_brought_to_its_unit_and_never_made_up(scale: str, text: str, move: str | None) -> None:
    """SAGE (arXiv 2603.15255): s up to 1, (s - 1) / 9 from there to 10. Its 0.5 for the rest is not done."""
    critic = make_role(CriticRole, verdict="score", scale=scale)
    assert critic.parse(f"<verdict>{text}</verdict>", None) == move
    if move is not None:
        assert critic.parse(critic.phrase(move), None) == move


def test_every_score_that_can_be_read_can_be_said_again() -> None:
    for scale in ("unit", "ten", "sage"):
        for form in FORMS:
            critic = make_role(CriticRole, verdict="score", scale=scale, answer=form)
            for parts in range(0, 10_001, 37):
                move = f"{parts / 10_000:.4f}".rstrip("0").rstrip(".")
                assert critic.parse(critic.phrase(move), None) == move, (scale, form)


def test_what_is_no_score_cannot_be_said_as_one() -> None:
    with pytest.raises(ValueError, match="critic: 'yes' is no score"):
        make_role(CriticRole, verdict="score").phrase("yes")


def test_a_verdict_can_be_a_field_of_json() -> None:
    critic = make_role(CriticRole, verdict="score", scale="ten", answer="json")
    assert critic.parse('Hm. {"why": "slips", "verdict": 7}', None) == "0.6667"
    assert critic.parse('{"verdict": "7/10"}', None) == "0.6667"
    assert critic.parse('{"verdict": 1e-7, "scale": 1}', None) is None
    assert critic.parse('{"verdict": true}', None) is None
    assert critic.parse('{"score": 7}', None) is None
    assert make_role(CriticRole, answer="json").parse('{"verdict": "Yes"}', None) == "yes"
    assert make_role(CriticRole, answer="json").phrase("yes") == '{"verdict":"yes"}'


def test_a_judge_picks_one_of_two() -> None:
    judge = make_role(JudgeRole)
    assert judge.parse("<verdict>1</verdict>", None) == "1"
    assert judge.parse("<verdict>tie</verdict>", None) is None
    assert judge.parse("<verdict>3</verdict>", None) is None
    assert make_role(JudgeRole, ties=True).parse("<verdict>Tie</verdict>", None) == "tie"
    assert make_role(JudgeRole, mode="score").parse("<verdict>0.5</verdict>", None) == "0.5"


def test_a_judge_that_swaps_sees_the_opposite_order_and_names_the_usual_one() -> None:
    heard = [make_turn("player_1", "first"), make_turn("player_2", "second"), make_turn("player_1", "more")]
    usual, swapped = make_role(JudgeRole), make_role(JudgeRole, swap=True, ties=True)
    shown = usual.messages(make_view(new_turns=heard))[-1].content
    turned = swapped.messages(make_view(new_turns=heard))[-1].content
    assert shown == fence_lines("pile 3\n\nCandidate 1:\n`first`\n\nCandidate 1:\n`more`\n\nCandidate 2:\n`second`")
    assert turned == fence_lines("pile 3\n\nCandidate 1:\n`second`\n\nCandidate 2:\n`first`\n\nCandidate 2:\n`more`")
    assert usual.parse("<verdict>1</verdict>", None) == "1"
    assert swapped.parse("<verdict>1</verdict>", None) == "2"
    assert swapped.parse("<verdict>2</verdict>", ("1", "2")) == "1"
    assert swapped.phrase("2") == "<verdict>1</verdict>"
    assert swapped.parse(swapped.phrase("tie"), None) == "tie"


def test_a_rubric_is_part_of_a_judges_instructions() -> None:
    assert (
        "Proofs count double." in make_role(JudgeRole, rubric="Proofs count double.").messages(make_view())[0].content
    )


# --- verifiers, tools ----------------------------------------------------------------------------------------------


def test_a_verifier_hands_on_the_last_turn_word_for_word() -> None:
    verifier = make_role(VerifierRole)
    heard = [make_turn("player_1", "older"), make_turn("player_2", " <think>{{ x }}</think>\n42 ")]
    expected = (Message("user", " <think>{{ x }}</think>\n42 "),)
    assert verifier.messages(make_view(new_turns=heard)) == expected
    assert verifier.messages(make_view(read_turns=heard)) == expected, "it may be asked about the same turn again"
    assert verifier.messages(make_view()) == (Message("user", ""),)


@pytest.mark.parametrize(
    ("text", "move"),
    [
        ('{"scores": {"correct": 1.0}, "why": {"correct": "<think>"}}', '{"scores":{"correct":1.0},"why":{"correct":'),
        ('{"why": {"x": "\\ud800"}, "scores": {}}', '{"why":{"x":"\\ud800"},"scores":{}}'),
        ('{"scores": {"correct": "1"}}', None),
        ('{"scores": {"correct": true}}', None),
        ('{"scores": {"correct": NaN}}', None),
        ('{"scores": [1]}', None),
        ("correct", None),
        ("", None),
    ],
)
def test_a_verifier_says_scores(text: str, move: str | None) -> None:
    verifier = make_role(VerifierRole)
    verdict = verifier.parse(text, None)
    assert (verdict or "").startswith(move or "")
    assert (verdict is None) == (move is None)
    if verdict:
        assert json.loads(verdict) == json.loads(text)
        assert verifier.parse(verifier.phrase(verdict), None) == verdict


def test_a_tool_that_returns_nothing_has_still_answered() -> None:
    toolbox = make_role(ToolboxRole)
    assert toolbox.parse("", None) == "(nothing)"
    assert toolbox.parse(" 1\n", None) == " 1\n"
    assert toolbox.phrase(" 1\n") == " 1\n"
    assert all(message.content for message in toolbox.messages(make_view()))


@pytest.mark.parametrize("kind", ROLES)
def test_a_role_with_tools_may_call_one_instead(kind: type[AnsweringRole]) -> None:
    role = make_role(kind, tools=[PYTHON.model_dump()])
    assert role.parse(f"Let me see. {CALL}", None) == CALLED
    assert role.parse(role.phrase(CALLED), None) == CALLED
    assert role.parse(role.phrase(role.parse(f"{CALL} {CALL}", None)), None) == role.parse(f"{CALL} {CALL}", None)
    assert role.parse("<tool_call>oops</tool_call> <answer>42</answer>", None) is None
    assert "- python: runs Python" in role.messages(make_view())[0].content
    assert make_role(SolverRole).parse(f"{CALL}<answer>42</answer>", None) == "42", (
        "without tools there is nothing to call"
    )


# --- any text ------------------------------------------------------------------------------------------------------

PIECES = [
    "<answer>", "</answer>", "<think>", "</think>", "<tool_call>", "</tool_call>", '{"name":"x","arguments":{}}', "{",
    "}", "\\boxed{", "\\", "[", "]", '"', "```", "```python", "\n", " ", "call ", "42", "yes", "é", "\u2028", "\r", ".",
    '{"answer":"\\u003cthink>"}', '{"a":"</tool_call>"}', "a b",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tools", [(), (PYTHON,)], ids=["without_tools", "with_tools"])
def test_whatever_was_read_can_be_said_and_is_read_again(form: str, tools: tuple[Tool, ...]) -> None:
    solver, rng, readable = make_role(SolverRole, answer=form, tools=tools), random.Random(form), 0
    for _ in range(4000):
        inside = "".join(rng.choice(PIECES) for _ in range(rng.randrange(8)))
        text = rng.choice(["", "hm "]) + (solver.format_answer(inside) if rng.random() < 0.8 else inside)
        move = solver.parse(text, None)
        if move is not None:
            readable += 1
            assert solver.parse(solver.phrase(move), None) == move, text
    assert readable > 100
