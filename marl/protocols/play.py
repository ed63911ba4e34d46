"""Protocols of play: the simulator, which plays episodes, and experiences, which supply a step's trajectories."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from marl.core.config import PluginConfig
from marl.core.graph import Trajectory
from marl.core.state import Stateful
from marl.core.types import Completion, Deal, Failure, Fork, Metrics, Purpose, Request, Ticket, Turn
from marl.protocols.engines import EngineConfig
from marl.protocols.games import GameConfig

RewardTransform = Callable[[Trajectory], Trajectory]
"""Function that returns a trajectory's turns with other rewards."""
Deals = Callable[[int], Sequence[Deal]]
"""Function that returns the deals of a step. It depends on the step's index alone, so that a queue can play ahead."""


@dataclass(frozen=True, slots=True)
class SavedWeights:
    """Earlier weights of one of the run's policies, to be played with that policy's model settings."""

    policy: str
    folder: Path
    """Hugging Face or PEFT folder, on a disk that every simulator can read."""
    version: int
    """Number of training steps after which the policy had these weights."""


AddedPlayer = EngineConfig | SavedWeights
"""Player beside the policies of a run: settings of an engine without weights, or weights on disk."""


class Simulator(Protocol):
    """Plays episodes, samples and scores for experience, credit and evaluation. It reads weights but never writes them.

    Tokens are charged to `Deal.purpose`, to `Fork.purpose` or to the `purpose` of a call.
    """

    def start(self, work: Sequence[Deal | Fork], rewards: RewardTransform | None = None) -> list[Ticket]:
        """Start episodes and return one ticket for each: one for a deal, `n` for a fork.

        A fork replays the game's seed and recorded moves up to its turn; inherited turns keep their ids. Starting the
        same fork again plays other continuations. `rewards` is applied to each finished episode.

        Raises:
            ValueError: if a fork's trajectory has no turn with its index.
            GameError: if a game raised an error and no more episodes may be dropped. No episode of `work` is then in
                flight.
        """
        ...

    def poll(self, wait_s: float) -> list[tuple[Ticket, Trajectory | None]]:
        """Return the episodes finished since the last call, in order of completion, after waiting at most `wait_s`.

        None stands for a dropped episode: its game raised an error (`schedule.max_drops`), or a verdict is missing for
        a cause outside the episode. The call does not wait if an episode has finished already.

        Raises:
            TimeoutError: naming the policies, if open requests got no answer within the deadline.
            GameError: if a game raised an error and no more episodes may be dropped.
        """
        ...

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Abandon episodes in flight, and cancel their requests in the engines."""
        ...

    def play(self, work: Sequence[Deal | Fork], rewards: RewardTransform | None = None) -> list[Trajectory]:
        """Play `work` to its end and return the trajectories in the order of `work`, without dropped ones."""
        ...

    def play_forks(self, forks: Sequence[Fork], rewards: RewardTransform | None = None) -> list[list[Trajectory]]:
        """Play all forks together and return the continuations of each fork, in the order of `forks`."""
        ...

    def ask(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Completion | Failure]:
        """Sample one completion for each request, in the order of `requests`."""
        ...

    def score(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Completion | Failure]:
        """Compute the log-probabilities (nats) of each request's `forced` text, without sampling.

        Raises:
            ValueError: if a request has no `forced` text.
        """
        ...

    def add_policy(self, name: str, player: AddedPlayer) -> None:
        """Add `player`, so that `Deal.policies` and requests can refer to it as `name` until it is removed.

        Raises:
            ValueError: if the name is taken, or the weights do not fit the policy's model.
        """
        ...

    def remove_policy(self, name: str) -> None:
        """Remove a player that `add_policy` added.

        Raises:
            ValueError: if no such player was added, or its requests are in flight.
        """
        ...

    def greedy(self) -> Simulator:
        """Return a simulator with the same game and engines in which all players decode greedily."""
        ...

    def request_for(self, turn: Turn) -> Request:
        """Return the request of a recorded turn, addressed to the current policy of the turn's role.

        Raises:
            ValueError: if the scenario has no such role.
        """
        ...

    def request_from_text(self, role: str, agent: str, text: str) -> Request:
        """Return the request of `role` in the seat of `agent` after the single observation `text`.

        Raises:
            ValueError: if the scenario has no such role.
        """
        ...


class Critic(Protocol):
    """Value function by the critics of a run's learners, for search."""

    def __call__(self, turns: Sequence[Turn]) -> list[float]:
        """Return the expected future reward of each turn's agent, given the turn's prompt.

        Raises:
            ValueError: if the learner of a turn's policy has no critic; names the policies whose learners have one.
        """
        ...


