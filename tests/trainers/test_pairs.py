"""Which turns are pairs, and which are kept, by hand."""

from dataclasses import replace

import pytest

import marl
from marl.scenario.load import ScenarioError
from marl.trainers.batching.rows import count_minibatch_totals
from marl.trainers.imitation.options import SampleSelection
from marl.trainers.imitation.selection import select_samples_to_imitate, without_duplicate_completions
from marl.trainers.imitation.settings import Sft
from marl.trainers.preferences.pairs import comparison_groups, rows_of_paired_turns
from marl.trainers.preferences.settings import Dpo
from tests.support.learning_samples import make_sample
from tests.support.paths import SCENARIOS

PROMPT, OTHER = (1, 2), (1, 3)


def answered(episode, token, paid, *, turn=0, prompt=PROMPT, earned=0.0, **more):
    """Return a turn of one token."""
    made = make_sample(prompt, (token,), (-1.0,), paid=paid, advantage=earned, **more)
    return replace(made, id=(episode, turn))


def tokens(contest):
    """Return [(tokens of the better entry, of the worse one)]."""
    entries = ["".join(str(t) for s in entry for t in s.token_ids) for entry in contest.entries]
    return [(entries[better], entries[worse]) for better, worse in contest.pairs]


def pairs(samples, **settings):
    return [tokens(contest) for contest in comparison_groups(samples, Dpo(**settings))]


GROUP = [
    answered("a", 4, 1.0),
    answered("b", 5, 0.0),
    answered("c", 6, 1.0),
    answered("d", 7, 0.4),
    answered("e", 8, 0.0),
]


def test_siblings_are_all_of_one_prompt_the_better_with_the_worse():
    expected = [("4", "5"), ("4", "7"), ("4", "8"), ("6", "5"), ("6", "7"), ("6", "8"), ("7", "5"), ("7", "8")]
    assert pairs(GROUP) == [expected]


def test_best_worst_is_one_pair_of_each_prompt():
    assert pairs(GROUP, pairs="best_worst") == [[("4", "5")]]
    elsewhere = [replace(one, prompt_ids=OTHER) for one in GROUP[2:4]]
    assert pairs([*GROUP[:2], *elsewhere], pairs="best_worst") == [[("4", "5")], [("6", "7")]]


def test_the_most_pairs_are_the_clearest_and_share_partners_out():
    assert pairs(GROUP, most=2) == [[("4", "5"), ("6", "8")]]
    assert pairs(GROUP, most=4) == [[("4", "5"), ("6", "8"), ("4", "8"), ("6", "5")]]


def test_a_pair_is_at_least_the_margin_apart():
    assert pairs(GROUP, margin=0.6) == [[("4", "5"), ("4", "7"), ("4", "8"), ("6", "5"), ("6", "7"), ("6", "8")]]
    assert pairs([answered("a", 4, 0.1 + 0.2), answered("b", 5, 0.3)]) == []


def test_neither_other_starts_nor_other_prompts_nor_other_roles_nor_the_same_words_are_a_pair():
    one = answered("a", 4, 1.0)
    for other in (
        answered("b", 5, 0.0, group="h"),
        answered("b", 5, 0.0, prompt=OTHER),
        answered("b", 5, 0.0, role="critic"),
        answered("b", 4, 0.0),
        replace(answered("b", 5, 0.0), token_ids=()),
    ):
        assert pairs([one, other]) == []
    assert pairs([one, answered("b", 5, 0.0)]) == [[("4", "5")]]


def test_what_credit_earned_tells_turns_of_equal_pay_apart():
    samples = [answered("a", 4, 1.0, earned=0.2), answered("b", 5, 1.0, earned=0.7)]
    assert pairs(samples) == []
    assert pairs(samples, by="earned") == [[("5", "4")]]
    assert Dpo(by="earned").trains_on_advantages
    assert not Dpo().trains_on_advantages


