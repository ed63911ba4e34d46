"""Edges in words: which turns led to a turn, in which ways, and how many tokens of its prompt."""

from __future__ import annotations

from dataclasses import replace

from marl.core.graph import Trajectory
from marl.core.types import EdgeKind, SpanFromEarlierTurn, TurnId
from marl.view.dialogue import DialogueSelection, episode_lines
from marl.view.edge_text import describe_edge, describe_source_turns, format_token_ranges
from marl.view.verifier_scores import turns_of_other_agents_reading
from tests.support.handmade_episodes import make_episode


def team() -> Trajectory:
    """A planner and a solver speak; the critic heard the planner twice, was told of the solver, and decided on bob."""
    spoken = make_episode("e", ("planner", "solver", "critic", "critic", "bob"))
    marks = [
        SpanFromEarlierTurn(("e", 0), "heard", 0, 0, 3),
        SpanFromEarlierTurn(("e", 0), "heard", 0, 2, 5),
        SpanFromEarlierTurn(("e", 0), "told", 0, 7, 8),
        SpanFromEarlierTurn(("e", 1), "told", 0, 9, 9),
    ]
    critic = spoken.turns[2]
    critic = replace(
        critic,
        request=replace(critic.request, marks=tuple(marks)),
        completion=replace(
            critic.completion, prompt_ids=tuple(range(9)), mark_tokens=((1, 4), (3, 6), (8, 9**99), (10, 10))
        ),
    )
    edges: list[dict[TurnId, list[EdgeKind]]] = [
        {},
        {},
        {("e", 0): ["told", "heard"], ("e", 1): ["told"]},
        {("e", 1): ["posed"], ("e", 2): ["self"]},
        {("e", 2): ["gated"]},
    ]
    trajectory = Trajectory(spoken.deal, "")
    for turn, kinds in zip([*spoken.turns[:2], critic, *spoken.turns[3:]], edges, strict=True):
        trajectory.add(turn, kinds, kinds)
    return trajectory


def test_sources_are_named_with_ways_and_tokens_that_are_counted_once() -> None:
    trajectory = team()
    words = [describe_source_turns(turn, trajectory, None) for turn in trajectory.turns]
    assert words[:2] == ["", ""]
    assert words[2] == "planner's turn 0 (heard, 5 tokens; told, 1 token), solver's 1 (told)"
    assert words[3:] == ["solver's turn 1 (posed), its own 2 (self)", "critic's turn 2 (gated)"]
    assert describe_source_turns(trajectory.turns[2], trajectory, 1) == "1 earlier, solver's turn 1 (told)"


def test_tokens_are_named_by_their_places() -> None:
    trajectory = team()
    assert (
        describe_edge(trajectory.turns[2], ("e", 0), trajectory, format_token_ranges)
        == "heard, 5 tokens (1-5); told, 1 token (8)"
    )
    assert format_token_ranges([1, 3, 4]) == "3 tokens (1, 3-4)"


def test_who_was_let_speak_has_read_nothing() -> None:
    trajectory = team()
    assert [reader.agent for reader in turns_of_other_agents_reading(trajectory.turns[0], trajectory)] == ["critic"]
    assert not turns_of_other_agents_reading(trajectory.turns[2], trajectory), (
        "bob was let speak by the critic, and did not read it"
    )


def test_a_dialogue_says_who_is_read_where() -> None:
    lines = [line.plain for line in episode_lines(team(), DialogueSelection(), {})]
    assert "    reads      planner's turn 0 (heard, 5 tokens; told, 1 token), solver's 1 (told)" in lines
    assert "    reads      critic's turn 2 (gated)" in lines
