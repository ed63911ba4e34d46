"""vLLM's own engine: started without traces in this process, stepped, and given new weights."""

from __future__ import annotations

import logging
import os
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakSet

import numpy as np
import torch
import torch._dynamo
from torch import Tensor

from marl.engines.vllm.folders import readable_folder, temporary_folder
from marl.engines.vllm.memory import CPU_CACHE_MIB, GPU_SHARE
from marl.errors import EngineError
from marl.watchdog import Watch

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.lora.request import LoRARequest

    from marl.engines.vllm.settings import VLLM
    from marl.models.pretrained import PretrainedSource

_Value = TypeVar("_Value")
_VARIABLES = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
_CPU_BLOCK = 32
_LOOK_S = 0.0005
"""Pause between two looks at the answers of another process."""


class PartRequest(NamedTuple):
    """A request as vLLM takes it."""

    id: str
    prompt_ids: Sequence[int]
    params: SamplingParams
    salt: str
    """Prompts share what the cache knows of their beginnings only if this is equal, too."""
    adapter: LoRARequest | None = None


class Core:
    """An `LLMEngine` in this process, or (`settings.process`) in others."""

    holds_source = True
    """True if it starts with the weights of the source."""

    def __init__(self, source: PretrainedSource, settings: VLLM, context: int, adapters: Mapping[str, Any]) -> None:
        """`context`: most tokens of a prompt and its completion. `adapters`: vLLM's own settings of adapters.

        Raises:
            ValueError: if vLLM cannot hold the model so.
        """
        self._in_process = not settings.process and settings.tensor_parallel == 1
        self._eager = not torch.cuda.is_available() if settings.eager is None else settings.eager
        self._timeout_s = settings.timeout_s
        self._sleeps, self._asleep = settings.sleep, False
        with _untouched_process():
            os.environ.update(_VARIABLES, VLLM_ENABLE_V1_MULTIPROCESSING=str(int(not self._in_process)))
            if self._eager:
                # Processes of its own read it at their start.
                os.environ["TORCH_COMPILE_DISABLE"] = "1"
            try:
                with self._uncompiled(), readable_folder(source) as folder:
                    more = {"model": folder, "enforce_eager": self._eager, **adapters}
                    self._engine = _start(source, settings, context, more)
            except RuntimeError as error:
                raise EngineError(f"vLLM did not start: {error}") from error
        if self._in_process:
            _OPEN.add(self)
        else:
            # A process that was started by another one waits at its exit for those that it has started itself.
            Finalize(self, self._engine.engine_core.shutdown, exitpriority=0)

    def add(self, job: PartRequest) -> None:
        """Queue a request."""
        self._wake()
        prompt = {"prompt_token_ids": list(job.prompt_ids), "cache_salt": job.salt}
        with self._living():
            self._engine.add_request(job.id, prompt, job.params, lora_request=job.adapter)  # type: ignore[arg-type]  # a TypedDict

    def step(self, wait_s: float) -> list[RequestOutput]:
        """Return what is new. In this process: after one forward; else what has come within `wait_s` seconds."""
        with self._living(), self._own_random_numbers():
            if not self._in_process and not self._has_answers(wait_s):
                return []
            return self._engine.step()  # type: ignore[return-value]  # none of the requests is for an embedding

    def abort(self, ids: Iterable[str]) -> None:
        """Forget requests."""
        with self._living():
            self._engine.abort_request(list(ids))

    def reload(self, tensors: Mapping[str, Tensor] | str) -> None:
        """Overwrite all weights in place with these, or with those in a folder, where requests go on with them.

        Tied ones are given under each of their names: vLLM keeps packed copies of the weights on processors.
        """
        self._wake()
        if isinstance(tensors, str):
            weights: dict[str, Any] = {"weights_path": tensors}
        else:
            weights = {"weights_iterator": list(tensors.items())}
        self._within(lambda: self._engine.collective_rpc("reload_weights", kwargs=weights))

    def load_adapter(self, adapter: LoRARequest) -> None:
        """Read an adapter from its folder, in place of the one with the same number."""
        self._wake()
        self._within(lambda: self._engine.add_lora(adapter))

    def drop_adapter(self, number: int) -> None:
        """Free an adapter's place."""
        self._wake()
        self._within(lambda: self._engine.remove_lora(number))

    def sleep(self) -> None:
        """Move the weights to the memory of the processor and drop the cache, if the settings say so."""
        if self._sleeps and not self._asleep:
            self._within(lambda: self._engine.sleep(level=1))
            self._asleep = True

    def _wake(self) -> None:
        if self._asleep:
            # What a learner in this process has freed, torch keeps for it.
            torch.cuda.empty_cache()
            self._within(lambda: self._engine.wake_up())
            self._asleep = False

    def exchange(self) -> tempfile.TemporaryDirectory[str]:
        """Return a folder for weights that vLLM is to read."""
        return temporary_folder()

    @property
    def takes_tensors(self) -> bool:
        """True if weights can be handed over as they are; other processes read them from files."""
        return self._in_process

    def close(self) -> None:
        """End its processes, and free its memory; that of engines in this process when all of them are closed."""
        if not self._in_process:
            self._engine.engine_core.shutdown()
            return
        # The first that shuts down takes away what all of vLLM's engines in this process communicate by.
        _OPEN.discard(self)
        _CLOSED.append(self._engine.engine_core)
        while _CLOSED and not _OPEN:
            _CLOSED.pop().shutdown()

    def _has_answers(self, wait_s: float) -> bool:
        core: Any = self._engine.engine_core
        until = time.monotonic() + wait_s
        while core.outputs_queue.empty():
            core.ensure_alive()  # a process that is killed leaves no message
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_S)
        return True

    @contextmanager
    def _living(self) -> Iterator[None]:
        """Return a context in which the end of vLLM's processes is told in words."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            yield
        except EngineDeadError as error:
            raise EngineError("vLLM's process has died (out of memory, or killed)") from error

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Return a context that leaves torch's random numbers as they were: vLLM draws from them at each step."""
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices), self._uncompiled():
            yield

    def _uncompiled(self) -> AbstractContextManager[Any]:
        """Return a context without compiling, if that is so wanted: one small function would take 10 s of it."""
        return torch._dynamo.config.patch(disable=True) if self._eager else nullcontext()

    def _within(self, call: Callable[[], _Value]) -> _Value:
        """Return what a call returns; one to another process must return within `timeout_s`."""
        if self._in_process:
            with self._own_random_numbers():
                return call()
        with self._living(), Watch(lambda: "vLLM's process", self._timeout_s, "engine.timeout_s"):
            return call()


