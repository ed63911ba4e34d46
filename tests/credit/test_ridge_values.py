"""Values of credit's own: the ridge regression against another route, and against exact values in a real run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from marl.core.state import load_state, save_state
from marl.core.types import Reading, Reward
from marl.credit.assign.gae import PerAgentGae, TeamChainGae
from marl.credit.assign.reward_rules import AgentReturnAssign
from marl.credit.baselines.ridge_values import WIDTH, RidgeRegression, RidgeValueSource
from marl.credit.baselines.value import Value
from marl.evaluation.evaluate import move_probabilities
from marl.evaluation.game_tree import GameTreeNode, InformationState, build_game_tree
from marl.protocols import Evidence
from marl.scenario.load import validate
from marl.training.build import build
from marl.training.run import Run
from tests.support.handmade_episodes import advantages_of, make_episode, make_evidence
from tests.support.run_processes import kuhn_scenario

# --- the regression ---------------------------------------------------------------------------------------------------


def data(seed: int, n: int = 60, width: int = 5, noise: float = 1.0) -> tuple[torch.Tensor, list[float]]:
    """Features of very different sizes, one of them constant, and what depends on two of them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, width)) * 10.0 ** np.arange(-2, width - 2) + 3.0
    x[:, 2] = 7.0
    y = 2.0 + 50 * (x[:, 0] - 3) - 0.3 * (x[:, 1] - 3) + noise * rng.normal(size=n)
    return torch.tensor(x), y.tolist()


def by_the_hat_matrix(x: np.ndarray, y: np.ndarray, penalty: float) -> tuple[float, np.ndarray]:
    """GCV score and prediction of ridge regression with an unpenalised mean, from the n x n hat matrix."""
    n = len(y)
    z = x - x.mean(0)
    z = z / np.where(z.std(0) > 0, z.std(0), 1.0)
    hat = np.full((n, n), 1 / n) + z @ np.linalg.solve(z.T @ z + penalty * np.eye(x.shape[1]), z.T)
    score = ((y - hat @ y) ** 2).mean() / (1 - np.trace(hat) / n) ** 2
    return (np.inf if np.trace(hat) > n / 2 else score), hat @ y


@pytest.mark.parametrize("noise", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_fit_is_the_ridge_regression_that_cross_validation_prefers(seed: int, noise: float) -> None:
    x, y = data(seed, noise=noise)
    ridge = RidgeRegression(x.shape[1])
    for part in (slice(0, 20), slice(20, 60)):
        ridge.add_samples(x[part], y[part])
    fits = [by_the_hat_matrix(x.numpy(), np.array(y), penalty) for penalty in np.logspace(-2, 9, 23)]
    _, best = min(fits, key=lambda one: one[0])
    assert ridge.predict(x) == pytest.approx(np.clip(best, min(y), max(y)).tolist(), rel=1e-6, abs=1e-6)


def test_without_a_signal_everything_is_worth_about_the_mean() -> None:
    rng = np.random.default_rng(0)
    ridge, x, y = RidgeRegression(40), torch.tensor(rng.normal(size=(300, 40))), rng.normal(5.0, 1.0, size=300)
    ridge.add_samples(x, y.tolist())
    assert np.std(ridge.predict(torch.tensor(rng.normal(size=(500, 40))))) < 0.2


def test_few_examples_are_not_learnt_by_heart() -> None:
    x, y = data(0, n=8, width=30, noise=1.0)
    ridge = RidgeRegression(30)
    ridge.add_samples(x, y)
    one, single = RidgeRegression(30), y[:1]
    one.add_samples(x[:1], single)
    assert np.std(ridge.predict(x)) < np.std(y)
    assert one.predict(x) == pytest.approx(single * 8)


def test_no_prediction_leaves_the_range_of_what_was_seen() -> None:
    ridge, x = RidgeRegression(1), torch.linspace(0, 1, 50, dtype=torch.float64)[:, None]
    ridge.add_samples(x, x[:, 0].tolist())
    assert ridge.predict(torch.tensor([[-9.0], [0.5], [9.0]]).double()) == pytest.approx([0.0, 0.5, 1.0], abs=1e-3)


def test_what_was_learnt_earlier_counts_forget_times_as_much() -> None:
    ridge, nothing = RidgeRegression(0), torch.zeros(1, 0, dtype=torch.float64)
    for y in (1.0, 2.0, 4.0):
        ridge.add_samples(nothing, [y], forgetting_factor=0.5)
    assert ridge.predict(nothing) == pytest.approx([(0.25 * 1 + 0.5 * 2 + 4) / 1.75])


# --- as a source of values --------------------------------------------------------------------------------------------


def step(seed: int, episodes: int = 32, width: int = 8, paid: Mapping[int, float] | None = None) -> Evidence:
    """Two turns of a role that is read and one of a role that is not; what is paid follows the first hidden state."""
    rng = torch.Generator().manual_seed(seed)
    made, readings = [], {}
    for index in range(episodes):
        one = make_episode(f"{seed}.{index}", "aba", seats={"a": "reader", "b": "partner"})
        for turn in one.turns[::2]:
            readings[turn.id] = Reading((-0.5,), hidden=torch.randn(2, width, generator=rng))
        worth = (paid or {}).get(index, float(readings[one.turns[0].id].hidden[0, 0]))
        one.rewards = [Reward(agent, worth, one.turns[-1].id) for agent in "ab"]
        made.append(one)
    return Evidence(made, "a_game", readings)


PARTS = (
    PerAgentGae(level="turn", values="own"),
    TeamChainGae(level="turn", values="own", lam=0.5),
    Value(values="own"),
)


def judged(part: Any, at: Any, seen: Evidence) -> dict[Any, float]:
    credit = at(seen, AgentReturnAssign()(seen))[0] if isinstance(part, Value) else at(seen)
    return {turn: one.value for turn, one in credit.items()}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.kind)
