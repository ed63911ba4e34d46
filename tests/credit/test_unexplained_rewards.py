"""What networks do not explain of what was paid can be kept: then unlearnt ones do no harm."""

import numpy as np
import pytest
from test_mixers import pairs

from marl.credit.assign.value_decomposition import Coma, FittedNetworkAssign, Qmix, Vdn
from tests.support.handmade_episodes import make_evidence

LEARNT = {"updates": 300, "lr": 1e-2, "memory": 1}
UNLEARNT = {"updates": 1, "lr": 1e-9}


def credit(
    kind: type[FittedNetworkAssign], fit: dict[str, float], rest: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What was paid, and what `a`, on whose word it depends, and `b`, who has no part in it, earned in each episode."""
    episodes = pairs()
    credit_of = kind(features="text", rest=rest, fit=fit).build()(make_evidence(*episodes))  # type: ignore[arg-type]
    a, b = (np.array([credit_of[t.turns[seat].id].value for t in episodes]) for seat in (0, 1))
    return np.array([t.returns.get("a", 0.0) for t in episodes]), a, b


@pytest.mark.parametrize("kind", [Vdn, Qmix, Coma])
def test_networks_that_have_learnt_nothing_leave_what_was_paid_to_everybody(kind: type[FittedNetworkAssign]) -> None:
    paid, a, b = credit(kind, UNLEARNT, "keep")
    assert min(np.corrcoef(paid, each)[0, 1] for each in (a, b)) > 0.8
    paid, _, b = credit(kind, UNLEARNT, "drop")
    assert np.ptp(b) < 0.8 * np.ptp(paid), "as published, a turn is then worth what unlearnt networks make of it"


@pytest.mark.parametrize("kind", [Vdn, Qmix, Coma])
def test_networks_that_know_who_it_depends_on_take_it_from_everybody_else(kind: type[FittedNetworkAssign]) -> None:
    paid, a, b = credit(kind, LEARNT, "keep")
    assert np.corrcoef(paid, a)[0, 1] > 0.99
    assert a[paid == 1].mean() - a[paid == 0].mean() == pytest.approx(1.0, abs=0.15)
    assert abs(b[paid == 1].mean() - b[paid == 0].mean()) < 0.15
