"""Log of requests without a completion, and the limit on failures of worker processes."""

from __future__ import annotations

from collections import Counter, deque

from marl.core.types import Completion, CompletionFailure
from marl.engines.workers.worker import WorkerPoolError

_REPORTED_SINGLY = 3
"""Number of a policy's first failures that are logged one by one. Later, failures 10, 100 and so on are logged."""
_WINDOW = 100
"""Number of the latest answers of worker processes among which missing answers are counted."""
_MAX_MISSING = 2
"""Maximum number of missing answers in the window up to which a run always goes on."""
_MAX_MISSING_SHARE = 0.1
"""Maximum share of missing answers in the window up to which a run always goes on."""
_POWERS_OF_TEN = frozenset(10**exponent for exponent in range(1, 19))


class FailedRequestLog:
    """Counts of failed requests by policy, and messages about them for the run's log."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        """Messages that the simulator has not reported yet."""
        self._failed: Counter[str] = Counter()
        """Policy -> number of its failed requests."""
        self._missing: deque[bool] = deque(maxlen=_WINDOW)
        """Latest answers of worker processes: True for a missing answer."""

    def record_answer(self, policy: str, answer: Completion | CompletionFailure, *, from_worker_process: bool) -> None:
        """Record an answer of `policy`. `from_worker_process` is True if the policy's engine has worker processes.

        Raises:
            WorkerPoolError: if both limits of missing answers of worker processes are exceeded; states the last cause.
        """
        if isinstance(answer, CompletionFailure):
            self._failed[policy] += 1
            failed = self._failed[policy]
            if failed <= _REPORTED_SINGLY:
                self.messages.append(f"policy {policy!r} gave no answer ({answer.finish}): {answer.reason}")
            elif failed in _POWERS_OF_TEN:
                self.messages.append(
                    f"policy {policy!r}: {failed} requests without an answer; the last: {answer.reason}"
                )
        if from_worker_process:
            self._missing.append(isinstance(answer, CompletionFailure))
            missing, latest = sum(self._missing), len(self._missing)
            if isinstance(answer, CompletionFailure) and missing > max(_MAX_MISSING, _MAX_MISSING_SHARE * latest):
                raise WorkerPoolError(
                    f"{missing} of the latest {latest} answers of verifiers and tools are missing, for causes that are "
                    f"not the question's; the last, of policy {policy!r}: {answer.reason}"
                )
