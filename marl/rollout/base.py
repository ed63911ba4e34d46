"""Base class of simulators: waiting for episodes, naming forked episodes, counters, and requests of recorded turns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, Protocol
from urllib.parse import quote

from marl.core.graph import Trajectory
from marl.core.types import Deal, Fork, Metrics, Purpose, Request, Ticket, Turn, Usage
from marl.protocols import (
    Critic,
    Engine,
    EngineConfig,
    GameConfig,
    PromptContext,
    RewardTransform,
    RoleConfig,
    Simulator,
    models,
)
from marl.rollout.casting import RoleCasting
from marl.rollout.episode import GameError
from marl.rollout.request_router import Answer

WAIT_S = 1.0
"""Maximum time that a blocking call sleeps before checking its deadline again, in seconds."""
EngineMap = Mapping[str, Engine | EngineConfig]
"""Policy -> its engine, or the settings of an engine without weights, which any process can build."""
Start = tuple[Deal, Fork | None]
"""An episode to play: from the beginning of the game, or as a continuation of a fork."""


class EpisodeResult(NamedTuple):
    """Result of playing an episode."""

    trajectory: Trajectory | None
    """None if the episode was dropped: its game raised, or a worker process failed through no fault of the episode."""
    tokens: int = 0
    """Number of tokens sampled or scored for the episode."""
    error: GameError | None = None
    """Error raised by the game."""


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """Activity of a simulator shard or a learner process at one moment. `status.json` stores these fields by name."""

    name: str
    place: str
    """Host name and process id; "" in the run's own process."""
    doing: str
    since: float
    """Time at which the activity began, in seconds since 1970."""
    open: int
    """Number of unfinished jobs."""
    restarts: int = 0
    """Number of processes lost so far."""


class AnswerSource(Protocol):
    """Source of finished work: the request router of this process, or a group of shards."""

    def step(self, wait_s: float) -> None:
        """Advance everything in flight; block for at most `wait_s` if nothing finishes."""
        ...


