"""Counts and causes of requests without a completion, and the limit on failures of worker processes."""

from __future__ import annotations

from collections import Counter, deque

from marl.core.types import Completion, Failure
from marl.engines.workers.worker import WorkerError

_REPORTED_SINGLY = 3
"""Number of failures per policy with a message each. Later messages: the tenth, hundredth and so on."""
_LATEST = 100
"""Length of the window of worker answers, over which missing answers are counted."""
_MAX_MISSING = 2
"""Number of missing answers in the window that is tolerated in any case ..."""
_MAX_MISSING_SHARE = 0.1
"""... or this share of the window, if larger."""
_POWERS_OF_TEN = frozenset(10**exponent for exponent in range(1, 19))


class FailureLog:
    """Counts failed requests by policy, and stores messages about them until `take_messages`."""

    def __init__(self) -> None:
        self._failed: Counter[str] = Counter()
        self._messages: list[str] = []
        self._latest: deque[bool] = deque(maxlen=_LATEST)
        """True for each missing answer of a worker process."""

    def note(self, policy: str, answer: Completion | Failure, *, of_worker: bool) -> None:
        """Record an answer of `policy`.

        Raises:
            WorkerError: if too many of the latest answers of worker processes are missing, with the cause of the last.
        """
        if isinstance(answer, Failure):
            self._failed[policy] += 1
            failed = self._failed[policy]
            if failed <= _REPORTED_SINGLY:
                self._messages.append(f"policy {policy!r} gave no answer ({answer.finish}): {answer.reason}")
            elif failed in _POWERS_OF_TEN:
                self._messages.append(
                    f"policy {policy!r}: {failed} requests without an answer; the last: {answer.reason}"
                )
        if of_worker:
            self._latest.append(isinstance(answer, Failure))
            missing, latest = sum(self._latest), len(self._latest)
            if isinstance(answer, Failure) and missing > max(_MAX_MISSING, _MAX_MISSING_SHARE * latest):
                raise WorkerError(
                    f"{missing} of the latest {latest} answers of verifiers and tools are missing, for causes that are "
                    f"not the question's; the last, of policy {policy!r}: {answer.reason}"
                )

    def take_messages(self) -> list[str]:
        """Return the messages since the last call."""
        messages, self._messages = self._messages, []
        return messages
