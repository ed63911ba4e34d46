"""Errors of a game's code, and limits on its turns and time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from marl.core.errors import EpisodeWithoutOutcomeError, RunError
from marl.core.graph import Trajectory
from marl.core.watchdog import CallWatchdog
from marl.protocols import Game

_LAST_MOVES = 20
"""Maximum number of latest moves in a message about an episode."""


class GameError(RunError):
    """A game raised an error, or did not end. The message names game, seed, options and the moves so far."""


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Limits of an episode, in turns and in time."""

    max_turns: int = 10_000
    """Maximum number of the game's turns, above which `GameError` is raised, and of the model calls of a program."""
    deadline_s: float = 600.0
    """Maximum time of one call of a game's or role's code, in seconds."""


_DEFAULT_LIMITS = EpisodeLimits()


class GameErrorGuard(CallWatchdog):
    """Context manager around calls of a game's code.

    It raises an error of this code as `GameError`, and interrupts a call that takes longer than `deadline_s` seconds,
    with `CallTimeoutError`.
    """

    __slots__ = ("_game",)

    def __init__(
        self, game: Game, describe_state: Callable[[], str], deadline_s: float = _DEFAULT_LIMITS.deadline_s
    ) -> None:
        """Guard calls of `game`. `describe_state` returns seed, options and moves so far, for error messages."""
        # The game's name is added only for a message, since every episode makes a guard.
        CallWatchdog.__init__(self, describe_state, deadline_s)
        self._game = game

    @property
    def full_call_name(self) -> str:
        return f"{game_name_for_messages(self._game)} {self.call_name()}"

    def raise_error_of_call(self, error: BaseException) -> None:
        CallWatchdog.raise_error_of_call(self, error)
        # Ctrl-C is no subclass of Exception and not the game's error, but `sys.exit` in the game's code is.
        if isinstance(error, (Exception, SystemExit)) and type(error) is not EpisodeWithoutOutcomeError:
            name = type(error).__name__
            message = f"{game_name_for_messages(self._game)} raised {name}: {error} {self.call_name()}"
            raise GameError(message) from error


class _RoleCodeGuard(CallWatchdog):
    """Watchdog of calls of a role's code."""

    __slots__ = ("_role",)

    def __init__(self, role: str, describe_state: Callable[[], str], deadline_s: float) -> None:
        CallWatchdog.__init__(self, describe_state, deadline_s)
        self._role = role

    @property
    def full_call_name(self) -> str:
        return f"role {self._role!r} {self.call_name()}"


class RoleCodeGuards(dict[str, CallWatchdog]):
    """Role -> watchdog that interrupts calls of the role's code after the deadline. Missing ones are made."""

    __slots__ = ("_deadline_s", "_describe_state")

    def __init__(self, describe_state: Callable[[], str], deadline_s: float) -> None:
        """`describe_state` returns seed, options and moves of the episode so far, for error messages."""
        self._describe_state, self._deadline_s = describe_state, deadline_s

    def __missing__(self, role: str) -> CallWatchdog:
        self[role] = guard = _RoleCodeGuard(role, self._describe_state, self._deadline_s)
        return guard


def game_name_for_messages(game: Game) -> str:
    """Return the name of `game` for messages."""
    return f"game {type(game).__name__}"


def describe_for_replay(trajectory: Trajectory) -> str:
    """Return text for messages with the data to replay an episode: name, seed, options and latest moves."""
    deal, actions = trajectory.deal, [turn.action for turn in trajectory.turns]
    earlier = len(actions) - _LAST_MOVES
    shown = f"{earlier} earlier actions, then {actions[-_LAST_MOVES:]}" if earlier > 0 else f"actions {actions}"
    return f"(episode {deal.episode}, seed {deal.seed}, options {deal.options}, {shown})"
