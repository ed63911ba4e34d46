"""Pool of worker processes. A process is killed when its job's time is over; the next job gets a new process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from contextlib import suppress
from weakref import finalize

from marl.core.config import PluginConfig
from marl.engines.workers.jobs import Job, JobResult
from marl.engines.workers.worker import Worker, WorkerError


class WorkerPool:
    """Workers that run jobs in the order of submission. Only `take` blocks."""

    def __init__(self, plugins: Mapping[str, PluginConfig], workers: int, memory: int) -> None:
        """`workers`: number of processes; `memory`: address space of each process, in bytes."""
        self._workers = [Worker(plugins, memory) for _ in range(workers)]
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        # Not a SimpleQueue: a signal at the end of a timed wait, such as the watchdog's, can make it wait for ever.
        self._done: queue.Queue[tuple[Job, JobResult | WorkerError]] = queue.Queue()
        self._started = False
        self.close = finalize(self, _close, self._workers, self._jobs)
        """Ends all processes. Also called when the pool is garbage collected, and when Python exits."""

    def put(self, job: Job) -> None:
        """Queue a job."""
        if not self._started:
            self._started = True
            # One thread per process: a process is killed on time even while this thread is busy.
            for worker in self._workers:
                threading.Thread(target=_serve, args=(worker, self._jobs, self._done), daemon=True).start()
        self._jobs.put(job)

    def take(self, wait_s: float) -> list[tuple[Job, JobResult]]:
        """Return the finished jobs with their results; wait at most `wait_s` seconds for the first.

        Raises:
            WorkerError: if no process starts, or a plug-in cannot work on this machine.
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
        """Give up a job; no result follows."""
        for worker in self._workers:
            worker.cancel(job)


def _serve(
    worker: Worker,
    jobs: queue.SimpleQueue[Job | None],
    done: queue.Queue[tuple[Job, JobResult | WorkerError]],
) -> None:
    """Run jobs until None comes. Not a method: a thread must not keep the pool from being collected."""
    while not worker.closed and (job := jobs.get()) is not None:
        if job.cancelled:
            continue
        try:
            done.put((job, worker.run(job)))
        except WorkerError as error:
            done.put((job, error))


def _close(workers: list[Worker], jobs: queue.SimpleQueue[Job | None]) -> None:
    """End all processes, and wake up every thread by a None."""
    for worker in workers:
        worker.close()
        jobs.put(None)
