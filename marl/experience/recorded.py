"""Recorded play: trajectories from files, tokenised and scored by the model that learns from them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from marl.config import Config
from marl.protocols import Deals, Experience, ExperienceConfig, Simulator
from marl.seeds import seed_of
from marl.types import Completion, Deal, Failure, Metrics, Request, Turn, TurnId

if TYPE_CHECKING:
    from marl.graph import Trajectory


class RecordedGame(Config):
    """Recordings of one game."""

    example = "run: runs/nim"
    run: str | None = None
    """Folder of a run, all of whose recorded steps are taken; in place of `path`."""
    path: Path | tuple[Path, ...] = ()
    """File of episodes, a `.jsonl.zst` as runs and `marl play --out` write it, or several; a folder stands for all such
    files in it."""
    roles: dict[str, str] = Field(default_factory=dict)
    """Role in the recording -> the role here that learns from what it said, where their names differ."""

    @property
    def files(self) -> list[Path]:
        """Return the files, those of a folder in the order of their names; what is not there, as it was given."""
        named = Path(self.run) / "trajectories" if self.run else self.path
        places = (named,) if isinstance(named, Path) else named
        return [file for place in places for file in (sorted(place.glob("*.jsonl.zst")) or [place])]

    def lacking(self) -> Iterator[str]:
        """Yield a message if there is no recording."""
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
    """Takes each step's trajectories, in order and round and round, from recorded play of one game or of several.

    Every text is scored by the policy that now speaks for its role, whoever said it.
    """

    kind: str = "recorded"
    example = "path: games.jsonl.zst"
    off_policy: ClassVar[bool] = True
    games: dict[str, RecordedGame] = Field(default_factory=dict)
    """In place of `run` and `path`: name -> recordings of a game. Episodes are compared with those of their game."""
    shuffle: bool = False
    """Shuffle the episodes anew in each pass, by `seed`; those from one start stay together."""
    seed: int = 0
    """Seed of their order."""

    @property
    def sources(self) -> Mapping[str, RecordedGame]:
        """Return name of a game -> its recordings; "" -> those of the only one."""
        return self.games or {"": self}

    def missing(self) -> Iterator[str]:
        if self.games and (self.run or self.path or self.roles):
            yield "games: beside run, path or roles; what is recorded of a game stands below its name"
        for name, game in self.sources.items():
            yield from (f"games.{name}.{problem}" if name else problem for problem in game.lacking())

    def build(self) -> Experience:
        return RecordedPlay(self)


class RecordedPlay:
    """Recorded trajectories, and the number of them that were used."""

    def __init__(self, settings: RecordedEpisodes) -> None:
        self._settings = settings
        self._recorded: list[Trajectory] = []
        self._blocks: list[range] = []
        """Episodes from one start that stand together in a file."""
        for name, game in settings.sources.items():
            for file in game.files:
                self._read(name, game, file)
        self._used = 0

    def _read(self, name: str, game: RecordedGame, file: Path) -> None:
        from marl.graph import read_trajectories

        if not file.is_file():
            raise ValueError(f"experience.path: no such file: {file}")
        read = list(read_trajectories(file))
        if not read:
            raise ValueError(f"experience.path: no trajectories in {file}")
        place = len(self._recorded)
        for _, block in groupby(read, key=lambda trajectory: trajectory.deal.group):
            size = len(list(block))
            self._blocks.append(range(place, place + size))
            place += size
        self._recorded += [_recast(trajectory, name, game.roles) for trajectory in read]

    def gather(self, step: int, deals: Deals, simulator: Simulator) -> list[Trajectory]:
        """Return as many trajectories as there are deals; turns without a legal move have no tokens."""
        starts = deals(step)
        return _rescore(self._take(len(starts)), starts, simulator)

    def metrics(self) -> Metrics:
        """Return `recorded/epochs`: passes over the recordings so far."""
        return {"recorded/epochs": self._used / len(self._recorded)}

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._used, "episodes": len(self._recorded)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        episodes = state.get("episodes", len(self._recorded))  # earlier versions did not count them
        if episodes != len(self._recorded):
            raise ValueError(
                f"experience.path: {len(self._recorded)} episodes are recorded, but {episodes} were when the state was "
                "saved; a run goes on only with the same recordings"
            )
        self._used = int(state["next"])

    def _take(self, count: int) -> list[Trajectory]:
        """Return the next episodes."""
        first, self._used = self._used, self._used + count
        places = [divmod(number, len(self._recorded)) for number in range(first, self._used)]
        orders = {epoch: self._order(epoch) for epoch in {epoch for epoch, _ in places}}
        return [self._recorded[orders[epoch][place]] for epoch, place in places]

    def _order(self, epoch: int) -> list[int]:
        blocks = list(self._blocks)
        if self._settings.shuffle:
            random.Random(seed_of(self._settings.seed, "epoch", epoch)).shuffle(blocks)
        return [place for block in blocks for place in block]


def _recast(trajectory: Trajectory, game: str, roles: Mapping[str, str]) -> Trajectory:
    """Return the episode as one of this game, which only episodes of the same game are compared with, and with the
    roles that learn from it."""
    from marl.graph import Trajectory

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
    """Return the episodes under new names, every usable text scored by the policy that now speaks for its role."""
    before = _continued(recorded)
    turns = [turn for trajectory in recorded for turn in trajectory.turns]
    learnt = {turn.id for turn in turns if turn.action is not None}
    left = [turn for turn in turns if turn.id in learnt.union(before.values())]
    scored: dict[TurnId, Completion | Failure] = {}
    requests: dict[TurnId, Request] = {}
    while left:
        # What goes on from a text that could not be scored cannot be scored either, so it is left out with it.
        ready = [turn for turn in left if turn.id not in before or isinstance(scored.get(before[turn.id]), Completion)]
        batch = [_request(simulator, turn, scored.get(before.get(turn.id, turn.id))) for turn in ready]
        requests |= zip((turn.id for turn in ready), batch, strict=True)
        scored |= zip((turn.id for turn in ready), simulator.score(batch, "train"), strict=True)
        left = [turn for turn in left if turn.id not in scored] if ready else []
    scored = {name: completion for name, completion in scored.items() if name in learnt}
    played = zip(recorded, deals, strict=True)
    return [_renamed(trajectory, deal.episode, scored, requests) for trajectory, deal in played]


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


def _renamed(
    trajectory: Trajectory,
    episode: str,
    scored: Mapping[TurnId, Completion | Failure],
    requests: Mapping[TurnId, Request],
) -> Trajectory:
    """Return the episode under a new name. Its scored turns have the policy and the sampling they were scored with, not
    those of whoever said them: learners truncate and temper as the scores did."""
    from marl.graph import Trajectory

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
    # A text that could not be scored is kept without tokens, so no learner sees it.
    return replace(turn.completion, prompt_ids=(), token_ids=(), logprobs=(), mark_tokens=())
