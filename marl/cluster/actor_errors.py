"""Errors that leave a Ray actor in a form that every other process can read."""

from __future__ import annotations

import pickle
import traceback
from contextlib import ContextDecorator
from types import TracebackType

from ray.exceptions import RayError

_SHARED_PACKAGES = ("builtins", "marl", "torch")
"""Packages whose classes of errors the run's process knows, too, and may treat by their class."""


class ActorError(RuntimeError):
    """Text of an error in an actor, with the error's class. The error itself cannot be sent to other processes."""


class SendableErrors(ContextDecorator):
    """Decorator that replaces errors of a method of an actor by an `ActorError` if they cannot be sent.

    Ray itself replaces an error that cannot be pickled by a `RayError`, which looks like a lost connection: the call
    would be repeated in new processes, and fail there in the same way.
    """

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if not isinstance(error, Exception) or isinstance(error, RayError) or _can_be_sent(error):
            return
        replaced = ActorError(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
        replaced.add_note("".join(traceback.format_exception(error)))
        raise replaced from None


def _can_be_sent(error: Exception) -> bool:
    """Return True if the run's process can restore `error`: a class that it knows, whose content can be pickled."""
    if type(error).__module__.partition(".")[0] not in _SHARED_PACKAGES:
        return False
    try:
        pickle.loads(pickle.dumps(error))
    # Pickle raises these if the content cannot be pickled, or if the class's `__init__` needs other arguments.
    except (pickle.PicklingError, TypeError, AttributeError):
        return False
    return True
