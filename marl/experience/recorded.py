"""Recorded play: trajectories from a file, told again in the tokens of the model that learns from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl.protocols import Experience, ExperienceConfig, Simulator
from marl.types import Completion, Deal, Failure, Metrics, Turn, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory


class File(ExperienceConfig):
    """Takes each step's trajectories, in order and round and round, from a trajectory file."""

    kind: str = "file"
    path: Path
    """A `.jsonl.zst` as runs and `marl play --out` write it."""

    def missing(self) -> Iterable[str]:
        if not self.path.is_file():
            yield f"path: no such file: {self.path}; `marl play SCENARIO --out FILE` writes one"

    def build(self) -> Experience:
        return Recorded(self.path)


class Recorded:
    """A file's trajectories, and how far they have been used."""

    def __init__(self, path: Path) -> None:
        from marl.graph import read_trajectories

        if not path.is_file():
            raise ValueError(f"experience.path: no such file: {path}")
        self._recorded = list(read_trajectories(path))
        if not self._recorded:
            raise ValueError(f"experience.path: no trajectories in {path}")
        self._next = 0

    def gather(self, deals: Sequence[Deal], simulator: Simulator) -> list[Trajectory]:
        """As many trajectories as there are deals; turns without a legal move are left as they are."""
        many = len(self._recorded)
        taken = [self._recorded[(self._next + i) % many] for i in range(len(deals))]
        self._next = (self._next + len(deals)) % many
        return retell(taken, deals, simulator)

    def metrics(self) -> Metrics:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._next = int(state["next"])


def retell(recorded: Sequence[Trajectory], deals: Sequence[Deal], simulator: Simulator) -> list[Trajectory]:
    """The same episodes under new names, every usable text scored by the policy that now speaks for its role."""
    turns = [turn for trajectory in recorded for turn in trajectory.turns if turn.action is not None]
    if stuck := next((turn for turn in turns if turn.request.continues), None):
        raise ValueError(
            f"experience.path: turn {stuck.id} (role {stuck.role!r}) was said with history: append; its prompt is "
            "held in another model's tokens, so only recordings with history: fresh can be told again"
        )
    requests = [replace(simulator.address(turn), forced=turn.completion.text) for turn in turns]
    said = dict(zip((turn.id for turn in turns), simulator.score(requests, "train"), strict=True))
    return [_renamed(trajectory, deal.episode, said) for trajectory, deal in zip(recorded, deals, strict=True)]


def _renamed(trajectory: Trajectory, episode: str, said: Mapping[TurnId, Completion | Failure]) -> Trajectory:
    from marl.graph import Trajectory

    other = Trajectory(replace(trajectory.deal, episode=episode), trajectory.start)
    for turn in trajectory.turns:
        reads = [(episode, index) for _, index in trajectory.graph.predecessors(turn.id)]
        other.add(replace(turn, id=(episode, turn.id[1]), completion=_spoken(turn, said)), reads)
    other.rewards = [replace(reward, turn=(episode, reward.turn[1])) for reward in trajectory.rewards]
    other.findings = trajectory.findings
    other.end = trajectory.end
    return other


def _spoken(turn: Turn, said: Mapping[TurnId, Completion | Failure]) -> Completion:
    completion = said.get(turn.id)
    if isinstance(completion, Completion):
        return completion
    # What could not be scored keeps its text and has no tokens, so no learner sees it.
    return replace(turn.completion, prompt_ids=(), token_ids=(), logprobs=())
