"""Scores of given texts: the log-probability of each of their tokens after a prompt.

Shape suffixes: P = prompts, N = texts of a chunk, T = tokens of the longest text, Q = T - 1, M = all scored tokens, V =
vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from marl.core.config import Sampling
from marl.engines.transformers.memory import MAX_LOGITS_PER_FORWARD as _MAX_LOGITS_PER_FORWARD
from marl.engines.transformers.model_runner import ModelRunner, TokenIds, pad_right
from marl.engines.transformers.packing import PackedPrompts
from marl.engines.transformers.sampling import SamplingTensors, next_token_logprobs
from marl.engines.transformers.slots import SamplingJob, SlotCache
from marl.models.chat_template import Prompt

Scores = list[tuple[float, ...]]
"""Log-probability of each token of each job's text, in nats."""


def score_forced_texts(runner: ModelRunner, jobs: Sequence[SamplingJob], texts: Sequence[TokenIds]) -> Scores:
    """Return, for each job, the log-probability of each token of its text after its prompt, in nats.

    `texts[i]` are the token ids of the text of job i. Log-probabilities are under the job's sampling distribution. Each
    distinct prompt is read once: together with its texts in one forward if the batch is small enough, otherwise before
    its texts, which are then read in chunks.
    """
    scores: Scores = [()] * len(jobs)
    indices_by_prompt: dict[Prompt, list[int]] = {}
    for index, job in enumerate(jobs):
        indices_by_prompt.setdefault(job.prompt, []).append(index)
    prompts = list(indices_by_prompt)
    for batch in runner.prefill_batch_indices(prompts):
        batch_prompts = [prompts[index] for index in batch]
        members = [indices_by_prompt[prompt] for prompt in batch_prompts]
        packed = PackedPrompts.from_texts(batch_prompts, [[texts[index] for index in row] for row in members])
        if _fits_one_forward(runner, batch_prompts, packed):
            _score_packed_texts(runner, packed, members, jobs, texts, scores)
        else:
            _score_after_cached_prompts(runner, batch_prompts, members, jobs, texts, scores)
    return scores


def _fits_one_forward(runner: ModelRunner, prompts: Sequence[Prompt], packed: PackedPrompts) -> bool:
    """Return True if one forward over `packed` keeps all limits and costs no more than one over the prompts alone."""
    rows, tokens = len(prompts), len(prompts) * packed.width
    logits = rows * packed.logits_per_row * runner.vocabulary
    # The mask has a number for each pair of tokens of a row.
    largest = max(logits, tokens * packed.width)
    if tokens > runner.prefill_tokens or largest > _MAX_LOGITS_PER_FORWARD:
        return False
    return not runner.length_of_prefix_to_read_once(prompts)


def _score_packed_texts(
    runner: ModelRunner,
    packed: PackedPrompts,
    members: Sequence[Sequence[int]],
    jobs: Sequence[SamplingJob],
    texts: Sequence[TokenIds],
    scores: Scores,
) -> None:
    """Set the `scores` of all `members`, the indices of the jobs of each row, from one forward over `packed`."""
    rows_M, columns_M, tokens_M = list[int](), list[int](), list[int]()
    samplings: list[Sampling] = []
    for row, (indices, offsets) in enumerate(zip(members, packed.offsets, strict=True)):
        for index in indices:
            text, offset = texts[index], offsets[texts[index]]
            # The first token is predicted after the prompt, the others after the token before them.
            rows_M += [row] * len(text)
            columns_M += [0, *range(offset, offset + len(text) - 1)]
            tokens_M += text
            samplings += [jobs[index].request.sampling] * len(text)
    logits_PKV = runner.read_packed_prompts(packed, jobs[members[0][0]].prompt.policy)
    device = logits_PKV.device
    rows, columns, tokens = torch.tensor([rows_M, columns_M, tokens_M], device=device)
    logprobs_MV = next_token_logprobs(logits_PKV[rows, columns], SamplingTensors.from_settings(samplings, device))
    logprobs = logprobs_MV.gather(1, tokens[:, None])[:, 0].tolist()
    start = 0
    for index in [index for indices in members for index in indices]:
        scores[index] = tuple(logprobs[start : start + len(texts[index])])
        start += len(texts[index])


def _score_after_cached_prompts(
    runner: ModelRunner,
    prompts: Sequence[Prompt],
    members_by_row: Sequence[Sequence[int]],
    jobs: Sequence[SamplingJob],
    texts: Sequence[TokenIds],
    scores: Scores,
) -> None:
    """Set the `scores` of all members, the indices of the jobs of each row, from forwards over prompts, then texts."""
    kv, logits_PV = runner.prefill(prompts)
    device = logits_PV.device
    row_of = {prompt: row for row, prompt in enumerate(prompts)}
    longest_prompt = max(len(prompt.ids) for prompt in prompts)
    members = sorted([index for row in members_by_row for index in row], key=lambda index: len(texts[index]))
    while members:
        # The longest text of a chunk limits its rows, so chunks are taken from the end of the sorted list.
        longest = len(texts[members[-1]])
        rows_by_tokens = runner.prefill_tokens // (longest_prompt + longest)
        size = max(1, min(rows_by_tokens, _MAX_LOGITS_PER_FORWARD // (longest * runner.vocabulary)))
        members, chunk = members[:-size], members[-size:]
        chunk_texts, samplings = [texts[index] for index in chunk], list[Sampling]()
        rows, prompt_lengths, policies = list[int](), list[int](), list[int]()
        for job in [jobs[index] for index in chunk]:
            rows.append(row_of[job.prompt])
            prompt_lengths.append(len(job.prompt.ids))
            policies.append(job.prompt.policy)
            samplings += [job.request.sampling] * longest
        logits_NTV = logits_PV[rows][:, None]
        if longest > 1:
            length = max(prompt_lengths) + longest - 1
            # No row grows later, so that the cache has no spare capacity, which would be filled with zeros.
            cache = SlotCache(runner.layers, runner.dtype, length)
            cache.store_prefilled(kv, rows, list(range(len(chunk))))
            # The last token of a text is left out, because no later token is predicted from it.
            ids_NQ = torch.tensor(pad_right([ids[:-1] for ids in chunk_texts]), device=device)
            offsets_Q = torch.arange(longest - 1, device=device)
            positions_NQ = torch.tensor(prompt_lengths, device=device)[:, None] + offsets_Q
            later_NQV = runner.decode(cache, ids_NQ, positions_NQ, length, np.array(policies, np.int64))
            logits_NTV = torch.cat([logits_NTV, later_NQV], 1)
        logprobs_MV = next_token_logprobs(logits_NTV.flatten(0, 1), SamplingTensors.from_settings(samplings, device))
        chosen_M1 = logprobs_MV.gather(1, torch.tensor(pad_right(chunk_texts)).to(device).view(-1, 1))
        for index, logprobs in zip(chunk, chosen_M1.view(-1, longest).tolist(), strict=True):
            scores[index] = tuple(logprobs[: len(texts[index])])
