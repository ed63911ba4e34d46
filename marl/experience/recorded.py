"""Recorded play: trajectories from a file, tokenised and scored by the model that learns from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl.protocols import Deals, Experience, ExperienceConfig, Simulator
from marl.types import Completion, Deal, Failure, Metrics, Request, Turn, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory


class RecordedEpisodes(ExperienceConfig):
    """Takes each step's trajectories, in order and round and round, from a trajectory file."""

    kind: str = "recorded"
    example = "path: games.jsonl.zst"
    path: Path
    """File of episodes, a `.jsonl.zst` as runs and `marl play --out` write it."""

    def missing(self) -> Iterable[str]:
        if not self.path.is_file():
            yield (
                f"path: no such file: {self.path}; runs write them as trajectories/STEP.jsonl.zst, and `marl play "
                f"SCENARIO experience=rollouts --episodes 100 --out {self.path}` writes one"
            )

    def build(self) -> Experience:
        return RecordedPlay(self.path)


class RecordedPlay:
    """A file's trajectories, and the position of the next one."""

    def __init__(self, path: Path) -> None:
        from marl.graph import read_trajectories

        if not path.is_file():
            raise ValueError(f"experience.path: no such file: {path}")
        self._recorded = list(read_trajectories(path))
        if not self._recorded:
            raise ValueError(f"experience.path: no trajectories in {path}")
        self._next = 0

    def gather(self, step: int, deals: Deals, simulator: Simulator) -> list[Trajectory]:
        """Return as many trajectories as there are deals; turns without a legal move have no tokens."""
        starts, count = deals(step), len(self._recorded)
        taken = [self._recorded[(self._next + i) % count] for i in range(len(starts))]
        self._next = (self._next + len(starts)) % count
        return _rescore(taken, starts, simulator)

    def metrics(self) -> Metrics:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._next = int(state["next"])


def _rescore(recorded: Sequence[Trajectory], deals: Sequence[Deal], simulator: Simulator) -> list[Trajectory]:
    """Return the episodes under new names, every usable text scored by the policy that now speaks for its role."""
    before = _continued(recorded)
    turns = [turn for trajectory in recorded for turn in trajectory.turns]
    learnt = {turn.id for turn in turns if turn.action is not None}
    left = [turn for turn in turns if turn.id in learnt.union(before.values())]
    scored: dict[TurnId, Completion | Failure] = {}
    while left:
        # What goes on from a text that could not be scored cannot be scored either, so it is left out with it.
        ready = [turn for turn in left if turn.id not in before or isinstance(scored.get(before[turn.id]), Completion)]
        requests = [_request(simulator, turn, scored.get(before.get(turn.id, turn.id))) for turn in ready]
        scored |= zip((turn.id for turn in ready), simulator.score(requests, "train"), strict=True)
        left = [turn for turn in left if turn.id not in scored] if ready else []
    scored = {name: completion for name, completion in scored.items() if name in learnt}
    return [_renamed(trajectory, deal.episode, scored) for trajectory, deal in zip(recorded, deals, strict=True)]


def _continued(recorded: Sequence[Trajectory]) -> dict[TurnId, TurnId]:
    """Return turn -> the turn that its prompt continues, the same agent's last one, with `history: append`."""
    before: dict[TurnId, TurnId] = {}
    for trajectory in recorded:
        last: dict[str, TurnId] = {}
        for turn in trajectory.turns:
            if turn.request.continues and turn.agent in last:
                before[turn.id] = last[turn.agent]
            last[turn.agent] = turn.id
    return before


def _request(simulator: Simulator, turn: Turn, before: Completion | Failure | None) -> Request:
    """Return the request to score a recorded text, whose prompt continues `before` in the learning model's tokens."""
    continues = (*before.prompt_ids, *before.token_ids) if isinstance(before, Completion) else turn.request.continues
    return replace(simulator.request_for(turn), forced=turn.completion.text, continues=continues)


def _renamed(trajectory: Trajectory, episode: str, scored: Mapping[TurnId, Completion | Failure]) -> Trajectory:
    from marl.graph import Trajectory

    copy = Trajectory(replace(trajectory.deal, episode=episode), trajectory.start)
    for turn in trajectory.turns:
        edges = trajectory.graph.pred[turn.id].items()
        reads = {(episode, source[1]): edge["kinds"] for source, edge in edges}
        marks = tuple([mark._replace(source=(episode, mark.source[1])) for mark in turn.request.marks])
        request, completion = replace(turn.request, marks=marks), _completion(turn, scored)
        copy.add(replace(turn, id=(episode, turn.id[1]), request=request, completion=completion), reads, reads)
    copy.rewards = [replace(reward, turn=(episode, reward.turn[1])) for reward in trajectory.rewards]
    copy.findings = trajectory.findings
    copy.end = trajectory.end
    return copy


def _completion(turn: Turn, scored: Mapping[TurnId, Completion | Failure]) -> Completion:
    completion = scored.get(turn.id)
    if isinstance(completion, Completion):
        return completion
    # A text that could not be scored is kept without tokens, so no learner sees it.
    return replace(turn.completion, prompt_ids=(), token_ids=(), logprobs=(), mark_tokens=())
