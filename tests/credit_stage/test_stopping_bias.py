"""Who decides when to stop must not be paid for going on as such.

In the stopping game `stop` and `go` have the same true value, so the expected policy gradient of an unbiased rule is 0.
It is worked out exactly: over all steps of three episodes, each with its probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import prod
from typing import Any

import pytest
import torch

from marl.core.graph import Trajectory
from marl.core.types import Credit, Deal, Reading, Reward, Turn
from marl.credit.assign.gae import PerAgentGae, TeamChainGae
from marl.credit.assign.hierarchical import HierarchicalAssign
from marl.credit.assign.reward_rules import AgentReturnAssign, FullTeamRewardAssign, LastSpeaker, RewardFlowAssign
from marl.credit.baselines.group import (
    AgentGroup,
    AgentTurnGroup,
    GrpoBaseline,
    JointBaseline,
    OpoBaseline,
    RlooBaseline,
    TaskRoleBaseline,
)
from marl.credit.baselines.reinforce import NoBaseline, RoleAverageBaseline
from marl.credit.baselines.value import Value
from marl.games.stopping import AGENT, StoppingConfig
from marl.protocols import Evidence
from marl.roles.answering import PlayerRole
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.episode import Episode

GO = (0.3, 0.8)
"""The policy's probability of `go` at an agent's first and second turn: a logit each."""
LUCK = {2.0: 1 / 3, -1.0: 2 / 3}
"""Paid in the end, whatever was done: leaves the true values equal, but makes returns differ."""
EPISODES = 3
HIDDEN = torch.tensor([[1.0, -0.5, 0.2], [-0.3, 0.8, 0.4]])
"""What a model's state is at the prompts of the two turns."""


@dataclass(frozen=True)
class Course:
    """One way in which an episode can go."""

    probability: float
    episode: Trajectory


def played(name: str, moves: Sequence[str], luck: float, intermediate: float) -> Trajectory:
    """An episode of the real game. Words differ in length, for rules that count tokens."""
    deal = Deal(name, "g", 0, {AGENT: "player"})
    episode = Episode(
        StoppingConfig(intermediate=intermediate).build(),
        deal,
        RoleRequestBuilder({"player": PlayerRole(policy="p")}, 0),
    )
    for move in moves:
        episode.force_action(move)
    one = episode.trajectory
    one.rewards.append(Reward(AGENT, luck, one.turns[-1].id, "luck"))
    spoken = {"stop": (1,), "go": (2, 3)}
    one.turns[:] = [replace(t, completion=replace(t.completion, token_ids=spoken[t.action or ""])) for t in one.turns]
    return one


def courses(name: str, intermediate: float = 0.4) -> list[Course]:
    found = []
    for moves, (luck, chance) in product((("stop",), ("go", "stop"), ("go", "go")), LUCK.items()):
        said = prod(GO[k] if move == "go" else 1 - GO[k] for k, move in enumerate(moves))
        found.append(Course(said * chance, played(name, moves, luck, intermediate)))
    return found


@cache
def steps() -> list[tuple[float, Sequence[Trajectory]]]:
    """Every step that there can be, with its probability."""
    each = [courses(f"e{index}") for index in range(EPISODES)]
    return [(prod(c.probability for c in step), [c.episode for c in step]) for step in product(*each)]


def score(turn: Turn) -> float:
    """d log probability / d logit of `go` at this turn."""
    return (turn.action == "go") - GO[turn.nth]


def seen(episodes: Sequence[Trajectory], values: Sequence[float]) -> Evidence:
    """Readings: a value for the first and one for the second turn, and their hidden states."""
    turns = [turn for one in episodes for turn in one.turns]
    states = [torch.stack([state, state]) for state in HIDDEN]
    readings = {
        t.id: Reading((), tuple([values[t.nth]] * len(t.completion.token_ids)), hidden=states[t.nth]) for t in turns
    }
    return Evidence(episodes, "stopping", readings)


