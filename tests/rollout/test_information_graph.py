"""The graph's edges lead from the turns whose words or facts a prompt was made from, and marks say where they stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marl.core.graph import Trajectory, read_trajectories, write_trajectories
from marl.core.types import Fork, Turn
from marl.credit.assign.reward_rules import RewardFlowAssign
from marl.games.team.settings import TeamConfig
from marl.protocols import Evidence
from tests.support.addition_task import VerbatimRole, team_config, team_deal, team_simulator

DEAF = VerbatimRole(policy="actor", prompt="{{ observation }}")
SILENT = {"role": "first", "tell": "say something"}


def play(game: TeamConfig, *answers: str, **roles: Any) -> Trajectory:
    """One episode in which the turns of all but verifiers are these answers, in order."""
    left = iter(answers)
    return team_simulator(game, lambda _: next(left), **roles).play([team_deal(game)])[0]


def edges(trajectory: Trajectory) -> dict[tuple[int, int], str]:
    """(turn, turn that it led to) -> the ways in which it did."""
    return {(u[1], v[1]): " ".join(sorted(kinds)) for u, v, kinds in trajectory.graph.edges(data="kinds")}


def marked(turn: Turn) -> list[tuple[int, str, str]]:
    """(source, kind, words) of each marked part of a prompt."""
    contents = [message.content for message in turn.request.messages]
    return [(m.source[1], m.kind, contents[m.message][m.begin : m.end]) for m in turn.request.marks]


def test_what_the_game_tells_of_a_move_is_an_edge_along_which_credit_flows() -> None:
    rewards = {"second": {"good": "1"}}
    game = team_config(SILENT, {"role": "second", "tell": "first said {{ first.move }}!"}, rewards=rewards)
    trajectory = play(game, "four", "5")
    assert edges(trajectory) == {(0, 1): "told"}
    assert marked(trajectory.turns[1]) == [(0, "told", "four")]
    paid = RewardFlowAssign(decay=0.5, teams=(("first", "second"),))(Evidence([trajectory], "team"))
    assert [paid[turn.id].value for turn in trajectory.turns] == [0.5, 1.0]


def test_what_is_heard_but_left_out_of_the_prompt_is_no_edge() -> None:
    game = team_config(SILENT, {"role": "second", "hears": ["first"], "tell": "go on"})
    assert edges(play(game, "four", "5", second=DEAF)) == {}
    heard = play(game, "four", "5")
    assert edges(heard) == {(0, 1): "heard"}
    assert marked(heard.turns[1]) == [(0, "heard", "four")]


SAGE = (
    {"role": "challenger", "poses": True, "tell": "pose", "when": "split == 'train'"},
    {"role": "critic", "name": "quality", "hears": ["challenger"], "tell": "judge"},
    {"keep": "quality.readable and quality.score >= 0.5"},
    {"role": "planner", "tell": "{{ question }} plan"},
    {
        "role": "solver",
        "hears": {"planner": "quality.readable and quality.score >= 0.7"},
        "tell": "{{ question }} solve",
    },
)


@pytest.mark.parametrize(
    ("pose", "score", "planner", "solver"),
    [
        ("3 + 4", "0.9", {0: "posed", 1: "gated"}, {0: "posed", 1: "gated", 2: "heard"}),
        ("3 + 4", "0.6", {0: "posed", 1: "gated"}, {0: "posed", 1: "gated"}),
        ("3 + 4", "0.1", {0: "gated", 1: "gated"}, {0: "gated", 1: "gated"}),
        ("no problem", "0.9", {0: "gated"}, {0: "gated", 1: "gated", 2: "heard"}),
    ],
    ids=["kept_and_heard", "kept", "not_kept", "no_problem"],
)
def test_a_posed_problem_and_the_gates_it_passed_are_edges(
    pose: str, score: str, planner: Mapping[int, str], solver: Mapping[int, str]
) -> None:
    found = edges(play(team_config(*SAGE), pose, score, "a plan", "7"))
    assert {u: kinds for (u, v), kinds in found.items() if v == 2} == planner
    assert {u: kinds for (u, v), kinds in found.items() if v == 3} == solver


@pytest.mark.parametrize(("pose", "kind"), [("3 + 4", "posed"), ("no problem", "gated")])
def test_a_verdict_leads_from_the_turn_that_posed_the_problem_that_it_verifies(pose: str, kind: str) -> None:
    challenger = {"role": "challenger", "poses": True, "tell": "pose", "when": "split == 'train'"}
    game = team_config(challenger, {"role": "solver"}, {"role": "judge", "verifies": "solver", "scores": ["correct"]})
    found = edges(play(game, pose, "7", solver=DEAF))
    assert found == {(0, 1): kind, (0, 2): kind, (1, 2): "heard"}


def test_conditions_of_stages_and_loops_are_gates_of_those_that_they_let_speak() -> None:
    critic = {"role": "critic", "hears": ["solver"], "legal": ["yes", "no"], "tell": "right?"}
    again = {"role": "solver", "tell": "again", "when": "critic.move == 'no'"}
    loop = {"repeat": 2, "until": "critic.move == 'yes'", "stages": [critic, again]}
    game = team_config({"role": "solver"}, loop, {"role": "judge", "tell": "judge", "when": "solver.move == '6'"})
    found = edges(play(game, "5", "no", "6", "yes", "fine", solver=DEAF))
    assert found == {(0, 1): "heard", (1, 2): "gated", (2, 3): "heard", (1, 3): "gated", (2, 4): "gated"}


def test_a_tool_answers_the_words_of_its_caller_and_is_read_as_a_tool() -> None:
    from marl.roles.rule_based import ToolboxRole

    game = team_config({"role": "solver", "tools": "toolbox", "calls": 1})
    trajectory = play(game, 'call {"name": "add"}', "42", "so 42", toolbox=ToolboxRole(policy="actor"))
    assert edges(trajectory) == {(0, 1): "told", (1, 2): "tool"}


def test_a_prompt_leads_from_the_readers_own_turns_where_it_repeats_or_continues_them() -> None:
    game = team_config({"repeat": 3, "stages": [{"role": "solver", "tell": "again"}]})
    cases: tuple[tuple[str, Any, dict[tuple[int, int], str]], ...] = (
        ("{{ observation }}", "fresh", {}),
        ("{{ observation }} {{ last }}", "fresh", {(0, 1): "self", (1, 2): "self"}),
        ("{{ mine | join(' ') }}", "fresh", {(0, 1): "self", (1, 2): "self", (0, 2): "self"}),
        ("{{ observation }}", "append", {(0, 1): "self", (1, 2): "self"}),
    )
    for prompt, history, expected in cases:
        role = VerbatimRole(policy="actor", prompt=prompt, history=history)
        assert edges(play(game, "a", "b", "c", solver=role)) == expected, (prompt, history)


def test_forks_keep_edges_and_marks_survive_on_disk(tmp_path: Any) -> None:
    game = team_config(*SAGE)
    whole = play(game, "3 + 4", "0.9", "a plan", "7")
    simulator = team_simulator(game, lambda _: "8")
    ((fork,),) = simulator.play_forks([Fork(whole, 3)])
    assert edges(fork) == edges(whole)
    assert [turn.request.marks for turn in fork.turns] == [turn.request.marks for turn in whole.turns]
    write_trajectories(tmp_path / "t.jsonl.zst", [whole])
    (read,) = read_trajectories(tmp_path / "t.jsonl.zst")
    assert (read.turns, edges(read)) == (whole.turns, edges(whole))


# --- any workflow, any prompt ----------------------------------------------------------------------------------------

WORDS = ("no", "yes", "", "0.9", "a longer answer, e.g. 12", "Yes ```x```", "3")
TOLD = (
    *(
        "{{ A.move }}",
        "{{ A.move | upper }}.",
        "<{{ A.move[:2] }}>",
        "{{ [A.move, 'x'] | join('-') }}",
        "{{ A.move ~ '!' }}",
    ),
    *("{% for word in A.move.split() %}<{{ loop.index }}>{% endfor %}", "{{ A.move | replace('e', 'E') }}"),
    *(
        "{% if A.move == 'yes' %}Y{% elif A.score > 0.5 %}M{% else %}N{% endif %}",
        "{{ 'big' if A.score > 0.5 else 'small' }}",
    ),
    *("{% if A.score > 0.5 %}high{% endif %}", "{% set v = A.move | length %}{{ v + 1 }}", "{{ A.readable }}"),
    *("{% set low = 1 %}{% if A.score > 0.5 %}{% set low = 0 %}{% endif %}and{% if low %} low{% endif %}"),
    *("{% macro m(x) %}[{{ x }}|{{ 'y' in x }}]{% endmacro %}{{ m(A.move) }}", "{{ (A.score * 2) | round(1) }}"),
    *("{% filter upper %}{{ A.move }}{% endfilter %}", "{{ A.move | tojson }}", "{{ A.move in 'no yes' }}"),
    *(
        "{% set t %}({{ A.move }}){% endset %}{{ t | title }}",
        "{{ {'yes': 1}.get(A.move, 0) }}",
        "{{ A.move | default('-', true) }}",
    ),
    *("{{ 'p' if A.move.startswith('y') else 'q' }}", "{{ A.move | trim | truncate(5) }}", "{{ A.move | int + 1 }}"),
)
SHOWN = (
    *("{% for turn in heard %} {{ turn.text }}{% endfor %}", "{{ heard | map(attribute='text') | join(',') }}"),
    *("{% for turn in heard %}{{ turn.text | spoken | fenced }}{% endfor %}", "{% extends 'prompt.jinja2' %}"),
    *("{% for turn in heard %}{{ '-' if turn.move is none else '+' }}{% endfor %}", "{{ heard | tojson }}"),
    *("{% for turn in heard if turn.text != 'yes' %}{{ turn.agent }} {% endfor %}", "{{ heard | length }}", ""),
)  # fmt: skip


@st.composite
def workflows(draw: Any) -> tuple[TeamConfig, Mapping[str, VerbatimRole]]:
    """Three or four agents in a row, each of which is told of and hears some of those before it."""
    names = [f"r{number}" for number in range(draw(st.integers(3, 4)))]
    stages, roles = [], {}
    for place, name in enumerate(names):
        earlier = st.sampled_from(names[:place]) if place else st.nothing()
        told = (
            [snippet.replace("A", draw(earlier)) for snippet in draw(st.lists(st.sampled_from(TOLD), max_size=2))]
            if place
            else []
        )
        hears = {
            each: draw(st.sampled_from(("true", "it.readable and it.score > 0.5")))
            for each in (draw(st.sets(earlier)) if place else ())
        }
        stages.append({"role": name, "tell": " / ".join(("2 + 2", *told)), "hears": dict(sorted(hears.items()))})
        shown = draw(st.sampled_from(SHOWN))
        before = "" if "extends" in shown else draw(st.sampled_from(("{{ observation }} ", "")))
        roles[name] = VerbatimRole(policy="actor", prompt=before + shown)
    return team_config(*stages), roles


def prompt(turn: Turn) -> str:
    return "\0".join(message.content for message in turn.request.messages)


def outside(turn: Turn, source: int) -> list[str]:
    """The parts of a one-message prompt between those that are marked as made from turn `source`.

    Empty lines at the ends of a prompt are cut off, so that they come and go with what stands before or after them.
    """
    (message,), parts, end = turn.request.messages, [], 0
    for mark in (mark for mark in turn.request.marks if mark.source[1] == source):
        parts.append(message.content[end : max(mark.begin, end)])
        end = max(mark.end, end)
    return [part.strip("\n") for part in (*parts, message.content[end:])]


ALL_CHECKS: Any = list(HealthCheck)


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=ALL_CHECKS)
@given(workflows(), st.data())
def test_edges_are_the_turns_whose_words_change_the_prompt_and_marks_are_where_they_do(
    workflow: tuple[TeamConfig, Mapping[str, VerbatimRole]], data: Any
) -> None:
    game, roles = workflow
    words = [data.draw(st.sampled_from(WORDS)) for _ in roles]
    usual = play(game, *words, **roles)
    for source in range(len(words)):
        others = [play(game, *words[:source], word, *words[source + 1 :], **roles) for word in WORDS]
        for reader in range(source + 1, len(words)):
            kinds = usual.edge_kinds(usual.turns[source].id, usual.turns[reader].id)
            was, now = usual.turns[reader], [other.turns[reader] for other in others]
            changed = any(prompt(turn) != prompt(was) for turn in now)
            if "gated" not in kinds:  # which says no more than that another prompt was possible
                assert changed == bool(kinds), (source, reader, prompt(was), [prompt(turn) for turn in now])
                for turn in now:
                    assert outside(turn, source) == outside(was, source), (source, prompt(was), prompt(turn))
