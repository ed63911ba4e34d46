"""Solvers, critics, judges and the rest: what they read from an answer, and how they would say it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from situations import said, view

from marl.protocols import RoleConfig, Tool
from marl.types import Message
from roles.aggregator import Aggregator
from roles.answer import AnsweringRole
from roles.challenger import Challenger
from roles.critic import Critic
from roles.debater import Debater
from roles.judge import Judge
from roles.planner import Planner
from roles.solver import Solver
from roles.verifier import Toolbox, Verifier

PYTHON = Tool(name="python", description="runs Python", parameters={"type": "object", "properties": {"code": {}}})
CALL = '<tool_call>\n{"name": "python", "arguments": {"code": "print(1)"}}\n</tool_call>'
CALLED = 'call {"name":"python","arguments":{"code":"print(1)"}}'
ROLES: list[type[AnsweringRole]] = [Solver, Planner, Critic, Judge, Challenger, Aggregator, Debater]
FORMS = ("tag", "boxed", "bracket", "json", "code", "last_line", "whole")


def made(kind: type[RoleConfig], **settings: Any) -> Any:
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
    solver = made(Solver, answer=form)
    assert solver.parse(text, None) == move
    assert solver.phrase(move) == shortest
    assert solver.parse("", None) is None
    if form not in ("last_line", "whole"):
        assert solver.parse("So it is 42.", None) is None


def test_a_tag_has_the_name_that_the_scenario_gives_it() -> None:
    assert made(Solver, tag="result").parse("<result>3</result>", None) == "3"
    assert made(Challenger).parse("<question>1 + 1?</question>", None) == "1 + 1?"
    assert made(Planner).parse(" First this,\nthen that. ", None) == "First this,\nthen that."
    assert made(Planner, answer="tag").phrase("this") == "<plan>this</plan>"


def test_in_a_finite_game_an_answer_is_one_of_its_moves() -> None:
    solver = made(Solver)
    assert solver.parse("<answer>NF3</answer>", ("Nf3", "e4")) == "Nf3"
    assert solver.parse("<answer>d4</answer>", ("Nf3", "e4")) is None
    assert made(Critic).parse("<verdict>yes</verdict>", ("no",)) is None


def test_an_object_that_does_not_fit_its_schema_is_unreadable() -> None:
    solver = made(Solver, answer="json", json_schema={"required": ["n"], "properties": {"n": {"type": "integer"}}})
    assert solver.parse('{"n": 3}', None) == '{"n":3}'
    assert solver.parse('{"n": "three"}', None) is None
    assert '{"required":["n"]' in solver.messages(view())[0].content


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"tag": "think"}, "'think' marks something else"),
        ({"tag": "a b"}, "pattern"),
        ({"json_schema": {"type": "objct"}}, "not a JSON schema"),
        ({"answer": "tga"}, "'tag'"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        made(Solver, **settings)


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
    assert made(Critic).parse(text, None) == move
    assert made(Critic).phrase("no") == "<verdict>no</verdict>"


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
    critic = made(Critic, verdict="score", scale=scale)
    assert critic.parse(f"<verdict>{text}</verdict>", None) == move
    if move is not None:
        assert critic.parse(critic.phrase(move), None) == move


def test_every_score_that_can_be_read_can_be_said_again() -> None:
    for scale in ("unit", "ten", "sage"):
        for form in FORMS:
            critic = made(Critic, verdict="score", scale=scale, answer=form)
            for parts in range(0, 10_001, 37):
                move = f"{parts / 10_000:.4f}".rstrip("0").rstrip(".")
                assert critic.parse(critic.phrase(move), None) == move, (scale, form)


def test_what_is_no_score_cannot_be_said_as_one() -> None:
    with pytest.raises(ValueError, match="critic: 'yes' is no score"):
        made(Critic, verdict="score").phrase("yes")


def test_a_verdict_can_be_a_field_of_json() -> None:
    critic = made(Critic, verdict="score", scale="ten", answer="json")
    assert critic.parse('Hm. {"why": "slips", "verdict": 7}', None) == "0.6667"
    assert critic.parse('{"verdict": "7/10"}', None) == "0.6667"
    assert critic.parse('{"verdict": 1e-7, "scale": 1}', None) is None
    assert critic.parse('{"verdict": true}', None) is None
    assert critic.parse('{"score": 7}', None) is None
    assert made(Critic, answer="json").parse('{"verdict": "Yes"}', None) == "yes"
    assert made(Critic, answer="json").phrase("yes") == '{"verdict":"yes"}'


def test_a_judge_picks_one_of_two() -> None:
    judge = made(Judge)
    assert judge.parse("<verdict>1</verdict>", None) == "1"
    assert judge.parse("<verdict>tie</verdict>", None) is None
    assert judge.parse("<verdict>3</verdict>", None) is None
    assert made(Judge, ties=True).parse("<verdict>Tie</verdict>", None) == "tie"
    assert made(Judge, mode="score").parse("<verdict>0.5</verdict>", None) == "0.5"


def test_a_judge_that_swaps_sees_the_opposite_order_and_names_the_usual_one() -> None:
    heard = [said("player_1", "first"), said("player_2", "second"), said("player_1", "more")]
    usual, swapped = made(Judge), made(Judge, swap=True, ties=True)
    shown = usual.messages(view(unread=heard))[-1].content
    turned = swapped.messages(view(unread=heard))[-1].content
    assert shown == "pile 3\n\nCandidate 1:\nfirst\n\nCandidate 1:\nmore\n\nCandidate 2:\nsecond"
    assert turned == "pile 3\n\nCandidate 1:\nsecond\n\nCandidate 2:\nfirst\n\nCandidate 2:\nmore"
    assert usual.parse("<verdict>1</verdict>", None) == "1"
    assert swapped.parse("<verdict>1</verdict>", None) == "2"
    assert swapped.parse("<verdict>2</verdict>", ("1", "2")) == "1"
    assert swapped.phrase("2") == "<verdict>1</verdict>"
    assert swapped.parse(swapped.phrase("tie"), None) == "tie"


def test_a_rubric_is_part_of_a_judges_instructions() -> None:
    assert "Proofs count double." in made(Judge, rubric="Proofs count double.").messages(view())[0].content


# --- verifiers, tools ----------------------------------------------------------------------------------------------


def test_a_verifier_hands_on_the_last_turn_word_for_word() -> None:
    verifier = made(Verifier)
    heard = [said("player_1", "older"), said("player_2", " <think>{{ x }}</think>\n42 ")]
    asked = (Message("user", " <think>{{ x }}</think>\n42 "),)
    assert verifier.messages(view(unread=heard)) == asked
    assert verifier.messages(view(read=heard)) == asked, "it may be asked about the same turn again"
    assert verifier.messages(view()) == (Message("user", ""),)


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
    verifier = made(Verifier)
    found = verifier.parse(text, None)
    assert (found or "").startswith(move or "")
    assert (found is None) == (move is None)
    if found:
        assert json.loads(found) == json.loads(text)
        assert verifier.parse(verifier.phrase(found), None) == found


def test_a_tool_that_returns_nothing_has_still_answered() -> None:
    toolbox = made(Toolbox)
    assert toolbox.parse("", None) == "(nothing)"
    assert toolbox.parse(" 1\n", None) == " 1\n"
    assert toolbox.phrase(" 1\n") == " 1\n"
    assert all(message.content for message in toolbox.messages(view()))


@pytest.mark.parametrize("kind", ROLES)
def test_a_role_with_tools_may_call_one_instead(kind: type[AnsweringRole]) -> None:
    role = made(kind, tools=[PYTHON.model_dump()])
    assert role.parse(f"Let me see. {CALL}", None) == CALLED
    assert role.parse(role.phrase(CALLED), None) == CALLED
    assert role.parse(f"{CALL} {CALL}", None) is None
    assert role.parse("<tool_call>oops</tool_call> <answer>42</answer>", None) is None
    assert "- python: runs Python" in role.messages(view())[0].content
    assert made(Solver).parse(f"{CALL}<answer>42</answer>", None) == "42", "without tools there is nothing to call"


# --- any text ------------------------------------------------------------------------------------------------------

PIECES = [
    "<answer>", "</answer>", "<think>", "</think>", "<tool_call>", "</tool_call>", '{"name":"x","arguments":{}}', "{",
    "}", "\\boxed{", "\\", "[", "]", '"', "```", "```python", "\n", " ", "call ", "42", "yes", "é", "\u2028", "\r", ".",
    '{"answer":"\\u003cthink>"}', '{"a":"</tool_call>"}', "a b",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tools", [(), (PYTHON,)], ids=["without_tools", "with_tools"])
def test_whatever_was_read_can_be_said_and_is_read_again(form: str, tools: tuple[Tool, ...]) -> None:
    solver, rng, readable = made(Solver, answer=form, tools=tools), random.Random(form), 0
    for _ in range(4000):
        inside = "".join(rng.choice(PIECES) for _ in range(rng.randrange(8)))
        text = rng.choice(["", "hm "]) + (solver.write(inside) if rng.random() < 0.8 else inside)
        move = solver.parse(text, None)
        if move is not None:
            readable += 1
            assert solver.parse(solver.phrase(move), None) == move, text
    assert readable > 100
