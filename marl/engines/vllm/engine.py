"""The engine that samples with vLLM: requests and completions in the form shared by all engines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from marl.core.errors import EngineError, EngineLostError
from marl.core.types import Completion, CompletionFailure, Finish, MetricsByPolicy, Request, Ticket
from marl.core.watchdog import CallTimeoutError
from marl.engines.token_engine import (
    check_no_open_requests,
    check_shared_weights_version,
    context_overflow_failure,
    decode_completion,
    end_token_ids,
    max_completion_tokens,
    nan_logits_error,
    thinking_budget_after_prefix,
    with_segments,
)
from marl.engines.vllm.adapters import VLLMAdapters
from marl.engines.vllm.core import VLLMRequest
from marl.engines.vllm.full_weights import VLLMFullWeights
from marl.engines.vllm.pending import (
    PendingCompletion,
    check_vllm_supports_sampling,
    prompt_scoring_params,
    token_scoring_params,
)
from marl.engines.vllm.server_responses import ServerOutput
from marl.models.chat_template import ChatTokenizer
from marl.protocols import ModelSource, PolicyMetricsEngine, SleepingEngine, Weights

if TYPE_CHECKING:
    from vllm import RequestOutput

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
policy/POLICY/prefix_cache | share of tokens | tokens of prompts that the engine's cache knew in the step (`engine:
    vllm`, `vllm_server`)
"""

TicketedAnswers = list[tuple[Ticket, Completion | CompletionFailure]]


