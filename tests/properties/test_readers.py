"""Readers of model text: no text makes them raise, hang or say something else than they read."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from hostile_text import FRAGMENTS, JSON_VALUES, answers, texts, tried, within
from hypothesis import strategies as st

from marl.protocols import RoleConfig
from marl.roles import parsing
from marl.roles.answering import AnsweringRole, DebaterRole, PlannerRole, PlayerRole, SolverRole
from marl.roles.judging import CriticRole, JudgeRole
from marl.roles.rule_based import ToolboxRole, VerifierRole

READERS: dict[str, Callable[[str], Any]] = {
    "remove_thoughts_and_strip": parsing.remove_thoughts_and_strip,
    "whole": parsing.full_text_without_thoughts,
    "last_line": parsing.last_line,
    "tag": lambda text: parsing.text_in_tag(text, "answer"),
    "bracketed": parsing.text_in_brackets,
    "boxed": parsing.text_in_box,
    "last_code_block": parsing.last_code_block,
    "python_block": lambda text: parsing.last_code_block(text, "python"),
    "choice": lambda text: parsing.match_option(text, ("yes", "no", "A", "B", "ß", "İ")),
    "score": lambda text: parsing.parse_labelled_or_bare_score(text, 0.0, 10.0),
    "last_json_object": parsing.last_json_object,
    "parse_json_value": parsing.parse_json_value,
    "calls_tool": parsing.has_tool_call,
    "tool_call": parsing.parse_tool_calls,
}
LENGTH = 200_000
"""Characters of the long texts: a reader of quadratic time would need minutes."""


def role(kind: type[RoleConfig], **more: Any) -> RoleConfig:
    return kind.model_validate({"kind": kind.model_fields["kind"].default, "policy": "p", **more})


FORMS = ("tag", "boxed", "bracket", "json", "code", "last_line", "whole")
ROLES: dict[str, RoleConfig] = {
    **{f"solver {form}": role(SolverRole, answer=form) for form in FORMS},
    **{f"critic {form}": role(CriticRole, answer=form) for form in FORMS},
    **{f"judge {form}": role(JudgeRole, answer=form, ties=True, swap=True) for form in FORMS},
    **{f"score {scale}": role(CriticRole, verdict="score", scale=scale) for scale in ("unit", "ten", "sage")},
    "score json": role(CriticRole, verdict="score", answer="json"),
    "schema": role(SolverRole, answer="json", json_schema={"type": "object", "required": ["a"]}),
    "player": role(PlayerRole),
    "planner": role(PlannerRole),
    "debater": role(DebaterRole, tag="verdict"),
    "verifier": role(VerifierRole),
    "toolbox": role(ToolboxRole),
}


LIKELY = defaultdict(
    lambda: ("42",),
    critic=("yes", "no", "Yes.", "1"),
    judge=("1", "2", "tie", "Tie"),
    score=("0.5", "1", "7/10", "10", "70%", "3.25", "1.000001", "-0"),
    verifier=('{"scores": {"a": 1}}', '{"scores": {"a": 0.5, "b": -1}, "why": {}}', '{"scores": {}}'),
    schema=('{"a": 1}', '{"a": "</think>"}'),
)
"""Kind of role -> answers that it is likely to read."""


def spoken(name: str) -> st.SearchStrategy[str]:
    """Return texts in which the role of that name may find its move."""
    speaker = ROLES[name]
    return answers(
        speaker.format_answer if isinstance(speaker, AnsweringRole) else speaker.phrase, LIKELY[name.split()[0]]
    )


@pytest.mark.parametrize("name", READERS)
def test_no_text_makes_a_reader_raise(name: str, factor: int) -> None:
    @tried(factor * 80, texts())
    def _(text: str) -> None:
        with within(5.0, 0.5):
            READERS[name](text)


@pytest.mark.parametrize("name", READERS)
def test_no_repetition_makes_a_reader_slow(name: str, factor: int) -> None:
    @tried(factor * 6, st.tuples(FRAGMENTS, FRAGMENTS, FRAGMENTS))
    def _(parts: tuple[str, str, str]) -> None:
        first, unit, last = parts[0], parts[0] + parts[1], parts[2]
        text = first + unit * (LENGTH // len(unit)) + last
        with within(20.0, 2.0):
            READERS[name](text)


@pytest.mark.parametrize("name", ROLES)
def test_a_move_that_was_read_is_read_again_from_its_phrase(name: str, factor: int) -> None:
    @tried(factor * 50, spoken(name))
    def _(text: str) -> None:
        move = ROLES[name].parse(text, None)
        assert move is None or ROLES[name].parse(ROLES[name].phrase(move), None) == move


LEGAL = st.lists(
    st.sampled_from(["yes", "no", "Yes", "1", "2", "tie", "a b", "ß", "SS", "[x]", "{}", "</answer>", "<think>"]),
    unique=True,
    min_size=1,
)


@pytest.mark.parametrize("name", ROLES)
def test_a_move_is_one_of_the_legal_moves(name: str, factor: int) -> None:
    @tried(factor * 30, spoken(name), LEGAL)
    def _(text: str, legal: list[str]) -> None:
        move = ROLES[name].parse(text, tuple(legal))
        assert move is None or move in legal


def test_an_answer_that_the_form_can_hold_comes_back(factor: int) -> None:
    @tried(factor * 100, answers(), st.sampled_from(FORMS))
    def _(text: str, form: str) -> None:
        solver = ROLES[f"solver {form}"]
        assert isinstance(solver, AnsweringRole)
        answer = solver.extract_answer(text)
        assert answer is None or solver.extract_answer(solver.format_answer(answer)) == answer


def test_thoughts_are_removed_once_and_for_all(factor: int) -> None:
    @tried(factor * 100, texts())
    def _(text: str) -> None:
        spoken = parsing.remove_thoughts_and_strip(text)
        assert parsing.remove_thoughts_and_strip(spoken) == spoken
        assert "<think>" not in spoken
        assert "</think>" not in spoken


def test_json_that_was_read_can_be_written_as_utf_8_and_read_again(factor: int) -> None:
    @tried(factor * 150, st.one_of(JSON_VALUES.map(json.dumps), texts()))
    def _(text: str) -> None:
        value = parsing.parse_json_value(text)
        if value is not None:
            written = parsing.compact_json(value)
            written.encode()
            assert parsing.parse_json_value(written) == value


def test_fenced_code_comes_back(factor: int) -> None:
    @tried(factor * 100, texts(), st.sampled_from(["", "python"]))
    def _(code: str, language: str) -> None:
        code = "\n".join(parsing.remove_thoughts_and_strip(code).splitlines()).strip("\n").rstrip()
        if code:
            assert parsing.last_code_block(parsing.format_code_block(code, language), language) == code
