"""Errors that end a run with a message for the user instead of a traceback."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from marl.core.types import Sample, TurnId

Blamed = Literal["loss", "gradient", "log-probability"]
"""Kind of a value that was not finite."""
_NO_MEMORY = re.compile("(can't|cannot) allocate memory|not enough memory|out of memory|bad_alloc|ALLOC_FAILED", re.I)
"""Pattern of the messages with which libraries raise a plain RuntimeError or OSError when memory is used up."""


class Notice(UserWarning):
    """Warning to the user about the run's behaviour. The command line prints it as one line."""


class RunError(Exception):
    """Error that ends a run. The message tells the user how to fix it; the command line shows no traceback."""


class EndpointError(RunError):
    """A remote endpoint does not answer, or would exceed the cost limit. The message names policy and URL."""


class EngineError(RunError):
    """An engine in separate processes has died or hangs. The message names the engine's policies."""


class FolderError(RunError):
    """A file in a run's folder cannot be written or read. The message names the file."""


class OutOfMemory(RunError):  # noqa: N818 (says what happened)
    """Memory of the machine or of an accelerator is used up. The message names settings that reduce memory use."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if Python, torch or the operating system raised `error` because memory is used up."""
    # torch's class is recognised by name, because this module does without torch.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError | OSError) and _NO_MEMORY.search(str(error)) is not None


@dataclass(frozen=True, slots=True)
class Writing:
    """Context manager that converts errors of writing `path` into a `FolderError` with the path in the message."""

    path: Path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # A full disk is an OSError in Python, a SafetensorError in safetensors (which this module does without) and a
        # bare Exception in tokenizers.
        if isinstance(error, OSError) or kind is Exception or (kind and kind.__name__ == "SafetensorError"):
            raise FolderError(f"{self.path} cannot be written: {error}") from error


@dataclass(frozen=True, slots=True)
class LogprobGap:
    """Difference between learner and sampler in the log-probabilities (nats) of sampled tokens."""

    max: float
    """Maximum absolute difference."""
    mean: float
    """Mean absolute difference."""
    ratio: float
    """Mean ratio of the learner's probability to the sampler's."""
    worst: TurnId
    """Turn with the maximum difference."""


class SamplerMismatch(RunError):  # noqa: N818 (says what a sampler is)
    """Sampler and learner of a policy compute different probabilities. Raised before an update changes the weights."""

    def __init__(self, policy: str, gap: LogprobGap, allowed: str, cause: str) -> None:
        super().__init__(policy, gap, allowed, cause)
        self.policy, self.gap, self.allowed, self.cause = policy, gap, allowed, cause

    def __str__(self) -> str:
        episode, turn = self.gap.worst
        return (
            f"policy {self.policy!r}: its learner's log-probabilities of sampled tokens are up to {self.gap.max:.2g} "
            f"nats from the sampler's, {self.gap.mean:.2g} on average, mean ratio {self.gap.ratio:.3g} "
            f"(learner.fidelity allows {self.allowed}); worst at episode {episode!r}, turn {turn}. "
            f"Likely cause: {self.cause}"
        )


class NonFiniteError(RunError, ArithmeticError):
    """Loss or gradient of a learner is not finite. Raised before an update changes the weights."""

    def __init__(self, policy: str, quantity: Blamed, culprits: Sequence[Sample]) -> None:
        self.policy, self.quantity = policy, quantity
        self.samples: tuple[TurnId, ...] = tuple(sample.id for sample in culprits)
        turns = "; ".join(f"episode {s.id[0]!r}, turn {s.id[1]} (role {s.role!r})" for s in culprits[:5])
        more = f" and {len(culprits) - 5} more" if len(culprits) > 5 else ""
        super().__init__(f"policy {policy!r}: the {quantity} is not finite at {turns or 'no single turn'}{more}")

    def __reduce__(self) -> tuple[object, ...]:
        # Learner processes send the error to the run. By default, pickle rebuilds an exception from its message alone.
        return _unpickle_error, (self.policy, self.quantity, self.samples, str(self))


def _unpickle_error(policy: str, quantity: Blamed, samples: tuple[TurnId, ...], message: str) -> NonFiniteError:
    error = NonFiniteError(policy, quantity, ())
    error.samples, error.args = samples, (message,)
    return error
