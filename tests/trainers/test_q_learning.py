"""Q-learning: transitions, targets and losses by hand numbers; the replay buffer; a state that goes on bit for bit."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from marl.core.state import load_state, save_state
from marl.core.types import Sample
from marl.trainers.learner import TooFewSamples
from marl.trainers.q_learning.learner import QLearner
from marl.trainers.q_learning.options import ExplorationSchedule
from marl.trainers.q_learning.replay_buffer import ReplayBuffer
from marl.trainers.q_learning.settings import QLearning
from marl.trainers.q_learning.td_learning import (
    ReplayBatch,
    collate_replay_batch,
    target_values_of_greedy_moves,
    td_loss,
    td_targets,
)
from marl.trainers.q_learning.transitions import joint_episodes, round_transitions, turn_transitions
from tests.support.q_samples import context, network, request, sample

SOURCE = network()
TOKENIZER = SOURCE.tokenizer()
LEFT, RIGHT = TOKENIZER.token_id_of_action("left"), TOKENIZER.token_id_of_action("right")


def prompt(text: str, continues: tuple[int, ...] = ()) -> tuple[int, ...]:
    return TOKENIZER.prompt(request(text, ["left", "right"], continues=continues))


def two_rounds(episode: str = "e", end: Any = "terminated", paid: float = 5.0) -> list[Sample]:
    """Two agents move twice; `ann` remembers. Both are paid 1 after the first round and `paid` at the end."""
    first = prompt("ann at the door")
    return [
        sample((episode, 0), "ann", 0, first, LEFT, rewards=[(1, 1.0)]),
        sample((episode, 1), "bob", 0, prompt("bob at the door"), RIGHT, rewards=[(1, 1.0), (2, -0.5)]),
        sample((episode, 2), "ann", 1, prompt("ann inside", (*first, LEFT)), RIGHT, end, [(3, paid)]),
        sample((episode, 3), "bob", 1, prompt("bob inside"), LEFT, end, [(3, paid)]),
    ]


def batch_of(samples: list[Sample]) -> ReplayBatch:
    return collate_replay_batch([(e, turn_transitions(e)) for e in joint_episodes(samples)], TOKENIZER, 3)


def test_an_agent_that_remembers_is_read_as_one_sequence_and_one_that_does_not_turn_by_turn() -> None:
    [episode] = joint_episodes(two_rounds())
    assert len(episode.prompts) == 3
    assert [(turn.prompt_index, turn.decision_index) for turn in episode.turns] == [(0, 0), (1, 0), (0, 1), (2, 0)]


def test_what_follows_a_turn_is_its_agents_next_one_and_after_the_end_nothing() -> None:
    batch = batch_of(two_rounds())
    assert batch.next_index_M.tolist() == [2, 3, -1, -1]
    assert batch.has_target_M.tolist() == [True] * 4
    targets = td_targets(batch, torch.tensor([100.0, 100.0, 10.0, 20.0]), 0.9)
    assert targets.tolist() == pytest.approx([1 + 9, 0.5 + 18, 5, 5])


def test_the_turn_before_a_cut_teaches_nothing_but_those_before_it_go_on_through_it() -> None:
    batch = batch_of(two_rounds(end="truncated"))
    assert batch.has_target_M.tolist() == [True, True, False, False]
    targets = td_targets(batch, torch.tensor([0.0, 0.0, 10.0, 20.0]), 0.9)
    assert targets[:2].tolist() == pytest.approx([10, 18.5])
    values = torch.tensor([9.0, 18.5, 1e6, -1e6])
    assert float(td_loss(values, targets, batch.has_target_M, QLearning())) == pytest.approx(0.25)


def test_a_turn_whose_successor_is_not_here_teaches_nothing() -> None:
    kept = [each for each in two_rounds() if each.id[1] != 2]
    assert batch_of(kept).has_target_M.tolist() == [False, True, True]


def test_a_round_is_paid_what_came_after_it_had_begun_and_is_worth_what_all_do_in_it() -> None:
    [episode] = joint_episodes(two_rounds())
    first, second = round_transitions(episode, {"ann": 1, "bob": 0, "cat": 2}, "mean")
    assert first.turns == (1, 0, -1)
    assert second.turns == (3, 2, -1)
    # bob's -0.5 was paid at ann's second turn, with which the second round had begun.
    assert (first.reward, second.reward) == (1.0, 4.75)
    assert (first.next_index, first.has_target) == (1, True)
    assert (second.next_index, second.has_target) == (-1, True)
    [cut] = joint_episodes(two_rounds(end="truncated"))
    assert [each.has_target for each in round_transitions(cut, {"ann": 0, "bob": 1}, "sum")] == [True, False]
    assert round_transitions(cut, {"ann": 0, "bob": 1}, "sum")[1].reward == 9.5


def test_double_q_learning_takes_the_targets_value_of_the_move_that_the_learner_prefers() -> None:
    online, target = torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[7.0, 2.0, 8.0]])
    legal = torch.tensor([[True, True, False]])
    assert target_values_of_greedy_moves(target, online, legal).tolist() == [2]
    assert target_values_of_greedy_moves(target, target, legal).tolist() == [7]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"loss": "mse"}, (0.125 + 4.5) / 2),
        ({"loss": "huber"}, (0.125 + 2.5) / 2),
        ({"loss": "mse", "overestimate_weight": 0.1}, (0.125 + 0.45) / 2),
        ({"loss": "huber", "overestimate_weight": 0.1}, (0.125 + 0.25) / 2),
    ],
)
def test_a_loss_is_that_of_known_transitions(settings: dict[str, Any], expected: float) -> None:
    values, targets = torch.tensor([0.5, 3.0, 50.0]), torch.tensor([1.0, 0.0, 0.0])
    loss = td_loss(values, targets, torch.tensor([True, True, False]), QLearning(**settings))
    assert float(loss) == pytest.approx(expected)
    assert float(td_loss(values, targets, torch.zeros(3, dtype=torch.bool), QLearning(**settings))) == 0


def test_exploration_goes_from_one_share_to_the_other_in_a_line_and_stays() -> None:
    line = ExplorationSchedule(start=1.0, end=0.2, steps=4)
    assert [line.exploration_rate_after(updates) for updates in (0, 1, 4, 9)] == pytest.approx([1, 0.8, 0.2, 0.2])
    assert ExplorationSchedule(start=0.5, end=0.1, steps=0).exploration_rate_after(0) == 0.1


def test_a_replay_buffer_drops_the_oldest_draws_all_alike_and_comes_back_from_disk(tmp_path: Path) -> None:
    replay = ReplayBuffer(3)
    for number in range(5):
        replay.add(joint_episodes(two_rounds(str(number), paid=number)))
    save_state(tmp_path, {"replay": replay.state_dict()})
    again = ReplayBuffer(3)
    again.load_state_dict(load_state(tmp_path)["replay"])
    assert again.sample_episodes(3, 1) == replay.sample_episodes(3, 1)
    drawn = [episode.turns[-1].rewards[0][1] for seed in range(3000) for episode in again.sample_episodes(1, seed)]
    assert [round(drawn.count(paid) / 3000, 1) for paid in (0.0, 1.0, 2.0, 3.0, 4.0)] == [0, 0, 0.3, 0.3, 0.3]
    empty = ReplayBuffer(3)
    empty.load_state_dict(ReplayBuffer(3).state_dict())
    assert len(empty) == 0


@pytest.mark.parametrize("mixer", ["none", "vdn", "qmix"])
def test_a_learner_goes_on_from_its_state_bit_for_bit(mixer: Any, tmp_path: Path) -> None:
    settings = QLearning(
        mixer=mixer, batch=2, updates=2, target_every=3, tau=0.5, exploration=ExplorationSchedule(steps=9)
    )

    def lesson(step: int) -> list[Sample]:
        return [each for i in range(2) for each in two_rounds(f"{step}.{i}", paid=float(step + i))]

    whole = QLearner(settings, context(SOURCE))
    for step in range(3):
        whole.update(lesson(step))
    save_state(tmp_path, whole.state_dict())
    resumed = QLearner(settings, context(SOURCE))
    resumed.load_state_dict(load_state(tmp_path))
    assert [resumed.update(lesson(step)) for step in (3, 4)] == [whole.update(lesson(step)) for step in (3, 4)]
    save_state(tmp_path / "whole", whole.state_dict())
    save_state(tmp_path / "resumed", resumed.state_dict())
    for name in ("state.json", "state.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "resumed" / name).read_bytes()
    published = dict(resumed.publish())
    assert float(published["epsilon"]) == pytest.approx(1 - 0.95 * 4 / 9)
    assert all(torch.equal(published[name], tensor) for name, tensor in whole.publish())


def test_nothing_is_learnt_before_a_batch_is_there_and_nobody_new_can_join_a_mixer() -> None:
    learner = QLearner(QLearning(mixer="qmix", batch=3), context(SOURCE))
    before = {name: tensor.clone() for name, tensor in learner.publish() if name != "epsilon"}
    assert "loss" not in learner.update(two_rounds("1"))
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.publish() if name != "epsilon")
    with pytest.raises(ValueError, match="no place for 'eve', who was not there in its first update; it has ann, bob"):
        learner.update([sample(("2", 0), "eve", 0, prompt("eve"), LEFT, "terminated")])


def test_a_run_whose_episodes_never_fill_a_batch_says_so() -> None:
    # The run has 100 updates, here of one episode each.
    with pytest.warns(TooFewSamples, match="learner.batch: 101 episodes, but at 1 an update this run has only 100"):
        QLearner(QLearning(batch=101), context(SOURCE)).update(two_rounds("1"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        QLearner(QLearning(batch=100), context(SOURCE)).update(two_rounds("1"))
        QLearner(QLearning(batch=100), context(SOURCE)).update([])


def test_the_learning_rate_rises_and_falls_to_nothing_as_that_of_any_learner() -> None:
    # The context's run has 100 updates. With warm_up: 3, the first one is taken with a quarter of lr.
    rising = QLearner(QLearning(batch=1, lr=0.04, warm_up=3, schedule="linear"), context(SOURCE))
    constant = QLearner(QLearning(batch=1, lr=0.01), context(SOURCE))
    rates = [float(learner.update(two_rounds())["lr"]) for learner in (rising, constant)]
    assert rates == [0.01, 0.01]
    changed = dict(constant.publish())
    assert all(torch.equal(tensor, changed[name]) for name, tensor in rising.publish())
    rising.updates = 99
    before = {name: tensor.clone() for name, tensor in rising.publish() if name != "epsilon"}
    assert rising.update(two_rounds())["lr"] == 0.0
    after = dict(rising.publish())
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_without_terminal_targets_what_is_paid_at_the_end_is_never_seen() -> None:
    learners = [QLearner(QLearning(batch=1, terminal=False, target_every=10**6), context(SOURCE)) for _ in range(2)]
    for learner, paid in zip(learners, (5.0, -5.0), strict=True):
        learner.update(two_rounds(paid=paid))
    [one, other] = [dict(learner.publish()) for learner in learners]
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_where_nothing_follows_no_target_network_is_needed() -> None:
    learners = [QLearner(QLearning(batch=1, updates=3, target_every=every), context(SOURCE)) for every in (1, 10**6)]
    for learner in learners:
        for paid in (5.0, -5.0):
            learner.update([each for each in two_rounds(paid=paid) if each.nth])
    [one, other] = [dict(learner.publish()) for learner in learners]
    assert all(torch.equal(one[name], other[name]) for name in one)
    first, second = QLearner(QLearning(batch=1), context(SOURCE)), learners[0]
    assert any(
        not torch.equal(a, b) for a, b in zip(first.online.parameters(), second.online.parameters(), strict=True)
    )


CLIMBING = ((11.0, -30.0, 0.0), (-30.0, 7.0, 0.0), (0.0, 6.0, 5.0))
WEIGHTED_QMIX = ((8.0, -12.0, -12.0), (-12.0, 0.0, 0.0), (-12.0, 0.0, 0.0))
"""Payoffs of table 1a in Weighted QMIX (2006.10800)."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("payoffs", "overestimate_weight", "expected"),
    [
        # As PyMARL's mixer does in five of five seeds: no monotone table holds both 11 and the -30 beside it.
        pytest.param(CLIMBING, 1.0, {"cc"}, id="climbing-qmix"),
        pytest.param(CLIMBING, 0.1, {"aa"}, id="climbing-optimistic"),
        # In the paper, QMIX takes moves that return 0, and the optimistic weighting finds the 8.
        pytest.param(WEIGHTED_QMIX, 1.0, {"bb", "bc", "cb", "cc"}, id="paper-qmix"),
        pytest.param(WEIGHTED_QMIX, 0.1, {"aa"}, id="paper-optimistic"),
    ],
)
def test_on_all_joint_moves_alike_only_optimistic_weights_find_moves_that_are_good_together(
    payoffs: tuple[tuple[float, ...], ...], overestimate_weight: float, expected: set[str], seed: int
) -> None:
    actions, agents = ("a", "b", "c"), ("ann", "bob")
    source = network(actions=actions, width=32, memory=32, seed=seed)
    tokenizer = source.tokenizer()
    prompts = {agent: tokenizer.prompt(request(f"{agent} . choose", actions)) for agent in agents}
    settings = QLearning(mixer="qmix", batch=9, replay=9, updates=800, overestimate_weight=overestimate_weight)
    learner = QLearner(settings, context(source, seed))
    learner.update(
        [
            sample(
                (f"{row}{column}", seat),
                agent,
                0,
                prompts[agent],
                tokenizer.token_id_of_action(move),
                "terminated",
                [(1, paid)],
            )
            for row, line in enumerate(payoffs)
            for column, paid in enumerate(line)
            for seat, (agent, move) in enumerate(zip(agents, (actions[row], actions[column]), strict=True))
        ]
    )
    with torch.no_grad():
        values = learner.online.agent([tokenizer.decisions(prompt) for prompt in prompts.values()])[:, 0]
    assert "".join([actions[int(row.argmax())] for row in values]) in expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 64, "replay": 32}, "batch: 64 episodes, but replay holds 32"),
        ({"embed": 8}, "embed: has no effect with mixer: none"),
        ({"common": "sum"}, "common: sum has no effect with mixer: none"),
        ({"lr_end": 1e-4}, "lr_end=0.0001 has no effect with schedule='constant'"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QLearning(**settings)
