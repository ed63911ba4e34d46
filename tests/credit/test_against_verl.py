"""Advantages beside verl's own functions on the same numbers; REINFORCE++ and KL in the reward: test_charges_verl."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from marl.core.graph import Trajectory
from marl.core.types import Advantage, Credit, Reading
from marl.credit.assign.gae import PerAgentGae
from marl.credit.assign.reward_rules import AgentReturnAssign
from marl.credit.baselines.group import AgentTurnGroup, GrpoBaseline, OpoBaseline, RlooBaseline
from marl.credit.baselines.reinforce import GreedyReturnBaseline
from marl.credit.baselines.whiten import GdpoBaseline, WhitenBaseline
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.protocols import BaselineRule
from tests.support.detailed_handmade_episodes import detailed_episode, numbers
from tests.support.handmade_episodes import make_episode, make_evidence
from tests.support.small_games import FunctionEngine, make_deal, make_simulator, random_move

algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed (.ci/peers.txt)")

LENGTHS = (3, 1, 6, 2, 2, 5, 4, 1, 3)
GROUPS = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2])
MASK = (torch.arange(max(LENGTHS))[None] < torch.tensor(LENGTHS)[:, None]).double()


def paid(seed: int) -> Tensor:
    """Return the reward of each answer."""
    return torch.randn(len(LENGTHS), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def at_the_end(paid_B: Tensor) -> Tensor:
    rewards_BT = torch.zeros_like(MASK)
    rewards_BT[torch.arange(len(LENGTHS)), torch.tensor(LENGTHS) - 1] = paid_B
    return rewards_BT


def ours(baseline: BaselineRule, paid_B: Tensor, **named: Tensor) -> list[float]:
    """One turn an episode, groups by start."""
    episodes = [
        detailed_episode(f"{i}", "a", start=f"{g}", lengths=[many], prompts=[(int(g),)])
        for i, (g, many) in enumerate(zip(GROUPS, LENGTHS, strict=True))
    ]
    alone = {name: as_credit(values) for name, values in named.items()}
    evidence = replace(make_evidence(*episodes), earned_by_reward=alone)
    return list(numbers(baseline(evidence, as_credit(paid_B))[0]).values())


def as_credit(paid_B: Tensor) -> Credit:
    return {(f"{i}", 0): Advantage(value) for i, value in enumerate(paid_B.tolist())}


def first(advantages_BT: Tensor) -> list[float]:
    """An answer's advantage, which all of its tokens have."""
    assert torch.equal(advantages_BT * MASK, advantages_BT[:, :1] * MASK)
    return advantages_BT[:, 0].tolist()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("std", [True, False])
@pytest.mark.parametrize(("version", "error"), [("", 1e-12), ("_vectorized", 2e-6)])
def test_grpo_and_dr_grpo(version: str, error: float, std: bool, seed: int) -> None:
    """The vectorised version has its statistics in float32."""
    advantages_of = getattr(algos, f"compute_grpo{version}_outcome_advantage")
    expected, _ = advantages_of(at_the_end(paid(seed)), MASK, GROUPS, norm_adv_by_std_in_grpo=std)
    for baseline in (GrpoBaseline(std=std, epsilon=1e-6), AgentTurnGroup(std=std, epsilon=1e-6)):
        assert ours(baseline, paid(seed)) == pytest.approx(first(expected), rel=error, abs=error)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("verls", ["compute_rloo_outcome_advantage", "compute_rloo_vectorized_outcome_advantage"])
