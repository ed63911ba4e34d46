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
    """Maximum time of a call of a game's or role's code, or of successive calls in a turn, in seconds."""


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


class EpisodeGuard(GameErrorGuard):
    """Context manager around successive calls of an episode's game and roles, with `deadline_s` for all of them.

    One guard covers the calls of a turn, because to enter a guard for each takes longer than a small game's move. The
    body says before a call whose code it is (`running`), and after calls of the game that its own code goes on. Errors
    are those of `GameErrorGuard` while the game's code runs; otherwise only the deadline raises one.
    """

    __slots__ = ("running",)

    GAME = "the game"
    OWN_CODE = ""

    def __init__(self, game: Game, describe_state: Callable[[], str], deadline_s: float) -> None:
        GameErrorGuard.__init__(self, game, describe_state, deadline_s)
        self.running: str = self.OWN_CODE
        """`GAME`, `OWN_CODE`, or the name of the role whose code runs."""

    @property
    def full_call_name(self) -> str:
        if self.running is self.GAME:
            return super().full_call_name
        return f"role {self.running!r} {self.call_name()}" if self.running else f"an episode {self.call_name()}"

    def raise_error_of_call(self, error: BaseException) -> None:
        try:
            if self.running is self.GAME:
                super().raise_error_of_call(error)
            else:
                CallWatchdog.raise_error_of_call(self, error)
        finally:
            self.running = self.OWN_CODE


def game_name_for_messages(game: Game) -> str:
    """Return the name of `game` for messages."""
    return f"game {type(game).__name__}"


def describe_for_replay(trajectory: Trajectory) -> str:
    """Return text for messages with the data to replay an episode: name, seed, options and latest moves."""
    deal, actions = trajectory.deal, [turn.action for turn in trajectory.turns]
    earlier = len(actions) - _LAST_MOVES
    shown = f"{earlier} earlier actions, then {actions[-_LAST_MOVES:]}" if earlier > 0 else f"actions {actions}"
    return f"(episode {deal.episode}, seed {deal.seed}, options {deal.options}, {shown})"
