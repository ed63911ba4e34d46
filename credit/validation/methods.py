"""The credit rules that are checked: every `assign` alone, and every `baseline` on plain outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from credit.validation import comparisons as against
from credit.validation import estimands as exact
from credit.validation.coalitions import always
from credit.validation.fits import additive, monotone
from credit.validation.measure import Method
from credit.validation.tasks import Task

_MEAN: dict[str, Any] = {"common": "mean"}
"""These games pay everybody the same, so what the team is paid is the mean."""
_LEARNT = 4
"""Rehearsals of rules that learn from the steps before."""


def _assign(name: str, kind: str, estimand: exact.Estimand | None, rehearsals: int = 0, **settings: Any) -> Method:
    rule = {"assign": {"kind": kind, **settings}, "baseline": {"kind": "none"}}
    return Method(name, rule, estimand, rehearsals)


def _baseline(kind: str, estimand: exact.Estimand | None, rehearsals: int = 0, **settings: Any) -> Method:
    rule = {"assign": {"kind": "outcome"}, "baseline": {"kind": kind, **settings}}
    return Method(f"outcome / {kind}", rule, estimand, rehearsals)


def methods(task: Task) -> Sequence[Method]:
    """Every one, with what it estimates in this task's game."""
    return (*_closed(task), *_learnt(), *_played(task), *_baselines())


def _closed(task: Task) -> Sequence[Method]:
    shares: dict[str, Any] = {"agents": "equal", "calls": "equal", "discount": 0.5}
    steps: dict[str, Any] = {"rewards": ["step"]}  # which these games do not pay
    everybody = tuple(task.default)
    return (
        _assign("outcome", "outcome", exact.returns),
        _assign("uniform", "uniform", exact.returns, **_MEAN),
        _assign("last_speaker", "last_speaker", exact.last, **_MEAN),
        _assign("flow", "flow", exact.flown(0.9, 1.0), decay=0.9, teams=(everybody,)),
        _assign("trajectory", "trajectory", exact.shared(True, 0.5), **shares, **_MEAN),
        _assign("process", "process", against.compared(against.start), combine="prime_paper", **steps, **_MEAN),
    )


def _learnt() -> Sequence[Method]:
    own: dict[str, Any] = {"level": "turn", "values": "own"}
    # As published: what the networks themselves make of it.
    drop: dict[str, Any] = {"rest": "drop", **_MEAN}
    fit: dict[str, Any] = {"fit": {"updates": 64}, **drop}
    return (
        _assign("gae", "gae", against.compared(against.prompt), _LEARNT, **own),
        _assign("chain_gae", "chain_gae", against.chained(0.5), _LEARNT, lam=0.5, **own, **_MEAN),
        _assign("vdn", "vdn", exact.fitted(additive), _LEARNT, **fit),
        # A mixer takes longer to fit than a sum.
        _assign("qmix", "qmix", exact.fitted(monotone), 2 * _LEARNT, fit={"updates": 128, "lr": 1e-2}, **drop),
        _assign("coma", "coma", exact.coma, _LEARNT, **fit),
    )


def _played(task: Task) -> Sequence[Method]:
    nothing = always(task.default)
    default: dict[str, Any] = {"default": dict(task.default), **_MEAN}
    return (
        _assign("difference", "difference", exact.difference(nothing), **default),
        _assign("difference (policy)", "difference", exact.difference(None), against="policy", **_MEAN),
        _assign("leave_one_out", "leave_one_out", exact.left_out(nothing), **default),
        _assign("shapley", "shapley", exact.shapley_values(nothing), **default),
        _assign("replay", "replay", exact.advantage, samples=1, **_MEAN),
        _assign("replay (siblings)", "replay", exact.siblings, form="siblings", samples=1, **_MEAN),
    )


def _baselines() -> Sequence[Method]:
    standard: dict[str, Any] = {"std": True}
    return (
        _baseline("group", against.compared(against.start, **standard)),
        _baseline("leave_one_out", against.compared(against.start)),
        _baseline("role_average", against.compared(against.agent)),
        _baseline("agent_turn_group", against.compared(against.prompt_of_start, **standard)),
        _baseline("task_role", against.compared(against.everything, **standard)),
        _baseline("agent_group", against.compared(against.start, **standard)),
        _baseline("joint", against.compared(against.start)),
        _baseline("decoupled", against.compared(against.start, **standard)),
        _baseline("greedy", against.greedy),
        _baseline("opo", against.compared(against.start)),
        _baseline("whiten", against.compared(against.everything, **standard)),
        _baseline("value", against.compared(against.prompt), _LEARNT, values="own"),
        replace(
            _baseline("agent_turn_group", against.candidates(4), std=False),
            name="tree: outcome / agent_turn_group",
            experience={"kind": "tree", "candidates": 4},
        ),
    )
