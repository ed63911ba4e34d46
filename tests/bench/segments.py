"""What credit inside an answer costs: tokens of `replay` by segments, and bytes of segments on disk.

    python tests/bench/segments.py [--segments 8] [--length 32] [--episodes 16] [--out FILE]

A tiny model of random weights answers with `--segments` segments of `--length` tokens (`disk`) or of 4 tokens
(`replay`), as an end token comes by chance, and fewer short answers end early. `replay`: tokens that
`assign: {kind: replay, level: segment}` generated with one sample a state, as a share of the tokens that the same
number of whole answers has (n equal segments: (n + 1) / 2n). `disk`: bytes of the compressed episodes that the
segments add, as a share of all bytes, for segments by tokens; `fields` is the size of each part.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from _bench import parser, report, silent

from marl.core.graph import Trajectory, write_trajectories
from marl.core.types import Turn
from marl.credit_stage.stage import CreditStage
from marl.scenario.schema import CreditConfig, Scenario
from marl.training.build import build


def scenario(segments: int, length: int, episodes: int) -> Scenario:
    """One agent that writes answers of random bytes, which are paid by their first letter."""
    role = {
        **{"kind": "solver", "policy": "actor", "instructions": "", "prompt": "{{ observation }}", "answer": "whole"},
        "segments": {"by": "tokens", "length": length},
        # A temperature this high makes tokens nearly uniform, so few answers end early.
        "sampling": {"max_tokens": segments * length, "temperature": 10.0},
    }
    model = {"kind": "tiny", "vocabulary": "bytes", "hidden": 32, "layers": 1, "warm_up": None}
    return Scenario.model_validate(
        {
            "game": {
                **{"kind": "team", "task": {"kind": "arithmetic", "numbers": [1, 9], "train": 16, "held_out": 4}},
                "stages": [{"role": "writer", "examples": ["{{ answer }}"]}],
                "rewards": {"writer": {"outcome": "own.readable * (own.move < 'a')"}},
            },
            "roles": {"writer": role},
            "policies": {"actor": {"model": model, "learner": {"kind": "grpo"}}},
            "schedule": {"steps": 1, "groups": episodes, "group_size": 1, "seed": 0, "threads": 1},
            "credit": {"baseline": "none"},
        }
    )


def without_segments(trajectory: Trajectory) -> Trajectory:
    """Return the episode as it would be recorded without segments."""
    other = Trajectory(trajectory.deal, trajectory.start)
    for turn in trajectory.turns:
        other.add(_plain(turn), [source for source, _ in trajectory.graph.in_edges(turn.id)])
    other.rewards, other.end, other.findings = trajectory.rewards, trajectory.end, trajectory.findings
    return other


def _plain(turn: Turn) -> Turn:
    completion = replace(turn.completion, segments=(), segment_offsets=())
    return replace(turn, request=replace(turn.request, segments=None), completion=completion)


def size(trajectories: Sequence[Trajectory]) -> int:
    """Return the size of a file of `trajectories` in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "t.jsonl.zst"
        write_trajectories(file, trajectories)
        return file.stat().st_size


def replay(segments: int, episodes: int) -> dict[str, float]:
    run = build(scenario(segments, 4, episodes))
    with silent():
        trajectories = run.simulator.play(run.deals(0))
    rule = {"assign": {"kind": "replay", "level": "segment", "samples": 1}, "baseline": {"kind": "none"}}
    run.credit_stage = CreditStage(CreditConfig.model_validate(rule))
    before = run.simulator.tokens["credit"]
    run.credit_stage(run.evidence(trajectories, {}))
    generated = run.simulator.tokens["credit"] - before
    states = sum(len(turn.completion.segments) for episode in trajectories for turn in episode.turns)
    lengths = [len(turn.completion.token_ids) for episode in trajectories for turn in episode.turns]
    mean_length = sum(lengths) / len(lengths)
    return {
        "states": states,
        "tokens": generated,
        "share_of_whole_answers": round(generated / (states * mean_length), 3),
    }


def disk(segments: int, length: int, episodes: int) -> dict[str, float]:
    run = build(scenario(segments, length, episodes))
    with silent():
        trajectories = run.simulator.play(run.deals(0))
    bytes_with, bytes_without = size(trajectories), size(list(map(without_segments, trajectories)))
    completions = [turn.completion for episode in trajectories for turn in episode.turns]
    return {
        "bytes": bytes_with,
        "segments": bytes_with - bytes_without,
        "share": round(1 - bytes_without / bytes_with, 4),
        "tokens_per_answer": fmean([len(completion.token_ids) for completion in completions]),
        "segments_per_answer": fmean([len(completion.segments) for completion in completions]),
    }


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--segments", type=int, default=8)
    line.add_argument("--length", type=int, default=32)
    line.add_argument("--episodes", type=int, default=16)
    given = line.parse_args()
    figures: dict[str, Any] = {
        "replay": replay(given.segments, given.episodes),
        "disk": disk(given.segments, given.length, given.episodes),
    }
    settings = {"segments": given.segments, "length": given.length, "episodes": given.episodes}
    report(figures, given.out, seeds=[0], **settings)


if __name__ == "__main__":
    main()
