"""GAE on the graph: exactly `gae` and `chain_gae` where nothing forks; forks and joins by hand and by numpy."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import pytest

from marl.core.graph import Trajectory
from marl.core.types import EdgeKind, Reading, SpanFromEarlierTurn, TurnId
from marl.credit.assign.gae import PerAgentGae, TeamChainGae
from marl.credit.assign.graph_gae import CreditedTurnAncestry, GraphGae
from marl.protocols import Evidence
from tests.support.credit_graphs import random_episode
from tests.support.handmade_episodes import TimedRewards, advantages_of, make_episode

Floats = tuple[float, ...]
Edges = Mapping[tuple[int, int], Collection[EdgeKind]]
SHARES: tuple[Any, ...] = ("whole", "equal", "tokens")
FORK_JOIN = ((0, 1), (0, 2), (1, 3), (2, 3))
"""p, then a and b that read it at the same time, then j, which reads a and b."""


def rewired(whole: Trajectory, edges: Collection[tuple[int, int]] | Edges) -> Trajectory:
    """The same turns with these edges; kinds as given, or as usual."""
    made = Trajectory(whole.deal, whole.start)
    made.rewards, made.end = whole.rewards, whole.end
    for place, turn in enumerate(whole.turns):
        reads = {whole.turns[source].id: source for source, reader in edges if reader == place}
        kinds = {t: edges[source, place] for t, source in reads.items()} if isinstance(edges, Mapping) else None
        made.add(turn, reads, kinds)
    return made


def graph(agents: str, edges: Collection[tuple[int, int]] | Edges, paid: TimedRewards = (), **more: Any) -> Trajectory:
    return rewired(make_episode("e", agents, paid, **more), edges)


def seen(trajectory: Trajectory, values: Sequence[Floats | float | None], **more: Any) -> Evidence:
    """An episode whose turns have these values, one or several; None: none."""
    rows = [row if isinstance(row, tuple) else () if row is None else (row,) for row in values]
    made = Trajectory(trajectory.deal, trajectory.start)
    made.rewards, made.end = trajectory.rewards, trajectory.end
    for turn, row in zip(trajectory.turns, rows, strict=True):
        ids = replace(turn, completion=replace(turn.completion, token_ids=tuple(range(len(row)))))
        edges = trajectory.graph.pred[turn.id]
        made.add(ids, edges, {source: edge["kinds"] for source, edge in edges.items()})
    readings = {turn.id: Reading((), values=row) for turn, row in zip(made.turns, rows, strict=True) if row}
    return Evidence([made], "a_game", readings, **more)


def drawn_values(rng: random.Random, many: int, missing: float = 0.0) -> list[Floats | None]:
    rows = [tuple([rng.gauss(0, 1) for _ in range(rng.randint(1, 4))]) for _ in range(many)]
    return [None if rng.random() < missing else row for row in rows]


def drawn_payments(rng: random.Random, agents: str) -> list[tuple[str, float, int]]:
    return [(rng.choice(agents), rng.gauss(0, 1), rng.randrange(len(agents))) for _ in agents]


def drawn_settings(rng: random.Random) -> dict[str, Any]:
    return {"gamma": rng.random(), "lam": rng.random(), "level": rng.choice(["token", "turn"])}


# --- without forks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("seed", range(6))
def test_on_the_turns_of_one_agent_it_is_gae_whatever_their_prompts_repeat(seed: int, share: Any) -> None:
    rng = random.Random(seed)
    edges = [(source, reader) for reader in range(9) for source in range(reader) if rng.random() < 0.3]
    evidence = seen(graph("a" * 9, edges, drawn_payments(rng, "a" * 9)), drawn_values(rng, 9))
    evidence.trajectories[0].end = rng.choice(["terminated", "truncated"])
    settings = drawn_settings(rng)
    assert GraphGae(share=share, rewards="paid", **settings).build()(evidence) == PerAgentGae(**settings).build()(
        evidence
    )


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("seed", range(4))
def test_on_a_line_it_is_chain_gae(seed: int, share: Any, repeats: bool) -> None:
    """Each turn reads the one before; or its prompt repeats all that was said, and the line is the same."""
    rng = random.Random(seed)
    agents = "".join(rng.choice("abc") for _ in range(12))
    edges = [(source, reader) for reader in range(12) for source in range(reader) if repeats or source == reader - 1]
    values = drawn_values(rng, 12, missing=0.3)
    trajectory = graph(agents, edges, drawn_payments(rng, agents))
    evidence = seen(trajectory, values)
    for where in ("last", "paid"):
        settings: dict[str, Any] = drawn_settings(rng) | {"rewards": where}
        graph_credit = GraphGae(share=share, **settings).build()(evidence)
        chain_credit = TeamChainGae(**settings).build()(evidence)
        assert graph_credit == chain_credit
        assert set(graph_credit) == {t.id for t, row in zip(trajectory.turns, values, strict=True) if row}


# --- forks and joins --------------------------------------------------------------------------------------------------


def test_a_fork_and_a_join_by_hand() -> None:
    # V = 4 | 6, 2 | 5, paid 8 after j; gamma 1, lambda 1/2. A(j) = 8 - 5 = 3; A(a) = 5 - 6 + 3/2 = 1/2;
    # A(b) = 5 - 2 + 3/2 = 9/2; A(p) = (6 + 2)/2 - 4 + (1/2 + 9/2)/4 = 5/4.
    evidence = seen(graph("pabj", FORK_JOIN, [("j", 8.0, 3)]), [4.0, 6.0, 2.0, 5.0])
    credit = GraphGae(lam=0.5, level="turn").build()(evidence)
    assert advantages_of(credit, evidence.trajectories[0]) == [1.25, 0.5, 4.5, 3.0]
    assert [credit["e", place].returns for place in range(4)] == [(5.25,), (6.5,), (6.5,), (8.0,)]
    # Equal parts: A(j) = 3; A(a) = 5/2 - 6 + 3/4 = -11/4; A(b) = 5/2 - 2 + 3/4 = 5/4; both are read by nobody but j,
    # so A(p) = 6 + 2 - 4 + (-11/4 + 5/4)/2 = 13/4.
    credit = GraphGae(lam=0.5, level="turn", share="equal").build()(evidence)
    assert advantages_of(credit, evidence.trajectories[0]) == [3.25, -2.75, 1.25, 3.0]


def test_siblings_do_not_see_one_another_as_a_chain_does() -> None:
    # With lambda 0, the chain credits a with V(b) - V(a) although b never read a; the graph with what j expects.
    evidence = seen(graph("pabj", FORK_JOIN, [("j", 8.0, 3)]), [4.0, 6.0, 2.0, 5.0])
    assert advantages_of(TeamChainGae(lam=0.0).build()(evidence), evidence.trajectories[0])[1] == 2 - 6
    assert advantages_of(GraphGae(lam=0.0).build()(evidence), evidence.trajectories[0])[1] == 5 - 6


def matrices(t: Trajectory, judged: list[TurnId], share: str, along: Collection[EdgeKind]) -> np.ndarray:
    """W from networkx: the transitive reduction of who read whom; along `self`, each agent's turns are in line."""
    dag = nx.DiGraph((source, reader) for source, reader in t.graph.edges if t.edge_kinds(source, reader) & set(along))
    dag.add_nodes_from(judged)
    for agent in "abcv" if "self" in along else "":
        own = [turn.id for turn in t.turns if turn.agent == agent]
        dag.add_edges_from(pairwise(own))
    adjacency = nx.to_numpy_array(nx.transitive_reduction(dag), nodelist=judged)
    sums = adjacency.sum(1, keepdims=True) if share == "whole" else adjacency.sum(0, keepdims=True)
    return adjacency / np.maximum(sums, 1)


