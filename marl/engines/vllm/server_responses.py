"""Responses of a vLLM server, and their conversion to the outputs of vLLM in this process."""

from __future__ import annotations

import math
from typing import NamedTuple

from pydantic import BaseModel, Field

_LOWEST_LOGPROB = -9999.0
"""Number that the server sends instead of minus infinity and NaN, which JSON cannot express."""


class VersionResponse(BaseModel):
    """Response of the server's route /version."""

    version: str


class _ModelEntry(BaseModel):
    id: str
    max_model_len: int


class ModelListResponse(BaseModel):
    """Response of the server's route /v1/models: the base model first, then adapters."""

    data: list[_ModelEntry] = Field(min_length=1)


class _ModelSettings(BaseModel):
    logprobs_mode: str
    """Distribution of the reported log-probabilities. `processed_logprobs`: after temperature and truncation."""


class _ServerSettings(BaseModel):
    of_model: _ModelSettings = Field(alias="model_config")


class ServerInfoResponse(BaseModel):
    """Response of the server's route /server_info, limited to the fields in use."""

    vllm_config: _ServerSettings


class _TokenLogprob(BaseModel):
    token_id: int
    logprob: float


class _SampledTokenLogprob(_TokenLogprob):
    top_logprobs: list[_TokenLogprob] = []


class _SampledLogprobs(BaseModel):
    content: list[_SampledTokenLogprob]


class WeightsSpan(BaseModel):
    """Tokens of an answer that weights of one name sampled."""

    version: str
    start: int = Field(default=0, ge=0)
    """Index of the first of these tokens in the answer."""


class _Choice(BaseModel):
    token_ids: list[int]
    logprobs: _SampledLogprobs | None = None
    finish_reason: str
    weight_versions: list[WeightsSpan] | None = None


class _PromptTokenLogprob(BaseModel):
    logprob: float


class _PromptTokenDetails(BaseModel):
    cached_tokens: int | None = None


class _Usage(BaseModel):
    prompt_tokens_details: _PromptTokenDetails | None = None


class TokenIdsAndLogprobs(NamedTuple):
    """Token ids and their log-probabilities, as two lists of equal length."""

    token_ids: list[int]
    logprobs: list[float]


class SampledTokens(NamedTuple):
    """Sampled token ids of an output, and log-probabilities of the sampled tokens or of other requested tokens."""

    token_ids: list[int]
    logprobs: TokenIdsAndLogprobs
    weight_versions: list[WeightsSpan]


class ServerOutput(NamedTuple):
    """Server's answer to a request, with the fields of vLLM's `RequestOutput` that the engine uses."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[SampledTokens]
    prompt_logprobs: TokenIdsAndLogprobs | None
    num_cached_tokens: int | None
    finished: bool = True


class GenerateResponse(BaseModel):
    """Response of the server's route /inference/v1/generate."""

    choices: list[_Choice] = Field(min_length=1, max_length=1)
    prompt_logprobs: list[dict[int, _PromptTokenLogprob] | None] | None = None
    usage: _Usage = _Usage()

    def to_engine_output(
        self, request_id: str, prompt_ids: tuple[int, ...], *, score_all_reported_tokens: bool
    ) -> ServerOutput:
        """Return the response as a `ServerOutput`. `prompt_ids` holds the token ids of the prompt.

        With `score_all_reported_tokens` the output has the log-probabilities of all tokens that the server reports per
        position, else only of the sampled tokens.

        Raises:
            ValueError: if tokens or log-probabilities are missing, or the server aborted the request.
        """
        [choice] = self.choices
        content = choice.logprobs.content if choice.logprobs else []
        if choice.finish_reason not in ("stop", "length"):
            raise ValueError(f"the server ended it with {choice.finish_reason!r}")
        if choice.logprobs and [score.token_id for score in content] != choice.token_ids:
            raise ValueError("log-probabilities of other tokens than were sampled")
        ids: list[int] = []
        logprobs: list[float] = []
        for sampled in content:
            if not score_all_reported_tokens:
                ids.append(sampled.token_id)
                # A sampled token has a probability above 0, so `_LOWEST_LOGPROB` can only mean NaN logits.
                logprobs.append(sampled.logprob if sampled.logprob > _LOWEST_LOGPROB else math.nan)
                continue
            for score in sampled.top_logprobs:
                ids.append(score.token_id)
                logprobs.append(score.logprob if score.logprob > _LOWEST_LOGPROB else -math.inf)
        tokens = SampledTokens(choice.token_ids, TokenIdsAndLogprobs(ids, logprobs), choice.weight_versions or [])
        prompt_scores = None
        if self.prompt_logprobs is not None:
            prompt_logprobs: list[float] = []
            for token, scores in zip(prompt_ids, self.prompt_logprobs, strict=True):
                # The first token of a prompt is predicted by nothing, so it has no scores.
                logprob = scores[token].logprob if scores else 0.0
                prompt_logprobs.append(logprob if logprob > _LOWEST_LOGPROB else -math.inf)
            prompt_scores = TokenIdsAndLogprobs(list(prompt_ids), prompt_logprobs)
        cached = self.usage.prompt_tokens_details and self.usage.prompt_tokens_details.cached_tokens
        return ServerOutput(request_id, prompt_ids, (tokens,), prompt_scores, cached)
