"""Limit on faulty verdicts, which end the run because a verifier whose code fails would reward the wrong answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from marl.engines.workers.worker import WorkerPoolError

_WINDOW = 100
"""Number of a verifier's latest verdicts among which faulty ones are counted."""
_MIN_VERDICTS = 20
"""Minimum number of verdicts of a verifier before faulty verdicts can end the run."""
_MAX_SHARE = 0.1
"""Maximum share of errors among a verifier's latest `_WINDOW` verdicts. A larger share ends the run."""


class FaultyVerdictMonitor:
    """Counts of faulty verdicts among the latest verdicts of every verifier of an engine."""

    def __init__(self, verifiers: Iterable[str]) -> None:
        self._faults: dict[str, deque[bool]] = {name: deque(maxlen=_WINDOW) for name in verifiers}

    def add_verdict(self, verifier_name: str, fault_message: str) -> None:
        """Record a verdict. `fault_message` is its error message, or "" for a score.

        Raises:
            WorkerPoolError: if too many of the verifier's latest verdicts are faulty, with the message of the last.
        """
        latest = self._faults[verifier_name]
        latest.append(bool(fault_message))
        if fault_message and len(latest) >= _MIN_VERDICTS and sum(latest) > _MAX_SHARE * len(latest):
            raise WorkerPoolError(
                f"checks.{verifier_name}: {sum(latest)} of its latest {len(latest)} verdicts are faulty, which would "
                f"teach that such answers are wrong; the last: {fault_message}"
            )
