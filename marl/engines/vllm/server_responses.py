"""Responses of a vLLM server, and their conversion to the outputs of an engine in this process."""

from __future__ import annotations

import math
from typing import NamedTuple

from pydantic import BaseModel, Field

_LOWEST = -9999.0
"""The server's replacement for minus infinity and NaN, which JSON cannot express."""


class ServerVersion(BaseModel):
    """Response of /version."""

    version: str


class _Card(BaseModel):
    id: str
    max_model_len: int


class ModelList(BaseModel):
    """Response of /v1/models: the base first, then adapters."""

    data: list[_Card] = Field(min_length=1)


class _ModelSettings(BaseModel):
    logprobs_mode: str


class _Settings(BaseModel):
    of_model: _ModelSettings = Field(alias="model_config")


class ServerInfo(BaseModel):
    """Response of /server_info, limited to the fields in use."""

    vllm_config: _Settings

    @property
    def logprobs_mode(self) -> str:
        """Distribution of the reported log-probabilities, in vLLM's words."""
        return self.vllm_config.of_model.logprobs_mode


class _Score(BaseModel):
    token_id: int
    logprob: float


class _SampledScore(_Score):
    top_logprobs: list[_Score] = []


class _Scores(BaseModel):
    content: list[_SampledScore]


class _Version(BaseModel):
    version: str


class _Choice(BaseModel):
    token_ids: list[int]
    logprobs: _Scores | None = None
    finish_reason: str
    weight_versions: list[_Version] | None = None


class _PromptScore(BaseModel):
    logprob: float


class _CachedTokens(BaseModel):
    cached_tokens: int | None = None


class _Usage(BaseModel):
    prompt_tokens_details: _CachedTokens | None = None


class FlatLogprobs(NamedTuple):
    """Tokens and their log-probabilities, as two lists of equal length."""

    token_ids: list[int]
    logprobs: list[float]


class SampledTokens(NamedTuple):
    """Sampled tokens, with their log-probabilities."""

    token_ids: list[int]
    logprobs: FlatLogprobs


class ServerOutput(NamedTuple):
    """A finished answer, with the fields of vLLM's `RequestOutput` in use by the engine."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[SampledTokens]
    prompt_logprobs: FlatLogprobs | None
    num_cached_tokens: int | None
    finished: bool = True


class GenerateResponse(BaseModel):
    """Response of /inference/v1/generate."""

    choices: list[_Choice] = Field(min_length=1, max_length=1)
    prompt_logprobs: list[dict[int, _PromptScore] | None] | None = None
    usage: _Usage = _Usage()

    @property
    def versions(self) -> set[str]:
        """Names of the weights that sampled the tokens."""
        return {span.version for span in self.choices[0].weight_versions or ()}

    def output(self, name: str, prompt: tuple[int, ...], *, all_scores: bool) -> ServerOutput:
        """Return the output of request `name`, with the scores of all listed tokens or of the sampled ones only.

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
            if all_scores:
                ids += [score.token_id for score in sampled.top_logprobs]
                logprobs += [_with_infinity(score.logprob) for score in sampled.top_logprobs]
            else:
                ids.append(sampled.token_id)
                # A sampled token is never impossible, so the replacement stands for NaN logits.
                logprobs.append(sampled.logprob if sampled.logprob > _LOWEST else math.nan)
        tokens = SampledTokens(choice.token_ids, FlatLogprobs(ids, logprobs))
        prompt_scores = None
        if self.prompt_logprobs is not None:
            prompt_logprobs: list[float] = []
            for token, scores in zip(prompt, self.prompt_logprobs, strict=True):
                # The first token has no log-probability.
                prompt_logprobs.append(_with_infinity(scores[token].logprob) if scores else 0.0)
            prompt_scores = FlatLogprobs(list(prompt), prompt_logprobs)
        cached = self.usage.prompt_tokens_details and self.usage.prompt_tokens_details.cached_tokens
        return ServerOutput(name, prompt, (tokens,), prompt_scores, cached)


def _with_infinity(logprob: float) -> float:
    return logprob if logprob > _LOWEST else -math.inf
