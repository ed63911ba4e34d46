"""Recorded held-out evaluations: two of them compared, paired by start, and single episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marl.core.graph import Trajectory
from marl.runs.run_folder import RunFolder
from marl.view.page.episode_json import EpisodeSerializer
from marl.view.verifier_scores import question_and_right_answer


def compare_held_out_episodes(run_folder: RunFolder, before_step: int | None, after_step: int | None) -> dict[str, Any]:
    """Return the held-out episodes of the steps `before_step` and `after_step`, in pairs from equal starts, as JSON
    data.

    The defaults are the first and the last evaluation.

    Raises:
        ValueError: if an evaluation does not exist.
    """
    steps = run_folder.steps_with_held_out_episodes()
    if not steps:
        return {"steps": [], "before": None, "after": None, "episodes": []}
    before_step = steps[0] if before_step is None else before_step
    after_step = steps[-1] if after_step is None else after_step
    for step in (before_step, after_step):
        if step not in steps:
            raise ValueError(f"no held-out episodes of step {step}; there are: {', '.join(map(str, steps))}")
    # Two evaluations' episodes of equal game and name have equal starts.
    earlier = {(episode.deal.game, episode.id): episode for episode in run_folder.read_held_out_episodes(before_step)}
    pairs: list[Mapping[str, Any]] = []
    for episode in run_folder.read_held_out_episodes(after_step):
        question, answer = question_and_right_answer(episode)
        counterpart = earlier.get((episode.deal.game, episode.id))
        pairs.append(
            {
                "episode": episode.id,
                "game": episode.deal.game,
                "start": question or episode.start,
                "answer": answer,
                "before": _episode_json(counterpart) if counterpart else None,
                "after": _episode_json(episode),
            }
        )
    return {"steps": steps, "before": before_step, "after": after_step, "episodes": pairs}


def find_held_out_episode(run_folder: RunFolder, step: int, game: str, episode_id: str) -> Trajectory | None:
    """Return the episode `episode_id` of `game` in the evaluation after `step`, or None if it does not exist."""
    if step not in run_folder.steps_with_held_out_episodes():
        return None
    for episode in run_folder.read_held_out_episodes(step):
        if (episode.deal.game, episode.id) == (game, episode_id):
            return episode
    return None


def held_out_episode_json(
    run_folder: RunFolder, serializer: EpisodeSerializer, step: int, episode: Trajectory
) -> dict[str, Any]:
    """Return an episode of the evaluation after `step` as JSON data, in the form of a training episode.

    It has no siblings and no credit, because nothing is learned from it.
    """
    return {
        **serializer.episode_json(step, episode, None),
        **{"held_out": True, "siblings": [], "advantages": {}, "metrics": {}, "updates": []},
        # Episodes of one game and name have the same start in all evaluations.
        "same_start": [(other, episode.id) for other in run_folder.steps_with_held_out_episodes()],
    }


def _episode_json(episode: Trajectory) -> Mapping[str, Any]:
    """Return the returns, measures and sampled turns of an episode as JSON data."""
    turns: list[Mapping[str, Any]] = []
    for turn in episode.turns:
        if turn.completion.token_ids:
            text = turn.completion.text
            turns.append({"agent": turn.agent, "role": turn.role, "text": text, "action": turn.action})
    return {"returns": episode.returns, "measures": episode.findings.measures, "turns": turns}