_OPEN: WeakSet[Core] = WeakSet()
"""Engines in this process."""
_CLOSED: list[Any] = []
"""vLLM's parts of engines in this process that are closed while others are open."""


def _start(source: PretrainedSource, settings: VLLM, context: int, more: Mapping[str, Any]) -> Any:
    from vllm import EngineArgs, LLMEngine
    from vllm.platforms import current_platform

    arguments = EngineArgs(
        dtype=settings.dtype or source.dtype,  # type: ignore[arg-type]  # one of vLLM's names
        trust_remote_code=source.trust_remote_code,
        max_model_len=context,
        max_num_seqs=settings.max_sequences,
        tensor_parallel_size=settings.tensor_parallel,
        logprobs_mode="processed_logprobs",
        enable_sleep_mode=settings.sleep and current_platform.is_sleep_mode_available(),
        generation_config="vllm",
        disable_log_stats=True,
        use_tqdm_on_load=False,
        # One for all requests: left to itself vLLM chooses by the first one, and fails at a schema of another kind.
        structured_outputs_config={"backend": "guidance"},  # type: ignore[arg-type]  # it makes the settings of it
        **_room(settings, context),
        **more,
    )
    return LLMEngine.from_engine_args(arguments)


def _room(settings: VLLM, context: int) -> dict[str, Any]:
    """Return vLLM's settings of its cache, and of how many tokens a forward reads."""
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    tokens = max(settings.prefill_tokens, settings.max_sequences)
    room: dict[str, Any] = {"gpu_memory_utilization": settings.memory_share or GPU_SHARE}
    if settings.kv_cache_mib or (on_cpu and settings.memory_share is None):
        room["kv_cache_memory_bytes"] = (settings.kv_cache_mib or CPU_CACHE_MIB) * 2**20
    if block_size := settings.block_size or (_CPU_BLOCK if on_cpu else None):
        room["block_size"] = block_size
    if on_cpu:
        # Version 0.32 stops where a prompt with a seed is read in parts: its generators know no offset on processors.
        room["enable_chunked_prefill"] = False
        tokens = max(tokens, context)
    return room | {"max_num_batched_tokens": tokens}


@contextmanager
def _untouched_process() -> Iterator[None]:
    """Return a context at whose end this process is as it was, whatever vLLM does to it at its start.

    It seeds all random numbers, lets `torch.set_num_threads` do nothing, and sets variables of the environment, among
    them LD_PRELOAD, which processes started later would inherit.
    """
    variables = dict(os.environ)
    set_threads, threads, of_python = torch.set_num_threads, torch.get_num_threads(), random.getstate()
    of_numpy, of_torch = np.random.get_state(), torch.get_rng_state()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(logging.NOTSET)
        torch.set_num_threads = set_threads
        set_threads(threads)
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)
        # vLLM looks at its own variables later on, too.
        for name in [name for name in os.environ if name not in variables and not name.startswith("VLLM_")]:
            del os.environ[name]
        os.environ.update({name: value for name, value in variables.items() if not name.startswith("VLLM_")})
