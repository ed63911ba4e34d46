"""Checks and results shared by the engines that sample token by token: Transformers and vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from marl.core.types import Completion, CompletionFailure, Finish, Request, Ticket
from marl.engines.thinking_budget import ThinkingBudget
from marl.models.chat_template import ChatTokenizer, Prompt
from marl.models.segment_tokens import find_segment_ends
from marl.models.token_spans import Range
from marl.protocols import SharedWeights, Weights


@dataclass(slots=True)
class OpenTokenRequest:
    """A request that an engine has accepted and not yet completed."""

    ticket: Ticket
    request: Request
    prompt: Prompt
    max_tokens: int
    """Maximum number of tokens of the completion."""
    thinking: ThinkingBudget | None = None
    """Budget of the completion's thoughts, or None if thoughts are unlimited."""
    mark_tokens: tuple[Range, ...] = ()
    """For each marked span of the request's messages, the range of its tokens in the prompt."""
    version: int = 0
    """Version of the weights that sample the first token."""
    later_versions: list[tuple[int, int]] = field(default_factory=list)
    """(index of a token of the completion, version of the weights that sample it and the tokens after it), for each
    change of the weights."""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Return the token ids of the prompt, without the request's prefix."""
        return self.prompt.ids

    @property
    def newest_version(self) -> int:
        """Return the version of the weights that sample the next token, as far as `record_version` was told."""
        return self.later_versions[-1][1] if self.later_versions else self.version

    def record_version(self, token_index: int, version: int) -> None:
        """Record that `version` of the weights samples the completion's tokens from `token_index` on."""
        if token_index <= len(self.request.prefix):
            self.version = version
        elif version != self.newest_version:
            self.later_versions.append((token_index, version))

    def _version_runs(self, token_count: int) -> tuple[tuple[int, int], ...]:
        """Return (version, number of tokens) of each run of tokens, or () if one version sampled all of them."""
        if not self.later_versions:
            return ()
        runs: list[tuple[int, int]] = []
        begin, version = 0, self.version
        for end, next_version in [*self.later_versions, (token_count, 0)]:
            runs.append((version, end - begin))
            begin, version = end, next_version
        return tuple(runs)

    def to_completion(
        self, text: str, completion_ids: Sequence[int], logprobs: Iterable[float], finish_reason: Finish
    ) -> Completion:
        """Return the completion of this request."""
        given = len(self.request.prefix)
        imposed = {*range(given), *(self.thinking.imposed if self.thinking else ())}
        return Completion(
            text,
            self.prompt_ids,
            tuple(completion_ids),
            tuple(logprobs),
            finish_reason,
            (self.version, self.newest_version),
            self._version_runs(len(completion_ids)),
            imposed=tuple(sorted(imposed)),
            prefix_tokens=given,
            mark_tokens=self.mark_tokens,
        )


def context_length(model_config: Any, max_context: int | None) -> int:
    """Return the maximum number of tokens of a prompt and its completion together.

    `model_config` is the configuration of the model; `max_context` is the setting of the engine, or None for no limit.

    Raises:
        ValueError: if `max_context` exceeds the positions of the model.
    """
    longest: int = model_config.get_text_config().max_position_embeddings
    if max_context is not None and max_context > longest:
        raise ValueError(f"max_context: {max_context} tokens, but the model was made for {longest}")
    return max_context or longest


def max_completion_tokens(request: Request, prompt_tokens: int, context_length: int) -> int:
    """Return the maximum number of tokens of a completion, its prefix included.

    `prompt_tokens` counts the prompt and the prefix.

    Raises:
        ValueError: if the prefix leaves no token to sample, or the request has a forced text besides.
    """
    given = len(request.prefix)
    if given and request.forced is not None:
        raise ValueError(f"policy {request.policy!r}: a request has either a prefix or a forced text")
    maximum = min(request.sampling.max_tokens, context_length - prompt_tokens + given)
    if given >= maximum:
        raise ValueError(
            f"policy {request.policy!r}: a prefix of {given} tokens leaves none to sample; a completion has at most "
            f"{maximum}"
        )
    return maximum


