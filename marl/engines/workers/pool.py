"""Pool of worker processes, which are killed when a job's time is over.

One thread per process sends jobs and waits, so that a process is killed on time even while this one is busy. After a
job that crashed or took too long, the next one gets a fresh process.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from contextlib import suppress
from weakref import finalize

from marl.config import Component
from marl.engines.workers.jobs import Job, JobResult
from marl.engines.workers.worker import Worker, WorkerError


class WorkerPool:
    """A few workers that run jobs, first come, first served. Only `take` blocks."""

    def __init__(self, parts: Mapping[str, Component], workers: int, memory: int) -> None:
        self._workers = [Worker(parts, memory) for _ in range(workers)]
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        # No SimpleQueue: a signal at the end of a timed wait, such as the watchdog's, can make it wait for ever.
        self._done: queue.Queue[tuple[Job, JobResult | WorkerError]] = queue.Queue()
        self._started = False
        self.close = finalize(self, _close, self._workers, self._jobs)
        """Ends all processes; also when the pool is forgotten, and when Python ends."""

    def put(self, job: Job) -> None:
        """Queue a job."""
        if not self._started:
            self._started = True
            for worker in self._workers:
                threading.Thread(target=_serve, args=(worker, self._jobs, self._done), daemon=True).start()
        self._jobs.put(job)

    def take(self, wait_s: float) -> list[tuple[Job, JobResult]]:
        """Return all results that are ready; wait at most `wait_s` for the first.

        Raises:
            WorkerError: if no process comes up, or a part cannot do its work on this machine.
        """
        results: list[tuple[Job, JobResult]] = []
        with suppress(queue.Empty):
            while True:
                job, result = self._done.get(timeout=wait_s) if wait_s > 0 and not results else self._done.get_nowait()
                if isinstance(result, WorkerError):
                    raise result
                if not job.cancelled:
                    results.append((job, result))
        return results

    def cancel(self, job: Job) -> None:
        """Give up a job; it has no result."""
        for worker in self._workers:
            worker.cancel(job)


def _serve(
    worker: Worker,
    jobs: queue.SimpleQueue[Job | None],
    done: queue.Queue[tuple[Job, JobResult | WorkerError]],
) -> None:
    while not worker.closed and (job := jobs.get()) is not None:
        if job.cancelled:
            continue
        try:
            done.put((job, worker.run(job)))
        except WorkerError as error:
            done.put((job, error))


def _close(workers: list[Worker], jobs: queue.SimpleQueue[Job | None]) -> None:
    for worker in workers:
        worker.close()
        jobs.put(None)