def test_rloo(verls: str, seed: int) -> None:
    expected, _ = getattr(algos, verls)(at_the_end(paid(seed)), MASK, GROUPS)
    assert ours(RlooBaseline(), paid(seed)) == pytest.approx(first(expected), rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_opo(seed: int) -> None:
    expected, _ = algos.compute_opo_outcome_advantage(at_the_end(paid(seed)), MASK, GROUPS)
    assert ours(OpoBaseline(), paid(seed)) == pytest.approx(first(expected), rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_reinforce_plus_plus_baseline(seed: int) -> None:
    expected, _ = algos.compute_reinforce_plus_plus_baseline_outcome_advantage(at_the_end(paid(seed)), MASK, GROUPS)
    assert ours(WhitenBaseline(like="start"), paid(seed)) == pytest.approx(first(expected), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_gdpo(seed: int) -> None:
    named = {"right": paid(seed), "short": paid(seed + 10).sign()}
    weights = {"right": 1.0, "short": 0.5}
    prompts = torch.zeros(len(LENGTHS), 2, dtype=torch.float64)
    expected, _ = algos.compute_gdpo_outcome_advantage(
        at_the_end(paid(seed)),
        MASK,
        GROUPS,
        config={"gdpo_reward_keys": list(named), "gdpo_reward_weights": list(weights.values())},
        non_tensor_batch={name: values.numpy() for name, values in named.items()},
        batch={"prompts": prompts, "attention_mask": torch.cat([torch.ones_like(prompts), MASK], 1).long()},
    )
    verl = GdpoBaseline(weights=weights, unit="token", guard="variance", epsilon=1e-8, group_epsilon=1e-6)
    # verl scores in float32 here.
    assert ours(verl, paid(seed), **named) == pytest.approx(first(expected), rel=1e-5, abs=1e-5)


def test_remax() -> None:
    kuhn = KuhnPokerConfig()
    simulator = make_simulator(kuhn, FunctionEngine(bold))
    episodes = simulator.play([make_deal(f"{i}", kuhn, i, cards=cards) for i, cards in enumerate(("KQ", "QK", "JQ"))])
    seen = replace(make_evidence(*episodes), simulator=simulator)
    credit, _ = GreedyReturnBaseline()(seen, AgentReturnAssign()(seen))
    # Bet and called, the pot is 2 each: what verl is told that a greedy answer was paid.
    for trajectory, greedy in zip(episodes, (2.0, -2.0, -2.0), strict=True):
        for agent, baseline in (("player_0", greedy), ("player_1", -greedy)):
            turns = [turn for turn in trajectory.turns if turn.agent == agent]
            rewards_1T = torch.zeros(1, len(turns), dtype=torch.float64)
            rewards_1T[0, -1] = trajectory.returns[agent]
            expected, _ = algos.compute_remax_outcome_advantage(
                rewards_1T, torch.tensor([baseline]), torch.ones_like(rewards_1T)
            )
            assert [credit[turn.id].value for turn in turns] == pytest.approx(expected[0].tolist())


def bold(request: Any) -> str:
    """At temperature 0 it always bets or calls."""
    if request.sampling.temperature:
        return random_move(request)
    return next(text for move, text in (request.options or {}).items() if move in ("bet", "call"))


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8), (0.95, 0.0)])
@pytest.mark.parametrize("seed", range(3))
def test_gae_skips_what_others_said_between(seed: int, gamma: float, lam: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths, speakers = (2, 3, 1, 4, 2), "abaab"
    values_T = torch.randn(sum(lengths), dtype=torch.float64, generator=generator)
    reward = float(torch.randn(1, generator=generator))
    whose = [speaker for speaker, many in zip(speakers, lengths, strict=True) for _ in range(many)]
    mask_T = torch.tensor([float(speaker == "a") for speaker in whose], dtype=torch.float64)
    rewards_T = torch.zeros_like(values_T)
    rewards_T[int(mask_T.nonzero()[-1])] = reward
    _, returns = algos.compute_gae_advantage_return(rewards_T[None], values_T[None], mask_T[None], gamma, lam)
    credit = PerAgentGae(gamma=gamma, lam=lam).build()(read(speakers, values_T.split(lengths), reward))
    advantages = [credit["e", index] for index, speaker in enumerate(speakers) if speaker == "a"]
    expected = returns[0][mask_T.bool()]
    assert [r for a in advantages for r in a.returns] == pytest.approx(expected.tolist())
    assert [a for one in advantages for a in one.tokens] == pytest.approx((expected - values_T[mask_T.bool()]).tolist())


def read(speakers: str, values: Any, reward: float) -> Any:
    """An episode of one reward at its end for `a`, whose values a critic read."""
    whole = make_episode("e", speakers, [("a", reward, len(speakers) - 1)])
    made = Trajectory(whole.deal, whole.start)
    made.rewards, made.end = whole.rewards, whole.end
    for turn, row in zip(whole.turns, values, strict=True):
        completion = replace(turn.completion, token_ids=tuple(range(len(row))))
        made.add(replace(turn, completion=completion), whole.graph.pred[turn.id])
    readings = {t.id: Reading((), values=tuple(row.tolist())) for t, row in zip(made.turns, values, strict=True)}
    return replace(make_evidence(made), readings=readings)


def test_where_verl_is_not_followed() -> None:
    """Constant groups get exactly 0 and singletons 0, where verl has rounding noise and the reward itself."""
    rewards, index = torch.full((9, 1), 0.3), np.array([0] * 8 + [1])
    theirs, _ = algos.compute_grpo_outcome_advantage(rewards, torch.ones(9, 1), index)
    assert theirs[0].item() > 0.02
    assert theirs[8].item() == pytest.approx(0.3)
    episodes = [detailed_episode(f"{i}", "a", start=f"{group}") for i, group in enumerate(index)]
    credit, _ = GrpoBaseline()(make_evidence(*episodes), {(f"{i}", 0): Advantage(0.3) for i in range(9)})
    assert set(numbers(credit).values()) == {0.0}
