"""Checks of workflows: what gives the answer away, what pays for the unreadable, what replaces held-out problems."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl.games.team.expressions import evaluate_expression
from marl.games.team.settings import TeamConfig
from marl.games.team.static_analysis import is_always_false
from tests.support.addition_task import team_config

SOLVE = {"role": "solver"}
CRITIC = {"role": "critic", "hears": ["solver"]}
CHECK = {"role": "verifier", "verifies": "solver", "scores": ["correct"]}


def refusal(*stages: Mapping[str, Any], **more: Any) -> str:
    """The message of a workflow that is refused."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is compared)
        team_config(*stages, **more)
    return str(caught.value)


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hears": ["solver", "solver"]}, "hears\n  Value error, 'solver' is listed twice; list it once"),
        ({"verifies": "solver", "scores": ["a", "b", "a"]}, "scores\n  Value error, 'a' is listed twice; list it once"),
        (
            {"tools": "tool", "calls": {"verifier": "judge", "scores": ["new", "new"]}},
            "calls.scores\n  Value error, 'new' is listed twice; list it once",
        ),
        (
            {"hears": [{"solver": "it.readable"}]},
            "hears\n  Value error, {'solver': 'it.readable'} is no role; conditions are given as a mapping {ROLE: ",
        ),
    ],
)
def test_a_list_of_names_has_each_name_once(settings: Mapping[str, Any], message: str) -> None:
    assert f"stages.1.stage.{message}" in refusal(SOLVE, {"role": "critic", **settings})


# --- unreadable answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "agent"),
    [
        ("own.score == solver.correct", "own"),
        ("critic.score", "critic"),
        ("(critic.move == 'no') * 0.5", "critic"),
        ("1 if own.move == 'yes' else 0", "own"),
        ("own['score'] + 1", "own"),
        ("own.get('score', 0)", "own"),
        ("own.before.score - own.score * own.readable", "own.before"),
        ("own.readable * own.of.score", "own.of"),
        ("[own] | map(attribute='move') | first == 'yes'", "own"),
        ("(own if true else critic).score", "own"),
        ("solver.move.lower() == 'x'", "solver"),
        ("solver.move[:1] == 'x'", "solver"),
        ("own.readable * (own.score == mean([solver.score]))", "solver"),
        ("voted([solver.move], [own.score])", "own"),
        ("own.of.readable * own.score", "own"),
    ],
)
def test_a_reward_or_a_measure_must_say_what_follows_from_an_unreadable_answer(value: str, agent: str) -> None:
    stages = (SOLVE, {"role": "critic", "each": "solver"}, CHECK)
    message = refusal(*stages, rewards={"critic": {"odd": value}})
    assert f"rewards.critic.odd: {value!r} looks at what {agent!r} said, which may be unreadable" in message
    assert f"say what follows from that by {agent}.readable, such as `{agent}.readable * (...)`" in message
    if "own" not in value:
        assert f"measures.odd: {value!r} looks at" in refusal(*stages, measures={"odd": value})


@pytest.mark.parametrize(
    "value",
    [
        *("own.readable * (own.score == solver.correct)", "own.score if own.readable else -1", "own.spoke + own.index"),
        *("best(solver.score) + agreement(solver.move)", "voted(solver.move, solver.correct)", "own.of.correct"),
        *("own['readable'] and own['score'] > 0", "len(majority(solver.move))"),
    ],
)
def test_an_expression_that_reads_readable_or_leaves_the_unreadable_out_is_fine(value: str) -> None:
    team_config({**SOLVE, "n": 2}, {"role": "critic", "each": "solver"}, CHECK, rewards={"critic": {"fine": value}})


@pytest.mark.parametrize(
    "condition",
    [
        *("critic.move == 'yes'", "'yes' == critic.move", "critic.move in ['yes', 'maybe']", "critic.spoke > 1"),
        *("critic.move == 'yes' and solver.correct", "solver.correct or critic.move == 'no'", "solver.correct < 1"),
        *("critic.readable and critic.score > 0.5", "not critic.readable or critic.move == 'no'"),
    ],
)
def test_a_condition_may_compare_a_move_with_given_words(condition: str) -> None:
    team_config(SOLVE, CRITIC, CHECK, {**SOLVE, "when": condition})
    team_config({"repeat": 2, "until": condition, "stages": [SOLVE, CRITIC, CHECK]})


