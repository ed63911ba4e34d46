"""Protocols of play: the simulator, which plays episodes, and the experience, which supplies a step's trajectories."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from marl.core.config import PluginConfig
from marl.core.graph import Trajectory
from marl.core.state import Stateful
from marl.core.types import Completion, CompletionFailure, Deal, Fork, Metrics, Purpose, Request, Ticket, Turn
from marl.protocols.engines import EngineConfig
from marl.protocols.games import GameConfig
from marl.protocols.roles import RoleConfig

RewardTransform = Callable[[Trajectory], Trajectory]
"""Function that returns a trajectory with the same turns and other rewards."""
DealsOfStep = Callable[[int], Sequence[Deal]]
"""Function that returns a step's deals, so that a queue can play ahead. The deals depend on the step's index alone, or
with `schedule.mix: learning_progress` also on the metrics observed so far."""


@dataclass(frozen=True, slots=True)
class SavedWeights:
    """Earlier weights of one of the run's policies on disk, which an engine loads with the policy's model settings."""

    policy: str
    folder: Path
    """Hugging Face or PEFT folder of the weights, on a disk that every simulator can read."""
    version: int
    """Number of training steps after which the policy had these weights."""


AddedPlayer = EngineConfig | SavedWeights
"""Player in addition to the run's policies: settings of an engine without weights, or saved weights."""


class Simulator(Protocol):
    """Simulator that plays episodes, samples and scores for experience, credit and evaluation.

    It reads weights and never changes them. Tokens are charged to `Deal.purpose`, to `Fork.purpose`, or to the
    `purpose` of a call.
    """

    def start(
        self, deals_and_forks: Sequence[Deal | Fork], reward_transform: RewardTransform | None = None
    ) -> list[Ticket]:
        """Start the episodes of `deals_and_forks` and return their tickets: one for each deal, `n` for each fork.

        A deal is a new episode. A fork continues a recorded episode from just before one of its turns: the game's seed
        and the earlier moves are replayed, and replayed turns keep their ids. A fork that is started again has other
        continuations. `reward_transform` is applied to each finished episode.

        Raises:
            ValueError: if a fork's trajectory has no turn with its index.
            GameError: if a game raised an error and no more episodes may be dropped. All episodes of `deals_and_forks`
                are then cancelled.
        """
        ...

    def poll(self, wait_s: float) -> list[tuple[Ticket, Trajectory | None]]:
        """Return the episodes finished since the last call, in order of completion, after waiting at most `wait_s`.

        A dropped episode has None instead of a trajectory: its game raised an error (`schedule.max_drops`), or a
        verdict is missing for a cause outside the episode. The call does not wait if an episode has finished already.

        Raises:
            TimeoutError: naming the policies, if open requests got no answer within the deadline.
            GameError: if a game raised an error and no more episodes may be dropped.
        """
        ...

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Abandon episodes in flight, and cancel their requests in the engines."""
        ...

    def play(
        self, deals_and_forks: Sequence[Deal | Fork], reward_transform: RewardTransform | None = None
    ) -> list[Trajectory]:
        """Play `deals_and_forks` to its end and return the trajectories in the order of `deals_and_forks`, without
        dropped episodes."""
        ...

    def play_forks(
        self, forks: Sequence[Fork], reward_transform: RewardTransform | None = None
    ) -> list[list[Trajectory]]:
        """Play all forks together and return the continuations of each fork, in the order of `forks`."""
        ...

    def ask(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Completion | CompletionFailure]:
        """Sample one completion for each request, in the order of `requests`."""
        ...

    def score_forced_texts(
        self, requests: Sequence[Request], purpose: Purpose = "credit"
    ) -> list[Completion | CompletionFailure]:
        """Compute the log-probabilities (nats) of each request's `forced` text, without sampling.

        Raises:
            ValueError: if a request has no `forced` text.
        """
        ...

    def add_policy(self, policy_name: str, player: AddedPlayer) -> None:
        """Add `player`, so that `Deal.policies` and requests can refer to it as `policy_name` until it is removed.

        Raises:
            ValueError: if the name is taken, or the weights do not fit the policy's model.
        """
        ...

    def remove_policy(self, policy_name: str) -> None:
        """Remove a player that `add_policy` added.

        Raises:
            ValueError: if no such player was added, or its requests are in flight.
        """
        ...

    def with_greedy_decoding(self) -> Simulator:
        """Return a simulator with the same game and engines in which all players decode greedily."""
        ...

    def request_to_current_policy(self, turn: Turn) -> Request:
        """Return the request of a recorded turn, addressed to the current policy of the turn's role.

        Raises:
            ValueError: if the scenario has no such role.
        """
        ...

    def request_from_text(self, role: str, agent: str, observation: str) -> Request:
        """Return the request of `role` in the seat of `agent` after the single observation `observation`.

        Raises:
            ValueError: if the scenario has no such role.
        """
        ...


class Critic(Protocol):
    """Value function for searches, computed by the critics of a run's learners."""

    def __call__(self, turns: Sequence[Turn]) -> list[float]:
        """Return the expected future reward of each turn's agent, given the turn's prompt.

        Raises:
            ValueError: if the learner of a turn's policy has no critic; names the policies whose learners have one.
        """
        ...