@pytest.mark.parametrize("along", [("heard", "self"), ("heard",)], ids=" ".join)
@pytest.mark.parametrize("share", ["whole", "equal"])
@pytest.mark.parametrize("seed", range(8))
def test_on_any_graph_it_solves_the_linear_system_of_temporal_differences(seed: int, share: Any, along: Any) -> None:
    t, rng = random_episode(seed), np.random.default_rng(seed)
    ids, values = [turn.id for turn in t.turns], rng.normal(size=len(t.turns))
    weights, gamma, lam = matrices(t, ids, share, along), 0.9, 0.7
    rewards = np.array([sum(reward.value for reward in t.rewards if reward.turn == turn) for turn in ids])
    deltas = rewards + gamma * weights @ values - values
    expected = np.linalg.solve(np.eye(len(ids)) - gamma * lam * weights, deltas)
    part = GraphGae(gamma=gamma, lam=lam, level="turn", rewards="paid", share=share, along=along)
    evidence = seen(t, values.tolist())
    assert advantages_of(part.build()(evidence), evidence.trajectories[0]) == pytest.approx(
        expected.tolist(), rel=1e-12
    )


@pytest.mark.parametrize("seed", range(4))
def test_with_lambda_1_values_cancel_so_that_everybody_gets_the_teams_return_minus_its_own_value(seed: int) -> None:
    t = random_episode(seed)
    values = drawn_values(random.Random(seed), len(t.turns), missing=0.2)
    evidence = seen(t, values)
    total = sum(reward.value for reward in t.rewards)
    for turn, row in zip(t.turns, values, strict=True):
        credit = GraphGae().build()(evidence)
        assert not row or credit[turn.id].returns == pytest.approx([total] * len(row))
    # In parts: what comes in at the ends comes out at the turns that had read nothing.
    credit = GraphGae(share="equal", level="turn").build()(evidence)
    judged = [turn.id for turn, row in zip(t.turns, values, strict=True) if row]
    roots = [turn for turn, parents in zip(judged, ancestors(t, judged), strict=True) if not parents]
    assert sum(credit[turn].returns[0] for turn in roots) == pytest.approx(total)


