"""Protocols of play: the simulator, which plays episodes, and experiences, which decide what a step learns from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from marl.config import Component
from marl.protocols.engines import EngineConfig
from marl.protocols.games import GameConfig
from marl.state import Stateful
from marl.types import Completion, Deal, Failure, Fork, Metrics, Purpose, Request, Ticket, Turn

if TYPE_CHECKING:
    from marl.graph import Trajectory

Rewards = Callable[["Trajectory"], "Trajectory"]
"""Return the same turns with other rewards."""
Deals = Callable[[int], Sequence[Deal]]
"""Return the starts of a step: a pure function of the step's number, so that a queue can play ahead."""


@dataclass(frozen=True, slots=True)
class SavedWeights:
    """Weights that one of a run's policies had earlier; all else about them is the policy's own."""

    policy: str
    folder: Path
    """Folder of Hugging Face or PEFT, on a disk that every simulator reads."""
    version: int
    """Steps after which the policy had them."""


Player = EngineConfig | SavedWeights
"""Speaker beside the policies of a run: an engine without weights, by its settings, or weights on disk."""


class Simulator(Protocol):
    """Plays, samples and scores for experience, credit and evaluation. Reads weights, never writes them.

    Tokens are metered by `Deal.purpose`, `Fork.purpose` or the `purpose` of a call.
    """

    def start(self, work: Sequence[Deal | Fork], rewards: Rewards | None = None) -> list[Ticket]:
        """Begin episodes and return a ticket for each: one for a deal, `n` for a fork.

        A fork replays its start from seed and recorded moves; inherited turns keep their ids. A fork that is started
        again plays other continuations. `rewards` is applied to each episode when it has finished.

        Raises:
            ValueError: if a fork's trajectory has no such turn.
            GameError: if a game raised and no more episodes may be dropped; nothing of `work` is in flight then.
        """
        ...

    def poll(self, wait_s: float) -> list[tuple[Ticket, Trajectory | None]]:
        """Return the episodes that have finished since the last call, in the order in which they did.

        None stands for an episode that was dropped because its game raised (`schedule.max_drops`), or because a
        verdict is missing for no fault of its own. Blocks no longer than `wait_s`, and not at all if something has
        finished already.

        Raises:
            TimeoutError: if open requests got no answer within the deadline; names the policies that owe one.
            GameError: if a game raised and no more episodes may be dropped.
        """
        ...

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Give up episodes in flight; their requests are taken back from the engines."""
        ...

    def play(self, work: Sequence[Deal | Fork], rewards: Rewards | None = None) -> list[Trajectory]:
        """Start `work` and wait for all of it: trajectories in the order of `work`, without those that were dropped."""
        ...

    def branch(self, forks: Sequence[Fork], rewards: Rewards | None = None) -> list[list[Trajectory]]:
        """Play all forks at once; return the courses of each, in order."""
        ...

    def ask(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Completion | Failure]:
        """Sample one completion for each request, in order."""
        ...

    def score(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Completion | Failure]:
        """Return the log-probabilities (nats) of each request's `forced` text, in order; nothing is sampled.

        Raises:
            ValueError: if a request has no such text.
        """
        ...

    def add_policy(self, name: str, player: Player) -> None:
        """Let a player speak wherever `Deal.policies` or a request names it, until it is removed.

        Raises:
            ValueError: if the name is taken, or the weights do not fit.
        """
        ...

    def remove_policy(self, name: str) -> None:
        """Let a player go that was added.

        Raises:
            ValueError: if there is no such player, or its requests are in flight.
        """
        ...

    def greedy(self) -> Simulator:
        """Return a simulator of the same game and engines whose players always say what is most likely."""
        ...

    def request_for(self, turn: Turn) -> Request:
        """Return the request of a recorded turn, addressed to the policy that speaks for its role here.

        Raises:
            ValueError: if there is no such role.
        """
        ...

    def request_from_text(self, role: str, agent: str, text: str) -> Request:
        """Return what `role`, in the seat of `agent`, asks its policy if `text` is all that it has observed.

        Raises:
            ValueError: if there is no such role.
        """
        ...


class Critic(Protocol):
    """Values by the critics of a run's learners, for whoever plans ahead."""

    def __call__(self, turns: Sequence[Turn]) -> list[float]:
        """Return what the agent of each turn is expected to be paid from its prompt on, in the game's rewards.

        Raises:
            ValueError: if the learner of its policy has no critic; names the policies whose learners have one.
        """
        ...


