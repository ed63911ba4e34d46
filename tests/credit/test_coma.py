"""COMA against its table, against a policy's own probabilities, and with sampled alternatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from marl.core.graph import Trajectory
from marl.core.state import load_state, save_state
from marl.core.types import CompletionFailure, Reading, Request, TurnId
from marl.credit.assign.value_decomposition import Coma
from marl.credit.mixing.networks import counterfactual_advantage
from marl.engines.scripted import Random, Tabular
from marl.games.matrix_games import MatrixConfig, TwoStepConfig
from marl.protocols import EngineConfig, Evidence
from marl.rollout.simulator import RolloutSimulator
from tests.support.handmade_episodes import make_episode
from tests.support.handmade_episodes import make_evidence as by_hand
from tests.support.small_games import FunctionEngine, make_deal, make_simulator

TRUTH = {"aa": (-0.5, -0.5), "ab": (-3.5, 0.5), "ba": (0.5, -3.5), "bb": (3.5, 3.5)}
"""Of [[0, 1], [1, 8]] with uniform policies: GROUND_TRUTHS.md."""
GAME = MatrixConfig(table="qmix_2b")
FIT = {"lr": 1e-2, "updates": 200, "memory": 1}


def play(engine: EngineConfig, episodes: int, game: Any = GAME) -> tuple[RolloutSimulator, list[Trajectory]]:
    simulator = make_simulator(game, engine.build(None))
    return simulator, simulator.play([make_deal(f"{i}", game) for i in range(episodes)])


def coma(**settings: Any) -> Any:
    return Coma(**{"features": "text", "common": "mean", "rest": "drop", "fit": FIT, **settings}).build()


def by_moves(played: list[Trajectory], credit: Mapping[TurnId, Any]) -> dict[str, tuple[float, float]]:
    """Joint move -> both agents' worths, which are the same wherever it is played."""
    values: dict[str, tuple[float, float]] = {}
    for t in played:
        first, second = (credit[turn.id].value for turn in t.turns)
        moves = "".join(turn.action or "" for turn in t.turns)
        assert values.setdefault(moves, (first, second)) == pytest.approx((first, second), abs=1e-4)
    return values


def joint_advantages(q: torch.Tensor, policies: list[torch.Tensor]) -> list[torch.Tensor]:
    """For each agent, its advantage in every cell of a table of joint actions.

    Args:
        q: one dimension for each agent: what each joint action is worth.
        policies: for each agent, how likely each of its actions is.
    """
    return [
        counterfactual_advantage(q.movedim(agent, -1), q.movedim(agent, -1)[..., None, :], policy).movedim(-1, agent)
        for agent, policy in enumerate(policies)
    ]


def test_the_table_of_the_counterfactual_advantages() -> None:
    q = torch.tensor([[0.0, 1.0], [1.0, 8.0]], dtype=torch.float64)
    uniform = torch.tensor([0.5, 0.5], dtype=torch.float64)
    first, second = joint_advantages(q, [uniform, uniform])
    for moves, wanted in TRUTH.items():
        i, j = ("ab".index(move) for move in moves)
        assert (float(first[i, j]), float(second[i, j])) == wanted


def test_each_agents_advantages_average_to_zero_under_its_policy() -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 3, 4, dtype=torch.float64)
    policies = [torch.rand(n, dtype=torch.float64) for n in q.shape]
    policies = [policy / policy.sum() for policy in policies]
    for agent, advantages in enumerate(joint_advantages(q, policies)):
        assert advantages.shape == q.shape
        dims: Any = ([agent], [0])
        means = torch.tensordot(advantages, policies[agent], dims=dims)
        assert float(means.abs().max()) < 1e-12


def test_a_fitted_critic_finds_the_table() -> None:
    simulator, played = play(Random(), 256)
    values = by_moves(played, coma()(Evidence(played, "matrix", simulator=simulator)))
    for moves, wanted in TRUTH.items():
        assert values[moves] == pytest.approx(wanted, abs=0.15)


def test_what_a_policy_would_have_said_is_weighed_by_how_likely_it_says_it() -> None:
    chances = {"a": 0.75, "b": 0.25}
    biased = Tabular(table={"agent_0": chances})
    simulator, played = play(biased, 200)
    spent = simulator.tokens["credit"]
    values = by_moves(played, coma(fit=FIT | {"updates": 20})(Evidence(played, "matrix", simulator=simulator)))
    for other in "ab":
        assert sum(chances[move] * values[move + other][0] for move in "ab") == pytest.approx(0, abs=1e-5)
        assert sum(0.5 * values[other + move][1] for move in "ab") == pytest.approx(0, abs=1e-5)
    # Two agents, two moves of one token each: equal questions are asked once.
    assert simulator.tokens["credit"] - spent == 4


def test_a_move_that_the_policy_never_makes_does_not_count() -> None:
    simulator, played = play(Tabular(table={"agent_1": {"b": 1.0}}), 40)
    credit = coma(fit=FIT | {"updates": 20})(Evidence(played, "matrix", simulator=simulator))
    assert all(credit[t.turns[1].id].value == pytest.approx(0, abs=1e-6) for t in played)


def test_td_lambda_passes_what_comes_later_back_to_the_first_round() -> None:
    simulator, played = play(Random(), 400, TwoStepConfig())
    credit = coma(gamma=0.99, fit=FIT | {"updates": 300})(Evidence(played, "two_step", simulator=simulator))
    # What uniform play is paid after the first move: 7 after `a`, 2.5 after `b`.
    for t in played:
        wanted = 0.99 * (7.0 - 2.5) / 2 * (1 if t.turns[0].action == "a" else -1)
        assert credit[t.turns[0].id].value == pytest.approx(wanted, abs=0.6)
        assert credit[t.turns[1].id].value == pytest.approx(0, abs=0.6)


