"""Errors of actors reach the run with their class and text, and never pass for a lost connection."""

from __future__ import annotations

import pickle
import threading

import pytest
from ray import exceptions

from marl.cluster.actor_errors import ActorError, SendableErrors
from marl.core.errors import NonFiniteError


class Odd(Exception):  # noqa: N818 (of a plug-in)
    """A plug-in's error that no other process can restore."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"{reason} {number}")


class Actor:
    @SendableErrors()
    def call(self, error: BaseException) -> None:
        raise error


def seen_by_run(error: Exception) -> Exception:
    """Return the cause that Ray's error has in the run's process."""
    sent = exceptions.RayTaskError("call", "", error, proctitle="actor", pid=1, ip="127.0.0.1")
    cause: Exception = pickle.loads(pickle.dumps(sent)).cause
    return cause


def raised(error: Exception) -> Exception:
    with pytest.raises((type(error), ActorError)) as caught:
        Actor().call(error)
    return caught.value


def test_an_error_that_cannot_be_pickled_would_pass_for_one_of_ray() -> None:
    assert isinstance(seen_by_run(ValueError(threading.Lock())), exceptions.RayError)
    with pytest.raises(TypeError, match="reason"):
        seen_by_run(Odd(3, "three"))


@pytest.mark.parametrize(
    "error", [ValueError("of a lock", threading.Lock()), Odd(3, "three")], ids=("content", "class")
)
def test_an_error_that_cannot_be_sent_arrives_as_text_with_its_class_and_place(error: Exception) -> None:
    cause = seen_by_run(raised(error))
    assert isinstance(cause, ActorError)
    assert type(error).__qualname__ in str(cause)
    assert str(error) in str(cause)
    assert "raise error" in cause.__notes__[0]


@pytest.mark.parametrize("error", [ValueError("no"), NonFiniteError("actor", "loss", []), MemoryError("full")], ids=str)
def test_errors_that_the_run_treats_by_their_class_keep_it(error: Exception) -> None:
    cause = seen_by_run(raised(error))
    assert type(cause) is type(error)
    assert str(cause) == str(error)


def test_errors_of_ray_and_requests_to_exit_stay_as_they_are() -> None:
    assert type(raised(exceptions.GetTimeoutError("late"))) is exceptions.GetTimeoutError
    with pytest.raises(SystemExit):
        Actor().call(SystemExit(1))
