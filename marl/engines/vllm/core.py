"""vLLM's own engine: started without side effects on this process, stepped, and updated with new weights."""

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
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from weakref import WeakSet

import numpy as np
import torch
import torch._dynamo
from torch import Tensor

from marl.core.errors import EngineError
from marl.core.watchdog import CallWatchdog
from marl.engines.vllm.limits import CPU_CACHE_MIB, GPU_SHARE
from marl.engines.vllm.weight_folders import readable_folder, temporary_folder
from marl.models.pretrained import PretrainedSource

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.lora.request import LoRARequest

_Value = TypeVar("_Value")
_VARIABLES = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
_CPU_BLOCK = 32
"""Default block size on a CPU in tokens. vLLM's default of 128 would never share a shorter prompt."""
_POLL_S = 0.0005
"""Pause between two polls for the answers of another process, in seconds."""


class CoreOptions(Protocol):
    """Settings of vLLM's engine. `VLLM` explains every field."""

    memory_share: float | None
    kv_cache_mib: int | None
    max_sequences: int
    prefill_tokens: int
    block_size: int | None
    dtype: Any
    eager: bool | None
    tensor_parallel: int
    sleep: bool
    process: bool
    timeout_s: float


class VLLMRequest(NamedTuple):
    """A request in the form of vLLM."""

    id: str
    prompt_ids: Sequence[int]
    params: SamplingParams
    salt: str
    """Prompts share cached prefixes only under equal salts."""
    adapter: LoRARequest | None = None


class LocalCore:
    """An `LLMEngine` in this process, or in separate processes (`settings.process`)."""

    has_source_weights = True
    """True if the engine starts with the weights of the source."""

    def __init__(
        self, source: PretrainedSource, settings: CoreOptions, context: int, adapters: Mapping[str, Any]
    ) -> None:
        """`context`: maximum number of tokens of a prompt and its completion. `adapters`: vLLM's settings of adapters.

        Raises:
            ValueError: if vLLM refuses the model or a setting.
            EngineError: if vLLM does not start.
        """
        self._in_process = not settings.process and settings.tensor_parallel == 1
        self._eager = not torch.cuda.is_available() if settings.eager is None else settings.eager
        self._timeout_s = settings.timeout_s
        self._sleeps, self._asleep = settings.sleep, False
        with _untouched_process():
            os.environ.update(_VARIABLES, VLLM_ENABLE_V1_MULTIPROCESSING=str(int(not self._in_process)))
            if self._eager:
                # Separate processes read the variable when they start.
                os.environ["TORCH_COMPILE_DISABLE"] = "1"
            try:
                with self._uncompiled(), readable_folder(source) as folder:
                    arguments = {"model": folder, "enforce_eager": self._eager, **adapters}
                    self._engine = _start(source, settings, context, arguments)
            except RuntimeError as error:
                raise EngineError(f"vLLM did not start: {error}") from error
        if self._in_process:
            _OPEN.add(self)
        else:
            # A process started by multiprocessing waits for its own children at exit, so they must end before.
            Finalize(self, self._engine.engine_core.shutdown, exitpriority=0)

    def add(self, job: VLLMRequest) -> None:
        """Queue a request."""
        self._wake_up()
        prompt = {"prompt_token_ids": list(job.prompt_ids), "cache_salt": job.salt}
        with self._process_errors():
            self._engine.add_request(job.id, prompt, job.params, lora_request=job.adapter)  # type: ignore[arg-type]  # a TypedDict

    def step(self, wait_s: float) -> list[RequestOutput]:
        """Return new outputs: after one forward in this process, or after at most `wait_s` seconds from others."""
        with self._process_errors(), self._preserved_rng():
            if not self._in_process:
                core: Any = self._engine.engine_core
                deadline = time.monotonic() + wait_s
                while core.outputs_queue.empty():
                    core.ensure_alive()  # a killed process leaves no message
                    if time.monotonic() >= deadline:
                        return []
                    time.sleep(_POLL_S)
            return self._engine.step()  # type: ignore[return-value]  # none of the requests is for an embedding

    def abort(self, ids: Iterable[str]) -> None:
        """Cancel requests."""
        with self._process_errors():
            self._engine.abort_request(list(ids))

    def reload(self, tensors: Mapping[str, Tensor] | str) -> None:
        """Overwrite all weights in place, from tensors or a folder. Open requests continue with the new weights."""
        # Tied tensors need each of their names: on CPUs vLLM keeps a packed copy per name, which would stay stale.
        self._wake_up()
        if isinstance(tensors, str):
            weights: dict[str, Any] = {"weights_path": tensors}
        else:
            weights = {"weights_iterator": list(tensors.items())}
        self._call(lambda: self._engine.collective_rpc("reload_weights", kwargs=weights))

    def load_adapter(self, adapter: LoRARequest) -> None:
        """Load an adapter from its folder. It replaces the adapter with the same number."""
        self._wake_up()
        self._call(lambda: self._engine.add_lora(adapter))

    def drop_adapter(self, number: int) -> None:
        """Unload the adapter with this number."""
        self._wake_up()
        self._call(lambda: self._engine.remove_lora(number))

    def sleep(self) -> None:
        """Move the weights to the host's memory and drop the cache, if the settings say so."""
        if self._sleeps and not self._asleep:
            self._call(lambda: self._engine.sleep(level=1))
            self._asleep = True

    def _wake_up(self) -> None:
        if self._asleep:
            # Torch caches memory freed by a learner in this process, and vLLM could not use it.
            torch.cuda.empty_cache()
            self._call(lambda: self._engine.wake_up())
            self._asleep = False

    def transfer_folder(self) -> tempfile.TemporaryDirectory[str]:
        """Return a temporary folder for weights to load."""
        return temporary_folder()

    @property
    def accepts_tensors(self) -> bool:
        """True if `reload` takes tensors. Separate processes read them from files."""
        return self._in_process

    def close(self) -> None:
        """End vLLM's processes and free memory. Engines in this process free theirs once all of them are closed."""
        if not self._in_process:
            self._engine.engine_core.shutdown()
            return
        # The first shutdown destroys the process group shared by all of vLLM's engines in this process.
        _OPEN.discard(self)
        _CLOSED.append(self._engine.engine_core)
        while _CLOSED and not _OPEN:
            _CLOSED.pop().shutdown()

    @contextmanager
    def _process_errors(self) -> Iterator[None]:
        """Replace vLLM's error about a dead process by a message for users."""
        # Imported late, see `_start`.
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            yield
        except EngineDeadError as error:
            raise EngineError("vLLM's process has died (out of memory, or killed)") from error

    @contextmanager
    def _preserved_rng(self) -> Iterator[None]:
        """Restore torch's random state at the end of the body: vLLM draws from it at each step."""
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices), self._uncompiled():
            yield

    def _uncompiled(self) -> AbstractContextManager[Any]:
        """Return a context without torch.compile in eager mode."""
        # Even in eager mode vLLM compiles a small function of its sampler, which takes 10 s.
        return torch._dynamo.config.patch(disable=True) if self._eager else nullcontext()

    def _call(self, call: Callable[[], _Value]) -> _Value:
        """Return the value of `call`. A call to another process must return within `timeout_s`."""
        if self._in_process:
            with self._preserved_rng():
                return call()
        with self._process_errors(), CallWatchdog(lambda: "vLLM's process", self._timeout_s, "engine.timeout_s"):
            return call()


