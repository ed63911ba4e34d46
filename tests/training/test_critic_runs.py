"""Critics in whole runs: what credit makes of the values that are read, and what survives a kill."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from marl.core.graph import Trajectory
from marl.core.types import Advantage, Reading, Turn, TurnId
from marl.scenario.load import ScenarioError, validate
from marl.training.build import build
from marl.training.run import Run
from tests.support.run_processes import RunWorkspace, SignalTrigger, metric_lines, outcome, tiny_model, train_to_end

PLAYER = {"kind": "player", "policy": "actor", "sampling": {"max_tokens": 6}}


def nim(credit: dict[str, Any], **learner: Any) -> dict[str, Any]:
    """Self-play of one tiny policy with a critic; most games are cut off after three moves."""
    return {
        "game": {"kind": "tests.support.truncated_games:TruncatedNimConfig", "piles": [3, 12]},
        "seats": {"player_0": "player", "player_1": "player"},
        "roles": {"player": PLAYER},
        "policies": {"actor": {"model": tiny_model(), "learner": {"kind": "ppo", "lr": 3e-3} | learner}},
        "credit": credit,
        "schedule": {"steps": 4, "groups": 8, "group_size": 2, "threads": 1},
        "checkpoint": {"every": 2},
    }


def opinionated(run: Run) -> Any:
    """The learner, whose critic no longer says 0 of everything."""
    learner: Any = run.learners["actor"]
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in learner.objective.modules["critic"].head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng) * 0.3)
    return learner


def by_hand(learner: Any, turn: Turn) -> list[float]:
    """Values at the prompt's last token and at every token of the completion, from one unpadded forward pass."""
    critic, said = learner.objective.modules["critic"], turn.completion
    inner = (critic.body or learner.model).model
    with torch.no_grad():
        states = inner(torch.tensor([[*said.prompt_ids, *said.token_ids]])).last_hidden_state[0]
        return (states @ critic.head.weight[0] + critic.head.bias)[len(said.prompt_ids) - 1 :].tolist()


def steps_of(level: str, turns: list[Turn], readings: dict[TurnId, Reading]) -> list[tuple[float, bool]]:
    """An agent's value at each moment, and whether its turn ends there."""
    values = [readings[turn.id].values or () for turn in turns]
    if level == "turn":
        return [(value, True) for own in values for value in own[:1]]
    return [(value, t == len(own) - 1) for own in values for t, value in enumerate(own)]


