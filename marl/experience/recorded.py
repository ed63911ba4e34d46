"""Recorded play: trajectories from files, tokenised and scored by the learning model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from marl.core.config import Config
from marl.core.graph import Trajectory, read_trajectories
from marl.core.types import Completion, Deal, Failure, Metrics, Request, Turn, TurnId
from marl.experience.rollouts import EpochOrder
from marl.protocols import Deals, Experience, ExperienceConfig, Simulator


class RecordedGame(Config):
    """Recordings of one game."""

    example = "run: runs/nim"
    run: str | None = None
    """Folder of a run with recorded steps; instead of `path`."""
    path: Path | tuple[Path, ...] = ()
    """File of episodes, a `.jsonl.zst` as runs and `marl play --out` write it, or several; a folder stands for all such
    files in it."""
    roles: dict[str, str] = Field(default_factory=dict)
    """Role in the recording -> the role here that learns from what it said, where their names differ."""

    @property
    def files(self) -> list[Path]:
        """Return the files, sorted by name within a folder. A path that does not exist is returned unchanged."""
        path = Path(self.run) / "trajectories" if self.run else self.path
        files: list[Path] = []
        for file in (path,) if isinstance(path, Path) else path:
            files += sorted(file.glob("*.jsonl.zst")) or [file]
        return files

    def file_problems(self) -> Iterator[str]:
        """Yield a message for each missing file, and for contradicting settings."""
        field = "run" if self.run else "path"
        if bool(self.run) == bool(self.path):
            yield f"{field}: {'beside run' if self.run else 'missing'}; give a run's folder, or files; not both"
        for file in self.files:
            if not file.is_file():
                yield (
                    f"{field}: no such file: {file}; runs write them as trajectories/STEP.jsonl.zst, and `marl play "
                    f"SCENARIO experience=rollouts --episodes 100 --out {file}` writes one"
                )


class RecordedEpisodes(RecordedGame, ExperienceConfig):
    """Takes the trajectories of each step from recorded play, in order, epoch after epoch.

    Every text is scored by the present policy of its role, whatever policy generated it.
    """

    kind: str = "recorded"
    example = "path: games.jsonl.zst"
    off_policy: ClassVar[bool] = True
    games: dict[str, RecordedGame] = Field(default_factory=dict)
    """In place of `run` and `path`: name -> recordings of a game. Episodes are compared with those of their game."""
    shuffle: bool = False
    """Shuffle the episodes in each epoch, by `seed`; episodes of one group stay together."""
    seed: int = 0
    """Seed of the order of the episodes."""

    @property
    def sources(self) -> Mapping[str, RecordedGame]:
        """Return game -> recordings. The name of the only game is ""."""
        return self.games or {"": self}

    def unmet_requirements(self) -> Iterator[str]:
        if self.games and (self.run or self.path or self.roles):
            yield "games: beside run, path or roles; what is recorded of a game stands below its name"
        for name, game in self.sources.items():
            for problem in game.file_problems():
                yield f"games.{name}.{problem}" if name else problem

    def build(self) -> Experience:
        return RecordedPlay(self)


class RecordedPlay:
    """Experience that replays recorded trajectories."""

    def __init__(self, settings: RecordedEpisodes) -> None:
        self._settings = settings
        self._recorded: list[Trajectory] = []
        blocks: list[range] = []
        for name, game in settings.sources.items():
            for file in game.files:
                blocks += self._read(name, game, file)
        self._order = EpochOrder(blocks, shuffle=settings.shuffle, seed=settings.seed)

    def _read(self, name: str, game: RecordedGame, file: Path) -> list[range]:
        """Append the episodes of a file; return the index range of each of its groups."""
        if not file.is_file():
            raise ValueError(f"experience.path: no such file: {file}")
        trajectories = list(read_trajectories(file))
        if not trajectories:
            raise ValueError(f"experience.path: no trajectories in {file}")
        blocks: list[range] = []
        start = len(self._recorded)
        for _, group in groupby(trajectories, key=lambda trajectory: trajectory.deal.group):
            end = start + len(list(group))
            blocks.append(range(start, end))
            start = end
        self._recorded += [_recast(trajectory, name, game.roles) for trajectory in trajectories]
        return blocks

    def gather(self, step: int, deals: Deals, simulator: Simulator) -> list[Trajectory]:
        """Return one trajectory for each deal. Turns without a legal move have no tokens."""
        step_deals = deals(step)
        recorded = [self._recorded[index] for index in self._order.take(len(step_deals))]
        return _rescore(recorded, step_deals, simulator)

    def metrics(self) -> Metrics:
        """Return `recorded/epochs`: the number of passes over the recordings so far."""
        return {"recorded/epochs": self._order.used / len(self._recorded)}

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._order.used, "episodes": len(self._recorded)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        episodes = state["episodes"]
        if episodes != len(self._recorded):
            raise ValueError(
                f"experience.path: {len(self._recorded)} episodes are recorded, but {episodes} were when the state was "
                "saved; a run goes on only with the same recordings"
            )
        self._order.used = int(state["next"])


def _recast(trajectory: Trajectory, game: str, roles: Mapping[str, str]) -> Trajectory:
    """Return the episode under the name of `game`, with `roles` (recorded role -> learning role) renamed."""
    if not game and not roles:
        return trajectory
    seats = {agent: roles.get(role, role) for agent, role in trajectory.deal.seats.items()}
    start = f"{game}: {trajectory.start}" if game else trajectory.start
    deal = replace(trajectory.deal, seats=seats, game=game or trajectory.deal.game)
    copy = Trajectory(deal, start, trajectory.parent)
    for turn in trajectory.turns:
        reads = {source: edge["kinds"] for source, edge in trajectory.graph.pred[turn.id].items()}
        copy.add(replace(turn, role=roles.get(turn.role, turn.role)), reads, reads)
    copy.rewards, copy.findings, copy.end = trajectory.rewards, trajectory.findings, trajectory.end
    return copy


def _rescore(recorded: Sequence[Trajectory], deals: Sequence[Deal], simulator: Simulator) -> list[Trajectory]:
    """Return the episodes named after `deals`, with each legal move scored by the present policy of its role."""
    before = _continued_turns(recorded)
    turns = [turn for trajectory in recorded for turn in trajectory.turns]
    learnt = {turn.id for turn in turns if turn.action is not None}
    unscored = [turn for turn in turns if turn.id in learnt.union(before.values())]
    scored: dict[TurnId, Completion | Failure] = {}
    requests: dict[TurnId, Request] = {}
    while unscored:
        # A prompt that continues a text without scores (too long, for example) has no token ids, hence no scores.
        done = {turn for turn, score in scored.items() if isinstance(score, Completion)}
        ready = [turn for turn in unscored if turn.id not in before or before[turn.id] in done]
        batch = [_request(simulator, turn, scored.get(before.get(turn.id, turn.id))) for turn in ready]
        requests |= zip((turn.id for turn in ready), batch, strict=True)
        scored |= zip((turn.id for turn in ready), simulator.score(batch, "train"), strict=True)
        unscored = [turn for turn in unscored if turn.id not in scored] if ready else []
    scored = {name: completion for name, completion in scored.items() if name in learnt}
    played = zip(recorded, deals, strict=True)
    return [_renamed(trajectory, deal.episode, scored, requests) for trajectory, deal in played]


def _continued_turns(recorded: Sequence[Trajectory]) -> dict[TurnId, TurnId]:
    """Return turn -> previous turn of the same agent, for turns whose prompt continues it (`history: append`)."""
    before: dict[TurnId, TurnId] = {}
    for trajectory in recorded:
        last: dict[str, TurnId] = {}
        for turn in trajectory.turns:
            if turn.request.continues and turn.agent in last:
                before[turn.id] = last[turn.agent]
            last[turn.agent] = turn.id
    return before


def _request(simulator: Simulator, turn: Turn, before: Completion | Failure | None) -> Request:
    """Return the scoring request of a recorded text; its prompt continues `before` in the learning model's tokens."""
    continues = (*before.prompt_ids, *before.token_ids) if isinstance(before, Completion) else turn.request.continues
    return replace(simulator.request_for(turn), forced=turn.completion.text, continues=continues)


