"""Errors that end a run with a message to the user instead of a traceback."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from marl.core.types import Sample, TurnId

NonFiniteQuantity = Literal["loss", "gradient", "log-probability", "reward"]
"""Quantity of an update that was infinite or not a number."""
_NO_MEMORY = re.compile("(can't|cannot) allocate memory|not enough memory|out of memory|bad_alloc|ALLOC_FAILED", re.I)
"""Pattern of libraries' messages in a plain RuntimeError or OSError that mean a lack of memory."""


class UserNotice(UserWarning):
    """Warning to the user about the run's behaviour. The command line prints it as one line."""


class RunError(Exception):
    """Error that ends a run. The message tells the user how to fix it; the command line shows no traceback."""


class EpisodeWithoutOutcomeError(RunError):
    """An episode has no valid outcome, for a cause outside the policies' answers. It is left out and counted."""


class ProgramDivergedError(EpisodeWithoutOutcomeError):
    """The program of a fork, run by `policy`, has made other calls than its record, although it has read the same."""

    def __init__(self, policy: str, message: str) -> None:
        super().__init__(message)
        self.policy = policy


class EndpointError(RunError):
    """A remote endpoint does not answer, or would exceed the cost limit. The message names policy and URL."""


class EngineError(RunError):
    """An engine in separate processes has died or hangs. The message names the engine's policies."""


class EngineLostError(EngineError):
    """Processes of an engine have died or hang, so that new processes may do the same work."""


class RunFolderError(RunError):
    """A file in a run's folder cannot be written or read. The message names the file."""


class OutOfMemoryRunError(RunError):
    """Memory of the machine or of a GPU is used up. The message names settings that reduce memory use."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if Python, torch or the operating system raised `error` because memory is used up."""
    # torch's OutOfMemoryError is recognised by its name, because this module must not import torch.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError | OSError) and _NO_MEMORY.search(str(error)) is not None


@dataclass(frozen=True, slots=True)
class RaiseRunFolderErrorOnFailedWrite:
    """Context manager that converts errors of writing `path` into a `RunFolderError` with the path in the message."""

    path: Path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # If the disk is full, Python raises OSError, safetensors SafetensorError, and tokenizers a bare Exception.
        if isinstance(error, OSError) or kind is Exception or (kind and kind.__name__ == "SafetensorError"):
            raise RunFolderError(f"{self.path} cannot be written: {error}") from error


@dataclass(frozen=True, slots=True)
class SamplerLearnerLogprobGap:
    """Difference between learner and sampler in the log-probabilities (nats) of sampled tokens."""

    max: float
    """Maximum absolute difference of the log-probabilities (nats)."""
    mean: float
    """Mean absolute difference of the log-probabilities (nats)."""
    ratio: float
    """Mean ratio of the learner's probability to the sampler's."""
    worst: TurnId
    """Turn with the maximum difference of log-probabilities."""


class SamplerLogprobMismatchError(RunError):
    """Sampler and learner of a policy compute different probabilities. Raised before an update changes the weights."""

    def __init__(self, policy: str, gap: SamplerLearnerLogprobGap, allowed: str, cause: str) -> None:
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
    """A learner's loss, gradient, log-probability or reward is not finite. Raised before an update changes weights."""

    def __init__(self, policy: str, quantity: NonFiniteQuantity, culprits: Sequence[Sample]) -> None:
        self.policy, self.quantity = policy, quantity
        self.samples: tuple[TurnId, ...] = tuple([sample.id for sample in culprits])
        turns: list[str] = []
        for sample in culprits[:5]:
            episode, turn = sample.id
            turns.append(f"episode {episode!r}, turn {turn} (role {sample.role!r})")
        location = "; ".join(turns) or "no single turn"
        more = f" and {len(culprits) - 5} more" if len(culprits) > 5 else ""
        super().__init__(f"policy {policy!r}: the {quantity} is not finite at {location}{more}")

    def __reduce__(self) -> tuple[object, ...]:
        # A learner process pickles this error. By default pickle would call `__init__` with the message alone.
        return NonFiniteError.__new__, (type(self), str(self)), vars(self)