class Experience(Stateful, Protocol):
    """Supplies a step's trajectories: fresh play, a start pool, a tree search, recorded episodes, a data set."""

    def gather(self, step: int, deals: Deals, simulator: Simulator) -> list[Trajectory]:
        """Return the trajectories that `step` is judged and learnt from, in the order of `deals(step)`."""
        ...

    def metrics(self) -> Metrics:
        """Return figures of the last step."""
        ...


class Archive(Protocol):
    """Everything that a run lends to an experience which lets its policies meet their earlier weights."""

    @property
    def seed(self) -> int:
        """Return the seed of the run."""
        ...

    def save(self, policy: str, version: int) -> None:
        """Write the newest weights of a policy that learns, those after `version` steps."""
        ...

    def policy_of(self, role: str) -> str:
        """Return the policy that speaks for a role."""
        ...

    def weights(self, policy: str, version: int) -> SavedWeights:
        """Return where weights that were saved are."""
        ...

    def keep(self, policy: str, members: Callable[[int], Collection[int]]) -> None:
        """Remove saved weights of a policy that no state of the run needs any more.

        `members`: step -> versions that were needed then. A run may go back to any of its checkpoints.
        """
        ...

    def exported(self, name: str) -> EngineConfig | None:
        """Return a player that the run's game exports, or `random`; None if a policy of the run has this name."""
        ...

    def note_start(self, policy: str) -> None:
        """Note how a policy's learner is now, before it has learnt anything."""
        ...

    def begin_anew(self, policy: str, version: int) -> None:
        """Put a policy's learner back to what was noted, and let engines sample with those weights after `version`
        steps."""
        ...


@runtime_checkable
class FollowsLearning(Protocol):
    """Experience that is told when policies have learnt, and may keep their weights."""

    def follow(self, archive: Archive) -> None:
        """Take the archive of the run, before its first step and before a state is restored."""
        ...

    def learnt(self, policies: Collection[str], step: int) -> None:
        """Take note that these policies have learnt, and have published weights, at the end of a step; `step` steps are
        done then."""
        ...


@dataclass(frozen=True, slots=True)
class Cast:
    """Everything about a scenario that an experience may have to fit."""

    game: GameConfig | None
    """None where there are several games."""
    seats: Mapping[str, str]
    """Agent -> role."""
    learning: Mapping[str, str]
    """Role whose turns are learnt from -> its policy."""
    policies: Mapping[str, bool]
    """Policy -> whether it has weights."""
    readable: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Policy that learns -> fields of `Reading` that its learner reads."""


class ExperienceConfig(Component):
    """Settings of an experience."""

    group: ClassVar[str] = "experience"
    siblings: ClassVar[bool] = False
    """True if it plays several courses of each deal itself, so that groups of one have peers, too."""
    off_policy: ClassVar[bool] = False
    """True if its texts are what somebody else said, of whom no log-probabilities are known."""

    @property
    def ahead(self) -> int:
        """Return the number of steps by which it may play ahead of learning."""
        return 0

    @property
    def guests(self) -> int:
        """Return the number of saved weights that it has in memory at the same time, beside the policies' own."""
        return 0

    @abstractmethod
    def build(self) -> Experience: ...

    def conflicts(self, seats: Mapping[str, str], group_size: int) -> Iterable[str]:
        """Yield a message for each setting that contradicts these seats (agent -> role) or this group size."""
        return ()

    def miscast(self, cast: Cast) -> Iterable[str]:
        """Yield a message for each setting that contradicts those who play."""
        return ()

    def speakers(self) -> Collection[str]:
        """Return policies that speak in its episodes beside those of roles."""
        return ()

    def seatings(self, seats: Mapping[str, str]) -> Sequence[Mapping[str, str]]:
        """Return all ways, agent -> role, in which it fills these seats; the first is for who plays in other ways."""
        return (seats,)
