"""Errors of a run beyond Python's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from marl.types import Sample, TurnId

Blamed = Literal["loss", "gradient", "log-probability"]
"""Quantity that was not finite."""
_NO_MEMORY = re.compile("(can't|cannot) allocate memory|not enough memory|out of memory|bad_alloc|ALLOC_FAILED", re.I)
"""Found in a RuntimeError or an OSError, whose types say less."""


class Notice(UserWarning):
    """Warning that tells a user something about what the run does; the command line prints it as one line."""


class RunError(Exception):
    """Error that ends a run, with a message that says what to do; the command line shows it without a traceback."""


class EndpointError(RunError):
    """A remote endpoint does not answer, or would cost more than it may; the message names policy and URL."""


class EngineError(RunError):
    """An engine in processes of its own has died or hangs; the message says which policies it speaks for."""


class FolderError(RunError):
    """A file of a run's folder cannot be written or read; the message names it."""


class OutOfMemory(RunError):  # noqa: N818 (says what happened)
    """Memory of the machine or of an accelerator is used up; the message names the settings that use less."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for what Python, torch or the operating system raise when memory is used up."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError | OSError) and _NO_MEMORY.search(str(error)) is not None)


@dataclass(frozen=True, slots=True)
class Writing:
    """Context manager that turns errors of writing `path` into a `FolderError` that names it."""

    path: Path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # A full disk is an OSError in Python, a SafetensorError in safetensors (which this module does without) and a
        # bare Exception in tokenizers.
        if isinstance(error, OSError) or kind is Exception or (kind and kind.__name__ == "SafetensorError"):
            raise FolderError(f"{self.path} cannot be written: {error}") from error


@dataclass(frozen=True, slots=True)
class Gap:
    """Distance of a learner's log-probabilities (nats) of sampled tokens from the sampler's."""

    max: float
    """Greatest absolute difference."""
    mean: float
    """Mean absolute difference."""
    ratio: float
    """Mean of the learner's probability over the sampler's."""
    worst: TurnId
    """The turn with the greatest difference."""


class Unfaithful(RunError):  # noqa: N818 (says what a sampler is)
    """A policy's sampler and learner do not mean the same probabilities. Raised before the weights are touched."""

    def __init__(self, policy: str, gap: Gap, allowed: str, cause: str) -> None:
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


class NonFinite(RunError, ArithmeticError):  # noqa: N818 (says what a number is)
    """A learner's loss or gradient is not finite. Raised before the weights are touched."""

    def __init__(self, policy: str, what: Blamed, culprits: Sequence[Sample]) -> None:
        self.policy, self.what = policy, what
        self.samples: tuple[TurnId, ...] = tuple(sample.id for sample in culprits)
        named = "; ".join(f"episode {s.id[0]!r}, turn {s.id[1]} (role {s.role!r})" for s in culprits[:5])
        more = f" and {len(culprits) - 5} more" if len(culprits) > 5 else ""
        super().__init__(f"policy {policy!r}: the {what} is not finite at {named or 'no single turn'}{more}")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the samples too: by default, exceptions are rebuilt from their message alone."""
        return _rebuild, (self.policy, self.what, self.samples, str(self))


def _rebuild(policy: str, what: Blamed, samples: tuple[TurnId, ...], message: str) -> NonFinite:
    error = NonFinite(policy, what, ())
    error.samples, error.args = samples, (message,)
    return error
