"""Records of a judgement: the numbers on disk are those that were learnt from, and they explain one another."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from marl.core.plugins import known_kinds
from marl.credit_stage.records import CreditRecord, TurnCreditRecord
from marl.credit_stage.stage import CreditStage
from marl.runs.credit_records import read_credit_record, write_credit_record
from marl.scenario.schema import CreditConfig
from tests.support.handmade_episodes import make_episode, make_evidence

PAIR = ("left", "right", "left")
POLICIES = {"player": "actor"}


def judged(*returns: float, **rule: Any) -> CreditRecord:
    """Return the record of one step of episodes from one start, in which `left` is paid after its last turn."""
    prompts = [(1, 0), (1, 1), (1, 2)]
    played = [make_episode(f"e{i}", PAIR, [("left", r, 2)], prompts=prompts) for i, r in enumerate(returns)]
    judgement = CreditStage(CreditConfig.model_validate(rule))(make_evidence(*played))
    return judgement.to_credit_record(played, POLICIES)


def chains(record: CreditRecord, agent: str) -> list[TurnCreditRecord]:
    return [turn for turn in record.turns().values() if turn.agent == agent]


def test_the_chain_of_a_group_baseline_is_worked_out_by_hand() -> None:
    record = judged(1.0, 0.0, 0.0, 1.0, scale=2.0)
    first = chains(record, "left")[0]
    assert (first.pool, first.pool_reward) == (("left",), 2.0)
    assert (first.assigned, first.earned, first.baseline) == (2.0, 2.0, 1.0)
    spread = math.sqrt(sum((x - 1) ** 2 for x in (2, 0, 0, 2)) / 3)
    assert first.scale == pytest.approx(1 / (spread + 1e-6))
    assert first.advantage == pytest.approx(1 / (spread + 1e-6))
    assert first.group is not None
    group = record.groups[first.group]
    assert group.like == "start"
    assert set(group.turns) >= {first.turn, ("e1", 0), ("e2", 0), ("e3", 0)}
    assert [reward.value for reward in record.episodes[0].rewards] == [1.0], "as the game paid it"
    assert (first.role, first.policy, record.rules[first.rule].field) == ("player", "actor", "credit")


SINGLE = [
    kind for kind in known_kinds("baselines") if kind not in ("decoupled", "greedy", "value", "task_role", "joint")
]


@pytest.mark.parametrize("baseline", SINGLE)
@pytest.mark.parametrize("returns", [(1.0, 0.0, 0.25, -1.0), (0.5, 0.5, 0.5, 0.5)])
def test_baseline_and_scale_explain_the_advantage(baseline: str, returns: tuple[float, ...]) -> None:
    record = judged(*returns, baseline=baseline)
    assert record.turns()
    for turn in record.turns().values():
        if turn.baseline is None or turn.scale is None:
            assert baseline == "none"
            assert turn.advantage == turn.earned
        else:
            assert (turn.earned - turn.baseline) * turn.scale == pytest.approx(turn.advantage, abs=1e-12)


def test_a_role_with_a_rule_of_its_own_is_recorded_under_it() -> None:
    record = judged(1.0, 0.0, roles={"player": {"assign": "uniform", "baseline": "none"}})
    assert [rule.field for rule in record.rules] == ["credit", "credit.roles.player"]
    assert {record.rules[turn.rule].assign["kind"] for turn in record.turns().values()} == {"uniform"}


def test_penalties_on_tokens_stand_between_assigned_and_earned() -> None:
    record = judged(1.0, 0.0, baseline="none", overlong={"limit": 1, "buffer": 1})
    for turn in record.turns().values():
        assert turn.penalties == {"overlong": -1.0}
        assert turn.earned == (turn.assigned or 0.0) - 1.0


def test_a_judgement_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    record = judged(1.0, 0.0, 0.5, baseline="whiten")
    file = tmp_path / "credit" / "000001.jsonl.zst"
    write_credit_record(file, record)
    assert read_credit_record(file) == record
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match="not a whole credit record"):
        read_credit_record(file)