class Experience(Stateful, Protocol):
    """Supplier of a step's trajectories, such as new play, a start pool, tree search or recorded episodes."""

    def gather(self, step: int, deals: DealsOfStep, simulator: Simulator) -> list[Trajectory]:
        """Return the trajectories from which the run trains at `step`, in the order of `deals(step)`."""
        ...

    def metrics(self) -> Metrics:
        """Return the experience's metrics of the last step."""
        ...


class WeightArchive(Protocol):
    """Archive of a run's weights, for an experience in which policies play against their earlier weights."""

    @property
    def seed(self) -> int:
        """Return the seed of the run."""
        ...

    def save(self, policy: str, version: int) -> None:
        """Write the newest weights of a trained policy to disk, as the weights after `version` steps."""
        ...

    def policy_of_role(self, role: str) -> str:
        """Return the policy of a role."""
        ...

    def saved_weights(self, policy: str, version: int) -> SavedWeights:
        """Return the location of the weights that `save` wrote for this policy and version."""
        ...

    def population_members(self, run: Path, policy: str) -> list[tuple[str, SavedWeights, float]]:
        """Return (name, weights, probability) of each member of a population, `RUN@pool` or `RUN@meta`.

        `policy` is the policy of this run whose engine and model settings load the weights.
        """
        ...

    def prune_weights(self, policy: str, versions_after_step: Callable[[int], Collection[int]]) -> None:
        """Delete the saved weights of `policy` that neither the run nor any of its checkpoints needs.

        `versions_after_step` returns, for a step, the versions in use after this step. The run may resume from any
        checkpoint.
        """
        ...

    def reference_player(self, name: str) -> EngineConfig | None:
        """Return the reference player `name` of the run's game, or `random`; None if a policy has this name."""
        ...

    def save_initial_learner_state(self, policy: str) -> None:
        """Store the state of a policy's learner before its first update."""
        ...

    def reset_to_initial_state(self, policy: str, version: int) -> None:
        """Restore the initial state of a policy's learner, and publish the weights as those after `version` steps."""
        ...


@runtime_checkable
class TracksPolicyUpdates(Protocol):
    """Experience that the run informs of updated policies, for instance to save their weights."""

    def set_archive(self, archive: WeightArchive) -> None:
        """Set the run's archive of weights. The run calls this before the first step and before restoring a state."""
        ...

    def on_policies_updated(self, policies: Collection[str], step: int) -> None:
        """Handle the end of a step in which `policies` published new weights. `step` counts the finished steps."""
        ...


@runtime_checkable
class HasPopulation(Protocol):
    """Experience with a pool of saved weights, whose mixtures an evaluation may measure."""

    def population(self) -> Mapping[str, tuple[SavedWeights, float]]:
        """Return name of a member -> its weights, and its probability under the meta-strategy (0: never drawn)."""
        ...


@dataclass(frozen=True, slots=True)
class ScenarioSummary:
    """Facts about a scenario that may contradict the settings of an experience."""

    game: GameConfig | None
    """Settings of the game, or None in a scenario with several games."""
    seats: Mapping[str, str]
    """Agent -> role."""
    trained_roles: Mapping[str, str]
    """Trained role -> policy."""
    has_weights: Mapping[str, bool]
    """Policy -> True if the policy has weights."""
    groups: int
    """Number of groups in a step (`schedule.groups`)."""
    readable: Mapping[str, Collection[str]] = field(default_factory=dict[str, Collection[str]])
    """Trained policy -> fields of `Reading` that the policy's learner can compute."""
    roles: Mapping[str, RoleConfig] = field(default_factory=dict[str, RoleConfig])
    """Name of a role -> its settings, for all roles."""


class ExperienceConfig(PluginConfig):
    """Base class of the settings of an experience."""

    group: ClassVar[str] = "experience"
    plays_groups: ClassVar[bool] = False
    """True if the experience plays each deal several times, so that even groups of size 1 have peers."""
    off_policy: ClassVar[bool] = False
    """True if another author than the policy wrote the texts of the episodes, without log-probabilities."""

    @property
    def max_steps_played_ahead(self) -> int:
        """Return the maximum number of steps by which the experience plays ahead of training."""
        return 0

    @property
    def max_saved_weights_in_memory(self) -> int:
        """Return the maximum number of saved weights in memory at once, besides the policies' current weights."""
        return 0

    @abstractmethod
    def build(self) -> Experience: ...

    def seating_conflicts(self, role_by_agent: Mapping[str, str], group_size: int) -> Iterable[str]:
        """Yield an error message for each setting that contradicts `role_by_agent` (agent -> role) or `group_size`."""
        return ()

    def scenario_conflicts(self, summary: ScenarioSummary) -> Iterable[str]:
        """Yield an error message for each setting that contradicts the scenario's game, roles or policies."""
        return ()

    @property
    def needed_measure(self) -> str:
        """Return the measure that every training game must report in its episodes, or "" if none is needed."""
        return ""

    def policies_without_role(self) -> Collection[str]:
        """Return the policies without a role that play in the experience's episodes."""
        return ()

    def seatings(self, role_by_agent: Mapping[str, str]) -> Sequence[Mapping[str, str]]:
        """Return all assignments of roles (agent -> role) in the experience's episodes. The first is
        `role_by_agent`."""
        return (role_by_agent,)
