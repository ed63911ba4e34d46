"""Completions in the making, and the parts of which vLLM makes them.

Usually a completion is one part. A thought over its limit ends one, and the rest of the answer is another; a text that
is scored under a truncated distribution takes a part for each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from marl.config import Sampling
from marl.engines.transformers.thoughts import ThoughtLimit
from marl.models.chat_template import Prompt
from marl.models.token_places import Range
from marl.seeds import seed_of
from marl.types import Completion, Finish, Request, Ticket

_SEEDS = 2**63
_COLDEST = 0.01
"""Lowest temperature above 0: vLLM raises lower ones to it."""


@dataclass(slots=True)
class PendingCompletion:
    """A request on its way to a completion."""

    ticket: Ticket
    request: Request
    prompt: Prompt
    limit: int
    """Most tokens of the completion."""
    version: int
    """Version of the weights when it was submitted."""
    thought: ThoughtLimit | None
    mark_tokens: tuple[Range, ...]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    parts: int = 0
    """Number of requests to vLLM so far."""
    waiting: dict[str, int | None] = field(default_factory=dict)
    """Open request to vLLM -> place of the token that it scores; None: of all of them, or it samples."""

    def completion(self, text: str, finish: Finish, version: int) -> Completion:
        """Return the completion; `version`: of the weights that sampled its last token."""
        imposed = tuple(self.thought.imposed) if self.thought else ()
        ids, logprobs = tuple(self.ids), tuple(self.logprobs)
        versions = (self.version, version)
        prompt, marks = self.prompt.ids, self.mark_tokens
        return Completion(text, prompt, ids, logprobs, finish, versions, imposed=imposed, mark_tokens=marks)

    def sampling_part(self, ends: Sequence[int]) -> SamplingParams:
        """Return the settings by which vLLM samples the tokens that are still to come."""
        sampling = self.request.sampling
        seed = seed_of(self.request.seed, "part", len(self.ids)) if self.ids else self.request.seed
        # What ends it here is looked at after each token, otherwise a whole answer is enough.
        watched = bool(sampling.stop) or self.thought is not None
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p if sampling.temperature else 1.0,
            top_k=sampling.top_k if sampling.temperature else 0,
            max_tokens=self.limit - len(self.ids),
            seed=seed % _SEEDS,
            stop_token_ids=list(ends),
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA if watched else RequestOutputKind.FINAL_ONLY,
            structured_outputs=_structure(self.request),
            skip_clone=True,
        )


def check_request(request: Request) -> None:
    """Check that vLLM can sample or score as a request asks.

    Raises:
        ValueError: if it cannot.
    """
    sampling, policy = request.sampling, f"policy {request.policy!r}"
    if 0 < sampling.temperature < _COLDEST:
        raise ValueError(
            f"{policy}: sampling.temperature: {sampling.temperature:g}, but vLLM knows none between 0 and {_COLDEST:g}"
        )
    if sampling.structured is None:
        return
    where = f"{policy}: sampling.structured: {sampling.structured!r}"
    if sampling.structured == "legal_moves" and not request.options:
        raise ValueError(f"{where}, but any text is a move")
    if request.forced is not None:
        raise ValueError(f"{where}, but vLLM scores no given text under such a limit")


def _structure(request: Request) -> StructuredOutputsParams | None:
    """Return what limits the answer; None if nothing does."""
    match request.sampling.structured:
        case "json":
            schema = request.answer_schema
            return StructuredOutputsParams(json=schema) if schema else StructuredOutputsParams(json_object=True)
        case "legal_moves":
            return StructuredOutputsParams(choice=list(dict.fromkeys((request.options or {}).values())))
    return None


def scoring_all() -> SamplingParams:
    """Return the settings by which vLLM scores all tokens of a prompt, at temperature 1."""
    return SamplingParams(
        temperature=0.0,
        max_tokens=1,
        prompt_logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def scoring_next(sampling: Sampling, token: int) -> SamplingParams:
    """Return the settings by which vLLM scores one token as the next one under a sampling distribution."""
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p if sampling.temperature else 1.0,
        top_k=sampling.top_k if sampling.temperature else 0,
        max_tokens=1,
        seed=0,
        ignore_eos=True,
        logprob_token_ids=[token],
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
