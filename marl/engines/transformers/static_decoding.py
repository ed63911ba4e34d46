"""Sampling in tensors of fixed shapes and addresses (`cache: static`), which a GPU replays as a CUDA graph.

The model and the choice of tokens are one step without a decision of the host: it reads the last tokens, positions and
sampling settings from tensors that stay where they are, and writes the next ones there. Rows are padded to a bucket (a
power of two), and so is the length that attention reads. On a GPU, the step of a bucket is captured once
(https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs) and replayed: a token then costs one launch instead
of about a thousand. On a CPU, each step runs eagerly.

Shape suffixes: N = rows of a bucket, S = slots.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marl.core.config import Sampling
from marl.core.errors import RunError
from marl.engines.transformers.decoding import Decoder, TokensAndLogprobs
from marl.engines.transformers.memory import INITIAL_SLOT_CAPACITY, power_of_two_at_least
from marl.engines.transformers.model_runner import ModelRunner
from marl.engines.transformers.sampling import (
    SamplingTensors,
    draw_tokens,
    next_token_logprobs,
    uniform_random_numbers_on_device,
)
from marl.engines.transformers.slots import SamplingJob

_TOKEN, _LENGTH, _COUNT, _COUNTER, _IMPOSED = range(5)
"""Rows of a decoder's state: last token, its position, number of the completion's tokens, initial counter of the random
stream, and the token to impose next (-1: none)."""


class StaticDecoder(Decoder):
    """Decoder whose active rows are decoded in tensors of fixed shapes: one transfer to the host for each token."""

    def __init__(self, network: ModelRunner, slots: int, context: int) -> None:
        """`context`: maximum number of tokens of a prompt and its completion together."""
        super().__init__(network, slots)
        device, self._context = network.device, context
        self._state_5S = torch.zeros(5, slots, dtype=torch.int64, device=device)
        # Log-probabilities are stored by their bits beside the tokens, so that one transfer brings both to the host.
        self._output_2S = torch.zeros(2, slots, dtype=torch.int32, device=device)
        self._settings = SamplingTensors(
            torch.ones(slots, 1, device=device),
            torch.zeros(slots, dtype=torch.int64, device=device),
            torch.zeros(slots, dtype=torch.int64, device=device),
            torch.zeros(slots, 1, dtype=torch.int64, device=device),
            torch.zeros(slots, 1, device=device),
        )
        self._uploaded_imposed_S: NDArray[np.int64] | None = None
        self.steps: EagerSteps = CudaGraphs(device) if device.type == "cuda" else EagerSteps()
        self._cache_size = (0, 0)

    def sample_next_tokens(self, new_jobs: Sequence[SamplingJob]) -> TokensAndLogprobs:
        """Sample the next token of every active row, and the first one of each of `new_jobs`, which become rows."""
        active = len(self.batch.jobs)
        if active:
            self._decode_active_rows()
        if new_jobs:
            # Prompts are read after the step, because padded rows of the step write into free slots.
            logits_NV = self.prefill_rows(new_jobs)
            settings = [job.request.sampling for job in new_jobs]
            sampling = SamplingTensors.from_settings(settings, self.network.device)
            drawn = self._draw(logits_NV, sampling, self.batch.imposed_tokens(), first_row=active)
            _write_output(self._output_2S[:, active : len(self.batch.jobs)], *drawn)
        output_2N = self._output_2S[:, : len(self.batch.jobs)].numpy(force=True)
        return output_2N[0].astype(np.int64), output_2N[1].copy().view(np.float32)

    def forget_captured_steps(self) -> None:
        """Discard the CUDA graphs, which use the tensors of the model's former adapters."""
        self.steps.clear()

    def _decode_active_rows(self) -> None:
        """Sample the next token of every active row into the output."""
        batch, active = self.batch, len(self.batch.jobs)
        imposed_S = batch.imposed_tokens()
        rows = min(power_of_two_at_least(active), batch.size)
        if self._sampling is None or not _equal_or_none(imposed_S, self._uploaded_imposed_S):
            self._sampling = self._upload_rows(rows, imposed_S)
        batch.lengths_S[:active] += 1
        longest = int(batch.lengths_S[:active].max())
        length = min(max(INITIAL_SLOT_CAPACITY, power_of_two_at_least(longest)), self._context)
        self.cache.ensure_capacity(rows, length)
        if (size := (self.cache.slots, self.cache.capacity)) != self._cache_size:
            # The cache has grown into other tensors than those that captured steps write.
            self.forget_captured_steps()
            self._cache_size = size
        # Policies of padded rows are those that free rows had before; what such rows sample is never read.
        policies_N, sampling = batch.policies_S[:rows], self._sampling
        self.network.policy_weights.set_row_policies(policies_N, in_place=True)

        key = (rows, length, sampling.greedy_G is not None, sampling.cut_C is not None)
        self.steps.run(key, lambda: self._sample_in_place(rows, length, policies_N, sampling))

    def _sample_in_place(
        self, rows: int, length: int, policies_N: NDArray[np.int64], sampling: SamplingTensors
    ) -> None:
        """Decode rows [0, rows), and replace the last tokens by the next ones. `length`: positions that are read."""
        state_5N = self._state_5S[:, :rows]
        positions_N1 = state_5N[_LENGTH][:, None]
        logits_NV = self.network.decode(self.cache, state_5N[_TOKEN][:, None], positions_N1, length, policies_N)[:, -1]
        uniforms_N = uniform_random_numbers_on_device(state_5N[_COUNTER], state_5N[_COUNT])
        drawn = draw_tokens(next_token_logprobs(logits_NV, sampling), uniforms_N, state_5N[_IMPOSED])
        _write_output(self._output_2S[:, :rows], *drawn)
        state_5N[_TOKEN] = drawn[0]
        state_5N[_LENGTH] += 1
        state_5N[_COUNT] += 1

    def _upload_rows(self, rows: int, imposed_S: NDArray[np.int64] | None) -> SamplingTensors:
        """Copy the state and the settings of the active rows to the device; return the settings of rows [0, rows)."""
        batch, active = self.batch, len(self.batch.jobs)
        state_5N = np.zeros((5, rows), np.int64)
        state_5N[_TOKEN, :active] = batch.last_tokens()
        state_5N[_LENGTH, :active] = batch.lengths_S[:active]
        state_5N[_COUNT, :active] = batch.counts_S[:active]
        state_5N[_COUNTER, :active] = batch.counters_S[:active].view(np.int64)
        state_5N[_IMPOSED] = -1
        if imposed_S is not None:
            state_5N[_IMPOSED, :active] = imposed_S[:active]
        self._uploaded_imposed_S = imposed_S
        self._state_5S[:, :rows] = torch.from_numpy(state_5N)
        settings = [job.request.sampling for job in batch.jobs] + [Sampling()] * (rows - active)
        return SamplingTensors.from_settings(settings, torch.device("cpu")).copied_into(self._settings)


