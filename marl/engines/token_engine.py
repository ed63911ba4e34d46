"""Checks and results shared by the engines that sample token by token: Transformers and vLLM."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from marl.core.types import Completion, Failure, Finish, Request, Ticket
from marl.engines.thinking_budget import ThinkingBudget
from marl.models.chat_template import ChatTokenizer, Prompt
from marl.models.token_spans import Range
from marl.protocols import SharedWeights, Weights


@dataclass(slots=True)
class TokenRequest:
    """A submitted request, before its completion is finished."""

    ticket: Ticket
    request: Request
    prompt: Prompt
    max_tokens: int
    """Maximum number of tokens of the completion."""
    thinking: ThinkingBudget | None = None
    """Budget of the completion's thoughts, or None if thoughts are unlimited."""
    mark_tokens: tuple[Range, ...] = ()
    """Token ranges of the request's marks in the prompt."""
    version: int = 0
    """Version of the weights at the first token."""

    def finished(
        self, text: str, ids: Iterable[int], logprobs: Iterable[float], finish: Finish, last_version: int
    ) -> Completion:
        """Return the completion. `last_version` is the version of the weights at the last token."""
        return Completion(
            text,
            self.prompt.ids,
            tuple(ids),
            tuple(logprobs),
            finish,
            (self.version, last_version),
            imposed=tuple(self.thinking.imposed) if self.thinking else (),
            mark_tokens=self.mark_tokens,
        )


def context_length(config: Any, max_context: int | None) -> int:
    """Return the maximum number of tokens of a prompt and its completion together.

    Raises:
        ValueError: if `max_context` exceeds the positions of the model.
    """
    longest: int = config.get_text_config().max_position_embeddings
    if max_context is not None and max_context > longest:
        raise ValueError(f"max_context: {max_context} tokens, but the model was made for {longest}")
    return max_context or longest


def end_tokens(declared: Any, tokenizer: Any) -> frozenset[int]:
    """Return the ids of the end tokens: those `declared` by the model (an id, a list, or None) and the tokenizer's."""
    ids = declared if isinstance(declared, list) else [declared]
    return frozenset(token for token in (*ids, tokenizer.eos_token_id) if token is not None)


def overflow(prompt_tokens: int, forced_tokens: int, context: int) -> Failure | None:
    """Return the failure of a request longer than the context, or None if the request fits."""
    # A request that samples needs at least one free position.
    if context - prompt_tokens >= max(forced_tokens, 1):
        return None
    tokens = f"{prompt_tokens} tokens of prompt" + (f" and {forced_tokens} of forced text" if forced_tokens else "")
    return Failure("overflow", f"{tokens}; the context holds {context}")


def completed_text(chat: ChatTokenizer, ids: tuple[int, ...], stop: tuple[str, ...]) -> str:
    """Return the text of a completion, cut at the first stop text and with the template's thought opening."""
    text = chat.thought_opening + chat.text(ids)
    return chat.cut_at_stop(stop, text) if stop else text


def check_version(policy: str, weights: Weights, version: int) -> None:
    """Check the version of weights in shared memory.

    Raises:
        ValueError: if the file holds another version.
    """
    if isinstance(weights, SharedWeights) and weights.version != version:
        raise ValueError(f"{weights.file} holds version {weights.version} of {policy!r}, not version {version}")


def check_idle(policy: str, requests: Iterable[Request]) -> None:
    """Check before removal of `policy`. `requests` are all open requests of the engine.

    Raises:
        ValueError: if requests of the policy are in flight.
    """
    count = sum(request.policy == policy for request in requests)
    if count:
        raise ValueError(f"policy {policy!r} has {count} requests in flight; cancel them before it is removed")


def nan_error(policy: str, version: int) -> FloatingPointError:
    """Return the error about weights with NaN logits."""
    return FloatingPointError(
        f"version {version} of the weights of policy {policy!r} gives logits that are not numbers"
    )