class BaseSimulator(Simulator, ABC):
    """Base class of simulators. The protocol `Simulator` documents its methods.

    A subclass implements `start`, `poll`, `cancel`, `ask`, `add_policy` and `remove_policy` of the protocol, too.
    """

    def __init__(self, games: Mapping[str, GameConfig], casting: RoleCasting, source: AnswerSource) -> None:
        self.games, self.casting, self._source = games, casting, source
        self.max_drops = 0
        """Number of episodes of a run that may be dropped because the game raised. The next error ends the run."""
        self.dropped = 0
        self.unverified = 0
        """Number of episodes left out because a worker process failed through no fault of the episode."""
        self.critic: Critic | None = None
        """Values by the run's learners, for searches, or None if there are none. Variants share the critic."""
        self.tokens: Counter[str] = Counter()
        """Number of tokens sampled or scored, by purpose: train, eval, credit."""
        self._branches: dict[str, Counter[str]] = {}
        """Trajectory id -> number of continuations started so far, by fork."""

    @abstractmethod
    def variant(self, casting: RoleCasting, engines: EngineMap | None = None) -> BaseSimulator:
        """Return another simulator of the same game with other roles and, if given, further or replaced engines.

        Both may have requests in flight at the same time and share the token counter. The variant counts its own
        dropped episodes, and allows none.
        """

    @abstractmethod
    def for_game(self, name: str) -> BaseSimulator:
        """Return a variant for the game `name` alone. Its deals name no game."""

    @abstractmethod
    def load_weights(self, policy: str, weights: models.Weights, version: int) -> None:
        """Sample with new weights of `policy` from now on."""

    @abstractmethod
    def take_failure_messages(self) -> list[str]:
        """Return messages, since the last call, about requests without a completion: first causes, then counts."""

    @abstractmethod
    def end_step(self) -> Metrics:
        """Return the engines' metrics of the step, as `policy/NAME/...`."""

    @abstractmethod
    def sleep(self) -> None:
        """Free the memory of engines with a sleep mode until their next request."""

    def status(self) -> list[ProcessStatus]:
        """Return the activity of each shard; empty for a simulator without shards."""
        return []

    @property
    @abstractmethod
    def usage(self) -> dict[str, Usage]:
        """Return the cost of remote policies' answers in this run, by policy."""

    @abstractmethod
    def restore_usage(self, spent: Mapping[str, Usage]) -> None:
        """Continue counting from the usage of an interrupted run."""

    @abstractmethod
    def _in_flight(self, ticket: Ticket) -> bool:
        """Return True until the episode has ended."""

    @abstractmethod
    def _collect(self, ticket: Ticket) -> Trajectory | None:
        """Remove and return an episode after its end."""

    def greedy(self) -> BaseSimulator:
        return self.variant(self.casting.greedy())

    def play(self, work: Sequence[Deal | Fork], rewards: RewardTransform | None = None) -> list[Trajectory]:
        return [trajectory for trajectory in self._drain(self.start(work, rewards)) if trajectory]

    def play_forks(self, forks: Sequence[Fork], rewards: RewardTransform | None = None) -> list[list[Trajectory]]:
        episodes = iter(self._drain(self.start(forks, rewards)))
        continuations: list[list[Trajectory]] = []
        for fork in forks:
            continuations.append([trajectory for trajectory in islice(episodes, fork.n) if trajectory])
        return continuations

    def _drain(self, tickets: Sequence[Ticket]) -> list[Trajectory | None]:
        """Wait for these episodes; episodes of other callers stay for `poll`."""
        try:
            for ticket in tickets:
                while self._in_flight(ticket):
                    self._source.step(WAIT_S)
            return [self._collect(ticket) for ticket in tickets]
        finally:
            self.cancel(tickets)

    def forget_branches(self, trajectories: Iterable[Trajectory]) -> None:
        """Delete the counters of continuations of these episodes: their next forks are numbered from 1 again."""
        for trajectory in trajectories:
            self._branches.pop(trajectory.id, None)

    def score(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Answer]:
        for index, request in enumerate(requests):
            if request.forced is None:
                raise ValueError(f"score: request {index} has no `forced` text; `ask` samples one")
        return self.ask(requests, purpose)

    def request_for(self, turn: Turn) -> Request:
        role = self._role(turn.role, f"turn {turn.id}: ")
        return replace(turn.request, policy=role.policy, sampling=role.sampling)

    def request_from_text(self, role: str, agent: str, text: str) -> Request:
        self._role(role)
        return self.casting.request(role, PromptContext.of(agent, text), 0)

    def _role(self, name: str, prefix: str = "") -> RoleConfig:
        if name not in self.casting.roles:
            raise ValueError(f"{prefix}no role {name!r} here; roles: {', '.join(self.casting.roles)}")
        return self.casting.roles[name]

    def _starts(self, work: Sequence[Deal | Fork]) -> list[Start]:
        """Return the episodes of `work`. Continuations of a fork are numbered on from earlier calls.

        Raises:
            ValueError: if a fork's trajectory has no such turn.
        """
        # All forks are checked before any is numbered, so that a refused call leaves the counters as they were.
        for item in work:
            if isinstance(item, Fork) and not 0 <= item.index < len(item.trajectory.turns):
                past = item.trajectory
                raise ValueError(f"fork: episode {past.id!r} has no turn {item.index}; it has {len(past.turns)}")
        starts: list[Start] = []
        for item in work:
            if isinstance(item, Deal):
                starts.append((item, None))
                continue
            past, name = item.trajectory, f"{item.index}.{_fork_name(item)}"
            branches = self._branches.setdefault(past.id, Counter())
            first = branches[name] + 1
            branches[name] += item.n
            for branch in range(first, first + item.n):
                episode = f"{past.id}~{name}.{branch}"
                starts.append((replace(past.deal, episode=episode, purpose=item.purpose, branch=branch), item))
        return starts

    def drop(self, error: GameError) -> None:
        """Count an episode whose game raised.

        Raises:
            GameError: if no more episodes may be dropped.
        """
        self.dropped += 1
        if self.dropped > self.max_drops:
            if self.max_drops:
                error.add_note(f"{self.max_drops} episodes were dropped before this one (schedule.max_drops)")
            raise error


def _fork_name(fork: Fork) -> str:
    """Return the component of a forked episode's name for the fork's settings; different forks differ in it."""
    components = [_move_name(fork.action)]
    components += [f"{quote(agent)}={_move_name(move)}" for agent, move in fork.scripted_moves]
    if fork.keeps_unchanged_answers:
        components.append("kept")
    return ",".join(components)


def _move_name(move: str | None) -> str:
    """Return a move as a component of an episode's name, with the separators of names escaped."""
    if move is None:
        return ""
    # "=" stands for an empty move, which differs from no move at all.
    return quote(move, safe=" ").replace("~", "%7E") or "="