_OPEN: WeakSet[LocalCore] = WeakSet()
"""Open engines in this process."""
_CLOSED: list[Any] = []
"""vLLM's objects of closed engines in this process, to be shut down together with the last open engine."""


def _start(source: PretrainedSource, settings: CoreOptions, context: int, more: Mapping[str, Any]) -> Any:
    """Return vLLM's engine. `more` are further arguments of vLLM."""
    # Imported late, inside `_untouched_process`: vLLM loads its engine lazily, with side effects on the environment.
    from vllm import EngineArgs, LLMEngine
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    tokens = max(settings.prefill_tokens, settings.max_sequences)
    limits: dict[str, Any] = {"gpu_memory_utilization": settings.memory_share or GPU_SHARE}
    if settings.kv_cache_mib or (on_cpu and settings.memory_share is None):
        limits["kv_cache_memory_bytes"] = (settings.kv_cache_mib or CPU_CACHE_MIB) * 2**20
    if block_size := settings.block_size or (_CPU_BLOCK if on_cpu else None):
        limits["block_size"] = block_size
    if on_cpu:
        # vLLM 0.32 fails at a seeded prompt read in chunks: random generators have no offset on CPUs.
        limits["enable_chunked_prefill"] = False
        tokens = max(tokens, context)
    arguments = EngineArgs(
        dtype=settings.dtype or source.dtype,  # type: ignore[arg-type]  # one of vLLM's names
        trust_remote_code=source.trust_remote_code,
        max_model_len=context,
        max_num_seqs=settings.max_sequences,
        max_num_batched_tokens=tokens,
        tensor_parallel_size=settings.tensor_parallel,
        # Log-probabilities under the sampling distribution, after temperature and truncation.
        logprobs_mode="processed_logprobs",
        enable_sleep_mode=settings.sleep and current_platform.is_sleep_mode_available(),
        # Otherwise the model's generation_config.json would change sampling settings.
        generation_config="vllm",
        disable_log_stats=True,
        use_tqdm_on_load=False,
        # One backend for all requests: by default vLLM chooses by the first one, and fails at a schema of another kind.
        structured_outputs_config={"backend": "guidance"},  # type: ignore[arg-type]  # it makes the settings of it
        **limits,
        **more,
    )
    return LLMEngine.from_engine_args(arguments)


@contextmanager
def _untouched_process() -> Iterator[None]:
    """Restore this process at the end of the body, after vLLM has started.

    vLLM seeds all random generators, disables `torch.set_num_threads`, and sets environment variables, among them
    LD_PRELOAD, which processes started later would inherit.
    """
    variables = dict(os.environ)
    set_threads, threads, python_state = torch.set_num_threads, torch.get_num_threads(), random.getstate()
    numpy_state, torch_state = np.random.get_state(), torch.get_rng_state()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(logging.NOTSET)
        torch.set_num_threads = set_threads
        set_threads(threads)
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        # vLLM's own variables stay: it reads them again later.
        for name in list(os.environ):
            if name not in variables and not name.startswith("VLLM_"):
                del os.environ[name]
        for name, value in variables.items():
            if not name.startswith("VLLM_"):
                os.environ[name] = value