def gradient(assign: Any, baseline: Any, values: Sequence[float] = (0.3, 2.0)) -> list[float]:
    """The expected policy gradient per episode: sum over steps of P(step) sum over turns of credit x score."""
    judge, against = assign.build(), baseline.build()
    # What learns from earlier steps has seen one that is like none of those that are judged now.
    before = seen([played("z", ("go", "go"), 5.0, 0.4), played("y", ("stop",), -3.0, 0.4)], values)
    against(before, judge(before))
    states = judge.state_dict(), against.state_dict()
    totals = [0.0, 0.0]
    for probability, episodes in steps():
        judge.load_state_dict(states[0])
        against.load_state_dict(states[1])
        evidence = seen(episodes, values)
        credit, _ = against(evidence, judge(evidence))
        for turn, part in _parts(episodes, credit):
            totals[turn.nth] += probability * part / EPISODES
    return totals


def _parts(episodes: Sequence[Trajectory], credit: Credit) -> list[tuple[Turn, float]]:
    turns = [turn for one in episodes for turn in one.turns]
    return [(turn, credit[turn.id].value * score(turn)) for turn in turns if turn.id in credit]


WHOLE = (AgentReturnAssign(), FullTeamRewardAssign(), HierarchicalAssign())
"""Every turn is worth the whole return."""
TO_GO = (AgentReturnAssign(to_go=True), RewardFlowAssign(decay=1.0))
"""What a turn is worth depends on where in the episode it is."""
ANY = (NoBaseline(), RoleAverageBaseline(), Value(), Value(values="own"))
"""Compare with numbers from before the episode."""
STATE = (
    GrpoBaseline(like="prompt"),
    GrpoBaseline(like="prompt", std=False),
    RlooBaseline(like="prompt"),
    JointBaseline(per="round"),
)
"""Compare turns that were asked the same."""
STATES = (*ANY, *STATE, AgentTurnGroup(), AgentTurnGroup(std=False))
EPISODE = (
    *(
        GrpoBaseline(),
        GrpoBaseline(std=False),
        GrpoBaseline(std="batch"),
        RlooBaseline(),
        OpoBaseline(),
        TaskRoleBaseline(),
        TaskRoleBaseline(std=False),
    ),
    *(
        AgentGroup(std=False),
        JointBaseline(),
        JointBaseline(against="leave_one_out"),
        RoleAverageBaseline(order="update_first"),
    ),
)
"""Compare whole episodes."""


def test_all_steps_together_have_probability_1_and_both_moves_the_same_value() -> None:
    assert sum(probability for probability, _ in steps()) == pytest.approx(1)
    for moves in (("stop",), ("go", "stop"), ("go", "go")):
        assert sum(chance * sum(played("e", moves, luck, 0.4).returns.values()) for luck, chance in LUCK.items()) == 1.0


def shown(part: Any) -> str:
    settings = part.model_dump(exclude_defaults=True)
    return " ".join([part.kind, *(f"{name}={value}" for name, value in settings.items())])


