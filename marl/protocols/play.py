"""Protocols of play: the simulator, which plays episodes, and experiences, which decide what a step learns from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from marl.config import Component
from marl.state import Stateful
from marl.types import Completion, Deal, Failure, Fork, Metrics, Purpose, Request, Ticket, Turn

if TYPE_CHECKING:
    from marl.graph import Trajectory

Rewards = Callable[["Trajectory"], "Trajectory"]
"""Return the same turns with other rewards."""
Deals = Callable[[int], Sequence[Deal]]
"""Return the starts of a step: a pure function of the step's number, so that a queue can play ahead."""


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


class Experience(Stateful, Protocol):
    """Supplies a step's trajectories: fresh play, a start pool, a tree search, recorded episodes, a data set."""

    def gather(self, step: int, deals: Deals, simulator: Simulator) -> list[Trajectory]:
        """Return the trajectories that `step` is judged and learnt from, in the order of `deals(step)`."""
        ...

    def metrics(self) -> Metrics:
        """Return figures of the last step."""
        ...


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

    @abstractmethod
    def build(self) -> Experience: ...

    def conflicts(self, seats: Mapping[str, str], group_size: int) -> Iterable[str]:
        """Yield a message for each setting that contradicts these seats (agent -> role) or this group size."""
        return ()
