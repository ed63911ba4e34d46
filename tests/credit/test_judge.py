"""One step judged by a scenario's rules, and what learners get of it."""

from typing import Any

from by_hand import episode, evidence, worths
from small_games import Voice, deal, drawn, table

from games.tic_tac_toe import TicTacToeConfig
from marl.batch import collect
from marl.judge import Judge, Judgement
from marl.scenario import CreditConfig
from marl.types import Advantage, Reading
from roles.player import Player

PLAIN = {"assign": {"kind": "outcome"}, "baseline": {"kind": "none"}}


def judge(**settings: Any) -> Judge:
    return Judge(CreditConfig.model_validate({**PLAIN, **settings}))


def test_scale_scales_what_credit_reads_and_not_the_rewards() -> None:
    t = episode("e", "ab", [("a", 3.0, 1)])
    judgement = judge(scale=0.5)(evidence(t))
    assert worths(judgement.credit, t) == worths(judgement.earned, t) == [1.5, 0.0]
    assert t.returns == {"a": 3.0}


def test_a_role_can_have_a_rule_of_its_own() -> None:
    seats = {"a": "x", "b": "y"}
    episodes = [episode(f"{i}", "abab", [("a", 1.0 + i, 0), ("b", 2.0 + i, 3)], seats=seats) for i in range(2)]
    own = {"assign": {"kind": "outcome", "to_go": True}, "baseline": {"kind": "group", "std": False}, "scale": 2}
    judgement = judge(baseline={"kind": "role_average"}, roles={"y": own})(evidence(*episodes))
    assert worths(judgement.earned, episodes[1]) == [2.0, 6.0, 2.0, 6.0]
    assert worths(judgement.credit, episodes[1])[1::2] == [1.0, 1.0]
    # Each comparison sees only the turns that it judges.
    assert set(judgement.metrics) == {
        "credit/average/a_game/x/a",
        "credit/groups@y",
        "credit/degenerate_groups@y",
    }


def test_the_state_of_every_rule_survives() -> None:
    rules = {"baseline": {"kind": "role_average"}, "roles": {"y": {**PLAIN, "baseline": {"kind": "role_average"}}}}
    episodes = [episode(f"{i}", "ab", [("a", 1.0, 1), ("b", -1.0, 1)], seats={"a": "x", "b": "y"}) for i in range(2)]
    whole, before, after = judge(**rules), judge(**rules), judge(**rules)
    whole(evidence(episodes[0]))
    before(evidence(episodes[0]))
    after.load_state_dict(before.state_dict())
    assert after(evidence(episodes[1])) == whole(evidence(episodes[1]))


ROLES = {"x": Player(policy="one"), "y": Player(policy="two"), "frozen": Player(policy="one", trainable=False)}


def test_learners_get_judged_turns_of_trained_roles_that_a_model_said() -> None:
    seats = {"a": "x", "b": "y", "c": "frozen", "d": "x"}
    t = episode("e", "abcdab", seats=seats, prompts=[(1,), (2,), (3,), (), (5,), (6,)])
    credit = {turn.id: Advantage(float(i)) for i, turn in enumerate(t.turns) if i != 1}
    reading = Reading((-0.1,))
    batches = collect([t], Judgement({}, credit, {}), ROLES, {("e", 4): reading})
    assert {name: [s.id[1] for s in samples] for name, samples in batches.items()} == {"one": [0, 4], "two": [5]}
    assert [s.advantage.value for s in batches["one"]] == [0.0, 4.0]
    assert [s.reading for s in batches["one"]] == [None, reading]
    assert [(s.nth, s.end) for s in batches["one"]] == [(0, "no"), (1, "terminated")]


def test_turns_that_branches_share_enter_once() -> None:
    game = TicTacToeConfig()
    laid = table(game, Voice(drawn))
    [past] = laid.play([deal("e", game)])
    episodes = [past, *laid.fork(past.turns[2].id, 3)]
    judgement = judge()(evidence(*episodes))
    samples = collect(episodes, judgement, {"player": Player(policy="actor")}, {})["actor"]
    ids = [sample.id for sample in samples]
    assert len(ids) == len(set(ids)) == len(past.turns) + sum(len(t.turns) - 2 for t in episodes[1:])
    assert {sample.group for sample in samples} == {past.start}
