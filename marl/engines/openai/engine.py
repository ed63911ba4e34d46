"""Engine of the kind `openai`: policies behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from marl.core.errors import EndpointError
from marl.core.types import Completion, CompletionFailure, Request, Ticket
from marl.core.usage import RemoteUsage
from marl.engines.background_requests import BackgroundCoroutines
from marl.engines.openai.chat_format import chat_request_body, maximum_usage
from marl.engines.openai.client import EndpointClient
from marl.protocols import RemoteEngine

if TYPE_CHECKING:
    # Imported for type checkers only: `settings` imports this module, so a second import would be circular.
    from marl.engines.openai.settings import OpenAI


class OpenAIEngine(RemoteEngine):
    """Engine of an OpenAI-compatible endpoint. Requests are sent from a background thread, so `submit` never blocks."""

    def __init__(self, settings: OpenAI) -> None:
        super().__init__(settings.base_url)
        self._settings = settings
        self._client = EndpointClient(settings, self.spent)
        self._policies: dict[Ticket, str] = {}
        """Ticket of an open request -> its policy."""
        self._requests: BackgroundCoroutines[Ticket, Completion | CompletionFailure] = BackgroundCoroutines()

    def submit(self, ticket: Ticket, request: Request) -> None:
        """Send a request as soon as fewer than `concurrency` requests are in flight.

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

    def max_usage(self, request: Request) -> RemoteUsage:
        settings = self._settings
        most = maximum_usage(chat_request_body(request, settings.model, settings.extra), settings.price)
        return sum(itertools.repeat(most, settings.retries + 1), RemoteUsage())

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        """Return the endpoint's answers that have arrived, after a wait of at most `wait_s` seconds for the first.

        Raises:
            EndpointError: if a request was given up and `on_failure` or `max_failures` ends the run, or the budget is
                spent.
        """
        settings = self._settings
        answers: list[tuple[Ticket, Completion | CompletionFailure]] = []
        for ticket, answer in self._requests.take_finished(wait_s):
            policy = self._policies.pop(ticket)
            answers.append((ticket, answer))
            # `overflow`: the prompt exceeds the context, which is no failure of the endpoint.
            if not isinstance(answer, CompletionFailure) or answer.finish == "overflow":
                continue
            if settings.on_failure == "stop":
                raise EndpointError(f"policy {policy!r}: {answer.reason} (engine.on_failure: stop)")
            failures = sum(usage.failed for usage in self.spent.values())
            if failures > settings.max_failures:
                raise EndpointError(
                    f"policy {policy!r}: {answer.reason}; {failures} requests were given up so far "
                    f"(engine.max_failures: {settings.max_failures})"
                )
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Cancel the requests with these `tickets` and close the connections. No answers to these requests follow."""
        cancelled = list(tickets)
        self._requests.cancel(cancelled)
        for ticket in cancelled:
            self._policies.pop(ticket, None)
