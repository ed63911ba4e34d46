"""Open completions, and the requests to vLLM that produce them.

Usually a completion takes one request. A thought over its budget ends one request, and another samples the rest of the
answer. A text scored under a truncated distribution takes a request for each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from marl.core.config import Sampling
from marl.core.seeds import seed_of
from marl.core.types import Request
from marl.engines.token_engine import TokenRequest

_SEEDS = 2**63
"""Number of different seeds in vLLM."""
_MIN_TEMPERATURE = 0.01
"""Lowest temperature above 0: vLLM raises lower ones to it."""


@dataclass(slots=True)
class PendingCompletion(TokenRequest):
    """A request with the tokens of its completion so far."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    segments: int = 0
    """Number of requests to vLLM so far."""
    open_requests: dict[str, int | None] = field(default_factory=dict)
    """Open request to vLLM -> index of the token to score, or None if the request samples or scores all tokens."""

    def sampling_params(self, ends: Sequence[int]) -> SamplingParams:
        """Return vLLM's settings for sampling the remaining tokens. `ends` are the ids of the end tokens."""
        sampling = self.request.sampling
        # A segment after an imposed end of a thought must not repeat the random numbers of the first.
        seed = seed_of(self.request.seed, "part", len(self.ids)) if self.ids else self.request.seed
        # Stop texts and thinking budgets are checked after each token, so tokens are needed one by one.
        is_watched = bool(sampling.stop) or self.thinking is not None
        return SamplingParams(
            **_distribution(sampling),
            max_tokens=self.max_tokens - len(self.ids),
            seed=seed % _SEEDS,
            stop_token_ids=list(ends),
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA if is_watched else RequestOutputKind.FINAL_ONLY,
            structured_outputs=_structured_outputs(self.request),
            skip_clone=True,
        )


def check_request(request: Request) -> None:
    """Check that vLLM supports the sampling settings of a request.

    Raises:
        ValueError: if it does not.
    """
    sampling, policy = request.sampling, f"policy {request.policy!r}"
    if 0 < sampling.temperature < _MIN_TEMPERATURE:
        raise ValueError(
            f"{policy}: sampling.temperature: {sampling.temperature:g}, but vLLM knows none between 0 and "
            f"{_MIN_TEMPERATURE:g}"
        )
    if sampling.structured is None:
        return
    field_label = f"{policy}: sampling.structured: {sampling.structured!r}"
    if sampling.structured == "legal_moves" and not request.options:
        raise ValueError(f"{field_label}, but any text is a move")
    if request.forced is not None:
        raise ValueError(f"{field_label}, but vLLM scores no given text under such a limit")


def _structured_outputs(request: Request) -> StructuredOutputsParams | None:
    """Return the constraint on the answer: JSON, the texts of legal moves, or None without a constraint."""
    match request.sampling.structured:
        case "json":
            schema = request.answer_schema
            return StructuredOutputsParams(json=schema) if schema else StructuredOutputsParams(json_object=True)
        case "legal_moves":
            return StructuredOutputsParams(choice=list(dict.fromkeys((request.options or {}).values())))
    return None


def prompt_scoring_params() -> SamplingParams:
    """Return vLLM's settings for scoring all tokens of a prompt at temperature 1."""
    return SamplingParams(
        temperature=0.0,
        # vLLM always samples a token after scoring.
        max_tokens=1,
        prompt_logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def token_scoring_params(sampling: Sampling, token: int) -> SamplingParams:
    """Return vLLM's settings for scoring `token` as the next token under a sampling distribution."""
    return SamplingParams(
        **_distribution(sampling),
        max_tokens=1,
        seed=0,
        ignore_eos=True,
        logprob_token_ids=[token],
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _distribution(sampling: Sampling) -> dict[str, Any]:
    """Return vLLM's settings of the sampling distribution."""
    # Truncation has no meaning at temperature 0, where only the likeliest token is left.
    truncated = sampling.temperature > 0
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p if truncated else 1.0,
        "top_k": sampling.top_k if truncated else 0,
    }
