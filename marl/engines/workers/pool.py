"""Pool of worker processes. A process is killed when its job's time is over, and the next job gets a new process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from contextlib import suppress
from weakref import finalize

from marl.core.config import PluginConfig
from marl.engines.workers.jobs import PluginJob, PluginJobResult
from marl.engines.workers.worker import PluginWorker, WorkerPoolError


class WorkerPool:
    """Pool of worker processes that run jobs in the order of submission. Only `take_finished_jobs` blocks."""

    def __init__(self, plugins: Mapping[str, PluginConfig], workers: int, memory: int) -> None:
        """`workers`: number of processes; `memory`: maximum address space of each process, in bytes."""
        self._workers = [PluginWorker(plugins, memory) for _ in range(workers)]
        self._jobs: queue.SimpleQueue[PluginJob | None] = queue.SimpleQueue()
        # A SimpleQueue could wait for ever if a signal, such as the watchdog's, arrives at the end of a timed wait.
        self._done: queue.Queue[tuple[PluginJob, PluginJobResult | WorkerPoolError]] = queue.Queue()
        self._started = False
        self.close = finalize(self, _close_workers, self._workers, self._jobs)
        """Callable that ends all processes, which is also called when the pool is collected and when Python exits."""

    def submit_job(self, job: PluginJob) -> None:
        """Queue `job` for the next free process."""
        if not self._started:
            self._started = True
            # Each process has a thread of its own, which kills the process in time even while this thread is busy.
            for worker in self._workers:
                threading.Thread(target=_run_jobs, args=(worker, self._jobs, self._done), daemon=True).start()
        self._jobs.put(job)

    def take_finished_jobs(self, wait_s: float) -> list[tuple[PluginJob, PluginJobResult]]:
        """Return (job, result) of all finished jobs. Wait at most `wait_s` seconds for the first.

        Raises:
            WorkerPoolError: if no process starts, or a plug-in cannot work on this machine.
        """
        results: list[tuple[PluginJob, PluginJobResult]] = []
        with suppress(queue.Empty):
            while True:
                job, result = self._done.get(timeout=wait_s) if wait_s > 0 and not results else self._done.get_nowait()
                if isinstance(result, WorkerPoolError):
                    raise result
                if not job.cancelled:
                    results.append((job, result))
        return results

    def cancel(self, job: PluginJob) -> None:
        """Cancel `job`, so that `take_finished_jobs` does not return its result."""
        for worker in self._workers:
            worker.cancel(job)


def _run_jobs(
    worker: PluginWorker,
    job_queue: queue.SimpleQueue[PluginJob | None],
    finished_jobs: queue.Queue[tuple[PluginJob, PluginJobResult | WorkerPoolError]],
) -> None:
    """Run jobs of `job_queue` in `worker`, and put the results into `finished_jobs`, until the queue yields None."""
    # This is no method, because the thread would keep the pool from being garbage collected.
    while not worker.closed and (job := job_queue.get()) is not None:
        if job.cancelled:
            continue
        try:
            finished_jobs.put((job, worker.run(job)))
        except WorkerPoolError as error:
            finished_jobs.put((job, error))


def _close_workers(workers: list[PluginWorker], job_queue: queue.SimpleQueue[PluginJob | None]) -> None:
    """End all worker processes, and end their threads by putting one None for each thread into `job_queue`."""
    for worker in workers:
        worker.close()
        job_queue.put(None)
