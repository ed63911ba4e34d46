"""Log-probabilities of given texts: nothing is sampled, each prompt is read once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from marl.engines.transformers.kv_cache import SlotCache
from marl.engines.transformers.network import Network, voices_of
from marl.engines.transformers.sampling import Shaping, log_distribution
from marl.engines.transformers.slots import Job
from marl.models.chat_template import Prompt


def scores(network: Network, jobs: Sequence[Job], said: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
    """For each job, the log-probability of each token of `said` after its prompt, under its sampling distribution."""
    found: list[tuple[float, ...]] = [()] * len(jobs)
    prompts = list(dict.fromkeys(job.prompt for job in jobs))
    for batch in network.batches(prompts):
        together = [prompts[index] for index in batch]
        members = {prompt: row for row, prompt in enumerate(together)}
        rows = [index for index, job in enumerate(jobs) if job.prompt in members]
        for index, row_scores in zip(rows, _after(network, together, _picked(jobs, said, rows)), strict=True):
            found[index] = row_scores
    return found


Said = list[tuple[Job, tuple[int, ...]]]


def _picked(jobs: Sequence[Job], said: Sequence[tuple[int, ...]], rows: list[int]) -> Said:
    return [(jobs[row], said[row]) for row in rows]


def _after(network: Network, prompts: Sequence[Prompt], said: Said) -> list[tuple[float, ...]]:
    """Texts after prompts that are read in one forward."""
    prefilled = network.prefill(prompts)
    rows = {prompt: row for row, prompt in enumerate(prompts)}
    order = sorted(range(len(said)), key=lambda index: len(said[index][1]))
    found: list[tuple[float, ...]] = [()] * len(said)
    while order:
        # The longest decides how many fit beside it.
        longest = len(said[order[-1]][1])
        size = network.rows_at_once(max(len(prompt.ids) for prompt in prompts) + longest, longest)
        order, chunk = order[:-size], order[-size:]
        picked = [said[index] for index in chunk]
        sources = [rows[job.prompt] for job, _ in picked]
        cache = network.cache()
        cache.store(prefilled.kv, sources, list(range(len(picked))))
        logits_NTV = _logits(network, cache, picked, prefilled.logits_PV[sources])
        for index, row_scores in zip(chunk, _chosen(logits_NTV, picked), strict=True):
            found[index] = row_scores
    return found


def _logits(network: Network, cache: SlotCache, said: Said, first_NV: Tensor) -> Tensor:
    """[N, T, V]: the first token's come from the prompt, the others' from the tokens before."""
    longest = max(len(ids) for _, ids in said)
    if longest == 1:
        return first_NV[:, None]
    device = first_NV.device
    ids_NQ = torch.tensor([(*ids[:-1], *[0] * (longest - len(ids))) for _, ids in said], device=device)
    starts_N1 = torch.tensor([[len(job.prompt.ids)] for job, _ in said], device=device)
    positions_NQ = starts_N1 + torch.arange(longest - 1, device=device)
    length = max(len(job.prompt.ids) for job, _ in said) + longest - 1
    voices_N = voices_of(job.prompt for job, _ in said)
    return torch.cat([first_NV[:, None], network.extend(cache, ids_NQ, positions_NQ, length, voices_N)], 1)


def _chosen(logits_NTV: Tensor, said: Said) -> list[tuple[float, ...]]:
    longest = logits_NTV.shape[1]
    shaping = Shaping.of([job.request.sampling for job, _ in said for _ in range(longest)], logits_NTV.device)
    logprobs_MV = log_distribution(logits_NTV.flatten(0, 1), shaping)
    tokens_M = torch.tensor([token for _, ids in said for token in (*ids, *[0] * (longest - len(ids)))])
    chosen_M1 = logprobs_MV.gather(1, tokens_M.to(logits_NTV.device)[:, None])
    rows = chosen_M1.view(-1, longest).tolist()
    return [tuple(row[: len(ids)]) for row, (_, ids) in zip(rows, said, strict=True)]
