"""Base class of simulators: play until the end of given episodes, counters, and requests for recorded turns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from marl.core.graph import Trajectory
from marl.core.types import Deal, Fork, Metrics, Purpose, Request, Ticket, Turn
from marl.core.usage import RemoteUsage
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
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.forks import ForkedEpisodeNamer
from marl.rollout.game_errors import GameError
from marl.rollout.request_router import Answer

WAIT_S = 1.0
"""Maximum wait of a blocking call between two checks of its time limit, in seconds."""
EngineMap = Mapping[str, Engine | EngineConfig]
"""Policy -> engine, or settings from which any process can build an engine without weights."""


class FinishedEpisode(NamedTuple):
    """Result of playing an episode."""

    trajectory: Trajectory | None
    """Trajectory of the episode, or None if its game raised an error or a worker process gave no verdict."""
    tokens: int = 0
    """Number of tokens sampled or scored for the episode."""
    error: GameError | None = None
    """Error raised by the game, or None."""
    compressed_line: bytes | None = None
    """Line of the trajectory in a trajectory file, compressed, if the process that played the episode encoded it."""


@dataclass(slots=True)
class DroppedEpisodeCount:
    """Number of a run's episodes that were dropped after errors of their games, and its maximum; diverged forks."""

    limit: int = 0
    """Maximum number of dropped episodes. One more error ends the run."""
    count: int = 0
    diverged: Counter[str] = field(default_factory=Counter[str])
    """Policy that runs programs -> number of forks left out because the program made other calls than recorded."""


@dataclass(frozen=True, slots=True)
class ProcessActivity:
    """Activity of a simulator shard, a learner process or an engine of programs. `status.json` has these fields."""

    name: str
    """Name of the shard or learner process, such as `simulator 0`."""
    place: str
    """Host name and process id; "" in the run's own process."""
    doing: str
    """Description of the activity, such as `idle`."""
    since: float
    """Time at which the activity began, in seconds since 1970."""
    open: int
    """Number of unfinished episodes and request batches of the process."""
    restarts: int = 0
    """Number of times that the shard, the learner process or the engine's process was lost and replaced."""


