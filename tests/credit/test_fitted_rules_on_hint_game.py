"""Fitted rules where one agent reads the other: the hint game, in which the exact advantage of every turn is known."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np
import pytest

from marl.credit.assign.value_decomposition import Coma, Qmix, Vdn
from marl.engines.scripted import Tabular
from marl.games.hint import HintConfig
from marl.protocols import Evidence
from marl.rollout.simulator import RolloutSimulator
from tests.support.small_games import make_deal, make_simulator

SAYS = {"red": {"one": 0.8, "two": 0.2}, "green": {"one": 0.2, "two": 0.8}}
GUESSES = {"one": {"red": 0.7, "green": 0.3}, "two": {"red": 0.3, "green": 0.7}}


@cache
def steps() -> tuple[RolloutSimulator, list[Evidence]]:
    game = HintConfig()
    simulator = make_simulator(game, Tabular(table=SAYS | GUESSES).build(None))
    played = [
        simulator.play([make_deal(f"{step}.{i}", game, 1000 * step + i) for i in range(128)]) for step in range(3)
    ]
    return simulator, [Evidence(trajectories, "hint", simulator=simulator) for trajectories in played]


def correlations(kind: Any, rounds: Literal["reading", "turns"]) -> tuple[float, float]:
    """Of the speaker's and of the guesser's credit with the exact advantage: what is to be expected after the turn,
    minus what was to be expected before."""
    _, seen = steps()
    fit = {"updates": 150, "lr": 3e-3}
    part = kind(features="text", common="mean", rounds=rounds, rest="drop", fit=fit).build()
    *_, credit = [part(evidence) for evidence in seen]
    rows: tuple[list[tuple[float, float]], ...] = ([], [])
    for t in seen[-1].trajectories:
        speaker, guesser = t.turns
        symbol, word = speaker.request.state, speaker.action or ""
        before = sum(SAYS[symbol][hint] * GUESSES[hint][symbol] for hint in GUESSES)
        rows[0].append((credit[speaker.id].value, GUESSES[word][symbol] - before))
        rows[1].append((credit[guesser.id].value, float(guesser.action == symbol) - GUESSES[word][symbol]))
    first, second = (float(np.corrcoef(np.array(pairs).T)[0, 1]) for pairs in rows)
    return first, second


@pytest.mark.parametrize("kind", [Vdn, Qmix, Coma])
def test_who_speaks_first_earns_what_it_adds_to_what_can_be_expected(kind: Any) -> None:
    speaker, guesser = correlations(kind, "reading")
    assert speaker > 0.95
    # The guesser does not know the symbol, and a monotonic mix cannot turn the sign of its utility; a critic can.
    assert guesser > (0.95 if kind is Coma else 0.3)


def test_a_critic_that_holds_later_answers_fixed_gives_an_earlier_speaker_next_to_nothing() -> None:
    speaker, guesser = correlations(Coma, "turns")
    assert speaker < 0.9
    assert guesser > 0.95