def _renamed(
    trajectory: Trajectory,
    episode: str,
    scored: Mapping[TurnId, Completion | Failure],
    requests: Mapping[TurnId, Request],
) -> Trajectory:
    """Return the episode under a new name, with scores in place of the recorded completions.

    Scored turns get the policy and sampling settings of their scores, as learners truncate and temper likewise.
    """
    copy = Trajectory(replace(trajectory.deal, episode=episode), trajectory.start)
    for turn in trajectory.turns:
        edges = trajectory.graph.pred[turn.id].items()
        reads = {(episode, source[1]): edge["kinds"] for source, edge in edges}
        marks = tuple([mark._replace(source=(episode, mark.source[1])) for mark in turn.request.marks])
        request = requests.get(turn.id, turn.request)
        request = replace(turn.request, marks=marks, policy=request.policy, sampling=request.sampling)
        completion = _completion(turn, scored)
        copy.add(replace(turn, id=(episode, turn.id[1]), request=request, completion=completion), reads, reads)
    copy.rewards = [replace(reward, turn=(episode, reward.turn[1])) for reward in trajectory.rewards]
    copy.findings = trajectory.findings
    copy.end = trajectory.end
    return copy


def _completion(turn: Turn, scored: Mapping[TurnId, Completion | Failure]) -> Completion:
    completion = scored.get(turn.id)
    if isinstance(completion, Completion):
        return completion
    # A text without scores keeps no tokens, so that no learner trains on it.
    return replace(turn.completion, prompt_ids=(), token_ids=(), logprobs=(), mark_tokens=())
