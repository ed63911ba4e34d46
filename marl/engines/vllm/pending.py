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
from marl.core.seeds import hash_to_seed
from marl.core.types import Request
from marl.engines.token_engine import OpenTokenRequest

_VLLM_SEED_COUNT = 2**63
"""Number of different seeds that vLLM accepts."""
_MIN_TEMPERATURE = 0.01
"""Lowest temperature above 0 that vLLM supports: vLLM silently raises lower temperatures to this value."""


@dataclass(slots=True)
class PendingCompletion(OpenTokenRequest):
    """A submitted request with the tokens of its completion so far."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    request_count: int = 0
    """Number of requests sent to vLLM for this completion so far."""
    open_requests: dict[str, int | None] = field(default_factory=dict)
    """Id of an open request to vLLM -> index of the only token to score, or None for sampling or scoring all tokens."""
    sampled_from: int = 0
    """Index in `ids` of the first token that the open request for sampling samples."""
    first_update: int = 0
    """Number of the engine's updates of weights before the request was submitted."""

    def sampling_params(self, end_ids: Sequence[int]) -> SamplingParams:
        """Return vLLM's settings for sampling the completion's remaining tokens. `end_ids`: ids of the end tokens."""
        sampling = self.request.sampling
        # After an imposed end of a thought, a new seed keeps the rest of the answer from repeating random numbers.
        seed = hash_to_seed(self.request.seed, "part", len(self.ids)) if self.ids else self.request.seed
        # Stop texts and thinking budgets are checked after each token, so tokens are needed one by one.
        is_watched = bool(sampling.stop) or self.thinking is not None
        constraint = None
        if sampling.structured == "json":
            schema = self.request.answer_schema
            constraint = StructuredOutputsParams(json=schema) if schema else StructuredOutputsParams(json_object=True)
        elif sampling.structured == "legal_moves":
            constraint = StructuredOutputsParams(choice=list(dict.fromkeys((self.request.options or {}).values())))
        return SamplingParams(
            **_sampling_distribution_params(sampling),
            max_tokens=self.max_tokens - len(self.ids),
            seed=seed % _VLLM_SEED_COUNT,
            stop_token_ids=list(end_ids),
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA if is_watched else RequestOutputKind.FINAL_ONLY,
            structured_outputs=constraint,
            skip_clone=True,
        )


def check_vllm_supports_sampling(request: Request) -> None:
    """Check that vLLM supports the sampling settings of `request`.

    Raises:
        ValueError: if vLLM does not support one of the settings.
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


def prompt_scoring_params() -> SamplingParams:
    """Return vLLM's settings for scoring all tokens of a prompt at temperature 1."""
    return SamplingParams(
        temperature=0.0,
        # vLLM cannot score without sampling at least one token.
        max_tokens=1,
        prompt_logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def token_scoring_params(sampling: Sampling, token_id: int) -> SamplingParams:
    """Return vLLM's settings for scoring `token_id` as the next token under the distribution of `sampling`."""
    return SamplingParams(
        **_sampling_distribution_params(sampling),
        max_tokens=1,
        seed=0,
        ignore_eos=True,
        logprob_token_ids=[token_id],
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _sampling_distribution_params(sampling: Sampling) -> dict[str, Any]:
    """Return the temperature, top-p and top-k of `sampling` as settings of vLLM."""
    # Truncation has no meaning at temperature 0, where only the likeliest token has probability.
    truncated = sampling.temperature > 0
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p if truncated else 1.0,
        "top_k": sampling.top_k if truncated else 0,
    }
