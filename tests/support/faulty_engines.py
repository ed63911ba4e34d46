"""Engines with a fault: they sample from other probabilities than they are asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

import torch

from marl.core.types import Completion, CompletionFailure, Request, Ticket
from marl.engines.transformers.engine import TransformersEngine
from marl.engines.transformers.policy_weights import FullWeights
from marl.engines.transformers.settings import Transformers
from marl.protocols import Engine, ModelSource


class Faulty(Transformers):
    """The engine of Transformers, damaged."""

    kind: str = "tests.support.faulty_engines:Faulty"
    fault: Literal["none", "weights", "temperature", "bf16", "deaf", "nan"]

    def build(self, source: ModelSource | None) -> Engine:
        assert source is not None
        model: Any = source.model()
        if self.fault == "weights":
            torch.manual_seed(1)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.03 * torch.randn_like(parameter))
        if self.fault == "bf16":
            model = model.to(torch.bfloat16)
        return FaultyEngine(TransformersEngine(FullWeights(model, source), source.tokenizer(), self), self.fault)


class FaultyEngine:
    """Engine that passes everything on, except for its fault."""

    def __init__(self, sampler: TransformersEngine, fault: str) -> None:
        self._sampler, self._fault = sampler, fault

    def submit(self, ticket: Ticket, request: Request) -> None:
        if self._fault == "temperature":
            request = replace(request, sampling=request.sampling.model_copy(update={"temperature": 0.7}))
        self._sampler.submit(ticket, request)

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        return [(ticket, self._damage(answer)) for ticket, answer in self._sampler.step(wait_s)]

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        self._sampler.cancel(tickets)

    def load_weights(self, policy: str, weights: Any, version: int) -> None:
        if self._fault != "deaf":
            self._sampler.load_weights(policy, weights, version)

    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        self._sampler.add_policy(policy, source)

    def remove_policy(self, policy: str) -> None:
        self._sampler.remove_policy(policy)

    def _damage(self, answer: Completion | CompletionFailure) -> Completion | CompletionFailure:
        if self._fault == "nan" and isinstance(answer, Completion):
            return replace(answer, logprobs=(float("nan"), *answer.logprobs[1:]))
        return answer