def kept_bytes(turns: int) -> int:
    """Return the memory that the order of an episode takes in which each turn reads the three before."""
    whole = make_episode("e", ("abcd" * turns)[:turns])
    made = Trajectory(whole.deal, whole.start)
    for place, turn in enumerate(whole.turns):
        made.add(turn, [read.id for read in whole.turns[max(0, place - 3) : place]])
    tracemalloc.start()
    order = CreditedTurnAncestry(made, [turn.id for turn in made.turns], ("heard", "self"))
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(order.credited_parents(made.turns[-1].id)) == 1
    return kept


def test_memory_grows_in_proportion_to_the_episode() -> None:
    assert kept_bytes(8000) < 9 * kept_bytes(1000)


def ancestors(t: Trajectory, judged: Sequence[TurnId]) -> list[set[TurnId]]:
    dag = nx.DiGraph(t.graph.edges)
    dag.add_nodes_from(turn.id for turn in t.turns)
    for agent in "abcv":
        own = [turn.id for turn in t.turns if turn.agent == agent and turn.id in judged]
        dag.add_edges_from(pairwise(own))
    return [nx.ancestors(dag, turn) & set(judged) for turn in judged]


def test_parts_by_tokens_are_those_of_the_prompt_that_were_made_from_each() -> None:
    whole = graph("pabj", FORK_JOIN, [("j", 8.0, 3)])
    join = whole.turns[3]
    kinds: Any = ((1, "heard"), (2, "told"), (1, "gated"))
    marks = tuple(SpanFromEarlierTurn(("e", place), kind, 0, 0, 1) for place, kind in kinds)
    request = replace(join.request, marks=marks)
    whole.turns[3] = replace(
        join, request=request, completion=replace(join.completion, mark_tokens=((0, 6), (6, 8), (0, 9)))
    )
    evidence = seen(whole, [0.0, 0.0, 0.0, 0.0])
    assert advantages_of(GraphGae(share="tokens").build()(evidence), evidence.trajectories[0]) == [8.0, 6.0, 2.0, 8.0]
    heard = GraphGae(share="tokens", along=("heard",))
    assert advantages_of(heard.build()(evidence), evidence.trajectories[0]) == [8.0, 8.0, 0.0, 8.0]


# --- ends -------------------------------------------------------------------------------------------------------------


