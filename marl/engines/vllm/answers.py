"""Answers of vLLM's server, and what they say in the form that an engine in this process would have given it."""

from __future__ import annotations

import math
from typing import NamedTuple

from pydantic import BaseModel, Field

_LOWEST = -9999.0
"""Number in place of those that JSON does not have: minus infinity, and what is no number."""


class ServerVersion(BaseModel):
    """Answer of /version."""

    version: str


class _Card(BaseModel):
    id: str
    max_model_len: int


class ModelList(BaseModel):
    """Answer of /v1/models: the base first, then adapters."""

    data: list[_Card] = Field(min_length=1)


class _ModelSettings(BaseModel):
    logprobs_mode: str


class _Settings(BaseModel):
    of_model: _ModelSettings = Field(alias="model_config")


class ServerInfo(BaseModel):
    """Answer of /server_info, without what is of no use."""

    vllm_config: _Settings

    @property
    def logprobs_mode(self) -> str:
        """Return the distribution of which it reports log-probabilities."""
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


class FlatScores(NamedTuple):
    """Tokens and their log-probabilities, one after the other."""

    token_ids: list[int]
    logprobs: list[float]


class SampledTokens(NamedTuple):
    """Tokens that were sampled, with their log-probabilities."""

    token_ids: list[int]
    logprobs: FlatScores


class ServerOutput(NamedTuple):
    """A whole answer, with the fields of vLLM's `RequestOutput` that the engine reads."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[SampledTokens]
    prompt_logprobs: FlatScores | None
    num_cached_tokens: int | None
    finished: bool = True


class GeneratedTokens(BaseModel):
    """Answer of /inference/v1/generate."""

    choices: list[_Choice] = Field(min_length=1, max_length=1)
    prompt_logprobs: list[dict[int, _PromptScore] | None] | None = None
    usage: _Usage = _Usage()

    @property
    def versions(self) -> set[str]:
        """Return the names of the weights with which it was sampled."""
        return {span.version for span in self.choices[0].weight_versions or ()}

    def output(self, name: str, prompt: tuple[int, ...], *, all_scores: bool) -> ServerOutput:
        """Return what it says. `all_scores`: of all tokens that are listed, instead of the sampled one at each place.

        Raises:
            ValueError: if tokens or log-probabilities are missing, or the server broke it off.
        """
        [choice] = self.choices
        content = choice.logprobs.content if choice.logprobs else []
        if choice.finish_reason not in ("stop", "length"):
            raise ValueError(f"the server ended it with {choice.finish_reason!r}")
        if choice.logprobs and [score.token_id for score in content] != choice.token_ids:
            raise ValueError("log-probabilities of other tokens than were sampled")
        if all_scores:
            listed = [score for sampled in content for score in sampled.top_logprobs]
            scores = FlatScores([score.token_id for score in listed], [_with_infinity(s.logprob) for s in listed])
        else:
            # A token that was sampled is not impossible: this one's logits were no numbers.
            known = [score.logprob if score.logprob > _LOWEST else math.nan for score in content]
            scores = FlatScores(choice.token_ids, known)
        cached = self.usage.prompt_tokens_details and self.usage.prompt_tokens_details.cached_tokens
        return ServerOutput(name, prompt, (SampledTokens(choice.token_ids, scores),), self._of_prompt(prompt), cached)

    def _of_prompt(self, prompt: tuple[int, ...]) -> FlatScores | None:
        if self.prompt_logprobs is None:
            return None
        places = zip(prompt, self.prompt_logprobs, strict=True)
        # There is none of the first token.
        return FlatScores(
            list(prompt), [_with_infinity(each[token].logprob) if each else 0.0 for token, each in places]
        )


def _with_infinity(logprob: float) -> float:
    return logprob if logprob > _LOWEST else -math.inf