@pytest.mark.parametrize(
    "condition",
    [
        *("critic.move != 'yes'", "not critic.move == 'yes'", "critic.score >= 0.3", "critic.move == ''"),
        *(
            "critic.move in ['yes', '']",
            "critic.move in 'yes'",
            "critic.move == solver.move",
            "critic.move not in ['no']",
        ),
        *("false if critic.move == 'yes' else true", "(critic.move == 'yes') == solver.correct", "critic.move < 'no'"),
        *("1 - (critic.move == 'yes')", "critic.move == 'a' == false", "critic.move", "critic.move is eq('yes')"),
    ],
)
def test_a_condition_that_an_unreadable_move_fulfils_is_refused_wherever_it_stands(condition: str) -> None:
    where = {
        "stages.3.when": team_of({**SOLVE, "when": condition}),
        "stages.3.hears.solver": team_of({"role": "critic", "hears": {"solver": condition}}),
        "stages.3.keep": team_of({"keep": condition}),
        "stages.3.until": team_of({"repeat": 2, "until": condition, "stages": [SOLVE]}),
    }
    for field, stages in where.items():
        assert f"{field}: {condition!r} looks at what 'critic' said" in refusal(*stages), field


def team_of(step: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return (SOLVE, CRITIC, CHECK, step)


# --- facts that give the answer away ----------------------------------------------------------------------------------


def told(tell: str, task: Mapping[str, Any]) -> TeamConfig:
    """A workflow on a task in which somebody is told something."""
    return TeamConfig.model_validate({"kind": "team", "task": task, "stages": [{"role": "solver", "tell": tell}]})


SECRETS = {
    "arithmetic": ("value", "steps"),
    "strings": ("steps",),
    "logic_grids": ("grid",),
    "code": ("tests",),
}


@pytest.mark.parametrize(
    "tell",
    [
        *("{{ given.FACT }}", "{{ given['FACT'] }}", "{% if given.FACT %}a{% endif %}", "{{ given }}"),
        *("{{ given.items() | list }}", "{{ given.get('FA' ~ 'CT') }}", "{% set g = given %}{{ g.FACT }}"),
        *("{% for name in given %}{{ given[name] }}{% endfor %}", "{{ given | tojson }}", "{{ [given] | list }}"),
        *("{{ question }}{{ 'x' if false else given.FACT | string | first }}", "{{ (given).FACT }}"),
        *("{% with a = given %}{{ a['FACT'] }}{% endwith %}", "{{ given['FA' ~ 'CT'] }}", "{{ given | list | last }}"),
        *("{{ [given] | map(attribute='FACT') | list }}", "{{ given.values() | list }}"),
    ],
)
@pytest.mark.parametrize(("task", "fact"), [(task, fact) for task, facts in SECRETS.items() for fact in facts])
def test_nobody_is_told_a_fact_that_gives_the_answer_away(tell: str, task: str, fact: str) -> None:
    with pytest.raises(ValueError, match=r"stages\.0\.tell: .* uses (all of `given`|`given\.\w+`), and so tells what"):
        told(tell.replace("FACT", fact).replace("'FA' ~ 'CT'", f"'{fact[:2]}' ~ '{fact[2:]}'"), {"kind": task})


@pytest.mark.parametrize(
    ("tell", "task"),
    [
        ("{{ given.left % 10 }} + {{ given['right'] }}", {"kind": "arithmetic"}),
        ("{{ given.text }}: {{ given.transforms }}", {"kind": "strings"}),
        ("{{ given }}", {"kind": "countdown"}),
        ("{{ given.entry }}", {"kind": "code"}),
        ("{{ given.choices | join(', ') }} {{ given.houses }}", {"kind": "logic_grids"}),
    ],
)
def test_other_facts_may_be_told(tell: str, task: dict[str, Any]) -> None:
    told(tell, task)


def test_facts_of_a_file_are_secret_if_it_says_so_or_if_they_are_the_answer(tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": n, "hint": f"it is {n}", "topic": "n"} for n in range(9)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def task(**columns: Any) -> dict[str, Any]:
        facts = {"hint": "hint", "gold": "answer", "topic": "topic"}
        return {"kind": "file", "path": str(tmp_path / "a.jsonl"), "columns": {"facts": facts, **columns}}

    told("{{ given.topic }}, {{ given.hint }}", task())
    with pytest.raises(ValueError, match=r"uses `given.gold`, .* secret facts of task 'file': gold;"):
        told("{{ given.gold }}", task())
    with pytest.raises(ValueError, match=r"uses `given.hint`, .* secret facts of task 'file': gold, hint;"):
        told("{{ given.hint }}", task(secret=["hint"]))
    with pytest.raises(ValueError, match=r"secret: no fact 'hints'; did you mean 'hint'"):
        told("", task(secret=["hints"]))


def test_the_examples_and_rewards_may_use_every_fact() -> None:
    examples = ["{{ answer }}", "{{ given.steps[0] }}", "{{ given }}"]
    TeamConfig.model_validate(
        {
            "kind": "team",
            "task": {"kind": "arithmetic"},
            "stages": [{"role": "solver", "examples": examples}],
            "rewards": {"solver": {"right": "own.readable * (own.move == given.value | string)"}},
        }
    )


# --- held-out problems ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "when",
    [
        *(
            None,
            "true",
            "split != 'train'",
            "split == 'held_out'",
            "split in ['train', 'held_out']",
            "split in 'held_out'",
        ),
        *("solver.correct > 0", "split == 'train' or solver.spoke", "not (split == 'train')", "split == solver.move"),
    ],
)
def test_a_stage_that_could_replace_held_out_problems_is_refused(when: str | None) -> None:
    pose = {"role": "challenger", "poses": True, "when": when}
    for stages, field in (((SOLVE, CHECK, pose), 2), (({"repeat": 2, "stages": [SOLVE, CHECK, pose]},), "0.stages.2")):
        message = refusal(*stages)
        assert f"stages.{field}.when: {when!r} does not keep the problems that are posed here from replacing" in message
        assert "write `when: split == 'train'" in message


@pytest.mark.parametrize(
    "when",
    [
        *("split == 'train'", "'train' == split", "split in ['train', 'pool']", "split != 'held_out'", "false"),
        *("split == 'train' and solver.correct > 0", "not split == 'held_out'", "not (split == 'held_out' or 1 > 2)"),
        *("split not in ['held_out']", "(split == 'train' or split == 'pool') and solver.spoke > 0"),
    ],
)
def test_a_stage_that_poses_in_training_alone_is_fine(when: str) -> None:
    team_config(SOLVE, CHECK, {"role": "challenger", "poses": True, "when": when})


_ATOMS = [
    "split == 'train'",
    "split != 'held_out'",
    "split in ['pool', 'held_out']",
    "fact",
    "true",
    "false",
    "0",
    "''",
]
_CONDITIONS = st.recursive(
    st.sampled_from(_ATOMS),
    lambda inner: st.one_of(
        inner.map("not ({})".format),
        st.tuples(inner, inner).map(lambda pair: "({}) and ({})".format(*pair)),
        st.tuples(inner, inner).map(lambda pair: "({}) or ({})".format(*pair)),
        st.tuples(inner, inner).map(lambda pair: "({}) if fact else ({})".format(*pair)),
    ),
    max_leaves=6,
)


@settings(max_examples=300)
@given(_CONDITIONS)
def test_a_condition_that_never_holds_does_not_hold_whatever_the_facts_are(condition: str) -> None:
    if is_always_false(condition, "held_out"):
        assert not any(evaluate_expression(condition, {"split": "held_out", "fact": fact})[0] for fact in (0, 1))


# --- expressions that fail --------------------------------------------------------------------------------------------


def _bombs() -> Iterator[str]:
    yield from ("1 / 0", "10 ** (10 ** 10)", "'a' * 10 ** 10", "len(range(10 ** 9))", "10 ** 400", "1e308 * 10")
    yield from ("(" * 5000 + "1" + ")" * 5000, "1" + "+1" * 5000, "'" + "a" * 200_000 + "'", "-" * 9999 + "1")
    yield from ("'text'", "none", "[1]", "solver", "own.move * own.readable", "own is own", "own | foo", "(-8) ** 0.5")
    yield from ("'a' if solver.correct else 0", "1e308 * 10 * solver.spoke", "1 }}{{ 2", "1) %}{% set b = (2")


@pytest.mark.parametrize("bomb", list(_bombs()), ids=itertools.count())
def test_a_reward_that_is_no_number_or_never_ends_is_refused_by_name_and_in_short(bomb: str) -> None:
    begun = time.process_time()
    message = refusal(SOLVE, CHECK, rewards={"solver": {"odd": bomb}}, measures={"odd": bomb.replace("own", "solver")})
    assert time.process_time() - begun < 2
    assert "rewards.solver.odd: " in message
    assert "measures.odd: " in message
    assert len(message) < 2000


@pytest.mark.parametrize("field", ["tell", "when", "examples", "hears"])
@pytest.mark.parametrize("bomb", ["'a' * 10 ** 10", "10 ** (10 ** 10)", "(" * 500 + "1" + ")" * 500])
def test_bombs_are_refused_in_every_field(field: str, bomb: str) -> None:
    template = "{{ " + bomb + " }}"
    value = {"tell": template, "when": bomb, "examples": [template], "hears": {"critic": bomb}}[field]
    assert f"stages.1.{field}" in refusal(CRITIC | {"hears": []}, {**SOLVE, field: value})


def test_an_endless_template_is_refused() -> None:
    loops = "{% for i in question * 1000 %}" * 4 + "a" + "{% endfor %}" * 4
    assert "stages.0.tell: " in refusal({**SOLVE, "tell": loops})


def test_a_division_by_what_may_be_zero_is_no_mistake_as_long_as_it_can_be_something_else() -> None:
    team_config(SOLVE, CHECK, rewards={"solver": {"mean": "own.correct / own.spoke"}})


@pytest.mark.parametrize("name", ["given", "own", "answer", "mean", "split", "best"])
def test_a_role_cannot_have_the_name_of_something_else_in_expressions(name: str) -> None:
    assert f"{name!r} stands for something else in expressions" in refusal({"role": name})


def test_a_score_that_every_reward_reads_and_no_stage_gives_is_one_error_at_its_stage() -> None:
    check = {**CHECK, "scores": ["right"]}
    message = refusal(SOLVE, check, rewards={"solver": {"a": "own.correct", "b": "0.5 * solver.correct"}})
    said = "stages.1.scores: right, but rewards.solver.a and rewards.solver.b read the score 'correct'; write scores: "
    assert f"{said}[correct]" in message
    assert "cannot be evaluated" not in message


def test_a_misspelt_score_is_an_error_of_its_expression_that_names_the_nearest() -> None:
    message = refusal(SOLVE, CHECK, rewards={"solver": {"right": "own.corect"}})
    assert (
        "rewards.solver.right: 'own.corect' cannot be evaluated: own has no 'corect'; did you mean 'correct'" in message
    )


def test_of_two_spellings_of_a_score_the_rarer_one_is_the_mistake() -> None:
    rewards = {"solver": {"a": "own.correct", "b": "0.5 * solver.correct"}}
    message = refusal(SOLVE, {**CHECK, "scores": ["corect"]}, rewards=rewards)
    assert (
        "stages.1.scores: corect, but rewards.solver.a and rewards.solver.b read the score 'correct'; spell both alike"
        in message
    )
    # The reward and the stage have the same typo, which the engine's check does not have.
    rewards = {"solver": {"a": "own.corect", "b": "0.5 * solver.correct", "c": "solver.correct"}}
    message = refusal(SOLVE, {**CHECK, "scores": ["corect"]}, rewards=rewards)
    assert "stages.1.scores: corect, but rewards.solver.b and rewards.solver.c read the score 'correct'" in message
    # A typo in one reward beside a wrong score is not taken for the score.
    message = refusal(SOLVE, {**CHECK, "scores": ["right"]}, rewards=rewards)
    assert "write scores: [correct]" in message
    assert "write scores: [corect]" not in message


@pytest.mark.parametrize(
    ("stages", "rewards", "message"),
    [
        ([{"role": "crew", "callers": {"crew": {}}}], {}, "callers: role 'crew' speaks in a stage itself"),
        ([{"role": "crew", "callers": {"own": {}}}], {}, "'own' stands for something else"),
        ([{"role": "crew", "callers": {"a": {"match": {"user": "x"}}}}], {}, "user"),
        ([{"role": "crew", "callers": {"a": {"examples": ["{{ nothing }}"]}}}], {}, "uses 'nothing'"),
        ([{"role": "crew", "callers": {"a": {}}}], {"a": {"x": "own.report.brief"}}, "own has no 'report'"),
        ([{"role": "crew", "callers": {"a": {}}}, {"role": "v", "verifies": "b", "scores": ["x"]}], {}, "no role 'b'"),
    ],
)
def test_mistakes_about_the_callers_of_a_program_are_named(stages: list[Any], rewards: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        team_config(*stages, rewards=rewards)