class BaseSimulator(Simulator, ABC):
    """Base class of simulators. The protocol `Simulator` documents the methods that experience and credit use.

    A subclass implements `start`, `poll`, `cancel`, `ask`, `add_policy` and `remove_policy` of the protocol, and the
    abstract methods of this class.
    """

    def __init__(
        self, games: Mapping[str, GameConfig], casting: RoleRequestBuilder, advance_play: Callable[[float], None]
    ) -> None:
        """Create a simulator of `games` (name -> settings) with the roles of `casting`.

        `advance_play` advances all requests or episodes in flight. It blocks for at most the given number of seconds if
        none of them finishes.
        """
        self.games, self.casting, self._advance_play = games, casting, advance_play
        self.drops = DroppedEpisodeCount()
        """Episodes dropped after an error of their game. Variants share the count and the limit."""
        self.unverified = 0
        """Number of episodes left out because a worker process gave no verdict, for a cause outside the episode."""
        self.critic: Critic | None = None
        """Value function of the run's learners for searches, or None if no learner has a critic. Variants share it."""
        self.tokens: Counter[str] = Counter()
        """Number of tokens sampled or scored, by purpose (`train`, `eval`, `credit`)."""
        self.fork_names = ForkedEpisodeNamer()
        """Names given to the forked episodes of this simulator. A variant has its own."""

    @abstractmethod
    def variant(
        self, casting: RoleRequestBuilder, engines: EngineMap | None = None, game: str | None = None
    ) -> BaseSimulator:
        """Return a simulator of the same games with the roles of `casting`.

        Both simulators may have requests in flight at the same time. They share the counts of tokens and of dropped
        episodes, so that `schedule.max_drops` holds for training and evaluation together.

        Args:
            casting: roles of the variant, with the seed of their samples.
            engines: policy -> engine that the variant adds or replaces, or None to keep the engines.
            game: name of the variant's only game, which the variant's deals do not name; None to keep all games.
        """

    def variant_for_game(self, game_name: str) -> BaseSimulator:
        """Return a variant that plays only the game `game_name`. Deals of the variant name no game."""
        return self.variant(self.casting, game=game_name)

    @abstractmethod
    def load_weights(self, policy: str, weights: models.Weights, version: int) -> None:
        """Replace the weights of `policy`. Episodes in progress continue with the new weights."""

    @abstractmethod
    def take_failure_messages(self) -> list[str]:
        """Return the messages about failed requests since the last call: single causes first, counts later."""

    @abstractmethod
    def take_step_metrics(self) -> Metrics:
        """Return the engines' metrics of the training step, as `policy/NAME/...`."""

    @abstractmethod
    def put_engines_to_sleep(self) -> None:
        """Free the memory of engines with a sleep mode until their next request."""

    def process_activities(self) -> list[ProcessActivity]:
        """Return the activity of each shard, or of each engine that runs programs; else an empty list."""
        return []

    @property
    @abstractmethod
    def usage_by_policy(self) -> dict[str, RemoteUsage]:
        """Policy of a remote engine -> cost and tokens of its answers in this run."""

    @abstractmethod
    def restore_usage(self, usage_by_policy: Mapping[str, RemoteUsage]) -> None:
        """Set the usage to `usage_by_policy`, the usage before an interruption of the run."""

    @abstractmethod
    def _is_in_flight(self, ticket: Ticket) -> bool:
        """Return True if the episode of `ticket` has not ended yet."""

    @abstractmethod
    def _take_trajectory(self, ticket: Ticket) -> Trajectory | None:
        """Remove the finished episode of `ticket`, and return its trajectory or None if it was dropped."""

    def with_greedy_decoding(self) -> BaseSimulator:
        return self.variant(self.casting.with_greedy_decoding())

    def play(
        self, deals_and_forks: Sequence[Deal | Fork], reward_transform: RewardTransform | None = None
    ) -> list[Trajectory]:
        return [
            trajectory for trajectory in self._play_to_end(self.start(deals_and_forks, reward_transform)) if trajectory
        ]

    def play_forks(
        self, forks: Sequence[Fork], reward_transform: RewardTransform | None = None
    ) -> list[list[Trajectory]]:
        episodes = iter(self._play_to_end(self.start(forks, reward_transform)))
        continuations: list[list[Trajectory]] = []
        for fork in forks:
            continuations.append([trajectory for trajectory in islice(episodes, fork.n) if trajectory])
        return continuations

    def _play_to_end(self, tickets: Sequence[Ticket]) -> list[Trajectory | None]:
        """Block until the episodes of `tickets` have ended, and return them. Other episodes stay for `poll`."""
        try:
            for ticket in tickets:
                while self._is_in_flight(ticket):
                    self._advance_play(WAIT_S)
            return [self._take_trajectory(ticket) for ticket in tickets]
        finally:
            self.cancel(tickets)

    def score_forced_texts(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Answer]:
        for index, request in enumerate(requests):
            if request.forced is None:
                raise ValueError(f"score_forced_texts: request {index} has no `forced` text; `ask` samples one")
        return self.ask(requests, purpose)

    def request_to_current_policy(self, turn: Turn) -> Request:
        role = self._require_role(turn.role, f"turn {turn.id}: ")
        return replace(turn.request, policy=role.policy, sampling=role.sampling)

    def request_from_text(self, role: str, agent: str, observation: str) -> Request:
        self._require_role(role)
        return self.casting.build_request(role, PromptContext.from_text(agent, observation), 0)

    def _require_role(self, role_name: str, error_prefix: str = "") -> RoleConfig:
        if role_name not in self.casting.roles:
            raise ValueError(f"{error_prefix}no role {role_name!r} here; roles: {', '.join(self.casting.roles)}")
        return self.casting.roles[role_name]

    def count_dropped_episode(self, error: GameError) -> None:
        """Count an episode that was dropped because its game raised `error`.

        Raises:
            GameError: if no more episodes may be dropped.
        """
        self.drops.count += 1
        if self.drops.count > self.drops.limit:
            if self.drops.limit:
                error.add_note(f"{self.drops.limit} episodes were dropped before this one (schedule.max_drops)")
            raise error
