"""All that simulators have in common, wherever their engines are: waiting, forks by number, counts, recorded turns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from marl.graph import Trajectory
from marl.protocols import Critic, Engine, EngineConfig, GameConfig, Player, Rewards, RoleConfig, View
from marl.rollout.casting import RoleCasting
from marl.rollout.episode import GameError
from marl.rollout.request_router import Answer
from marl.types import Deal, Fork, Metrics, Purpose, Request, Ticket, Turn, Usage

if TYPE_CHECKING:
    from marl.protocols import Weights

WAIT_S = 1.0
"""Longest that a blocking call sleeps before it looks at its deadline again."""
Players = Mapping[str, Engine | EngineConfig]
"""Policy -> the engine that speaks for it, or the settings of one without weights, which can be built anywhere."""
Start = tuple[Deal, Fork | None]
"""An episode to be played: from its beginning, or as one continuation of a fork."""


class EpisodeResult(NamedTuple):
    """Result of playing an episode."""

    trajectory: Trajectory | None
    """None if it was left out: because its game raised, or because a worker process failed for no fault of its own."""
    tokens: int = 0
    """Tokens that were sampled or scored for it."""
    error: GameError | None = None
    """The error of its game."""


@dataclass(frozen=True, slots=True)
class PartStatus:
    """Activity of a part at one moment."""

    name: str
    place: str
    """Machine and number of its process; "" in the process of the run."""
    doing: str
    since: float
    """Time, in seconds since 1970, at which it began with that."""
    open: int
    """Jobs that are not finished."""
    restarts: int = 0
    """Processes that were lost."""


class BaseSimulator(ABC):
    """Base of simulators. Methods of the protocol `Simulator` are described there."""

    def __init__(self, games: Mapping[str, GameConfig], casting: RoleCasting) -> None:
        self.games, self.casting = games, casting
        self.may_drop = 0
        """Number of episodes of a run that may be dropped because the game raised; one more ends the run."""
        self.dropped = 0
        self.unjudged = 0
        """Number of episodes that were left out because a worker process failed, for no fault of theirs."""
        self.critic: Critic | None = None
        """Values by the run's learners, for searches; None: there are none. Tables of other roles share it."""
        self.tokens: Counter[str] = Counter()
        """Tokens sampled or scored, by purpose: train, eval, credit."""
        self._branches: dict[str, Counter[str]] = {}

    @abstractmethod
    def variant(self, casting: RoleCasting, engines: Players | None = None) -> BaseSimulator:
        """Return another simulator of the same game with other roles and, if given, more engines or other ones.

        Both may have requests in flight at the same time, and tokens are counted together. Its dropped episodes are its
        own, and none may be dropped there.
        """

    @abstractmethod
    def of_game(self, name: str) -> BaseSimulator:
        """Return another simulator, as `variant` does, of one of several games: its deals name none."""

    @abstractmethod
    def start(self, work: Sequence[Deal | Fork], rewards: Rewards | None = None) -> list[Ticket]: ...

    @abstractmethod
    def poll(self, wait_s: float) -> list[tuple[Ticket, Trajectory | None]]: ...

    @abstractmethod
    def cancel(self, tickets: Iterable[Ticket]) -> None: ...

    @abstractmethod
    def ask(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Answer]: ...

    @abstractmethod
    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        """Let a policy sample with new weights from now on."""

    @abstractmethod
    def add_policy(self, name: str, player: Player) -> None: ...

    @abstractmethod
    def remove_policy(self, name: str) -> None: ...

    @abstractmethod
    def take_failures(self) -> list[str]:
        """Return messages, since the last call, about requests that got no completion: first causes, then numbers."""

    @abstractmethod
    def end_step(self) -> Metrics:
        """Return the figures of engines in the step, as `policy/NAME/...`."""

    @abstractmethod
    def sleep(self) -> None:
        """Let engines that can free their memory do so, until they are needed again."""

    def status(self) -> list[PartStatus]:
        """Return what each of its parts does; none if it has none."""
        return []

    @property
    @abstractmethod
    def spent(self) -> dict[str, Usage]:
        """Return what the answers of remote policies have cost in this run."""

    @abstractmethod
    def restore_spent(self, spent: Mapping[str, Usage]) -> None:
        """Go on from what an interrupted run had spent."""

    @abstractmethod
    def _in_flight(self, ticket: Ticket) -> bool:
        """Return True until an episode has ended."""

    @abstractmethod
    def pump(self, wait_s: float) -> None:
        """Let all that is in flight go on, for at most `wait_s` if nothing ends."""

    @abstractmethod
    def _collect(self, ticket: Ticket) -> Trajectory | None:
        """Return an episode that has ended, once."""

    def greedy(self) -> BaseSimulator:
        return self.variant(self.casting.greedy())

    def play(self, work: Sequence[Deal | Fork], rewards: Rewards | None = None) -> list[Trajectory]:
        return [trajectory for trajectory in self._drain(self.start(work, rewards)) if trajectory]

    def branch(self, forks: Sequence[Fork], rewards: Rewards | None = None) -> list[list[Trajectory]]:
        played = iter(self._drain(self.start(forks, rewards)))
        return [[trajectory for trajectory in islice(played, fork.n) if trajectory] for fork in forks]

    def _drain(self, tickets: Sequence[Ticket]) -> list[Trajectory | None]:
        """Wait for these episodes; those of other callers stay for `poll`."""
        try:
            for ticket in tickets:
                while self._in_flight(ticket):
                    self.pump(WAIT_S)
            return [self._collect(ticket) for ticket in tickets]
        finally:
            self.cancel(tickets)

    def release(self, trajectories: Iterable[Trajectory]) -> None:
        """Forget which continuations of these episodes were played."""
        for trajectory in trajectories:
            self._branches.pop(trajectory.id, None)

    def score(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Answer]:
        if missing := [i for i, request in enumerate(requests) if request.forced is None]:
            raise ValueError(f"score: request {missing[0]} has no `forced` text; `ask` samples one")
        return self.ask(requests, purpose)

    def request_for(self, turn: Turn) -> Request:
        role = self._role(turn.role, f"turn {turn.id}: ")
        return replace(turn.request, policy=role.policy, sampling=role.sampling)

    def request_from_text(self, role: str, agent: str, text: str) -> Request:
        """Return what `role`, in the seat of `agent`, asks its policy if `text` is all that it has observed."""
        self._role(role)
        return self.casting.request(role, View.of(agent, text), 0)

    def _role(self, name: str, where: str = "") -> RoleConfig:
        if name not in self.casting.roles:
            raise ValueError(f"{where}no role {name!r} here; roles: {', '.join(self.casting.roles)}")
        return self.casting.roles[name]

    def _starts(self, work: Sequence[Deal | Fork]) -> list[Start]:
        """Return the episodes of `work`, those of forks numbered on from their continuations started before.

        Raises:
            ValueError: if a fork's trajectory has no such turn.
        """
        for fork in (item for item in work if isinstance(item, Fork)):
            past = fork.trajectory
            if not 0 <= fork.index < len(past.turns):
                raise ValueError(f"fork: episode {past.id!r} has no turn {fork.index}; it has {len(past.turns)}")
        starts: list[Start] = []
        for item in work:
            starts += [(item, None)] if isinstance(item, Deal) else [(deal, item) for deal in self._forked(item)]
        return starts

    def _forked(self, fork: Fork) -> list[Deal]:
        """Return the deals of a fork's continuations, numbered on from those that were started before."""
        past, course = fork.trajectory, f"{fork.index}.{_course(fork)}"
        branches = self._branches.setdefault(past.id, Counter())
        first = branches[course] + 1
        branches[course] += fork.n
        return [
            replace(past.deal, episode=f"{past.id}~{course}.{branch}", purpose=fork.purpose, branch=branch)
            for branch in range(first, first + fork.n)
        ]

    def drop(self, error: GameError) -> None:
        """Count an episode whose game raised.

        Raises:
            GameError: if no more episodes may be dropped.
        """
        self.dropped += 1
        if self.dropped > self.may_drop:
            if self.may_drop:
                error.add_note(f"{self.may_drop} episodes were dropped before this one (schedule.max_drops)")
            raise error


def _course(fork: Fork) -> str:
    """Return what a fork does as a part of its episodes' names, different for different forks."""
    muted = [f"{quote(agent)}={_word(move)}" for agent, move in fork.muted]
    return ",".join([_word(fork.action), *muted, *(["kept"] if fork.keeps else [])])


def _word(move: str | None) -> str:
    """Return a move as a part of a name, without the characters that separate its parts."""
    if move is None:
        return ""
    return quote(move, safe=" ").replace("~", "%7E") or "="
