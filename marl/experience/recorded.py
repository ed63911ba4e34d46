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
from marl.core.types import Completion, Metrics, Request, Turn, TurnId
from marl.experience.rollouts import EpochSampler
from marl.protocols import DealsOfStep, Experience, ExperienceConfig, Simulator

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
recorded/epochs | passes | passes over the recorded episodes so far (`recorded`)
"""


class RecordingsOfGame(Config):
    """Recordings of one game: the files, and the roles that learn from them."""

    example = "run: runs/nim"
    run: str | None = None
    """Folder of a run with recorded steps; instead of `path`."""
    path: Path | tuple[Path, ...] = ()
    """File or files of episodes, `.jsonl.zst` as written by runs and `marl play --out`; a folder stands for all such
    files in it."""
    roles: dict[str, str] = Field(default_factory=dict)
    """Role in the recording -> role of this scenario that learns from its texts, where the two names differ."""

    @property
    def files(self) -> list[Path]:
        """Return the recorded files, sorted by name within a folder; a path that does not exist is kept."""
        path = Path(self.run) / "trajectories" if self.run else self.path
        files: list[Path] = []
        for file in (path,) if isinstance(path, Path) else path:
            files += sorted(file.glob("*.jsonl.zst")) or [file]
        return files


class RecordedEpisodes(RecordingsOfGame, ExperienceConfig):
    """Takes the trajectories of each step from recorded play, in order, epoch after epoch.

    Every text is scored by the current policy of its role, whatever policy generated the text.
    """

    kind: str = "recorded"
    example = "path: games.jsonl.zst"
    off_policy: ClassVar[bool] = True
    games: dict[str, RecordingsOfGame] = Field(default_factory=dict)
    """Name of a game -> its recordings, in place of `run` and `path`. Episodes of different games are not compared."""
    shuffle: bool = False
    """True: shuffle the episodes in each epoch, by `seed`; episodes of one group stay together."""
    seed: int = 0
    """Seed of the order of the episodes."""

    @property
    def recordings_by_game(self) -> Mapping[str, RecordingsOfGame]:
        """Return game -> its recordings; a single game without a name in `games` is called ""."""
        return self.games or {"": self}

    def unmet_requirements(self) -> Iterator[str]:
        if self.games and (self.run or self.path or self.roles):
            yield "games: beside run, path or roles; what is recorded of a game stands below its name"
        for name, game in self.recordings_by_game.items():
            field = ("games." + name + "." if name else "") + ("run" if game.run else "path")
            if bool(game.run) == bool(game.path):
                yield f"{field}: {'beside run' if game.run else 'missing'}; give a run's folder, or files; not both"
            for file in game.files:
                if not file.is_file():
                    command = f"marl play SCENARIO experience=rollouts --episodes 100 --out {file}"
                    hint = f"runs write them as trajectories/STEP.jsonl.zst, and `{command}` writes one"
                    yield f"{field}: no such file: {file}; {hint}"

    def build(self) -> Experience:
        return RecordedEpisodesReplay(self)


class RecordedEpisodesReplay:
    """Experience built from `RecordedEpisodes`, which replays recorded trajectories."""

    def __init__(self, settings: RecordedEpisodes) -> None:
        self._settings = settings
        self._recorded: list[Trajectory] = []
        # Each block is the range of indices in `_recorded` of one group of episodes.
        blocks: list[range] = []
        for name, game in settings.recordings_by_game.items():
            for file in game.files:
                if not file.is_file():
                    raise ValueError(f"experience.path: no such file: {file}")
                trajectories = list(read_trajectories(file))
                if not trajectories:
                    raise ValueError(f"experience.path: no trajectories in {file}")
                for _, group in groupby(trajectories, key=lambda trajectory: trajectory.deal.group):
                    start = len(self._recorded)
                    self._recorded += [_rename_roles(trajectory, name, game.roles) for trajectory in group]
                    blocks.append(range(start, len(self._recorded)))
        self._order = EpochSampler(blocks, shuffle=settings.shuffle, seed=settings.seed)

    def gather(self, step: int, deals: DealsOfStep, simulator: Simulator) -> list[Trajectory]:
        """Return one trajectory for each deal of the step. Turns without a legal move have no tokens."""
        step_deals = deals(step)
        recorded = list(map(self._recorded.__getitem__, self._order.next_indices(len(step_deals))))
        requests, scores = _score_moves(recorded, simulator)
        episodes: list[Trajectory] = []
        for trajectory, deal in zip(recorded, step_deals, strict=True):
            episode = deal.episode
            # Every text is learned from, also of roles that another policy played.
            copy = Trajectory(replace(trajectory.deal, episode=episode, policies={}), trajectory.start)
            for turn in trajectory.turns:
                edges = trajectory.reads[turn.id].items()
                reads = {(episode, source[1]): kinds for source, kinds in edges}
                marks = tuple([mark._replace(source=(episode, mark.source[1])) for mark in turn.request.marks])
                # Sampling settings are those of the scoring, because learners apply temperature and truncation.
                scored = requests.get(turn.id, turn.request)
                request = replace(turn.request, marks=marks, policy=scored.policy, sampling=scored.sampling)
                completion = scores.get(turn.id)
                if completion is None:
                    # A text that could not be scored keeps no tokens, so no learner trains on it.
                    tokens: dict[str, Any] = dict.fromkeys(("prompt_ids", "token_ids", "logprobs", "version_runs"), ())
                    completion = replace(turn.completion, mark_tokens=(), **tokens)
                copy.add(replace(turn, id=(episode, turn.id[1]), request=request, completion=completion), reads, reads)
            for reward in trajectory.rewards:
                copy.rewards.append(replace(reward, turn=(episode, reward.turn[1])))
            copy.findings, copy.end = trajectory.findings, trajectory.end
            episodes.append(copy)
        return episodes

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


def _rename_roles(trajectory: Trajectory, game: str, learning_role_by_recorded: Mapping[str, str]) -> Trajectory:
    """Return `trajectory` as an episode of `game`, with roles renamed by `learning_role_by_recorded` (recorded role ->
    learning role)."""
    if not game and not learning_role_by_recorded:
        return trajectory
    seats = {agent: learning_role_by_recorded.get(role, role) for agent, role in trajectory.deal.seats.items()}
    start = f"{game}: {trajectory.start}" if game else trajectory.start
    deal = replace(trajectory.deal, seats=seats, game=game or trajectory.deal.game)
    copy = Trajectory(deal, start, trajectory.parent)
    for turn in trajectory.turns:
        reads = trajectory.reads[turn.id]
        copy.add(replace(turn, role=learning_role_by_recorded.get(turn.role, turn.role)), reads, reads)
    copy.rewards, copy.findings, copy.end = trajectory.rewards, trajectory.findings, trajectory.end
    return copy


def _score_moves(
    recorded: Sequence[Trajectory], simulator: Simulator
) -> tuple[dict[TurnId, Request], dict[TurnId, Completion]]:
    """Score the text of each legal move by its role's current policy; return the requests and the scores by turn.

    A text that cannot be scored, because it is too long for example, has no score.
    """
    # With `history: append`, a prompt continues the agent's previous turn: turn -> previous turn.
    previous: dict[TurnId, TurnId] = {}
    turns: list[Turn] = []
    legal: set[TurnId] = set()
    for trajectory in recorded:
        latest: dict[str, TurnId] = {}
        for turn in trajectory.turns:
            turns.append(turn)
            if turn.action is not None:
                legal.add(turn.id)
            if turn.request.continues and turn.agent in latest:
                previous[turn.id] = latest[turn.agent]
            latest[turn.agent] = turn.id
    needed = legal.union(previous.values())
    unscored = [turn for turn in turns if turn.id in needed]
    requests: dict[TurnId, Request] = {}
    scores: dict[TurnId, Completion] = {}
    # A prompt may continue the tokens of the previous turn, which must be scored in an earlier pass.
    while unscored:
        ready: list[Turn] = []
        waiting: list[Turn] = []
        for turn in unscored:
            (ready if turn.id not in previous or previous[turn.id] in scores else waiting).append(turn)
        # If no turn is ready, all others continue a text that could not be scored, so they have no token ids.
        if not ready:
            break
        batch: list[Request] = []
        for turn in ready:
            continues = turn.request.continues
            if turn.id in previous:
                score = scores[previous[turn.id]]
                continues = (*score.prompt_ids, *score.token_ids)
            request = simulator.request_to_current_policy(turn)
            requests[turn.id] = replace(request, forced=turn.completion.text, continues=continues)
            batch.append(requests[turn.id])
        for turn, score in zip(ready, simulator.score_forced_texts(batch, "train"), strict=True):
            if isinstance(score, Completion):
                scores[turn.id] = score
        unscored = waiting
    return requests, {turn: score for turn, score in scores.items() if turn in legal}