def test_before_the_first_step_everything_is_worth_0(part: Any) -> None:
    source, seen = RidgeValueSource(0.9), step(0)
    assert set(source.values(seen).values()) == {(0.0,)}
    if part.kind != "chain_gae":
        assert judged(part, part.build(), seen) == {turn: one.value for turn, one in AgentReturnAssign()(seen).items()}


def test_a_step_is_judged_by_what_was_known_before_it() -> None:
    for part in PARTS[::2]:
        values = []
        for paid in ({}, {0: 100.0, 5: -7.0}):
            at, seen = part.build(), step(1, paid=paid)
            judged(part, at, step(0))
            earned = {turn: one.value for turn, one in AgentReturnAssign()(seen).items()}
            values.append({turn: earned[turn] - value for turn, value in judged(part, at, seen).items()})
        assert len({*values[0]}) == 96
        assert values[0] == pytest.approx(values[1], abs=1e-9)


def test_what_a_turn_is_compared_with_follows_its_prompt() -> None:
    at = PerAgentGae(level="turn", values="own").build()
    for seed in range(6):
        seen = step(seed)
        credit = at(seen)
    first = [one.turns[0].id for one in seen.trajectories]
    paid = [next(iter(one.returns.values())) for one in seen.trajectories]
    # Both turns earn the same, so the second's value, whose hidden state says nothing of it, draws nearer to the mean.
    assert np.std([credit[turn].value for turn in first]) < 0.75 * np.std(paid)


def test_turns_without_a_reading_are_worth_the_running_mean_of_their_role() -> None:
    at = Value(values="own", forget=0.5).build()
    for seed, worth in enumerate((1.0, 4.0)):
        seen = step(seed, paid=dict.fromkeys(range(32), worth))
        credit, _ = at(seen, AgentReturnAssign()(seen))
        assert credit["1.0", 1].value == 3.0 if seed else credit["0.0", 1].value == 1.0
    seen = step(2, paid=dict.fromkeys(range(32), 3.0))
    credit, _ = at(seen, AgentReturnAssign()(seen))
    assert credit["2.0", 1].value == pytest.approx(3.0 - (0.5 * 1 + 4) / 1.5)


@pytest.mark.parametrize(("part", "steps"), zip(PARTS, (2, 60, 2), strict=True), ids=lambda x: getattr(x, "kind", ""))
def test_where_every_return_is_the_same_advantages_go_to_0(part: Any, steps: int) -> None:
    # With lambda < 1 targets are partly values, which takes some steps to become true.
    at = part.build()
    for seed in range(steps):
        advantages = judged(part, at, step(seed, paid=dict.fromkeys(range(32), 0.7)))
    assert max(map(abs, advantages.values())) < (1e-12 if steps == 2 else 0.01)


def test_wide_hidden_states_are_projected_and_still_say_what_they_said() -> None:
    width, at = 4 * WIDTH, Value(values="own").build()
    axes = torch.randn(3, width, generator=torch.Generator().manual_seed(9))
    for seed in range(4):
        seen: Any = step(seed, episodes=128, width=3)
        wide = {turn: replace(one, hidden=one.hidden @ axes) for turn, one in seen.readings.items()}
        seen = replace(seen, readings=wide)
        _, metrics = at(seen, AgentReturnAssign()(seen))
    assert at.state_dict()["reader"]["moments"].shape == (WIDTH + 2, WIDTH + 2)
    # Half of the turns, the second ones, have nothing to say of what is paid.
    assert metrics["credit/explained_variance/reader"] > 0.2
    assert metrics["credit/explained_variance/partner"] == pytest.approx(0.0, abs=0.05)


