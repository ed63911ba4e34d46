"""What credit has learnt survives a kill: a resumed run judges as the run that was never interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from marl.core.state import load_state
from tests.support.run_processes import RunWorkspace, SignalTrigger, metric_lines, outcome, tiny_model, train_to_end

FIT = {"updates": 3, "batch": 16, "memory": 2, "target_every": 2, "width": 8}
LEARNT: dict[str, dict[str, Any]] = {
    "role_average": {"baseline": {"kind": "role_average"}},
    "vdn": {"assign": {"kind": "vdn", "fit": FIT}, "baseline": {"kind": "none"}},
    "qmix": {"assign": {"kind": "qmix", "fit": FIT, "embed": 4}, "baseline": {"kind": "none"}},
    "coma": {"assign": {"kind": "coma", "fit": FIT}, "baseline": {"kind": "none"}},
    "chain_gae": {
        "assign": {"kind": "chain_gae", "level": "turn", "values": "own"},
        "baseline": {"kind": "none"},
    },
    "value": {"baseline": {"kind": "value", "values": "own"}},
    "kl": {"baseline": {"kind": "none"}, "kl": {"coefficient": 0.1, "target": 0.01, "horizon": 50}},
    "trajectory": {
        "assign": {"kind": "trajectory", "agents": {"kind": "vdn", "fit": FIT}},
        "baseline": {"kind": "none"},
    },
}
"""Role -> the rule, with a state, by which it is judged."""
AFTER_STEP_3 = SignalTrigger("open", "metrics.jsonl", 4)
"""While its row is written; the newest checkpoint is that of step 2."""


def scenario() -> dict[str, Any]:
    """A team in which each role is judged by another rule; all say a digit about the same sum."""
    role = {"kind": "solver", "policy": "team", "answer": "bracket", "instructions": "", "sampling": {"max_tokens": 4}}
    return {
        "game": {
            "kind": "team",
            "task": {"kind": "arithmetic", "numbers": [0, 4], "train": 10, "held_out": 5},
            "stages": [{"role": name, "examples": ["{{ answer }}", "{{ wrong[0] }}"]} for name in LEARNT],
            "rewards": {name: {"correct": "own.readable * (own.move == answer)"} for name in LEARNT},
        },
        "roles": dict.fromkeys(LEARNT, role),
        "policies": {
            "team": {"model": tiny_model(), "learner": {"kind": "grpo", "lr": 3e-3, "reference": {"coefficient": 0}}}
        },
        "credit": {"baseline": {"kind": "none"}, "roles": LEARNT, "compare": {"beside": LEARNT["vdn"]}},
        "experience": {"kind": "tree", "candidates": 2, "roles": ["role_average", "coma", "value", "kl"]},
        "schedule": {"steps": 4, "groups": 4, "group_size": 1, "threads": 1},
        "checkpoint": {"every": 2},
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunWorkspace:
    """A run that nothing happened to."""
    return train_to_end(tmp_path_factory.mktemp("whole"), scenario())


@pytest.fixture(scope="module")
def resumed(whole: RunWorkspace, tmp_path_factory: pytest.TempPathFactory) -> RunWorkspace:
    """The same run, killed between two checkpoints and gone on with."""
    path = tmp_path_factory.mktemp("resumed")
    (path / "cache").symlink_to(whole.path / "cache")
    desk = RunWorkspace(path, whole.scenario)
    assert desk.train(kill=AFTER_STEP_3) == -9, desk.take_output()
    assert desk.train("--resume", "auto") == 0, desk.take_output()
    return desk


def learnt(desk: RunWorkspace, step: int, role: str) -> dict[str, Any]:
    """What the rule of `role` knew at a checkpoint: place -> number, string or list."""
    state = load_state(desk.run / "checkpoints" / f"{step:06d}" / "state")["credit"][""]["roles"][role]
    return dict(leaves(state))


def leaves(state: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(state, dict | list):
        for name, each in state.items() if isinstance(state, dict) else enumerate(state):
            yield from leaves(each, f"{place}/{name}")
    else:
        yield place, state.tolist() if isinstance(state, torch.Tensor) else state


@pytest.mark.slow
@pytest.mark.parametrize("rule", LEARNT)
def test_what_a_rule_has_learnt_survives_a_kill(rule: str, whole: RunWorkspace, resumed: RunWorkspace) -> None:
    before, after = learnt(whole, 2, rule), learnt(whole, 4, rule)
    assert before, "it has a state"
    assert before != after, "which changes from step to step"
    assert learnt(resumed, 4, rule) == after


@pytest.mark.slow
def test_a_run_that_was_killed_judges_and_learns_as_the_run_that_was_not(
    whole: RunWorkspace, resumed: RunWorkspace
) -> None:
    assert metric_lines(resumed.run) == metric_lines(whole.run)
    assert outcome(resumed.run) == outcome(whole.run)
