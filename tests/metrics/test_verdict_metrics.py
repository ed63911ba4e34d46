"""Shares of verdicts by which nothing was shown, and the reasons that agents may read of them."""

from __future__ import annotations

import json
from dataclasses import replace

from marl.core.graph import Trajectory
from marl.core.types import Completion, Problem, VerifierCase
from marl.engines.workers.pool import PluginJobResult
from marl.engines.workers.settings import Verifiers
from marl.games.verifiers.mathematics import MathVerifier
from marl.metrics.trajectory_metrics import role_metrics
from tests.support.handmade_episodes import make_episode

UNDECIDED = "+".join([rf"\sqrt{{{n}}}" for n in range(2, 20)])
"""Sum of so many roots that its equality to another order of itself takes too many bits."""


def answer_text_of_results(gold: str, answer: str) -> str:
    """Return the turn of a verifier with one check, called `formula`."""
    verdict = MathVerifier()(VerifierCase(Problem("p", "", gold), answer, answer))
    engine = Verifiers.model_validate({"kind": "verifiers", "checks": {"formula": "math"}})
    return engine.answer_text_of_results([PluginJobResult((verdict.score, verdict.why))])


def episode(texts: list[str]) -> Trajectory:
    """Return an episode in which a verifier takes all turns, with these texts."""
    blank = make_episode("e", ["checker"] * len(texts), seats={"checker": "checker"})
    trajectory = Trajectory(blank.deal, blank.start)
    for turn, text in zip(blank.turns, texts, strict=True):
        trajectory.add(replace(turn, completion=Completion(text, (1,), (), (), "stop")), [])
    trajectory.end = "terminated"
    return trajectory


def test_unknown_is_the_share_of_verdicts_that_showed_nothing() -> None:
    gold, answer = "x^2+" + UNDECIDED, "x^2+0+" + "+".join(reversed(UNDECIDED.split("+")))
    texts = [
        answer_text_of_results(gold, answer),
        *(answer_text_of_results(gold, other) for other in ("x", "x^2", gold)),
    ]
    metrics = role_metrics([episode(texts)])
    assert metrics["role/checker/unknown"] == 0.25
    assert metrics["role/checker/unknown/formula"] == 0.25
    assert metrics["role/checker/faulty"] == 0


def test_the_reason_of_an_unknown_verdict_is_that_of_a_wrong_answer() -> None:
    answer = "x^2+0+" + "+".join(reversed(UNDECIDED.split("+")))
    unknown, wrong = (json.loads(answer_text_of_results(gold, answer)) for gold in ("x^2+" + UNDECIDED, "x^2+1"))
    assert "unknown" in unknown
    assert "unknown" not in wrong
    assert unknown["why"] == wrong["why"]
