"""The engine that samples with vLLM: requests and completions in the form shared by all engines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from marl.core.errors import EngineError
from marl.core.types import Completion, Failure, Finish, Metrics, Request, Ticket
from marl.core.watchdog import HangError
from marl.engines.thinking_budget import ThinkingBudget
from marl.engines.token_engine import check_idle, check_version, completed_text, end_tokens, nan_error, overflow
from marl.engines.vllm.adapters import VLLMAdapters
from marl.engines.vllm.core import VLLMRequest
from marl.engines.vllm.full_weights import VLLMFullWeights, VLLMOptions
from marl.engines.vllm.pending import PendingCompletion, check_request, prompt_scoring_params, token_scoring_params
from marl.engines.vllm.server_responses import ServerOutput
from marl.models.adapter import AdapterSource
from marl.models.chat_template import ChatTokenizer
from marl.models.pretrained import PretrainedSource
from marl.protocols import MeteredEngine, ModelSource, SleepingEngine, Weights

if TYPE_CHECKING:
    from vllm import RequestOutput

Answers = list[tuple[Ticket, Completion | Failure]]


class VLLMEngine(MeteredEngine, SleepingEngine):
    """One model in vLLM with the weights of several policies, and one tokenizer, which runs outside vLLM."""

    def __init__(self, policy_weights: VLLMFullWeights | VLLMAdapters, tokenizer: Any) -> None:
        self.weights, self.core = policy_weights, policy_weights.core
        ends = end_tokens(policy_weights.eos_token_ids, tokenizer)
        self.chat_tokenizer = ChatTokenizer(tokenizer, ends)
        self._ends = sorted(ends)
        self._open: dict[Ticket, PendingCompletion] = {}
        self._completion_of: dict[str, PendingCompletion] = {}
        """Open request to vLLM -> its completion."""
        self._refused: Answers = []
        """Answers without sampling."""
        self._steps = 0
        """Number of finished training steps."""
        self._prompt_tokens: dict[str, list[int]] = {}
        """Policy -> [cached prompt tokens, all prompt tokens] of this step."""

    def submit(self, ticket: Ticket, request: Request) -> None:
        """Queue a request.

        Raises:
            ValueError: if the ticket is in use, the policy has no weights in this engine, the chat template refuses the
                messages, or vLLM does not support the sampling settings.
            EngineError: if vLLM's processes have died.
        """
        if ticket in self._open or any(ticket == answered for answered, _ in self._refused):
            raise ValueError(f"ticket {ticket} was submitted before and has not been answered")
        check_request(request)
        version, chat = self.weights.version(request.policy), self.chat_tokenizer
        prompt = chat.prompt(request)
        forced = None if request.forced is None else chat.forced_ids(request.forced)
        if failure := overflow(len(prompt.ids), len(forced or ()), self.weights.context):
            self._refused.append((ticket, failure))
            return
        max_tokens = min(request.sampling.max_tokens, self.weights.context - len(prompt.ids))
        thinking = None if forced else ThinkingBudget.of(request, chat)
        marks = chat.mark_token_spans(request)
        pending = PendingCompletion(ticket, request, prompt, max_tokens, thinking, marks, version)
        self._open[ticket] = pending
        if forced is not None:
            self._score(pending, forced)
        else:
            self._continue(pending)

    def step(self, wait_s: float) -> Answers:
        """Sample one token of every active completion, or collect the answers of vLLM's processes.

        Raises:
            FloatingPointError: with the policy's name, if its weights give NaN logits.
            EngineError: if vLLM's processes have died.
        """
        answers, self._refused = self._refused, []
        if not self._completion_of:
            return answers
        with self._errors_name():
            outputs = self.core.step(0.0 if answers else wait_s)
        for output in outputs:
            pending = self._completion_of.get(output.request_id)
            # The request may have been cancelled or aborted while vLLM answered.
            if pending is not None:
                finish = self._receive(pending, output)
                if finish:
                    answers.append((pending.ticket, self._finish(pending, finish)))
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Drop requests; no answer follows."""
        cancelled = set(tickets)
        self._refused = [answer for answer in self._refused if answer[0] not in cancelled]
        for ticket in cancelled & self._open.keys():
            self._abort(self._open.pop(ticket))

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        """Replace weights in place; open completions continue with the new weights (see `Completion.versions`).

        Raises:
            ValueError: if names, shapes or version differ, or another policy uses the engine's only weights.
            EngineError: if vLLM's processes have died, or take longer than `timeout_s`.
        """
        check_version(policy, weights, version)
        with self._errors_name(policy):
            self.weights.load(policy, weights, version)

    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        """Add an adapter on the same base, or the base; without adapters, only equal weights can be added."""
        self.weights.add(policy, source)

    def remove_policy(self, policy: str) -> None:
        """Free the weights of a policy.

        Raises:
            ValueError: if requests of the policy are in flight, or the policy has no weights in this engine.
        """
        check_idle(policy, [pending.request for pending in self._open.values()])
        self.weights.remove(policy)

    def end_step(self) -> dict[str, Metrics]:
        """Return the metric `prefix_cache` of each policy: the cached share of its prompt tokens."""
        # Later steps never hit cached prompts of this one: a resumed run starts with an empty cache, and whether a
        # prompt was cached matters to the last bit.
        self._steps += 1
        counts, self._prompt_tokens = self._prompt_tokens, {}
        metrics: dict[str, Metrics] = {}
        for policy, (cached_tokens, tokens) in counts.items():
            if tokens:
                metrics[policy] = {"prefix_cache": cached_tokens / tokens}
        return metrics

    def sleep(self) -> None:
        """Free the device's memory until requests or weights come, if the settings say so."""
        if not self._open:
            with self._errors_name():
                self.core.sleep()

    def close(self) -> None:
        """End vLLM's processes and free their memory."""
        self.core.close()

    def _continue(self, pending: PendingCompletion) -> None:
        """Sample the next segment of a completion; tokens imposed by the thinking budget are scored before."""
        imposed: list[int] = []
        while pending.thinking is not None and (token := pending.thinking.next_token) is not None:
            if len(pending.ids) + len(imposed) == pending.max_tokens:
                break
            imposed.append(token)
            pending.thinking.update([*pending.ids, *imposed])
        if imposed:
            self._score(pending, imposed)
        else:
            self._send(pending, pending.ids, pending.sampling_params(self._ends), None)

    def _score(self, pending: PendingCompletion, ids: Sequence[int]) -> None:
        """Append tokens and request their log-probabilities."""
        first, sampling = len(pending.ids), pending.request.sampling
        pending.ids += ids
        pending.logprobs += [math.nan] * len(ids)
        is_plain = pending.request.forced is not None and sampling.temperature == 1 and not sampling.truncated
        # vLLM samples one token after a scored prompt, for which the context needs a free position.
        if is_plain and len(pending.prompt.ids) + len(ids) < self.weights.context:
            self._send(pending, ids, prompt_scoring_params(), None)
            return
        for index, token in enumerate(ids, first):
            self._send(pending, pending.ids[:index], token_scoring_params(sampling, token), index)

    def _send(self, pending: PendingCompletion, ids: Sequence[int], params: Any, index: int | None) -> None:
        """Send a request to vLLM: the prompt followed by `ids`. `index` is the token to score, if there is just one."""
        policy = pending.request.policy
        name = f"{pending.ticket}.{pending.segments}"
        pending.segments += 1
        pending.open_requests[name] = index
        self._completion_of[name] = pending
        with self._errors_name(policy):
            # Evaluation has a prefix cache of its own: a resumed run does not repeat an evaluation before it.
            salt = f"{self.weights.cache_salt(policy)}/{self._steps}/{pending.request.purpose}"
            prompt_ids = (*pending.prompt.ids, *ids)
            self.core.add(VLLMRequest(name, prompt_ids, params, salt, self.weights.adapter(policy)))

    def _receive(self, pending: PendingCompletion, output: RequestOutput | ServerOutput) -> Finish | None:
        """Process an answer of vLLM; return the finish reason if the completion has ended."""
        index = pending.open_requests[output.request_id]
        if output.finished:
            del self._completion_of[output.request_id], pending.open_requests[output.request_id]
        is_forced = pending.request.forced is not None
        if not is_forced and index is None:
            return self._receive_tokens(pending, output)
        self._receive_scores(pending, output, index)
        if pending.open_requests:
            return None
        finish = "stop" if is_forced else self._finish_reason(pending)
        if finish is None:
            self._continue(pending)
        return finish

    def _receive_scores(
        self, pending: PendingCompletion, output: RequestOutput | ServerOutput, index: int | None
    ) -> None:
        """Store the log-probability of the token at `index`, or of all tokens if `index` is None."""
        sampled: Any = output.outputs[0]
        if index is None:
            scores: Any = output.prompt_logprobs
            pending.logprobs = scores.logprobs[-len(pending.ids) :]
        elif pending.request.sampling.temperature == 0:
            # A greedy distribution is a point mass on the likeliest token.
            pending.logprobs[index] = 0.0 if sampled.token_ids[0] == pending.ids[index] else -math.inf
        else:
            logprob_of = dict(zip(sampled.logprobs.token_ids, sampled.logprobs.logprobs, strict=True))
            pending.logprobs[index] = logprob_of[pending.ids[index]]

    def _receive_tokens(self, pending: PendingCompletion, output: RequestOutput | ServerOutput) -> Finish | None:
        """Append sampled tokens; return the finish reason if the completion has ended."""
        if output.finished and output.num_cached_tokens is not None:
            counts = self._prompt_tokens.setdefault(pending.request.policy, [0, 0])
            counts[0] += output.num_cached_tokens
            counts[1] += len(output.prompt_token_ids or ())
        sampled: Any = output.outputs[0]
        greedy = pending.request.sampling.temperature == 0
        logprobs = [0.0] * len(sampled.token_ids) if greedy else sampled.logprobs.logprobs
        if not pending.request.sampling.stop and pending.thinking is None:
            pending.ids += sampled.token_ids
            pending.logprobs += logprobs
            return self._finish_reason(pending) if output.finished else None
        # A server sends whole answers, so tokens behind a stop text or over the budget are dropped.
        for token, logprob in zip(sampled.token_ids, logprobs, strict=True):
            pending.ids.append(token)
            pending.logprobs.append(logprob)
            if pending.thinking is not None:
                pending.thinking.update(pending.ids)
            if finish := self._finish_reason(pending):
                self._abort(pending)
                return finish
            if pending.thinking is not None and pending.thinking.next_token is not None:
                self._abort(pending)
                self._continue(pending)
                return None
        return None

    def _finish_reason(self, pending: PendingCompletion) -> Finish | None:
        """Return the finish reason after the last token, or None if the completion goes on."""
        stop, chat = pending.request.sampling.stop, self.chat_tokenizer
        if pending.ids[-1] in chat.ends or (stop and chat.reaches_stop(stop, pending.ids)):
            return "stop"
        return "length" if len(pending.ids) >= pending.max_tokens else None

    def _finish(self, pending: PendingCompletion, finish: Finish) -> Completion:
        """Remove a finished completion from the open ones and return it."""
        request = pending.request
        version = self.weights.version(request.policy)
        if any(math.isnan(logprob) for logprob in pending.logprobs):
            raise nan_error(request.policy, version)
        del self._open[pending.ticket]
        text = request.forced
        if text is None:
            text = completed_text(self.chat_tokenizer, tuple(pending.ids), request.sampling.stop)
        return pending.finished(text, pending.ids, pending.logprobs, finish, version)

    def _abort(self, pending: PendingCompletion) -> None:
        """Cancel the open requests of a completion in vLLM."""
        if pending.open_requests:
            with self._errors_name(pending.request.policy):
                self.core.abort(pending.open_requests)
        for name in pending.open_requests:
            del self._completion_of[name]
        pending.open_requests.clear()

    @contextmanager
    def _errors_name(self, policy: str | None = None) -> Iterator[None]:
        """Name `policy` in errors of vLLM, or all policies with open requests if `policy` is None."""
        try:
            yield
        except (EngineError, HangError) as error:
            policies = {policy} if policy else {pending.request.policy for pending in self._open.values()}
            names = ", ".join(map(repr, sorted(policies)))
            raise EngineError(f"engine 'vllm' of policies {names}: {error}") from error


def build_engine(settings: VLLMOptions, source: ModelSource) -> VLLMEngine:
    """Return the engine of one model, whose weights policies may share."""
    return VLLMEngine(VLLMFullWeights(cast("PretrainedSource", source), settings), source.tokenizer())


def build_shared_engine(settings: VLLMOptions, sources: Mapping[str, ModelSource]) -> VLLMEngine:
    """Return the engine of several adapters on one base. `sources`: policy -> adapter."""
    adapters = cast("Mapping[str, AdapterSource]", sources)
    return VLLMEngine(VLLMAdapters(adapters, settings), next(iter(adapters.values())).tokenizer())