def thinking_budget_after_prefix(request: Request, chat: ChatTokenizer) -> ThinkingBudget | None:
    """Return the budget of thoughts that remains after the request's prefix, or None if thoughts are unlimited."""
    budget = ThinkingBudget.from_request(request, chat)
    if budget is not None:
        for count in range(1, len(request.prefix) + 1):
            budget.record_last_token(request.prefix[:count])
    return budget


def end_token_ids(model_end_ids: Any, tokenizer: Any) -> frozenset[int]:
    """Return the ids of all end tokens: the model's `model_end_ids` (an id, a list or None) and the tokenizer's."""
    ids = model_end_ids if isinstance(model_end_ids, list) else [model_end_ids]
    return frozenset({*ids, tokenizer.eos_token_id} - {None})


def context_overflow_failure(
    request: Request, prompt_tokens: int, forced_tokens: int, context_length: int
) -> CompletionFailure | None:
    """Return the failure of a request with more tokens than `context_length` or its own limit, or None if it fits."""
    limit = request.max_prompt_tokens
    if limit is not None and prompt_tokens > limit:
        return CompletionFailure("overflow", f"{prompt_tokens} tokens of prompt; the role's limit is {limit}")
    # The context must hold the forced text, or at least one sampled token.
    if context_length - prompt_tokens >= max(forced_tokens, 1):
        return None
    tokens = f"{prompt_tokens} tokens of prompt" + (f" and {forced_tokens} of forced text" if forced_tokens else "")
    return CompletionFailure("overflow", f"{tokens}; the context holds {context_length}")


def decode_completion(chat: ChatTokenizer, request: Request, prompt: Prompt, completion_ids: tuple[int, ...]) -> str:
    """Return the text of the answer `completion_ids` to `request`, cut at the first of the request's stop texts.

    The text begins with the opening of a thought, if the chat template writes one. Tool calls in the model's own format
    are spelled `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
    """
    text = chat.thinking_prefix + chat.text(completion_ids)
    stop_texts = request.sampling.stop
    if stop_texts and (cut := chat.truncate_at_stop_text(stop_texts, text)) != text:
        return cut
    return chat.canonical_answer(text, completion_ids, prompt.ids, request.tools) if request.tools else text


def with_segments(completion: Completion, request: Request, chat: ChatTokenizer) -> Completion:
    """Return `completion` with the ends of its segments, or unchanged if `request` asks for no segments."""
    if request.segments is None or not completion.token_ids:
        return completion
    ends = find_segment_ends(chat, request.segments, completion.token_ids, completion.text)
    return replace(completion, segments=ends.last_tokens, segment_offsets=ends.offsets)


def check_shared_weights_version(policy: str, weights: Weights, version: int) -> None:
    """Check that weights in shared memory have this `version`. Other weights carry no version.

    Raises:
        ValueError: if the shared memory holds another version.
    """
    if isinstance(weights, SharedWeights) and weights.version != version:
        raise ValueError(f"{weights.file} holds version {weights.version} of {policy!r}, not version {version}")


def check_no_open_requests(policy: str, requests: Iterable[Request]) -> None:
    """Check that none of `requests`, the open requests of an engine, is for `policy`.

    Raises:
        ValueError: if requests of the policy are in flight.
    """
    if count := [request.policy for request in requests].count(policy):
        raise ValueError(f"policy {policy!r} has {count} requests in flight; cancel them before it is removed")


def nan_logits_error(policy: str, version: int) -> FloatingPointError:
    """Return the error about weights of `policy` that give NaN logits."""
    return FloatingPointError(
        f"version {version} of the weights of policy {policy!r} gives logits that are not numbers"
    )
