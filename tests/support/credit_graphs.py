"""Episodes for credit rules: random graphs, and forks written down by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence

import networkx as nx

from marl.core.config import Sampling
from marl.core.graph import Trajectory
from marl.core.types import Completion, Deal, Message, Request, Reward, Turn
from tests.support.handmade_episodes import TimedRewards, make_episode

ROLES = {"a": "planner", "b": "solver", "c": "critic", "v": "verifier"}


def fork_episode(past: Trajectory, at: int, name: str, agents: Sequence[str], paid: TimedRewards = ()) -> Trajectory:
    """The first `at` turns of `past`, then new ones of `agents`; rewards are given by place in the whole episode."""
    fresh = make_episode(name, [turn.agent for turn in past.turns[:at]] + list(agents), seats=past.deal.seats)
    branch = Trajectory(Deal(name, past.deal.group, past.deal.seed, past.deal.seats), past.start, past.turns[at].id)
    for old, new in zip([*past.turns[:at], *fresh.turns[at:]], fresh.turns, strict=True):
        reads = [place for _, place in fresh.graph.pred[new.id]]
        branch.add(old, [branch.turns[place].id for place in reads])
    branch.rewards = [Reward(agent, value, branch.turns[turn].id) for agent, value, turn in paid]
    branch.end = "terminated"
    return branch


def random_episode(seed: int, turns: int = 25, names: Sequence[str] = ("outcome",), name: str = "") -> Trajectory:
    """Agents in any order, each turn having read any earlier ones, tokens and payments at random."""
    rng = random.Random(seed)
    dag = nx.gnp_random_graph(turns, 0.3, seed=seed, directed=True)
    trajectory = Trajectory(Deal(name or f"e{seed}", "g", 0, ROLES), "start")
    for place in range(turns):
        agent, tokens = rng.choice("abcv"), rng.randrange(5)
        completion = Completion("x", (1,), (2,) * tokens, tuple(-rng.random() for _ in range(tokens)), "stop")
        nth = sum(turn.agent == agent for turn in trajectory.turns)
        request = Request("actor", (Message("user", "?"),), Sampling())
        turn = Turn((trajectory.id, place), agent, nth, 0, ROLES[agent], request, completion, "x")
        trajectory.add(turn, [(trajectory.id, source) for source, target in dag.edges if source < place == target])
    trajectory.rewards = [
        Reward(rng.choice("abc"), rng.uniform(-2, 2), rng.choice(trajectory.turns).id, rng.choice(names))
        for _ in range(8)
    ]
    trajectory.end = "terminated"
    return trajectory