class Experience(Stateful, Protocol):
    """Supplier of a step's trajectories, such as fresh play, a start pool, tree search, recorded episodes, a data
    set."""

    def gather(self, step: int, deals: Deals, simulator: Simulator) -> list[Trajectory]:
        """Return the trajectories from which the run trains at `step`, in the order of `deals(step)`."""
        ...

    def metrics(self) -> Metrics:
        """Return the metrics of the last step."""
        ...


class WeightArchive(Protocol):
    """Access to a run's saved weights, for an experience in which policies play against their earlier weights."""

    @property
    def seed(self) -> int:
        """Return the seed of the run."""
        ...

    def save(self, policy: str, version: int) -> None:
        """Write the newest weights of a trained policy, those after `version` steps."""
        ...

    def policy_of(self, role: str) -> str:
        """Return the policy of a role."""
        ...

    def saved_weights(self, policy: str, version: int) -> SavedWeights:
        """Return the location of the weights that `save` wrote for this policy and version."""
        ...

    def prune(self, policy: str, members: Callable[[int], Collection[int]]) -> None:
        """Delete a policy's saved weights that neither the run nor any of its checkpoints needs.

        `members` maps a step to the versions in use after it, because the run may resume from any checkpoint.
        """
        ...

    def exported_player(self, name: str) -> EngineConfig | None:
        """Return the reference player `name` of the run's game, or `random`; None if a policy has this name."""
        ...

    def save_initial_state(self, policy: str) -> None:
        """Store the state of a policy's learner before its first update."""
        ...

    def reset_policy(self, policy: str, version: int) -> None:
        """Restore the initial state of a policy's learner, and publish the weights as those after `version` steps."""
        ...


@runtime_checkable
class TracksPolicyUpdates(Protocol):
    """Experience that is notified of updated policies, for instance to save their weights."""

    def set_archive(self, archive: WeightArchive) -> None:
        """Set the archive of the run. Called before the first step and before a state is restored."""
        ...

    def policies_updated(self, policies: Collection[str], step: int) -> None:
        """Handle the end of a step in which `policies` published new weights. `step` is the number of finished
        steps."""
        ...


@dataclass(frozen=True, slots=True)
class ScenarioSummary:
    """Facts about a scenario with which an experience's settings may conflict."""

    game: GameConfig | None
    """Settings of the game, or None in a scenario with several games."""
    seats: Mapping[str, str]
    """Role of each agent."""
    trained_roles: Mapping[str, str]
    """Policy of each trained role."""
    has_weights: Mapping[str, bool]
    """True for each policy with weights, False for the others."""
    readable: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Fields of `Reading` that the learner of each trained policy can compute."""


class ExperienceConfig(PluginConfig):
    """Settings of an experience."""

    group: ClassVar[str] = "experience"
    plays_groups: ClassVar[bool] = False
    """True if the experience plays each deal several times, so that even groups of size 1 have peers."""
    off_policy: ClassVar[bool] = False
    """True if the texts come from another author than the policy, without log-probabilities."""

    @property
    def max_steps_ahead(self) -> int:
        """Return the maximum number of steps by which play runs ahead of training."""
        return 0

    @property
    def max_loaded_weights(self) -> int:
        """Return the maximum number of saved weights in memory at once, in addition to the policies' current ones."""
        return 0

    @abstractmethod
    def build(self) -> Experience: ...

    def conflicts(self, seats: Mapping[str, str], group_size: int) -> Iterable[str]:
        """Yield an error message for each setting that contradicts `seats` (agent -> role) or `group_size`."""
        return ()

    def scenario_conflicts(self, cast: ScenarioSummary) -> Iterable[str]:
        """Yield an error message for each setting that contradicts the scenario's game, roles or policies."""
        return ()

    def extra_policies(self) -> Collection[str]:
        """Return the policies in the experience's episodes without a role."""
        return ()

    def seatings(self, seats: Mapping[str, str]) -> Sequence[Mapping[str, str]]:
        """Return the experience's assignments (agent -> role), the default assignment first."""
        return (seats,)