def skip_gae(
    steps: list[tuple[float, bool]], paid: list[float], after: float, gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """verl's loop, from the last moment back: advantages and value targets; `after` is the value of what follows."""
    advantages, last, later, left = [], 0.0, after, list(paid)
    for value, ends in reversed(steps):
        delta = (left.pop() if ends else 0.0) + gamma * later - value
        last = delta + gamma * lam * last
        advantages.append(last)
        later = value
    advantages.reverse()
    return advantages, [a + value for a, (value, _) in zip(advantages, steps, strict=True)]


def paid_at(trajectory: Trajectory, turns: list[Turn]) -> list[float]:
    """What an agent got from each of its turns until its next."""
    places = [turn.id[1] for turn in turns]
    paid = [0.0] * len(turns)
    for reward in trajectory.rewards:
        if reward.agent == turns[0].agent:
            paid[sum(place <= reward.turn[1] for place in places) - 1] += reward.value
    return paid


def expected(run: Run, level: str, trajectories: Any, readings: Any) -> dict[TurnId, Advantage]:
    """Advantages, not yet whitened, and value targets."""
    found: dict[TurnId, Advantage] = {}
    for trajectory in trajectories:
        for agent in trajectory.deal.seats:
            turns = [turn for turn in trajectory.turns if turn.agent == agent]
            if not turns:
                continue
            after = readings[turns[-1].id].next_value if trajectory.end == "truncated" else 0.0
            steps = steps_of(level, turns, readings)
            advantages, returns = skip_gae(steps, paid_at(trajectory, turns), after, gamma=0.9, lam=0.8)
            for turn in turns:
                many = 1 if level == "turn" else len(turn.completion.token_ids)
                own, advantages = tuple(advantages[:many]), advantages[many:]
                targets, returns = tuple(returns[:many]), returns[many:]
                found[turn.id] = Advantage(own[0], own, targets)
    return found


@pytest.mark.parametrize("where", ["trunk", "separate"])
@pytest.mark.parametrize("level", ["token", "turn"])
def test_credit_is_worked_out_from_what_the_critic_reads(level: str, where: str) -> None:
    whiten = {"kind": "whiten"} | ({"unit": "sequence", "guard": "std"} if level == "turn" else {})
    credit = {"assign": {"kind": "gae", "level": level, "gamma": 0.9, "lam": 0.8}, "baseline": whiten}
    run = build(validate(nim(credit, critic={"where": where})))
    learner = opinionated(run)
    trajectories = run.experience.gather(0, run.deals, run.simulator)
    assert {trajectory.end for trajectory in trajectories} == {"truncated", "terminated"}

    readings = run.read(trajectories)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    for turn in turns:
        reading = readings[turn.id]
        assert [*(reading.values or ()), reading.next_value] == pytest.approx(by_hand(learner, turn), abs=1e-5)

    credit_of = run.assign_credit(trajectories, readings).credit
    plain = expected(run, level, trajectories, readings)
    assert credit_of.keys() == plain.keys() == {turn.id for turn in turns}
    numbers = np.array([a for one in plain.values() for a in one.tokens])
    spread = np.std(numbers, ddof=1) + 1e-8 if level == "turn" else np.sqrt(np.var(numbers, ddof=1) + 1e-8)
    for turn, one in plain.items():
        whitened = ((np.array(one.tokens) - numbers.mean()) / spread).tolist()
        assert credit_of[turn].returns == pytest.approx(one.returns, abs=1e-6)
        assert list(credit_of[turn].tokens or (credit_of[turn].value,)) == pytest.approx(whitened, abs=1e-5)


TEAM: dict[str, Any] = {
    "game": {
        "kind": "team",
        "task": {"kind": "arithmetic", "numbers": [0, 4], "train": 10, "held_out": 5},
        "stages": [
            {"role": "planner", "examples": ["{{ answer }}", "{{ wrong[0] }}"]},
            {"role": "solver", "hears": ["planner"], "examples": ["{{ answer }}", "{{ wrong[0] }}"]},
        ],
        "rewards": {
            "planner": {"team": "solver.readable * (solver.move == answer)"},
            "solver": {"correct": "own.readable * (own.move == answer)"},
        },
    },
    "roles": {
        name: {"kind": "solver", "policy": name, "answer": "bracket", "instructions": "", "sampling": {"max_tokens": 4}}
        for name in ("planner", "solver")
    },
    "policies": {
        "planner": {"model": tiny_model(), "learner": {"kind": "grpo", "lr": 3e-3}},
        "solver": {"model": tiny_model(1)},
    },
    "credit": {
        "baseline": {"kind": "group", "like": "start"},
        "roles": {"solver": {"assign": {"kind": "gae"}, "baseline": {"kind": "whiten"}}},
    },
    "schedule": {"steps": 4, "groups": 4, "group_size": 4, "threads": 1},
    "checkpoint": {"every": 2},
}
"""PPO and GRPO train different roles of one team."""
CRITICS = {"trunk": {"where": "trunk", "lr": 1e-2}, "separate": {"lr": 1e-2, "warm_up": 2}}
AFTER_STEP_3 = SignalTrigger("open", "metrics.jsonl", 4)
"""While its row is written; the newest checkpoint is that of step 2."""


def team(critic: dict[str, Any]) -> dict[str, Any]:
    learner = {"kind": "ppo", "lr": 3e-3, "minibatches": 2, "critic": critic}
    return TEAM | {"policies": TEAM["policies"] | {"solver": {"model": tiny_model(1), "learner": learner}}}


@pytest.mark.slow
@pytest.mark.parametrize("critic", CRITICS)
def test_ppo_and_grpo_in_one_team_survive_a_kill_to_the_last_bit(critic: str, tmp_path: Any) -> None:
    whole = train_to_end(tmp_path / "whole", team(CRITICS[critic]))
    (tmp_path / "resumed").mkdir()
    (tmp_path / "resumed" / "cache").symlink_to(whole.path / "cache")
    desk = RunWorkspace(tmp_path / "resumed", whole.scenario)
    assert desk.train(kill=AFTER_STEP_3) == -9, desk.take_output()
    assert desk.train("--resume", "auto") == 0, desk.take_output()
    assert metric_lines(desk.run) == metric_lines(whole.run)
    assert outcome(desk.run) == outcome(whole.run)
    assert '"policy/solver/value_loss"' in metric_lines(whole.run)[-1]
    assert '"policy/planner/value_loss"' not in metric_lines(whole.run)[-1]


@pytest.mark.parametrize(
    ("credit", "told"),
    [
        ({"baseline": {"kind": "group"}}, "credit: 'outcome' and 'group' look at no values"),
        (
            {"roles": {"player": {"assign": {"kind": "gae", "level": "turn", "values": "own"}}}},
            "credit.roles.player: 'gae' and 'group' look at no values",
        ),
    ],
)
def test_credit_that_would_leave_the_critic_without_targets_is_told_first(credit: dict[str, Any], told: str) -> None:
    with pytest.raises(ScenarioError) as error:
        validate(nim(credit))
    assert told in str(error.value)
    assert "but learner 'ppo' of role 'player' learns from what comes of them; choose an assign" in str(error.value)
