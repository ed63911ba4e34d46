"""Tokens, requests and cost of answers from remote endpoints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RemoteUsage:
    """Tokens, requests and cost of answers from remote endpoints. Instances can be added and subtracted."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """Cost in the currency of the engine's prices."""
    tries: int = 0
    """Number of HTTP requests, retries included."""
    failed: int = 0
    """Number of requests that failed after all retries."""

    def __add__(self, other: RemoteUsage) -> RemoteUsage:
        return RemoteUsage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cost + other.cost,
            self.tries + other.tries,
            self.failed + other.failed,
        )

    def __sub__(self, other: RemoteUsage) -> RemoteUsage:
        return self + RemoteUsage(
            -other.prompt_tokens, -other.completion_tokens, -other.cost, -other.tries, -other.failed
        )
