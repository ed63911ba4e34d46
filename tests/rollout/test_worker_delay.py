"""`worker_delay`: the time that workers and programs take does not show in what models are asked together."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from itertools import count

import pytest

from marl.core.config import Sampling
from marl.core.types import Completion, CompletionFailure, Message, Request, Ticket
from marl.protocols import (
    Engine,
    IneffectiveCallsNotice,
    ModelCallingEngine,
    ProgramModelCall,
    WeightlessEngine,
    WorkerProcessEngine,
)
from marl.protocols.programs import ProgramAttemptCounts
from marl.rollout.request_router import Answer, RequestRouter

WORD = Completion("word", (), (), (), "stop")


def request(policy: str) -> Request:
    return Request(policy, (Message("user", "?"),), Sampling(), 0)


class Model(WeightlessEngine):
    """A model that takes three to six rounds for a request, and logs which requests it works on together."""

    def __init__(self) -> None:
        self.batches: list[tuple[Ticket, ...]] = []
        self._left: dict[Ticket, int] = {}

    def submit(self, ticket: Ticket, request: Request) -> None:
        self._left[ticket] = 3 + ticket % 4

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        self.batches.append(tuple(self._left))
        self._left = {ticket: left - 1 for ticket, left in self._left.items()}
        done = [ticket for ticket, left in self._left.items() if left == 0]
        self.cancel(done)
        return [(ticket, WORD) for ticket in done]

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._left.pop(ticket, None)


class Worker(WorkerProcessEngine):
    """Answers after a random time."""

    def __init__(self, seed: int) -> None:
        self._rng, self._ready = random.Random(seed), dict[Ticket, float]()

    def submit(self, ticket: Ticket, request: Request) -> None:
        self._ready[ticket] = time.monotonic() + self._rng.choice([0.0, 0.0, 0.001, 0.004])

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        if wait_s and self._ready:
            time.sleep(max(0.0, min(wait_s, min(self._ready.values()) - time.monotonic())))
        done = [ticket for ticket, at in self._ready.items() if at <= time.monotonic()]
        for ticket in done:
            del self._ready[ticket]
        return [(ticket, WORD) for ticket in done]

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._ready.pop(ticket, None)


def batches(seed: int, worker_delay: int | None) -> list[tuple[Ticket, ...]]:
    """Return the batches of the model while twenty episodes alternate between it and a worker."""
    model, worker = Model(), Worker(seed)
    engines: dict[str, Engine] = {"model": model, "worker": worker}
    router = RequestRouter(engines.values(), 60.0, worker_delay)
    left = 20

    def play(turns: Iterator[str]) -> None:
        nonlocal left
        policy = next(turns, None)
        if policy is None:
            left -= 1
            return

        def deliver(ticket: Ticket, answer: Answer) -> None:
            play(turns)

        router.submit(engines[policy], request(policy), deliver)

    for _ in range(left):
        play(iter(["model", "worker"] * 5))
    while left:
        router.step(1.0)
    return model.batches


@pytest.mark.parametrize("worker_delay", [1, 4, 50])
def test_models_get_the_same_batches_however_long_workers_take(worker_delay: int) -> None:
    assert batches(0, worker_delay) == batches(1, worker_delay)


def test_without_a_delay_the_time_of_workers_decides_about_batches() -> None:
    assert batches(0, None) != batches(1, None)


def test_a_worker_that_owes_an_answer_is_named_after_the_deadline() -> None:
    class Deaf(Worker):
        def submit(self, ticket: Ticket, request: Request) -> None:
            """Forget the request."""

        def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
            time.sleep(wait_s)
            return []

    deaf = Deaf(0)
    router = RequestRouter([deaf], 0.05, 4)
    router.submit(deaf, request("checker"), lambda ticket, answer: None)
    router.step(0.03)
    with pytest.raises(TimeoutError, match="checker: 1"):
        router.step(0.03)


class Programs(ModelCallingEngine):
    """Runs programs that call a model five times, one call after the other, and compute for random times."""

    def __init__(self, seed: int) -> None:
        self._rng, self._ids = random.Random(seed), count(1)
        self._ready: dict[Ticket, float] = {}
        """Computing program -> time of its next call or of its end."""
        self._calls_left: dict[Ticket, int] = {}
        self._parents: dict[int, Ticket] = {}
        self._calls: list[ProgramModelCall | IneffectiveCallsNotice] = []
        self.open_and_answered: list[tuple[int, int]] = []
        """For each step in which programs got answers: numbers of calls that were open, and of answers."""
        self._answers = 0

    def submit(self, ticket: Ticket, request: Request) -> None:
        self._calls_left[ticket] = 5
        self._compute(ticket)

    def _compute(self, ticket: Ticket) -> None:
        self._ready[ticket] = time.monotonic() + self._rng.choice([0.0, 0.0, 0.001, 0.004])

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        if self._answers:
            self.open_and_answered.append((len(self._parents) + self._answers, self._answers))
            self._answers = 0
        if wait_s and self._ready:
            time.sleep(max(0.0, min(wait_s, min(self._ready.values()) - time.monotonic())))
        ended: list[tuple[Ticket, Completion | CompletionFailure]] = []
        for ticket in [ticket for ticket, at in self._ready.items() if at <= time.monotonic()]:
            del self._ready[ticket]
            if self._calls_left[ticket]:
                self._calls_left[ticket] -= 1
                call = ProgramModelCall(next(self._ids), ticket, "solver", ())
                self._parents[call.id] = ticket
                self._calls.append(call)
            else:
                ended.append((ticket, WORD))
        return ended

    def take_model_calls_and_notices(self) -> list[ProgramModelCall | IneffectiveCallsNotice]:
        calls, self._calls = self._calls, []
        return calls

    def is_computing(self) -> bool:
        return bool(self._ready)

    def deliver_model_call_answer(self, call_id: int, answer: Completion | CompletionFailure) -> None:
        self._answers += 1
        self._compute(self._parents.pop(call_id))

    def program_attempt_counts(self) -> ProgramAttemptCounts:
        return ProgramAttemptCounts(0, 0, len(self._ready), 0.0)

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        raise NotImplementedError


def play_programs(seed: int, worker_delay: int | None, *, call_worker: bool = False) -> tuple[Model, Programs]:
    """Run twenty programs that call a model, each followed by an answer of a worker; return model and programs.

    With `call_worker`, a worker answers the calls of every sixth program.
    """
    model, worker, programs = Model(), Worker(seed), Programs(seed)
    router = RequestRouter([model, worker, programs], 60.0, worker_delay)
    left = 20

    def handle_call(engine: ModelCallingEngine, call: ProgramModelCall | IneffectiveCallsNotice) -> None:
        assert isinstance(call, ProgramModelCall)

        def deliver(ticket: Ticket, answer: Answer) -> None:
            engine.deliver_model_call_answer(call.id, answer)

        callee: Engine = worker if call_worker and call.parent % 6 == 0 else model
        router.mark_as_call_of_program(router.submit(callee, request("callee"), deliver))

    def verify(ticket: Ticket, answer: Answer) -> None:
        router.submit(worker, request("worker"), end)

    def end(ticket: Ticket, answer: Answer) -> None:
        nonlocal left
        left -= 1

    for _ in range(left):
        router.submit(programs, request("crew"), verify, handle_call=handle_call)
    while left:
        router.step(1.0)
    return model, programs


@pytest.mark.parametrize("worker_delay", [1, 4, 50])
def test_models_get_the_same_batches_however_long_programs_compute(worker_delay: int) -> None:
    assert play_programs(0, worker_delay)[0].batches == play_programs(1, worker_delay)[0].batches


def test_without_a_delay_the_time_of_programs_decides_about_batches() -> None:
    assert play_programs(0, None)[0].batches != play_programs(1, None)[0].batches


def test_programs_get_answers_when_a_quarter_of_the_open_calls_is_answered() -> None:
    _, programs = play_programs(0, 4)
    assert all(answers >= open_calls / 4 for open_calls, answers in programs.open_and_answered)
    assert sum(answers for _, answers in programs.open_and_answered) == 20 * 5
    # The first waits: all twenty call, a quarter of the answers takes three rounds each, as `3 + ticket % 4` says.
    assert programs.open_and_answered[0] == (20, 5)
    _, without_delay = play_programs(0, None)
    assert min(answers for _, answers in without_delay.open_and_answered) == 1, "otherwise each answer is passed on"


@pytest.mark.parametrize("worker_delay", [1, 4, 50])
def test_programs_may_call_workers_and_no_engine_is_stepped_while_all_its_answers_are_held(worker_delay: int) -> None:
    model, programs = play_programs(0, worker_delay, call_worker=True)
    assert sum(answers for _, answers in programs.open_and_answered) == 20 * 5
    assert all(model.batches)
    assert model.batches == play_programs(1, worker_delay, call_worker=True)[0].batches