@pytest.mark.parametrize("baseline", [*STATES, *EPISODE], ids=shown)
@pytest.mark.parametrize("assign", WHOLE, ids=shown)
def test_whole_returns_pay_nothing_for_going_on_whatever_they_are_compared_with(assign: Any, baseline: Any) -> None:
    assert gradient(assign, baseline) == pytest.approx([0.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("baseline", STATES, ids=shown)
@pytest.mark.parametrize("assign", TO_GO, ids=shown)
def test_returns_to_go_pay_nothing_for_going_on_if_compared_in_the_same_state_or_with_the_past(
    assign: Any, baseline: Any
) -> None:
    assert gradient(assign, baseline) == pytest.approx([0.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("values", [(1.0, 0.6), (0.3, 2.0), (-5.0, 0.0)], ids=str)
@pytest.mark.parametrize(
    "estimate",
    [
        PerAgentGae(),
        PerAgentGae(level="turn"),
        PerAgentGae(level="bi_level"),
        TeamChainGae(),
        TeamChainGae(level="turn", rewards="paid"),
    ],
    ids=shown,
)
def test_gae_with_lambda_1_pays_nothing_for_going_on_whatever_the_values(
    estimate: Any, values: tuple[float, float]
) -> None:
    assert gradient(estimate, NoBaseline(), values) == pytest.approx([0.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("lam", [0.0, 0.5])
@pytest.mark.parametrize(
    ("estimate", "true"),
    [
        *((PerAgentGae(level=level), (1.0, 0.6)) for level in ("token", "turn", "bi_level")),
        (TeamChainGae(rewards="paid"), (1.0, 0.6)),
        # All that is paid enters at the end, so it is all still to come at the second turn.
        (TeamChainGae(), (1.0, 1.0)),
    ],
    ids=str,
)
def test_gae_with_a_smaller_lambda_is_as_good_as_its_values(estimate: Any, true: tuple[float, float], lam: Any) -> None:
    part = estimate.model_copy(update={"lam": lam})
    assert gradient(part, NoBaseline(), true) == pytest.approx([0.0, 0.0], abs=1e-12)
    # Values that promise too much of what is to come pay for going on.
    assert gradient(part, NoBaseline(), (0.3, 2.0))[0] > 0.01


def test_values_of_credits_own_are_from_before_the_step() -> None:
    for level in (PerAgentGae(level="turn", values="own"), TeamChainGae(level="turn", values="own")):
        assert gradient(level, NoBaseline()) == pytest.approx([0.0, 0.0], abs=1e-12)


@pytest.mark.parametrize(
    ("assign", "baseline", "first"),
    [
        # A later turn has less to come, so an episode's mean is lower for having gone on, and with it what its first
        # turn is compared with, of which it is a part itself.
        (AgentReturnAssign(to_go=True), GrpoBaseline(std=False), "pays"),
        (AgentReturnAssign(to_go=True), RoleAverageBaseline(order="update_first"), "pays"),
        # Whoever goes on is worth nothing itself.
        (LastSpeaker(), NoBaseline(), "costs"),
        # What is paid later counts less: a discount, here of a tenth a turn.
        (RewardFlowAssign(decay=0.9), NoBaseline(), "costs"),
    ],
    ids=str,
)
def test_rules_that_do_pay_or_charge_for_going_on(assign: Any, baseline: Any, first: str) -> None:
    slope, _ = gradient(assign, baseline)
    assert slope > 1e-3 if first == "pays" else slope < -1e-3


# --- the forbidden rule -----------------------------------------------------------------------------------------------


def forbidden(one: Trajectory, means: dict[int, float], outcome: float) -> dict[int, float]:
    """A baseline per turn index, accumulated over turns: the sum of (r_j - mean of r_j over all that were paid at
    their jth turn) from a turn on, and what was paid in the end minus its mean."""
    between = {r.turn[1]: r.value - means[r.turn[1]] for r in one.rewards if r.name == "intermediate"}
    last = sum(r.value for r in one.rewards if r.name != "intermediate") - outcome
    return {turn.nth: sum(value for at, value in between.items() if at >= turn.nth) + last for turn in one.turns}


@pytest.mark.parametrize("intermediate", [0.4, -0.5, 2.0])
def test_a_baseline_per_turn_index_that_is_accumulated_over_turns_pays_minus_the_mean_intermediate_reward(
    intermediate: float,
) -> None:
    ways = courses("e", intermediate)
    paid = [(w.probability, r) for w in ways for r in w.episode.rewards]
    between = [(p, r.value) for p, r in paid if r.name == "intermediate"]
    means = {0: sum(p * value for p, value in between) / sum(p for p, _ in between)}
    outcome = sum(p * r.value for p, r in paid if r.name != "intermediate")
    slopes, chance = [0.0, 0.0], GO[0]
    for way in ways:
        credit = forbidden(way.episode, means, outcome)
        for turn in way.episode.turns:
            slopes[turn.nth] += way.probability * credit[turn.nth] * score(turn)
    # A bonus b on `go` has the gradient b p (1 - p).
    assert slopes[0] / (chance * (1 - chance)) == pytest.approx(-intermediate)
    assert slopes[1] == pytest.approx(0.0, abs=1e-12)