def test_a_turn_that_nobody_reads_is_an_end_of_its_own() -> None:
    # w is read by nobody. At the end the team's 8 come in after it, too; where they were paid, it led to nothing.
    evidence = seen(graph("awb", [(0, 2)], [("b", 8.0, 2)]), [1.0, 2.0, 4.0])
    last, paid = (GraphGae(lam=0.0, rewards=where).build()(evidence) for where in ("last", "paid"))
    assert advantages_of(last, evidence.trajectories[0]) == [3.0, 6.0, 4.0]
    assert advantages_of(paid, evidence.trajectories[0]) == [3.0, -2.0, 4.0]
    parts = GraphGae(lam=0.0, share="equal").build()(evidence)
    assert advantages_of(parts, evidence.trajectories[0]) == [3.0, 4 - 2, 4 - 4]


def test_turns_without_values_pass_on_and_their_payments_belong_to_what_they_read() -> None:
    # p, then a and b, each with a verifier of its own (v, w), then j, which hears the verifiers. Undiscounted there.
    edges = [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 5)]
    seats = {"p": "x", "a": "x", "b": "x", "v": "verifier", "w": "verifier", "j": "x"}
    whole = graph("pabvwj", edges, [("a", 2.0, 3), ("b", 6.0, 4), ("j", 8.0, 5)], seats=seats)
    evidence = seen(whole, [0.0, 0.0, 0.0, None, None, 0.0], rule_based_roles=frozenset({"verifier"}))
    credit = GraphGae(gamma=0.5, rewards="paid").build()(evidence)
    assert {place: credit["e", place].value for place in (0, 1, 2, 5)} == {
        5: 8.0,
        1: 2 + 8 / 2,
        2: 6 + 8 / 2,
        0: (6 + 10) / 2 / 2,
    }
    assert set(credit) == {("e", place) for place in (0, 1, 2, 5)}


def test_what_is_paid_at_a_turn_that_read_nothing_belongs_to_the_last_one_before_and_the_first_to_nobody() -> None:
    paid = [("a", 1.0, 0), ("a", 2.0, 2), ("b", 4.0, 3)]
    evidence = seen(graph("vavb", [], paid), [None, 0.0, None, 0.0])
    credit = GraphGae(rewards="paid").build()(evidence)
    assert {turn[1]: one.value for turn, one in credit.items()} == {1: 2.0, 3: 4.0}


def test_teams_have_graphs_of_their_own_and_the_others_are_the_world() -> None:
    # a asks o, who is in no team, and b hears the answer: b follows a.
    evidence = seen(graph("aob", [(0, 1), (1, 2)], [("b", 4.0, 2), ("o", 9.0, 2)]), [1.0, 2.0, 3.0])
    credit = GraphGae(lam=0.0, teams=(("a", "b"),)).build()(evidence)
    assert advantages_of(credit, evidence.trajectories[0]) == [3 - 1, 9 - 2, 4 - 3]


def test_in_a_truncated_episode_every_end_goes_on_with_its_own_value() -> None:
    whole = graph("pab", [(0, 1), (0, 2)], [("a", 1.0, 2)])
    whole.end = "truncated"
    evidence = seen(whole, [0.0, 0.0, 0.0])
    read = {("e", place): Reading((), values=(0.0,), next_value=value) for place, value in ((1, 2.0), (2, 6.0))}
    evidence = replace(evidence, readings={**evidence.readings, **read})
    credit = GraphGae(gamma=0.5).build()(evidence)
    assert advantages_of(credit, evidence.trajectories[0]) == [(2 + 4) / 2 / 2, 1 + 2 / 2, 1 + 6 / 2]


def test_episodes_without_judged_turns_or_readings_are_no_trouble() -> None:
    evidence = seen(graph("ab", [], [("a", 1.0, 1)]), [None, 1.0])
    assert set(GraphGae().build()(evidence)) == {("e", 1)}


# --- kinds of edges ---------------------------------------------------------------------------------------------------


def test_edges_of_other_kinds_are_not_followed_and_gates_only_on_request() -> None:
    edges: Edges = {(0, 1): ("gated",), (0, 2): ("told",), (1, 3): ("heard", "gated"), (2, 3): ("posed",)}
    evidence = seen(graph("pabj", edges, [("j", 8.0, 3)]), [4.0, 6.0, 2.0, 5.0])

    def first(**settings: Any) -> float:
        return GraphGae(lam=0.0, **settings).build()(evidence)["e", 0].value

    assert first() == 2 - 4
    assert first(along=("gated", "told")) == (6 + 2) / 2 - 4
    assert first(along=("heard",)) == 8 - 4