class VLLMEngine(PolicyMetricsEngine, SleepingEngine):
    """Engine with one model in vLLM, for several policies. Text is tokenized outside vLLM."""

    def __init__(self, policy_weights: VLLMFullWeights | VLLMAdapters, tokenizer: Any) -> None:
        self.weights, self.core = policy_weights, policy_weights.core
        ends = end_token_ids(policy_weights.eos_token_ids, tokenizer)
        self.chat_tokenizer = ChatTokenizer(tokenizer, ends)
        self._ends = sorted(ends)
        self._open: dict[Ticket, PendingCompletion] = {}
        self._completion_of: dict[str, PendingCompletion] = {}
        """Name of an open request to vLLM -> the completion that the request belongs to."""
        self._refused: TicketedAnswers = []
        """Failures of requests that are longer than the context."""
        self._has_lost_core = False
        """True if vLLM's processes were lost in the last update of weights, so that the next one restarts them."""
        self._updates = 0
        """Number of finished updates of weights, under which vLLM reports tokens sampled after the last one."""
        self._versions_after_update: dict[int, dict[str, int]] = {0: {}}
        """Number of an update that open requests have met -> version of each policy's weights after it (default: 0)."""
        self._steps = 0
        """Number of finished training steps."""
        self._prompt_tokens: dict[str, list[int]] = {}
        """Policy -> [number of cached prompt tokens, number of all prompt tokens] in this training step."""

    def submit(self, ticket: Ticket, request: Request) -> None:
        """Send a request to vLLM.

        Raises:
            ValueError: if the ticket is in use, the policy has no weights in this engine, the chat template refuses the
                messages, or vLLM does not support the sampling settings.
            EngineError: if vLLM's processes have died.
        """
        if ticket in self._open or any(ticket == answered for answered, _ in self._refused):
            raise ValueError(f"ticket {ticket} was submitted before and has not been answered")
        check_vllm_supports_sampling(request)
        version, chat = self.weights.weights_version(request.policy), self.chat_tokenizer
        prompt = chat.prompt(request)
        forced = None if request.forced is None else chat.forced_ids(request.forced)
        read_tokens = len(prompt.ids) + len(request.prefix)
        if failure := context_overflow_failure(request, read_tokens, len(forced or ()), self.weights.context):
            self._refused.append((ticket, failure))
            return
        max_tokens = max_completion_tokens(request, read_tokens, self.weights.context)
        thinking = None if forced else thinking_budget_after_prefix(request, chat)
        marks = chat.token_spans_of_marks(request)
        pending = PendingCompletion(ticket, request, prompt, max_tokens, thinking, marks, version)
        pending.first_update = self._updates
        pending.ids, pending.logprobs = list(request.prefix), [0.0] * len(request.prefix)
        self._open[ticket] = pending
        if forced is not None:
            self._request_logprobs_of_forced_tokens(pending, forced)
        else:
            self._request_next_tokens(pending)

    def step(self, wait_s: float) -> TicketedAnswers:
        """Sample one token of every active completion, or collect the answers of vLLM's processes.

        Raises:
            FloatingPointError: with the policy's name, if its weights give NaN logits.
            EngineError: if vLLM's processes have died.
        """
        answers, self._refused = self._refused, []
        if not self._completion_of:
            return answers
        with self._add_policy_names_to_errors():
            outputs = self.core.step(0.0 if answers else wait_s)
        for output in outputs:
            pending = self._completion_of.get(output.request_id)
            # The request may have been cancelled or aborted while vLLM answered.
            finish = None if pending is None else self._process_output(pending, output)
            if pending is None or finish is None:
                continue
            request, text = pending.request, pending.request.forced
            version = self.weights.weights_version(request.policy)
            if any(map(math.isnan, pending.logprobs)):
                raise nan_logits_error(request.policy, version)
            del self._open[pending.ticket]
            if text is None:
                text = decode_completion(self.chat_tokenizer, request, pending.prompt, tuple(pending.ids))
            completion = pending.to_completion(text, pending.ids, pending.logprobs, finish)
            if request.forced is not None:
                completion = replace(completion, versions=(pending.version, version))
            answers.append((pending.ticket, with_segments(completion, request, self.chat_tokenizer)))
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Cancel the requests with these `tickets`. No answers to cancelled requests follow."""
        cancelled = set(tickets)
        self._refused = [answer for answer in self._refused if answer[0] not in cancelled]
        for ticket in cancelled & self._open.keys():
            self._abort_requests(self._open.pop(ticket))

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        """Replace weights in place; open completions continue with the new weights (see `Completion.version_runs`).

        If vLLM's processes were lost in the last update, they are restarted first; open completions start again.

        Raises:
            ValueError: if names, shapes or version differ, or another policy uses the engine's only weights.
            EngineLostError: if vLLM's processes have died, or take longer than `timeout_s`.
            EngineError: if vLLM's processes cannot be restarted.
        """
        check_shared_weights_version(policy, weights, version)
        self._announce_update(policy, version)
        try:
            with self._add_policy_names_to_errors(policy):
                restarted = self._has_lost_core and self.core.restart_processes()
                if restarted:
                    self.weights.reload_after_restart()
                self.weights.load_weights(policy, weights, version)
        except EngineError:
            self._has_lost_core = True
            raise
        self._has_lost_core = False
        self._updates += 1
        if restarted:
            self._resubmit_open_requests()

    def _announce_update(self, policy: str, version: int) -> None:
        """Number the next update of weights, by which vLLM will report the tokens sampled after it."""
        requests = list(self._open.values())
        oldest = min([pending.first_update for pending in requests], default=self._updates)
        versions = {number: after for number, after in self._versions_after_update.items() if number >= oldest}
        versions[self._updates + 1] = versions[self._updates] | {policy: version}
        self._versions_after_update = versions
        has_open_requests = policy in [pending.request.policy for pending in requests]
        self.core.announce_update(self._updates + 1, recompute_cache=has_open_requests)

    def _resubmit_open_requests(self) -> None:
        """Submit all open requests again, because new processes of vLLM know none of them."""
        unanswered, self._open, self._completion_of = self._open, {}, {}
        for ticket, pending in unanswered.items():
            self.submit(ticket, pending.request)

    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        """Add `policy`, which samples with the adapter `source`, or with the engine's initial weights."""
        self.weights.add_policy(policy, source)

    def remove_policy(self, policy: str) -> None:
        """Free the weights of `policy`.

        Raises:
            ValueError: if requests of the policy are in flight, or the policy has no weights in this engine.
        """
        check_no_open_requests(policy, [pending.request for pending in self._open.values()])
        self.weights.remove_policy(policy)
        self._versions_after_update[self._updates].pop(policy, None)

    def step_metrics(self) -> MetricsByPolicy:
        """Return the metric `prefix_cache` of each policy: the cached share of its prompt tokens in this step."""
        metrics: MetricsByPolicy = {}
        for policy, (cached_tokens, tokens) in self._prompt_tokens.items():
            if tokens:
                metrics[policy] = {"prefix_cache": cached_tokens / tokens}
        return metrics

    def end_step(self) -> None:
        # A new step number changes the cache salt, because a resumed run starts with an empty prefix cache.
        # A hit in the prefix cache changes the last bits of a prompt's logits.
        self._steps += 1
        self._prompt_tokens = {}

    def sleep(self) -> None:
        """If `engine.sleep` is true and no request is open, free the device until the next request or update."""
        if not self._open:
            with self._add_policy_names_to_errors():
                self.core.sleep()

    def close(self) -> None:
        """End vLLM's processes and free their memory."""
        self.core.close()

    def _request_next_tokens(self, pending: PendingCompletion) -> None:
        """Request log-probabilities of the tokens that the thinking budget imposes, or sampling if there are none."""
        imposed: list[int] = []
        while pending.thinking is not None and (token := pending.thinking.token_to_impose) is not None:
            if len(pending.ids) + len(imposed) == pending.max_tokens:
                break
            imposed.append(token)
            pending.thinking.record_last_token([*pending.ids, *imposed])
        if imposed:
            self._request_logprobs_of_forced_tokens(pending, imposed)
        else:
            pending.sampled_from = len(pending.ids)
            self._send_request(pending, pending.ids, pending.sampling_params(self._ends), None)

    def _request_logprobs_of_forced_tokens(self, pending: PendingCompletion, forced_ids: Sequence[int]) -> None:
        """Append the tokens `forced_ids` to a completion and request their log-probabilities from vLLM."""
        first, sampling = len(pending.ids), pending.request.sampling
        pending.ids += forced_ids
        pending.logprobs += [math.nan] * len(forced_ids)
        is_plain = (
            pending.request.forced is not None and sampling.temperature == 1 and not sampling.truncates_distribution
        )
        # vLLM samples one token after a scored prompt, so the context must have a free position.
        if is_plain and len(pending.prompt.ids) + len(forced_ids) < self.weights.context:
            self._send_request(pending, forced_ids, prompt_scoring_params(), None)
            return
        for index, token in enumerate(forced_ids, first):
            self._send_request(pending, pending.ids[:index], token_scoring_params(sampling, token), index)

    def _send_request(
        self,
        pending: PendingCompletion,
        ids_after_prompt: Sequence[int],
        vllm_sampling_params: Any,
        scored_index: int | None,
    ) -> None:
        """Send a request to vLLM with the prompt followed by `ids_after_prompt`, sampled by `vllm_sampling_params`.

        `scored_index` is the index of the only token to score, or None for sampling or for scoring all tokens.
        """
        policy = pending.request.policy
        name = f"{pending.ticket}.{pending.request_count}"
        pending.request_count += 1
        pending.open_requests[name] = scored_index
        self._completion_of[name] = pending
        with self._add_policy_names_to_errors(policy):
            if self.core.lacks_weights:
                self.weights.send_discarded_weights()
            # The salt includes the purpose: training shares no prefixes with evaluations, which a resumed run skips.
            salt = f"{self.weights.prefix_cache_salt(policy)}/{self._steps}/{pending.request.purpose}"
            prompt_ids = (*pending.prompt.ids, *ids_after_prompt)
            self.core.queue_request(
                VLLMRequest(name, prompt_ids, vllm_sampling_params, salt, self.weights.lora_request(policy))
            )

    def _process_output(self, pending: PendingCompletion, output: RequestOutput | ServerOutput) -> Finish | None:
        """Store the tokens or log-probabilities in `output`; return the finish reason if the completion has ended."""
        index = pending.open_requests[output.request_id]
        if output.finished:
            del self._completion_of[output.request_id], pending.open_requests[output.request_id]
        is_forced = pending.request.forced is not None
        if not is_forced and index is None:
            return self._append_sampled_tokens(pending, output)
        sampled: Any = output.outputs[0]
        if index is None:
            scores: Any = output.prompt_logprobs
            pending.logprobs = scores.logprobs[-len(pending.ids) :]
        else:
            logprob_of = dict(zip(sampled.logprobs.token_ids, sampled.logprobs.logprobs, strict=True))
            logprob = logprob_of[pending.ids[index]]
            if pending.request.sampling.temperature == 0:
                # A greedy distribution is a point mass on the likeliest token.
                [likeliest] = sampled.token_ids
                logprob = _greedy_logprob(logprob_of[likeliest])
                if likeliest != pending.ids[index] and not math.isnan(logprob):
                    logprob = -math.inf
            pending.logprobs[index] = logprob
        if pending.open_requests:
            return None
        finish = "stop" if is_forced else self._finish_reason(pending)
        if finish is None:
            self._request_next_tokens(pending)
        return finish

    def _append_sampled_tokens(self, pending: PendingCompletion, output: RequestOutput | ServerOutput) -> Finish | None:
        """Append sampled tokens to a completion; return the finish reason if the completion has ended."""
        if output.finished and output.num_cached_tokens is not None:
            counts = self._prompt_tokens.setdefault(pending.request.policy, [0, 0])
            counts[0] += output.num_cached_tokens
            counts[1] += len(output.prompt_token_ids or ())
        sampled: Any = output.outputs[0]
        greedy = pending.request.sampling.temperature == 0
        logprobs = sampled.logprobs.logprobs
        if greedy:
            logprobs = list(map(_greedy_logprob, logprobs))
        if not pending.request.sampling.stop and pending.thinking is None:
            pending.ids += sampled.token_ids
            pending.logprobs += logprobs
            if not output.finished:
                return None
            self._record_versions(pending, output)
            return self._finish_reason(pending)
        # A server sends complete answers, so tokens behind a stop text or over the thinking budget are dropped.
        for token, logprob in zip(sampled.token_ids, logprobs, strict=True):
            pending.ids.append(token)
            pending.logprobs.append(logprob)
            if pending.thinking is not None:
                pending.thinking.record_last_token(pending.ids)
            if finish := self._finish_reason(pending):
                self._record_versions(pending, output)
                self._abort_requests(pending)
                return finish
            if pending.thinking is not None and pending.thinking.token_to_impose is not None:
                self._record_versions(pending, output)
                self._abort_requests(pending)
                self._request_next_tokens(pending)
                return None
        return None

    def _record_versions(self, pending: PendingCompletion, output: RequestOutput | ServerOutput) -> None:
        """Record which versions of the weights sampled the tokens of the request to vLLM that `output` answers."""
        for update, first_token in self.core.updates_met_by(output):
            index = pending.sampled_from + first_token
            if update not in self._versions_after_update:
                raise EngineError(f"vLLM sampled with weights {update}, which were replaced before the request")
            # Tokens that a server samples behind the end of a completion are dropped.
            if index < len(pending.ids):
                pending.record_version(index, self._versions_after_update[update].get(pending.request.policy, 0))

    def _finish_reason(self, pending: PendingCompletion) -> Finish | None:
        """Return the finish reason of a completion that its last token ends, or None if the completion goes on."""
        stop, chat = pending.request.sampling.stop, self.chat_tokenizer
        if pending.ids[-1] in chat.ends or (stop and chat.ends_with_stop_text(stop, pending.ids)):
            return "stop"
        return "length" if len(pending.ids) >= pending.max_tokens else None

    def _abort_requests(self, pending: PendingCompletion) -> None:
        """Cancel all open requests to vLLM for one completion."""
        if pending.open_requests:
            with self._add_policy_names_to_errors(pending.request.policy):
                self.core.abort_requests(pending.open_requests)
        for name in pending.open_requests:
            del self._completion_of[name]
        pending.open_requests.clear()

    @contextmanager
    def _add_policy_names_to_errors(self, policy: str | None = None) -> Iterator[None]:
        """Add `policy` to vLLM's errors in the body (default: all policies with open requests)."""
        try:
            yield
        except (EngineError, CallTimeoutError) as error:
            policies = {policy} if policy else {pending.request.policy for pending in self._open.values()}
            names = ", ".join(map(repr, sorted(policies)))
            kind = EngineLostError if isinstance(error, EngineLostError | CallTimeoutError) else EngineError
            raise kind(f"engine 'vllm' of policies {names}: {error}") from error


def _greedy_logprob(reported_logprob: float) -> float:
    """Return the log-probability of the likeliest token at temperature 0: 0, or NaN if the logits were NaN.

    `reported_logprob` is the token's log-probability at temperature 1. A server reports NaN as minus infinity.
    """
    return 0.0 if math.isfinite(reported_logprob) else math.nan
