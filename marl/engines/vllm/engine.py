"""The engine that samples with vLLM: requests and completions as all engines have them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from marl.engines.transformers.thoughts import ThoughtLimit
from marl.engines.vllm.core import PartRequest
from marl.engines.vllm.parts import PendingCompletion, check_request, scoring_all, scoring_next
from marl.errors import EngineError
from marl.models.chat_template import ChatTokenizer
from marl.protocols import MeteredEngine, SharedWeights, SleepingEngine
from marl.types import Completion, Failure, Finish, Metrics, Request, Ticket
from marl.watchdog import HangError

if TYPE_CHECKING:
    from vllm import RequestOutput

    from marl.engines.vllm.adapters import Adapters
    from marl.engines.vllm.whole_weights import WholeWeights
    from marl.protocols import ModelSource, Weights

Answers = list[tuple[Ticket, Completion | Failure]]


class VLLMEngine(MeteredEngine, SleepingEngine):
    """One model in vLLM with the weights of its policies, and one tokenizer, which is ours."""

    def __init__(self, policy_weights: WholeWeights | Adapters, tokenizer: Any) -> None:
        self.weights, self.core = policy_weights, policy_weights.core
        declared = policy_weights.ends if isinstance(policy_weights.ends, list) else [policy_weights.ends]
        ends = frozenset(token for token in (*declared, tokenizer.eos_token_id) if token is not None)
        self.chat_tokenizer = ChatTokenizer(tokenizer, ends)
        self._ends = sorted(ends)
        self._open: dict[Ticket, PendingCompletion] = {}
        self._part_of: dict[str, PendingCompletion] = {}
        """Open request to vLLM -> the completion that it is a part of."""
        self._ready: Answers = []
        """Answers that need no sampling."""
        self._steps = 0
        """Steps that have ended."""
        self._read: dict[str, list[int]] = {}
        """Policy -> tokens of its prompts that were in the cache, and all."""

    def submit(self, ticket: Ticket, request: Request) -> None:
        """Queue a request.

        Raises:
            ValueError: if the ticket is in use, the policy has no weights here, the prompt cannot be made, or vLLM
                cannot sample as the request asks.
            EngineError: if vLLM's processes have died.
        """
        if ticket in self._open or any(ticket == answered for answered, _ in self._ready):
            raise ValueError(f"ticket {ticket} was submitted before and has not been answered")
        check_request(request)
        version, chat = self.weights.version(request.policy), self.chat_tokenizer
        prompt = chat.prompt(request)
        forced = None if request.forced is None else chat.forced_ids(request.forced)
        room = self.weights.context - len(prompt.ids)
        if room < max(len(forced or ()), 1):
            tokens = f"{len(prompt.ids)} tokens of prompt" + (f" and {len(forced)} of forced text" if forced else "")
            self._ready.append((ticket, Failure("overflow", f"{tokens}; the context holds {self.weights.context}")))
            return
        limit = min(request.sampling.max_tokens, room)
        thought = None if forced else ThoughtLimit.of(request, chat)
        answer = PendingCompletion(ticket, request, prompt, limit, version, thought, chat.mark_tokens(request))
        self._open[ticket] = answer
        if forced is not None:
            self._score(answer, forced)
        else:
            self._go_on(answer)

    def step(self, wait_s: float) -> Answers:
        """Let vLLM sample a token of every active completion, or, from processes of its own, take what has come.

        Raises:
            FloatingPointError: if weights give logits that are not numbers; names the policy.
            EngineError: if vLLM's processes have died.
        """
        answers, self._ready = self._ready, []
        if self._part_of:
            with self._named():
                outputs = self.core.step(0.0 if answers else wait_s)
            answers += [answer for output in outputs for answer in self._take(output)]
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Forget requests; no answer follows."""
        cancelled = set(tickets)
        self._ready = [answer for answer in self._ready if answer[0] not in cancelled]
        for ticket in cancelled & self._open.keys():
            self._abort(self._open.pop(ticket))

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        """Replace weights in place; completions in the making go on with the new ones (see `Completion.versions`).

        Raises:
            ValueError: if they do not fit, are of another version, or if the weights held here are another policy's.
            EngineError: if vLLM's processes have died, or take longer than `timeout_s`.
        """
        if isinstance(weights, SharedWeights) and weights.version != version:
            raise ValueError(f"{weights.file} holds version {weights.version} of {policy!r}, not version {version}")
        with self._named(policy):
            self.weights.load(policy, weights, version)

    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        """Hold a further adapter on the same base, or the base; without adapters, only the same weights fit."""
        self.weights.add(policy, source)

    def remove_policy(self, policy: str) -> None:
        """Free the weights of a policy.

        Raises:
            ValueError: if its requests are in flight, or if it has no weights here.
        """
        if many := sum(answer.request.policy == policy for answer in self._open.values()):
            raise ValueError(f"policy {policy!r} has {many} requests in flight; cancel them before it is removed")
        self.weights.remove(policy)

    def end_step(self) -> dict[str, Metrics]:
        """Return, by policy, the share of its prompts' tokens that the cache knew already.

        What it knows is not found again: to the last bit, it matters whether a prompt was in the cache.
        """
        self._steps += 1
        read, self._read = self._read, {}
        return {policy: {"prefix_cache": known / tokens} for policy, (known, tokens) in read.items() if tokens}

    def sleep(self) -> None:
        """Free the device's memory, if the settings say so, until requests or weights come."""
        if not self._open:
            with self._named():
                self.core.sleep()

    def close(self) -> None:
        """End vLLM's processes, and free its memory."""
        self.core.close()

    def _go_on(self, answer: PendingCompletion) -> None:
        """Sample, after what a limit of thoughts imposes was scored."""
        imposed: list[int] = []
        while answer.thought is not None and (token := answer.thought.next_token) is not None:
            if len(answer.ids) + len(imposed) == answer.limit:
                break
            imposed.append(token)
            answer.thought.follow([*answer.ids, *imposed])
        if imposed:
            self._score(answer, imposed)
        else:
            self._add(answer, (), answer.sampling_part(self._ends), None)

    def _score(self, answer: PendingCompletion, ids: Sequence[int]) -> None:
        """Append tokens, and ask for their log-probabilities."""
        before, sampling = len(answer.ids), answer.request.sampling
        answer.ids += ids
        answer.logprobs += [math.nan] * len(ids)
        plain = answer.request.forced is not None and sampling.temperature == 1 and not sampling.truncated
        # vLLM samples one token after what it scores.
        if plain and len(answer.prompt.ids) + len(ids) < self.weights.context:
            self._add(answer, ids, scoring_all(), None)
            return
        for place, token in enumerate(ids, before):
            self._add(answer, answer.ids[:place], scoring_next(sampling, token), place)

    def _add(self, answer: PendingCompletion, ids: Sequence[int], params: Any, place: int | None) -> None:
        """Put a request to vLLM: the prompt and `ids` (or what was sampled), and settings of what is to come."""
        policy = answer.request.policy
        prompt = (*answer.prompt.ids, *(ids or (answer.ids if place is None else ())))
        name = f"{answer.ticket}.{answer.parts}"
        answer.parts += 1
        answer.waiting[name] = place
        self._part_of[name] = answer
        with self._named(policy):
            # Evaluation has a cache of its own: a run that is resumed after it does not repeat it.
            salt = f"{self.weights.salt(policy)}/{self._steps}/{answer.request.purpose}"
            self.core.add(PartRequest(name, prompt, params, salt, self.weights.adapter(policy)))

    def _take(self, output: RequestOutput) -> Iterator[tuple[Ticket, Completion]]:
        """Yield the completion that what vLLM returned makes whole, if it does."""
        answer = self._part_of.get(output.request_id)
        if answer is None:
            return  # cancelled, or ended, while this came
        place = answer.waiting[output.request_id]
        if output.finished:
            del self._part_of[output.request_id], answer.waiting[output.request_id]
        forced = answer.request.forced is not None
        if not forced and place is None:
            finish = self._take_tokens(answer, output)
        else:
            self._take_scores(answer, output, place)
            if answer.waiting:
                return
            finish = "stop" if forced else self._finish(answer)
            if finish is None:
                self._go_on(answer)
        if finish:
            yield self._end(answer, finish)

    def _take_scores(self, answer: PendingCompletion, output: RequestOutput, place: int | None) -> None:
        sampled: Any = output.outputs[0]
        if place is None:
            scores: Any = output.prompt_logprobs
            answer.logprobs = scores.logprobs[-len(answer.ids) :]
        elif answer.request.sampling.temperature == 0:
            answer.logprobs[place] = 0.0 if sampled.token_ids[0] == answer.ids[place] else -math.inf
        else:
            logprob_of = dict(zip(sampled.logprobs.token_ids, sampled.logprobs.logprobs, strict=True))
            answer.logprobs[place] = logprob_of[answer.ids[place]]

    def _take_tokens(self, answer: PendingCompletion, output: RequestOutput) -> Finish | None:
        """Append what was sampled; return why the completion ends here, if it does."""
        if output.finished and output.num_cached_tokens is not None:
            read = self._read.setdefault(answer.request.policy, [0, 0])
            read[0] += output.num_cached_tokens
            read[1] += len(output.prompt_token_ids or ())
        sampled: Any = output.outputs[0]
        greedy = answer.request.sampling.temperature == 0
        logprobs = [0.0] * len(sampled.token_ids) if greedy else sampled.logprobs.logprobs
        if not answer.request.sampling.stop and answer.thought is None:
            answer.ids += sampled.token_ids
            answer.logprobs += logprobs
            return self._finish(answer) if output.finished else None
        for token, logprob in zip(sampled.token_ids, logprobs, strict=True):
            answer.ids.append(token)
            answer.logprobs.append(logprob)
            if answer.thought is not None:
                answer.thought.follow(answer.ids)
            if finish := self._finish(answer):
                self._abort(answer)
                return finish
            if answer.thought is not None and answer.thought.next_token is not None:
                self._abort(answer)
                self._go_on(answer)
                return None
        return None

    def _finish(self, answer: PendingCompletion) -> Finish | None:
        stop = answer.request.sampling.stop
        if answer.ids[-1] in self.chat_tokenizer.ends or (stop and self.chat_tokenizer.reaches_stop(stop, answer.ids)):
            return "stop"
        if len(answer.ids) >= answer.limit:
            return "length"
        return None

    def _end(self, answer: PendingCompletion, finish: Finish) -> tuple[Ticket, Completion]:
        request, chat = answer.request, self.chat_tokenizer
        version = self.weights.version(request.policy)
        if any(math.isnan(logprob) for logprob in answer.logprobs):
            raise FloatingPointError(
                f"version {version} of the weights of policy {request.policy!r} gives logits that are not numbers"
            )
        del self._open[answer.ticket]
        if request.forced is not None:
            return answer.ticket, answer.completion(request.forced, finish, version)
        text = chat.opening + chat.text(tuple(answer.ids))
        if request.sampling.stop:
            text = chat.cut_at_stop(request.sampling.stop, text)
        return answer.ticket, answer.completion(text, finish, version)

    def _abort(self, answer: PendingCompletion) -> None:
        """Let vLLM forget a completion's parts."""
        if answer.waiting:
            with self._named(answer.request.policy):
                self.core.abort(answer.waiting)
        for name in answer.waiting:
            del self._part_of[name]
        answer.waiting.clear()

    @contextmanager
    def _named(self, policy: str | None = None) -> Iterator[None]:
        """Return a context whose errors say for which policies this engine speaks."""
        try:
            yield
        except (EngineError, HangError) as error:
            owing = [policy] if policy else [answer.request.policy for answer in self._open.values()]
            names = ", ".join(map(repr, sorted(set(owing))))
            raise EngineError(f"engine 'vllm' of policies {names}: {error}") from error
