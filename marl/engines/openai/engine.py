"""Engine of `kind: openai`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

from marl.core.errors import EndpointError
from marl.core.types import Completion, Failure, Request, Ticket
from marl.engines.background_requests import BackgroundRequests
from marl.engines.openai.client import ClientOptions, EndpointClient
from marl.protocols import RemoteEngine


class OpenAIOptions(ClientOptions, Protocol):
    """Settings of the engine. `OpenAI` explains every field."""

    on_failure: Literal["stop", "skip"]
    max_failures: int


class OpenAIEngine(RemoteEngine):
    """Engine that sends requests from a background thread. `submit` never blocks, `step` at most for `wait_s`."""

    def __init__(self, settings: OpenAIOptions) -> None:
        super().__init__(settings.base_url)
        self._settings = settings
        self._client = EndpointClient(settings, self.spent)
        self._policies: dict[Ticket, str] = {}
        """Policy of every open request."""
        self._requests: BackgroundRequests[Ticket, Completion | Failure] = BackgroundRequests()

    def submit(self, ticket: Ticket, request: Request) -> None:
        """Send a request as soon as `concurrency` allows.

        Raises:
            ValueError: if the request needs the model itself: forced text, token ids to continue, or a thinking budget.
        """
        problem = ""
        if request.sampling.thinking_tokens is not None:
            problem = "limit thoughts (sampling.thinking_tokens)"
        elif request.forced is not None:
            problem = "score a text"
        elif request.continues:
            problem = "continue token ids"
        if problem:
            raise ValueError(f"policy {request.policy!r}: the endpoint {self.address} cannot {problem}")
        self._policies[ticket] = request.policy
        self._requests.submit(ticket, self._client(request))

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        """Return the answers that have arrived.

        Raises:
            EndpointError: if a request was given up and `on_failure` or `max_failures` ends the run, or the budget is
                spent.
        """
        answers: list[tuple[Ticket, Completion | Failure]] = []
        for ticket, answer in self._requests.take(wait_s):
            policy = self._policies.pop(ticket)
            if isinstance(answer, Failure) and answer.finish != "overflow":
                self._check_failure(policy, answer)
            answers.append((ticket, answer))
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Give requests up and close their connections; no answer follows."""
        cancelled = list(tickets)
        self._requests.cancel(cancelled)
        for ticket in cancelled:
            self._policies.pop(ticket, None)

    def _check_failure(self, policy: str, failure: Failure) -> None:
        """Check whether the run may go on after a request that was given up.

        Raises:
            EndpointError: if it may not.
        """
        settings, failures = self._settings, sum(usage.failed for usage in self.spent.values())
        if settings.on_failure == "stop":
            raise EndpointError(f"policy {policy!r}: {failure.reason} (engine.on_failure: stop)")
        if failures > settings.max_failures:
            raise EndpointError(
                f"policy {policy!r}: {failure.reason}; {failures} requests were given up so far "
                f"(engine.max_failures: {settings.max_failures})"
            )