class EagerSteps:
    """Steps that are launched operation by operation."""

    def run(self, key: Hashable, step: Callable[[], None]) -> None:
        """Run `step` once. Steps of the same `key` launch the same operations on the same tensors."""
        step()

    def clear(self) -> None:
        """Discard what is stored of earlier steps, whose tensors are no longer in use."""


class CudaGraphs(EagerSteps):
    """Steps as CUDA graphs, which share the memory of their temporary tensors."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}

    def clear(self) -> None:
        """Discard all graphs, and their memory."""
        self._graphs.clear()
        # The allocator refuses new captures into a pool that all graphs have left.
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, key: Hashable, step: Callable[[], None]) -> None:
        """Run `step` once, from its graph if there is one for its `key`.

        The first run of a key is eager and serves as the warm-up that a capture needs; the capture itself computes
        nothing, so state that `step` advances in place advances once.
        """
        if (graph := self._graphs.get(key)) is not None:
            graph.replay()
            return
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                step()
            current.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # A learner in another thread may allocate memory meanwhile, which the default mode would forbid.
            try:
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                    step()
            except RuntimeError as error:
                raise RunError(
                    f"engine.cache: this model's step is no CUDA graph; choose 'dynamic' ({error})"
                ) from error
        self._graphs[key] = graph


def _write_output(output_2N: Tensor, tokens_N: Tensor, logprobs_N: Tensor) -> None:
    output_2N[0] = tokens_N
    output_2N[1] = logprobs_N.view(torch.int32)


def _equal_or_none(one: NDArray[np.int64] | None, other: NDArray[np.int64] | None) -> bool:
    """Return True if both are None, or both are equal arrays."""
    return one is other if one is None or other is None else np.array_equal(one, other)
