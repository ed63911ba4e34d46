"""REINFORCE++, with groups and without, and GDPO's options."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import layer_norm

from marl.core.graph import Trajectory
from marl.core.types import Advantage, Reward
from marl.credit.baselines.group import GrpoBaseline
from marl.credit.baselines.whiten import GdpoBaseline, WhitenBaseline
from marl.credit_stage.stage import CreditStage
from marl.scenario.schema import CreditConfig
from tests.support.detailed_handmade_episodes import detailed_episode, numbers, worth
from tests.support.handmade_episodes import make_episode, make_evidence


def rows(*lengths: int, group: int = 100) -> list[Trajectory]:
    return [detailed_episode(f"{i}", "a", start=f"{i // group}", lengths=[length]) for i, length in enumerate(lengths)]


def whitened(baseline: WhitenBaseline, lengths: tuple[int, ...], *values: float, group: int = 100) -> list[float]:
    episodes = rows(*lengths, group=group)
    assigned = worth({f"{i}": [value] for i, value in enumerate(values)})
    return list(numbers(baseline(make_evidence(*episodes), assigned)[0]).values())


def test_long_answers_weigh_more_unless_sequences_are_whitened() -> None:
    # Tokens 4, 4, 4, 0: mean 3, squares 1 + 1 + 1 + 9 = 12; variance 4 (ddof 1) or 3 (ddof 0).
    assert whitened(WhitenBaseline(epsilon=0), (3, 1), 4, 0) == [0.5, -1.5]
    assert whitened(WhitenBaseline(epsilon=0, ddof=0), (3, 1), 4, 0) == pytest.approx([1 / 3**0.5, -(3**0.5)])
    # Sequences 4, 0: mean 2, squares 4 + 4; variance 8 (ddof 1) or 4 (ddof 0).
    assert whitened(WhitenBaseline(epsilon=0, unit="sequence"), (3, 1), 4, 0) == pytest.approx(
        [2 / 8**0.5, -2 / 8**0.5]
    )
    assert whitened(WhitenBaseline(epsilon=0, unit="sequence", ddof=0), (3, 1), 4, 0) == [1.0, -1.0]


def test_epsilon_stands_where_the_peers_have_it() -> None:
    # Tokens 4, 4, 4, 0: mean 3, variance 4.
    assert whitened(WhitenBaseline(epsilon=5), (3, 1), 4, 0) == [1 / 3, -1.0]  # sqrt(4 + 5)
    assert whitened(WhitenBaseline(epsilon=5, guard="std"), (3, 1), 4, 0) == pytest.approx([1 / 7, -3 / 7])  # 2 + 5
    assert whitened(WhitenBaseline(epsilon=9, guard="clamp"), (3, 1), 4, 0) == pytest.approx([1 / 3, -1])  # sqrt(9)
    assert whitened(WhitenBaseline(epsilon=3, guard="clamp"), (3, 1), 4, 0) == [0.5, -1.5]  # sqrt(4)


@pytest.mark.parametrize("seed", range(3))
def test_whitening_with_ddof_0_is_torchs_layer_norm_over_all_tokens(seed: int) -> None:
    made = torch.Generator().manual_seed(seed)
    lengths = tuple(torch.randint(1, 9, (12,), generator=made).tolist())
    values = torch.randn(12, dtype=torch.float64, generator=made)
    tokens = torch.repeat_interleave(values, torch.tensor(lengths))
    expected = layer_norm(tokens, tokens.shape, eps=1e-8)
    ends = torch.tensor(lengths).cumsum(0) - 1
    assert whitened(WhitenBaseline(ddof=0), lengths, *values.tolist()) == pytest.approx(
        expected[ends].tolist(), rel=1e-9
    )


def test_numbers_for_tokens_are_whitened_one_by_one() -> None:
    # Tokens 0, 1, 2 and 5: mean 2, squares 4 + 1 + 0 + 9 = 14; the turns' own values, 1 and 5, have no say.
    episodes = rows(3, 1)
    assigned = {("0", 0): Advantage(1.0, (0.0, 1.0, 2.0)), ("1", 0): Advantage(5.0)}
    credit, _ = WhitenBaseline(epsilon=0)(make_evidence(*episodes), assigned)
    std = (14 / 3) ** 0.5
    assert credit["0", 0].tokens == pytest.approx((-2 / std, -1 / std, 0))
    assert (credit["0", 0].value, credit["1", 0].value) == pytest.approx((-1 / std, 3 / std))


def test_turns_without_tokens_have_no_say() -> None:
    assert whitened(WhitenBaseline(epsilon=0), (3, 1, 0), 4, 0, 7) == [0.5, -1.5, 2.0]
    assert whitened(WhitenBaseline(), (0, 0), 4, 0) == [0.0, 0.0]


def test_reinforce_plus_plus_baseline_takes_the_groups_mean_first() -> None:
    # Groups (4, 0) and (1, 1): minus their means 2, -2 and 0, 0. Sequences: mean 0, squares 4 + 4, variance 8 / 3.
    paper = WhitenBaseline(like="start", unit="sequence", epsilon=0)
    std = (8 / 3) ** 0.5
    assert whitened(paper, (3, 1, 1, 1), 4, 0, 1, 1, group=2) == pytest.approx([2 / std, -2 / std, 0, 0])
    # Tokens 2, 2, 2, -2, 0, 0: mean 2 / 3, squares 16 - 6 * 4 / 9 = 40 / 3, variance 8 / 3. The constant group stays 0.
    tokens = WhitenBaseline(like="start", epsilon=0)
    advantages = whitened(tokens, (3, 1, 1, 1), 4, 0, 1, 1, group=2)
    assert advantages == pytest.approx([4 / 3 / std, -8 / 3 / std, 0, 0])
    assert advantages[2:] == [0.0, 0.0]
    # ms-swift: divided by std + 1e-4, not centred again.
    swift = WhitenBaseline(like="start", unit="sequence", guard="std", epsilon=1e-4, centre=False)
    advantages = whitened(swift, (3, 1, 1), 4, 0, 1, group=2)
    std = (8 / 2) ** 0.5 + 1e-4
    assert advantages == pytest.approx([2 / std, -2 / std, 0])


def test_the_metrics_are_those_of_the_groups() -> None:
    episodes = rows(1, 1, 1, 1, group=2)
    assigned = worth({"0": [4], "1": [0], "2": [1], "3": [1]})
    assert WhitenBaseline()(make_evidence(*episodes), assigned)[1] == {}
    _, metrics = WhitenBaseline(like="start")(make_evidence(*episodes), assigned)
    assert metrics == {"credit/groups": 2.0, "credit/degenerate_groups": 0.5}


def test_roles_can_be_whitened_each_by_itself() -> None:
    episodes = [detailed_episode(f"{i}", "ab", seats={"a": "x", "b": "y"}) for i in range(2)]
    assigned = worth({"0": [1, 100], "1": [3, 500]})
    credit, _ = WhitenBaseline(epsilon=0, over="role")(make_evidence(*episodes), assigned)
    half = 0.5**0.5  # the deviation of a pair that differs by 2 is sqrt(2)
    assert list(numbers(credit).values()) == pytest.approx([-half, half, -half, half])


# --- GDPO ------------------------------------------------------------------------------------------------------------


def test_rewards_that_a_sum_cannot_tell_apart_are_told_apart() -> None:
    # Why GDPO decouples. (right, short) = (0, 1), (1, 0) and (0, 0): GRPO of the sums 1, 1, 0 gives the first two the
    # same. Here short is weighed half. Alone: right 0, 1, 0 has mean 1/3, std sqrt(1/3): -1, 2, -1 over sqrt(3); short:
    # 2, -1, -1 over sqrt(3). S = (-1 + 1, 2 - 1/2, -1 - 1/2) / sqrt(3) = (0, 1.5, -1.5) / sqrt(3): mean 0, std 1.5 /
    # sqrt(3). Whitened: 0, 1, -1.
    episodes = rows(1, 1, 1)
    right, short = worth({"0": [0], "1": [1], "2": [0]}), worth({"0": [1], "1": [0], "2": [0]})
    total = worth({"0": [1], "1": [1], "2": [0]})
    seen = replace(make_evidence(*episodes), earned_by_reward={"right": right, "short": short})
    exact = GdpoBaseline(weights={"right": 1, "short": 0.5}, epsilon=0, group_epsilon=0)
    assert list(numbers(exact(seen, total)[0]).values()) == pytest.approx([0, 1, -1], abs=1e-12)
    assert len(set(numbers(GrpoBaseline()(seen, total)[0]).values())) == 2
    # With an epsilon of 1/2 in the second place alone: over std + 1/2.
    loose = GdpoBaseline(weights={"right": 1, "short": 0.5}, epsilon=0.5, group_epsilon=0)
    share = 1.5 / (1.5 + 0.5 * 3**0.5)
    assert list(numbers(loose(seen, total)[0]).values()) == pytest.approx([0, share, -share], abs=1e-12)


def test_a_scenario_names_rewards_and_the_judge_tells_them_apart() -> None:
    # The same numbers: right and short as above, paid to episodes; a scale changes nothing but what epsilon counts.
    rule = {"kind": "marl.credit.baselines.whiten:GdpoBaseline", "weights": {"right": 1, "short": 0.5}}
    exact = {"epsilon": 0, "group_epsilon": 0}
    episodes = rows(1, 1, 1)
    episodes[1].rewards = [Reward("a", 1.0, ("1", 0), "right")]
    episodes[0].rewards = [Reward("a", 1.0, ("0", 0), "short")]
    for scale in (1.0, 3.0):
        judge = CreditStage(CreditConfig.model_validate({"baseline": rule | exact, "scale": scale}))
        assert list(numbers(judge(make_evidence(*episodes)).credit).values()) == pytest.approx([0, 1, -1], abs=1e-12)


def test_verl_whitens_tokens() -> None:
    # One reward, 1 and 0: +-1/sqrt(2). Over tokens (3 and 1): mean u/2 with u = 1/sqrt(2), squares 3 (u/2)^2 + (3u/2)^2
    # = 3 u^2, variance u^2: 1/2 and -3/2.
    episodes = rows(3, 1)
    assigned = worth({"0": [1], "1": [0]})
    seen = replace(make_evidence(*episodes), earned_by_reward={"r": assigned})
    verl = GdpoBaseline(unit="token", guard="variance", epsilon=0, group_epsilon=0)
    assert list(numbers(verl(seen, assigned)[0]).values()) == pytest.approx([0.5, -1.5])


def test_one_reward_alone_is_plain_grpo_where_nvlabs_code_is_followed() -> None:
    episodes = rows(1, 1, 1, 1, group=2)
    assigned = worth({"0": [1], "1": [0], "2": [0.5], "3": [0.5]})
    seen = replace(make_evidence(*episodes), earned_by_reward={"r": assigned})
    plain = GdpoBaseline(alone="group", weights={"r": 1.0})
    assert plain(seen, assigned)[0] == GrpoBaseline(epsilon=1e-4)(seen, assigned)[0]
    assert GdpoBaseline()(seen, assigned)[0] != plain(seen, assigned)[0]
    # Paid or not, a second reward that has a weight is another one.
    assert GdpoBaseline(alone="group", weights={"r": 1.0, "other": 1.0})(seen, assigned) == GdpoBaseline()(
        seen, assigned
    )


def test_rewards_that_cancel_out_leave_exactly_0() -> None:
    episodes = rows(1, 1, 1)
    up, down = worth({"0": [0.1], "1": [0.3], "2": [0.7]}), worth({"0": [-0.1], "1": [-0.3], "2": [-0.7]})
    seen = replace(make_evidence(*episodes), earned_by_reward={"up": up, "down": down})
    credit, _ = GdpoBaseline(epsilon=0, group_epsilon=0)(seen, worth({"0": [0], "1": [0], "2": [0]}))
    assert set(numbers(credit).values()) == {0.0}


def test_metrics_say_which_reward_has_nothing_left_to_tell() -> None:
    episodes = rows(1, 1, 1, 1, group=2)
    right, form = (
        worth({"0": [0], "1": [1], "2": [1], "3": [1]}),
        worth({"0": [0.2], "1": [0.2], "2": [0.2], "3": [0.2]}),
    )
    evidence = replace(make_evidence(*episodes), earned_by_reward={"right": right, "form": form})
    _, metrics = GdpoBaseline()(evidence, right)
    assert metrics == {
        "credit/groups": 2.0,
        "credit/degenerate_groups": 0.5,
        "credit/degenerate_groups/right": 0.5,
        "credit/degenerate_groups/form": 1.0,
    }


def test_a_reward_without_a_weight_is_named() -> None:
    episodes = rows(1, 1)
    assigned = worth({"0": [1], "1": [0]})
    seen = replace(make_evidence(*episodes), earned_by_reward={"correct": assigned, "format": assigned})
    with pytest.raises(ValueError, match=r"weights: reward 'format' has none; weights: correct, fromat"):
        GdpoBaseline(weights={"correct": 1.0, "fromat": 0.5})(seen, assigned)


def test_nobody_said_what_each_reward_alone_would_have_earned() -> None:
    [alone] = rows(1)
    assigned = worth({"0": [1]})
    assert numbers(GdpoBaseline()(make_evidence(alone), assigned)[0]) == {("0", 0): 0.0}  # nothing was ever paid
    alone.rewards = [Reward("a", 1.0, ("0", 0))]
    with pytest.raises(ValueError, match="what each reward alone would have earned"):
        GdpoBaseline()(make_evidence(alone), assigned)


def test_imposed_tokens_have_no_say_in_mean_and_deviation() -> None:
    # The sampled tokens have 1, 3 and 5: mean 3, standard deviation sqrt((4 + 0 + 4) / 2) = 2.
    first, second = make_episode("e0", "a"), make_episode("e1", "a")
    for episode, token_ids, imposed in ((first, (7, 8, 9), (0,)), (second, (8,), ())):
        [turn] = episode.turns
        completion = replace(turn.completion, token_ids=token_ids, logprobs=(0.0,) * len(token_ids), imposed=imposed)
        episode.turns[0] = replace(turn, completion=completion)
    earned = {("e0", 0): Advantage(2.0, (100.0, 1.0, 3.0)), ("e1", 0): Advantage(5.0)}
    credit, _ = WhitenBaseline(epsilon=0)(make_evidence(first, second), earned)
    assert credit["e0", 0].tokens[1:] == (-1.0, 0.0)
    assert credit["e1", 0].value == 1.0
