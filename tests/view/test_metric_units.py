"""Units and meanings of metrics are those of the table in the documents."""

from __future__ import annotations

import pytest

from marl.view.metric_units import metric_meaning


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("time/step", "s"),
        ("step/tokens", "tokens"),
        ("role/solver/tokens", "tokens"),
        ("role/*/reward/correct", "reward"),
        ("game/nim/role/player/tokens", "tokens"),
        ("eval/random/win", "share of episodes"),
        ("eval/random/draw", "share of episodes"),
        ("eval/nim/optimal", "probability"),
        ("policy/actor/entropy", "nats a token"),
        ("policy/actor/lr", ""),
        ("something/else", ""),
    ],
)
def test_a_metric_has_the_unit_of_its_table_row(metric: str, unit: str) -> None:
    assert metric_meaning(metric).unit == unit


def test_a_metric_is_described_by_the_row_that_names_it() -> None:
    assert metric_meaning("role/solver/illegal").meaning == "no legal move could be read"
    corrected = "a team's role is right, in episodes in which the verified role before it was wrong"
    assert metric_meaning("eval/held_out/critic_fixes").meaning.startswith(corrected)
    assert metric_meaning("something/else").meaning == ""