def test_a_turn_that_forks_inherited_is_learnt_from_once() -> None:
    seen = step(0)
    doubled = replace(seen, trajectories=[*seen.trajectories, *seen.trajectories])
    states = []
    for one in (seen, doubled):
        at = Value(values="own").build()
        at(one, AgentReturnAssign()(one))
        states.append(at.state_dict())
    assert all(torch.equal(states[0][role][key], states[1][role][key]) for role in states[0] for key in states[0][role])


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.kind)
def test_state_survives_the_disk_bit_for_bit(part: Any, tmp_path: Path) -> None:
    whole, after = part.build(), part.build()
    for seed in range(3):
        judged(part, whole, step(seed))
    save_state(tmp_path, whole.state_dict())
    after.load_state_dict(load_state(tmp_path))
    for seed in range(3, 5):
        assert judged(part, after, step(seed)) == judged(part, whole, step(seed))


def test_what_a_state_holds_does_not_change_when_learning_goes_on() -> None:
    at = Value(values="own").build()
    judged(Value(values="own"), at, step(0))
    state = at.state_dict()
    before = state["reader"]["moments"].clone()
    judged(Value(values="own"), at, step(1))
    assert torch.equal(state["reader"]["moments"], before)


# --- a real model -----------------------------------------------------------------------------------------------------


def exact(run: Run) -> dict[tuple[str, str], float]:
    """(agent, information state) -> what the agent can expect there, by walking every history of Kuhn poker."""
    tree = build_game_tree(run.scenario.game, run.simulator.casting, run.scenario.seats)
    situations = list(tree.requests)
    strategy = dict(zip(situations, move_probabilities(run.simulator, list(tree.requests.values())), strict=True))
    sums: dict[InformationState, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def walk(node: GameTreeNode, reach: float, agent: str) -> float:
        """Return the expected pay of `agent` from here on; fill the sums."""
        paid = node.rewards.get(agent, 0.0)
        if node.situation is None:
            return paid
        chances = strategy[node.situation]
        branches = [(chances[move], child) for move, child in node.moves.items()]
        if node.after_illegal:
            branches.append((1 - sum(chances.values()), node.after_illegal))
        later = sum(chance * walk(child, reach * chance, agent) for chance, child in branches)
        if node.situation.agent == agent:
            sums[node.situation][0] += reach
            sums[node.situation][1] += reach * later
        return paid + later

    for agent in tree.agents:
        for probability, root in tree.roots:
            walk(root, probability, agent)
    return {(where.agent, where.state): total / reach for where, (reach, total) in sums.items()}


@pytest.fixture(scope="module")
def kuhn_run(made: Path) -> Iterator[tuple[Run, list[Evidence]]]:
    """Steps of self-play of a real tiny model that does not learn meanwhile, and what was read of them."""
    schedule = {"steps": 1, "groups": 128, "group_size": 4, "threads": 1}
    credit = {"baseline": {"kind": "marl.credit.baselines.value:Value", "values": "own"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_CACHE", str(made))
        run = build(validate(kuhn_scenario(credit=credit, schedule=schedule)))
        played = [run.experience.gather(index, run.deals, run.simulator) for index in range(8)]
        yield run, [run.evidence(one, run.read(one)) for one in played]


@pytest.mark.parametrize("part", [PerAgentGae(level="turn", values="own", forget=1.0), Value(values="own", forget=1.0)])
def test_a_real_models_prompts_come_to_be_worth_what_enumeration_says(
    part: Any, kuhn_run: tuple[Run, list[Evidence]]
) -> None:
    run, steps = kuhn_run
    at = part.build()
    for seen in steps:
        advantages = judged(part, at, seen)
    estimates = {
        (turn.agent, turn.request.state): one.returns.get(turn.agent, 0.0) - advantages[turn.id]
        for one in steps[-1].trajectories
        for turn in one.turns
    }
    truth = exact(run)
    assert estimates.keys() == truth.keys(), "all 12 information states were met"
    ours, theirs = (np.array([values[key] for key in sorted(truth)]) for values in (estimates, truth))
    assert np.std(theirs) > 0.7
    assert np.corrcoef(ours, theirs)[0, 1] > 0.98
    assert np.sqrt(np.mean((ours - theirs) ** 2)) < 0.15


def test_a_run_reads_what_its_rule_needs_and_reports_how_well_it_foretells(
    kuhn_run: tuple[Run, list[Evidence]],
) -> None:
    run, steps = kuhn_run
    for seen in steps[:3]:
        judgement = run.credit_stage(seen)
    # With the true values it would be 0.22 (the variance of returns that information states explain).
    assert 0.1 < judgement.metrics["credit/explained_variance/player"] < 0.3


def test_evidence_without_readings_has_running_means() -> None:
    past = make_episode("e", "ab", [("a", 1.0, 1)])
    at = Value(values="own").build()
    for _ in range(2):
        credit, _ = at(make_evidence(past), AgentReturnAssign()(make_evidence(past)))
    assert advantages_of(credit, past) == [0.5, -0.5]