# --- free text --------------------------------------------------------------------------------------------------------


def saying(texts: list[str], name: str = "e", prompts: list[int] | None = None) -> list[Trajectory]:
    """One episode for each text that `a` says, while `b` says the same in all; paid by the length of the text."""
    episodes = []
    for i, text in enumerate(texts):
        prompt = prompts[i] if prompts else 1
        t = make_episode(f"{name}{i}", "ab", [("a", float(len(text)), 1)], prompts=[(prompt,), (2, i)])
        t.turns = [
            replace(u, completion=replace(u.completion, text=x)) for u, x in zip(t.turns, (text, "y"), strict=True)
        ]
        episodes.append(t)
    return episodes


def test_siblings_are_what_was_said_elsewhere_when_asked_the_same() -> None:
    episodes = saying(["x", "x x x", "x x x x x", "x x"], prompts=[1, 1, 1, 9])
    part = coma(common="sum", lam=1.0, fit=FIT | {"updates": 600})
    credit = part(by_hand(*episodes))
    a = [credit[t.turns[0].id].value for t in episodes]
    # Lengths 1, 5, 9 against the mean of the other two; the fourth was asked something else.
    assert a == pytest.approx([-6.0, 0.0, 6.0, 0.0], abs=0.5)
    assert a[3] == 0
    assert [credit[t.turns[1].id].value for t in episodes] == [0.0] * 4
    assert part.metrics()["credit/coma/alone"] == 5 / 8


def test_hidden_states_of_siblings_are_judged_where_they_are_read() -> None:
    episodes = saying(["x", "x x x"] * 8)
    states = {t.turns[0].id: torch.eye(4)[[3, len(t.turns[0].completion.text) // 2]] for t in episodes}
    readings = {turn: Reading((), hidden=hidden) for turn, hidden in states.items()}
    part = coma(common="sum", features="hidden", samples=15, fit=FIT | {"updates": 300})
    assert part.needed_reading_fields == {"hidden"}
    credit = part(Evidence(episodes, "a_game", readings))
    for t in episodes:
        wanted = 4 * 8 / 15 * (1 if len(t.turns[0].completion.text) > 1 else -1)
        assert credit[t.turns[0].id].value == pytest.approx(wanted, abs=0.3)


def test_new_answers_are_drawn_where_they_are_asked_for_and_cost_tokens() -> None:
    requests: list[Request] = []

    def say(request: Request) -> str | CompletionFailure:
        requests.append(request)
        return "x" if len(requests) % 2 else CompletionFailure("aborted", "busy")

    simulator = make_simulator(GAME, FunctionEngine(say))
    episodes = saying(["x", "x x x"] * 2)
    for t in episodes:
        t.turns = [replace(turn, role="player") for turn in t.turns]
    settings = {"common": "sum", "alternatives": "resample", "samples": 4, "fit": FIT | {"updates": 300}}
    part = coma(**settings)
    credit = part(Evidence(episodes, "a_game", simulator=simulator, seed=3))
    assert len(requests) == len({request.seed for request in requests}) == 8 * 4
    assert {request.forced for request in requests} == {None}
    assert simulator.tokens["credit"] == 8 * 2 * 2, "two tokens an answer, and every other one fails"
    # Whatever is drawn is worth what "x" is.
    worths = [credit[t.turns[0].id].value for t in episodes]
    assert worths[0] == worths[2] == 0
    assert worths[1] == worths[3] == pytest.approx(4, abs=0.4)
    seeds = [request.seed for request in requests]
    requests.clear()
    coma(**settings)(Evidence(episodes, "a_game", simulator=simulator, seed=3))
    assert [request.seed for request in requests] == seeds


def test_whom_nobody_answers_gets_nothing_to_compare_with() -> None:
    simulator = make_simulator(GAME, FunctionEngine(lambda request: CompletionFailure("aborted", "gone")))
    episodes = saying(["x", "x x x"])
    credit = coma(alternatives="resample", samples=1)(Evidence(episodes, "a_game", simulator=simulator))
    assert {worth.value for worth in credit.values()} == {0.0}


def test_a_restart_changes_no_bit(tmp_path: Path) -> None:
    fit: Any = {"batch": 4, "memory": 2, "target_every": 3, "updates": 7}
    settings = Coma(lam=0.5, features="text", fit=fit)
    seen = [by_hand(*saying(["x", "x x x", "x x"] * 3, name)) for name in "abc"]
    whole, before, after = settings.build(), settings.build(), settings.build()
    expected = [whole(evidence) for evidence in seen]
    for evidence in seen[:2]:
        before(evidence)
    save_state(tmp_path, before.state_dict())
    after.load_state_dict(load_state(tmp_path))
    assert after(seen[2]) == expected[2]


def test_new_texts_have_no_hidden_states() -> None:
    with pytest.raises(ValidationError, match=r"'resample' gives new texts, .* choices: features: text, or alternat"):
        Coma(alternatives="resample")


def test_somebody_must_be_there_to_be_asked() -> None:
    _, played = play(Random(), 4)
    with pytest.raises(ValueError, match="nobody is there to be asked"):
        coma()(Evidence(played, "matrix"))
