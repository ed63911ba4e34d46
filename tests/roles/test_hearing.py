"""Prompts hold exactly those turns of other agents that the game lets be heard and that the graph's edges lead from."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Literal

import networkx as nx
import pytest

from marl.core.graph import Trajectory
from marl.core.types import Completion, Deal, Request
from marl.games.base import FinalRewards, IllegalMoveHandling, NextAgent, TextGame, TextGameConfig
from marl.protocols import RoleConfig
from marl.roles.answering import AggregatorRole, PlannerRole, SolverRole
from marl.roles.judging import CriticRole, JudgeRole
from tests.support.small_games import FunctionEngine, make_simulator

HEARS = {
    "planner": (),
    "solver_0": ("planner", "critic"),
    "solver_1": ("critic",),
    "critic": ("solver_0", "solver_1"),
    "judge": ("solver_0", "solver_1"),
    "aggregator": ("solver_0", "solver_1", "critic", "judge"),
}
ORDER = ("planner", *("solver_0", "solver_1", "critic") * 3, "judge", "aggregator")


class WorkshopConfig(TextGameConfig):
    """A planner, two solvers at once who revise twice for a critic, a judge and an aggregator."""

    kind: str = "workshop"

    def build(self) -> Workshop:
        return Workshop(tuple(HEARS), self.illegal)


class Workshop(TextGame):
    name = "workshop"

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.moves = 0
        return ORDER[0]

    def start_state_key(self) -> str:
        return ""

    def describe_observation(self, agent: str) -> str:
        return "the question"

    def information_state(self, agent: str) -> str:
        return ""

    def heard_agents(self, agent: str) -> tuple[str, ...]:
        return HEARS[agent]

    def agents_asked_together(self, agent: str) -> tuple[str, ...]:
        return ("solver_0", "solver_1") if agent == "solver_0" else (agent,)

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        self.moves += 1
        return ORDER[self.moves] if self.moves < len(ORDER) else {}


class Numbered(FunctionEngine):
    """Answers with a unique word, so that it can be found in prompts; now and then unreadably."""

    def __init__(self, slips: float) -> None:
        super().__init__(lambda request: "")
        self.slips, self.rng, self.n_answers = slips, random.Random(0), 0

    def _answer(self, request: Request) -> Completion:
        self.n_answers += 1
        mark = f"word{self.n_answers}."
        slip = self.rng.random() < self.slips
        text = mark if slip else f"{mark} <verdict>1</verdict> <answer>{mark}</answer>"
        tokens = tuple(range(self.n_answers))
        return Completion(text, (1, 2), tokens, (-0.5,) * len(tokens), "stop")


def workshop(history: Literal["fresh", "append"], slips: float = 0.0) -> Trajectory:
    settings: dict[str, Any] = {"policy": "actor", "history": history}
    roles: dict[str, RoleConfig] = {
        "planner": PlannerRole(**settings),
        "solver": SolverRole(**settings),
        "critic": CriticRole.model_validate({"verdict": "score", **settings}),
        "judge": JudgeRole(swap=True, **settings),
        "aggregator": AggregatorRole(**settings),
    }
    seats = {agent: agent.split("_")[0] for agent in HEARS}
    game = WorkshopConfig(illegal=IllegalMoveHandling(retry=9))
    (episode,) = make_simulator(game, Numbered(slips), **roles).play([Deal("e", "e", 0, seats)])
    assert len({turn.completion.text for turn in episode.turns}) == len(episode.turns) >= len(ORDER)
    return episode


def turns_in_prompts(episode: Trajectory) -> dict[Any, set[Any]]:
    """Turn -> the others' turns whose words stand in its prompt."""
    words = {turn.completion.text.split()[0]: turn for turn in episode.turns}
    prompts = {t.id: (t.agent, " ".join(m.content for m in t.request.messages).split()) for t in episode.turns}
    return {
        id_: {words[word].id for word in prompt if word in words and words[word].agent != agent}
        for id_, (agent, prompt) in prompts.items()
    }


def edges(episode: Trajectory) -> dict[Any, set[Any]]:
    """Turn -> the others' turns that an edge leads from."""
    agent = {turn.id: turn.agent for turn in episode.turns}
    return {v: {u for u in episode.graph.predecessors(v) if agent[u] != agent[v]} for v in episode.graph}


@pytest.mark.parametrize("slips", [0.0, 0.4], ids=["all_readable", "some_unreadable"])
def test_a_prompt_that_continues_holds_exactly_what_the_edges_say(slips: float) -> None:
    episode = workshop("append", slips)
    assert turns_in_prompts(episode) == edges(episode)


@pytest.mark.parametrize("slips", [0.0, 0.4], ids=["all_readable", "some_unreadable"])
def test_a_fresh_prompt_holds_what_the_edges_of_all_its_agents_turns_say(slips: float) -> None:
    episode, known = workshop("fresh", slips), dict.fromkeys(HEARS, frozenset())
    for turn in episode.turns:
        known[turn.agent] |= edges(episode)[turn.id]
        assert turns_in_prompts(episode)[turn.id] == known[turn.agent]


def test_edges_follow_what_the_game_lets_be_heard() -> None:
    episode = workshop("append")
    agent = {turn.id: turn.agent for turn in episode.turns}
    heard = {(agent[u], agent[v]) for u, v in episode.graph.edges if agent[u] != agent[v]}
    assert heard == {(source, reader) for reader, sources in HEARS.items() for source in sources}
    assert nx.is_directed_acyclic_graph(episode.graph)


def test_a_prompt_that_continues_goes_on_from_the_last_turns_tokens() -> None:
    episode = workshop("append", 0.4)
    last: dict[str, Completion] = {}
    for turn in episode.turns:
        before = last.get(turn.agent)
        assert turn.request.continues == ((*before.prompt_ids, *before.token_ids) if before else ())
        last[turn.agent] = turn.completion
