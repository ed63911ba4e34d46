"""Comparison of two recorded held-out evaluations, paired by start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marl.core.graph import Trajectory
from marl.runs.run_folder import RunFolder
from marl.view.verifier_scores import problem_of


def compare_held_out(home: RunFolder, before: int | None, after: int | None) -> dict[str, Any]:
    """Return the episodes of two evaluations from equal starts (None: the first and the last evaluation).

    Raises:
        ValueError: if an evaluation does not exist.
    """
    steps = home.held_out_steps()
    if not steps:
        return {"steps": [], "before": None, "after": None, "episodes": []}
    chosen = [steps[0] if before is None else before, steps[-1] if after is None else after]
    if missing := [step for step in chosen if step not in steps]:
        raise ValueError(f"no held-out episodes of step {missing[0]}; there are: {', '.join(map(str, steps))}")
    # Episodes of equal game and name have equal starts in every evaluation.
    first, last = ({(t.deal.game, t.id): t for t in home.read_held_out(step)} for step in chosen)
    pairs = [_pair(first.get(name), episode) for name, episode in last.items()]
    return {"steps": steps, "before": chosen[0], "after": chosen[1], "episodes": pairs}


def _pair(before: Trajectory | None, after: Trajectory) -> Mapping[str, Any]:
    question, answer = problem_of(after)
    return {
        "episode": after.id,
        "game": after.deal.game,
        "start": question or after.start,
        "answer": answer,
        "before": _played(before) if before else None,
        "after": _played(after),
    }


def _played(trajectory: Trajectory) -> Mapping[str, Any]:
    return {
        "returns": trajectory.returns,
        "measures": trajectory.findings.measures,
        "turns": [
            {"agent": turn.agent, "role": turn.role, "text": turn.completion.text, "action": turn.action}
            for turn in trajectory.turns
            if turn.completion.token_ids
        ],
    }
