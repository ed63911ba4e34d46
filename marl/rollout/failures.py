"""Requests that got no completion: why, how many, and when worker processes fail too often."""

from __future__ import annotations

from collections import Counter, deque

from marl.engines.workers.worker import WorkerError
from marl.types import Completion, Failure

_REPORTED_SINGLY = 3
"""Failures of a policy that are reported one by one; of later ones, every tenth, hundredth and so on."""
_LATEST = 100
"""Answers of worker processes that are looked back on."""
_TOLERATED = 2
"""Of these, so many may be missing ..."""
_TOLERATED_SHARE = 0.1
"""... or, if that is more, this share."""


class FailureLog:
    """Counts failed requests by policy, and keeps messages about them until somebody takes them."""

    def __init__(self) -> None:
        self._failed: Counter[str] = Counter()
        self._messages: list[str] = []
        self._latest: deque[bool] = deque(maxlen=_LATEST)
        """True for each answer of a worker process that is missing."""

    def note(self, policy: str, answer: Completion | Failure, *, of_worker: bool) -> None:
        """Take note of an answer.

        Raises:
            WorkerError: if too many of the latest answers of worker processes are missing, with the cause of the last.
        """
        if isinstance(answer, Failure):
            self._count(policy, answer)
        if of_worker:
            self._latest.append(isinstance(answer, Failure))
            missing, latest = sum(self._latest), len(self._latest)
            if isinstance(answer, Failure) and missing > max(_TOLERATED, _TOLERATED_SHARE * latest):
                raise WorkerError(
                    f"{missing} of the latest {latest} answers of verifiers and tools are missing, for causes that are "
                    f"not the question's; the last, of policy {policy!r}: {answer.reason}"
                )

    def _count(self, policy: str, failure: Failure) -> None:
        self._failed[policy] += 1
        failed = self._failed[policy]
        if failed <= _REPORTED_SINGLY:
            self._messages.append(f"policy {policy!r} gave no answer ({failure.finish}): {failure.reason}")
        elif failed in _POWERS_OF_TEN:
            self._messages.append(f"policy {policy!r}: {failed} requests without an answer; the last: {failure.reason}")

    def take(self) -> list[str]:
        """Return the messages since the last call."""
        messages, self._messages = self._messages, []
        return messages


_POWERS_OF_TEN = frozenset(10**exponent for exponent in range(1, 19))