def test_episodes_are_all_turns_of_an_agent_against_all_of_the_same_agent():
    first = [answered("a", 4, 1.0), answered("a", 5, 1.0, turn=2, prompt=OTHER)]
    second = [answered("b", 6, 0.0)]
    third = [answered("c", 4, 0.5), answered("c", 7, 0.5, turn=2, prompt=OTHER)]
    critic = [answered("a", 9, 0.0, turn=1, agent="player_1"), answered("b", 8, 1.0, turn=1, agent="player_1")]
    by_agent = pairs([*first, *second, *third, *critic], pairs="episodes")
    assert by_agent == [[("45", "6"), ("45", "47"), ("47", "6")], [("8", "9")]]
    assert pairs([*first, *second], pairs="siblings") == [[("4", "6")]]
    by_credit = [replace(s, earned=earned) for s, earned in zip([*first, *second], (0.0, 0.6, 0.4), strict=True)]
    assert pairs(by_credit, pairs="episodes", by="earned") == [[("6", "45")]]


def test_a_turn_in_many_pairs_is_one_row_and_the_facts_add_up_to_the_number_of_pairs():
    rows = rows_of_paired_turns([*GROUP, answered("x", 4, 1.0, group="h"), answered("y", 5, 0.0, group="h")], Dpo())
    assert [row.token_ids[0] for row in rows] == [4, 5, 6, 7, 8, 4, 5]
    assert len({row.unit for row in rows}) == 2
    assert count_minibatch_totals(rows).scalar_sums["pairs"] == 9


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(ValueError, match=r"smoothing=0\.1 has no effect with loss='ipo'; use sigmoid or robust"):
        Dpo(loss="ipo", smoothing=0.1)
    with pytest.raises(ValueError, match=r"\{'aggregation': 'token_sum'\} has no effect on pairs"):
        Dpo(aggregation="token_sum")
    with pytest.raises(ValueError, match="at_least and best are both missing"):
        SampleSelection()


def test_kept_are_those_worth_enough_and_the_best_of_each_start():
    def left(samples, **keep):
        return [one.token_ids[0] for one in select_samples_to_imitate(samples, SampleSelection(**keep))]

    assert left(GROUP, at_least=0.4) == [4, 6, 7]
    assert left(GROUP, best=1) == [4]
    assert left(GROUP, best=3) == [4, 6, 7]
    assert left(GROUP, best=3, at_least=0.9) == [4, 6]
    assert left([*GROUP, answered("x", 9, 0.0, group="h")], best=1) == [4, 9]


def test_the_best_episode_is_kept_whole_and_the_best_turn_alone():
    first = [answered("a", 4, 1.0, earned=0.0), answered("a", 5, 1.0, turn=2, prompt=OTHER, earned=1.0)]
    second = [answered("b", 6, 0.0, earned=0.5), answered("b", 7, 0.0, turn=2, prompt=OTHER, earned=0.5)]
    assert [s.token_ids[0] for s in select_samples_to_imitate([*first, *second], SampleSelection(best=1))] == [4, 5]
    assert [
        s.token_ids[0] for s in select_samples_to_imitate([*first, *second], SampleSelection(best=1, by="earned"))
    ] == [5, 6]
    assert Sft(keep=SampleSelection(best=1, by="earned")).trains_on_advantages
    assert not Sft(keep=SampleSelection(best=1)).trains_on_advantages


@pytest.mark.parametrize(
    ("best", "group_size", "choices"),
    [(9, 8, "1 to 7"), (8, 8, "1 to 7"), (1, 1, "none; raise schedule.group_size, or use at_least")],
)
def test_keeping_as_many_episodes_as_a_group_has_is_refused(best: int, group_size: int, choices: str) -> None:
    overrides = [f"policies.solver.learner.keep={{best: {best}}}", f"schedule.group_size={group_size}"]
    with pytest.raises(ScenarioError) as caught:
        marl.load(SCENARIOS / "sft_best.yaml", overrides)
    assert str(caught.value).split("\n")[1:] == [
        f"  policies.solver.learner.keep.best: {best} leaves out none of the schedule.group_size: {group_size} "
        f"episodes of a start; choices: {choices}"
    ]


@pytest.mark.parametrize("keep", ["{best: 7}", "{best: 9, by: earned}"])
def test_a_selection_that_leaves_something_out_is_fine(keep: str) -> None:
    assert marl.load(SCENARIOS / "sft_best.yaml", [f"policies.solver.learner.keep={keep}"])


def test_distinct_leaves_the_first_of_what_was_said_twice():
    samples = [answered("a", 4, 1.0), answered("b", 5, 1.0), answered("c", 4, 1.0), answered("d", 4, 1.0, prompt=OTHER)]
    assert [one.id[0] for one in without_duplicate_completions(samples)] == ["a", "b", "d"]
