"""Rules that fit networks, in episodes that were cut off: nothing comes after their end, or the value of what would."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from marl.core.graph import Trajectory
from marl.credit.assign.value_decomposition import Coma, FittedNetworkAssign, Qmix, Vdn
from marl.credit.mixing.fitted_rule import FittedNetworkRule, lambda_returns
from marl.credit.mixing.networks import RoundBatch
from marl.credit.mixing.round_tensors import RoundTensors
from marl.protocols import Evidence
from tests.support.handmade_episodes import make_episode

RULES: list[type[FittedNetworkAssign]] = [Coma, Vdn, Qmix]
FIT = {"updates": 60, "lr": 3e-2, "target_every": 5, "memory": 1, "width": 16}
QUICK = {**FIT, "updates": 1}


def course(name: str, turns: int, paid: float, *, cut: bool) -> Trajectory:
    """An episode of one agent, whose third turn is paid; one that is cut ends before it."""
    t = make_episode(name, "a" * turns, [("a", paid, turns - 1)] if turns == 3 else [])
    texts = ["go", "on", f"end {paid:g}"][:turns]
    t.turns = [replace(u, completion=replace(u.completion, text=x)) for u, x in zip(t.turns, texts, strict=True)]
    t.end = "truncated" if cut else "terminated"
    return t


def courses() -> list[Trajectory]:
    """Half of the episodes go on to a third turn, which is paid 1; the others are cut off after the second."""
    return [course(f"{i}", 3 - i % 2, 1.0, cut=bool(i % 2)) for i in range(8)]


def judged(
    kind: type[FittedNetworkAssign], steps: int = 2, **settings: Any
) -> tuple[FittedNetworkRule[Any], RoundTensors, list[float]]:
    """Return the rule after a few steps, its record, and its value of each round."""
    rule = kind.model_validate({"features": "text", "fit": FIT, "lam": 1.0, **settings}).build()
    assert isinstance(rule, FittedNetworkRule)
    evidence = Evidence(courses(), "a_game")
    for _ in range(steps):
        rule(evidence)
    fitted = rule.get_or_create_networks(evidence)
    record, _ = fitted.encode_rounds(rule.rounds_of_all_teams(evidence), evidence)
    with torch.no_grad():
        return rule, record, fitted.networks.round_values(RoundBatch(record)).tolist()


@pytest.mark.parametrize("kind", RULES)
def test_what_a_limit_cuts_off_is_worth_nothing_or_what_it_is_worth_elsewhere(kind: type[FittedNetworkAssign]) -> None:
    _, ends, low = judged(kind)
    assert not ends.cut.any()
    assert low[0] == pytest.approx(0.5, abs=0.1), "half of the episodes are paid nothing"
    _, bootstraps, high = judged(kind, truncated="bootstrap")
    assert bootstraps.cut.tolist() == [False, False, False, False, True] * 4
    assert high[:5] == pytest.approx([1.0] * 5, abs=0.1)


def test_targets_of_a_cut_episode_by_hand() -> None:
    rule, record, _ = judged(Vdn, 1, truncated="bootstrap", fit=QUICK)
    networks = rule._fitted.networks if rule._fitted else None
    assert networks is not None
    with torch.no_grad():
        q = networks.round_values(RoundBatch(record)).tolist()
    gamma, lam = 0.9, 0.8
    returns = lambda_returns(record, networks, gamma, lam).tolist()
    # The cut one's last round is its own value; what comes before mixes it in as if it had gone on.
    assert returns[4] == pytest.approx(q[4])
    assert returns[3] == pytest.approx(gamma * q[4])
    assert returns[2] == 1.0
    assert returns[1] == pytest.approx(gamma * ((1 - lam) * q[2] + lam * 1.0))
    # PyMARL's r + gamma (1 - terminated) max Q: rounds before the cut are targets like any other.
    assert not record.cut[:4].any()
    assert record.more.tolist()[:5] == [True, True, False, True, False]


@pytest.mark.parametrize("kind", RULES)
def test_the_last_round_of_a_cut_episode_earns_no_rest(kind: type[FittedNetworkAssign]) -> None:
    rule = kind.model_validate({"features": "text", "fit": QUICK, "truncated": "bootstrap"}).build()
    dropped = kind.model_validate({"features": "text", "fit": QUICK, "truncated": "bootstrap", "rest": "drop"}).build()
    evidence = Evidence(courses(), "a_game")
    kept, plain = rule(evidence), dropped(evidence)
    for t in courses():
        last = t.turns[-1].id
        assert (kept[last].value == plain[last].value) == (t.end == "truncated")


@pytest.mark.parametrize("kind", RULES)
def test_a_step_in_which_every_episode_is_cut_in_its_first_round_fits_nothing(kind: type[FittedNetworkAssign]) -> None:
    rule = kind.model_validate({"features": "text", "fit": QUICK, "truncated": "bootstrap"}).build()
    credit = rule(Evidence([course(f"{i}", 1, 1.0, cut=True) for i in range(4)], "a_game"))
    assert len(credit) == 4
    name = kind.__name__.lower()
    assert rule.metrics()[f"credit/{name}/loss"] == 0
    assert f"credit/{name}/explained" not in rule.metrics()


def test_records_come_back_from_their_state_with_the_rounds_that_were_cut() -> None:
    _, record, _ = judged(Vdn, 1, truncated="bootstrap", fit=QUICK)
    assert torch.equal(RoundTensors.from_state(record.state_dict()).cut, record.cut)
