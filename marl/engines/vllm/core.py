"""Wrapper of vLLM's own engine, `LLMEngine`, which protects this process from vLLM's side effects."""

from __future__ import annotations

import logging
import math
import os
import random
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from weakref import WeakSet

import numpy as np
import torch
import torch._dynamo
from torch import Tensor

from marl.core.errors import EngineError, EngineLostError
from marl.core.watchdog import CallWatchdog
from marl.engines.vllm.limits import DEFAULT_CPU_CACHE_MIB, DEFAULT_GPU_MEMORY_SHARE
from marl.engines.vllm.weight_folders import temporary_weights_folder, vllm_model_folder
from marl.host.processes import start_descendant_killer
from marl.models.pretrained import PretrainedSource

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.lora.request import LoRARequest

    # Imported for type checkers only: `settings` imports this module, so a second import would be circular.
    from marl.engines.vllm.settings import VLLM

_Value = TypeVar("_Value")
_VLLM_ENVIRONMENT = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
_CPU_CACHE_BLOCK_TOKENS = 32
"""Default block size of the cache on a CPU, in tokens. With vLLM's default, 128, shorter prompts are never shared."""
_POLL_S = 0.0005
"""Pause between two polls for the answers of another process, in seconds."""
_LIVENESS_S = 0.2
"""Interval at which a wait for vLLM's process checks that the process is alive, in seconds."""


_VLLM_COMMANDS = ("VLLM::", "--multiprocessing-fork")
"""Texts in the command lines of vLLM's processes: the title that they give themselves, and, until then, the argument
of processes that Python's multiprocessing has spawned."""


class VLLMRequest(NamedTuple):
    """Request to vLLM: a prompt with sampling settings, and an adapter or None for the base."""

    id: str
    prompt_ids: Sequence[int]
    params: SamplingParams
    salt: str
    """Part of the prefix cache's key: prompts share cached prefixes only if their salts are equal."""
    adapter: LoRARequest | None = None


class LocalVLLM:
    """vLLM's `LLMEngine` in this process, or in separate processes (`settings.process`)."""

    has_source_weights = True
    """True, as vLLM starts with the weights of the policy's model."""

    def __init__(self, source: PretrainedSource, settings: VLLM, context: int, adapters: Mapping[str, Any]) -> None:
        """Start vLLM.

        `context` is the maximum number of tokens of a prompt and its completion; `adapters` are vLLM's settings of
        adapters.

        Raises:
            ValueError: if vLLM refuses the model or a setting.
            EngineError: if vLLM does not start.
        """
        self._in_process = settings.runs_in_this_process
        self.accepts_tensors = self._in_process
        """True if `overwrite_all_weights` takes tensors. Separate processes read weights from files instead."""
        self._eager = not torch.cuda.is_available() if settings.eager is None else settings.eager
        self._timeout_s = settings.timeout_s
        self._sleep_level, self._asleep = settings.sleep * settings.sleep_level, False
        self.discards_weights, self.lacks_weights = self._sleep_level > 1, False
        """True if sleep discards weights; and if it has, so that they must be sent again before a request."""
        self._recomputes_cache = settings.cache_at_update == "recompute"
        self._update, self._recompute_next = 0, False
        self._early_outputs: list[RequestOutput] = []
        """Outputs of the steps that were finished before an update of the weights, for the next `step`."""
        # vLLM's processes outlive this process if SIGKILL ends it: nothing of theirs watches their parent.
        self._killer = None if self._in_process else start_descendant_killer(*_VLLM_COMMANDS)
        self._start_engine = partial(_start_llm_engine, source, settings, context)
        self._source, self._adapters = source, adapters
        try:
            self._start()
        except EngineError:
            self._end_killer()
            raise
        if self._in_process:
            _OPEN_IN_PROCESS_ENGINES.add(self)

    def _start(self) -> None:
        """Start vLLM with the weights of the source.

        Raises:
            EngineError: if vLLM does not start.
        """
        with _preserve_process_state():
            os.environ.update(_VLLM_ENVIRONMENT, VLLM_ENABLE_V1_MULTIPROCESSING=str(int(not self._in_process)))
            if self._eager:
                # TORCH_COMPILE_DISABLE also reaches vLLM's separate processes, which read it when they start.
                os.environ["TORCH_COMPILE_DISABLE"] = "1"
            try:
                with self._disable_torch_compile_if_eager(), vllm_model_folder(self._source) as folder:
                    arguments = {"model": folder, "enforce_eager": self._eager, **self._adapters}
                    self._engine = self._start_engine(arguments)
            except RuntimeError as error:
                raise EngineError(f"vLLM did not start: {error}{_main_guard_advice()}") from error
        if not self._in_process:
            # vLLM's processes must end before multiprocessing waits for child processes at exit, hence the Finalize.
            Finalize(self, self._engine.engine_core.shutdown, exitpriority=0)
            # The first request asks for the tasks, for which vLLM would wait for ever if its process were dead by then.
            self._call_with_time_limit(self._engine.get_supported_tasks)

    def restart_processes(self) -> bool:
        """Replace vLLM's processes, of which one has died or hangs, by new ones with the weights of the source.

        Requests, updates and adapters are lost. Return False if vLLM runs in this process, and so has not died.
        """
        if self._in_process:
            return False
        self._engine.engine_core.shutdown()
        self._asleep = self.lacks_weights = False
        self._start()
        return True

    def queue_request(self, request: VLLMRequest) -> None:
        """Queue `request` in vLLM."""
        self._wake_up()
        prompt = {"prompt_token_ids": list(request.prompt_ids), "cache_salt": request.salt}
        with self._translate_dead_process_errors():
            self._engine.add_request(request.id, prompt, request.params, lora_request=request.adapter)  # type: ignore[arg-type]  # a TypedDict

    def step(self, wait_s: float) -> list[RequestOutput]:
        """Return vLLM's new outputs, after one forward if vLLM runs in this process.

        If vLLM runs in separate processes, wait for outputs for at most `wait_s` seconds.
        """
        with self._translate_dead_process_errors(), self._preserve_torch_random_state():
            if not self._in_process:
                core: Any = self._engine.engine_core
                deadline = time.monotonic() + wait_s
                while core.outputs_queue.empty():
                    # A killed process leaves no message in the queue.
                    core.ensure_alive()
                    if time.monotonic() >= deadline:
                        return []
                    time.sleep(_POLL_S)
            early, self._early_outputs = self._early_outputs, []
            return early + cast("list[RequestOutput]", self._engine.step())

    def updates_met_by(self, output: RequestOutput) -> list[tuple[int, int]]:
        """Return (number of the last update of weights, index of the first token sampled after it), in order.

        The indices are those of the tokens of the request that `output` answers, from 0. An update after which no
        token was sampled is left out.
        """
        spans = output.outputs[0].weight_versions
        if spans is not None:
            return [(_update_number(span.version), span.start) for span in spans]
        # vLLM adds the spans to a request's last output, which a request that is about to be aborted does not get.
        processor = self._engine.output_processor
        [internal_id] = processor.external_req_ids[output.request_id]
        starts = processor.request_states[internal_id].weight_version_starts
        return [(_update_number(label), start) for label, start in starts]

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """Cancel the requests to vLLM with these `request_ids`."""
        with self._translate_dead_process_errors():
            self._engine.abort_request(list(request_ids))

    def announce_update(self, number: int, *, recompute_cache: bool) -> None:
        """Give the next update of the weights a number, under which `updates_met_by` reports it.

        `recompute_cache`: True if open requests will continue with the new weights, so that `engine.cache_at_update`
        applies to their keys and values.
        """
        self._update, self._recompute_next = number, recompute_cache and self._recomputes_cache

    def _replace_between_tokens(self, load: Callable[[], object]) -> None:
        """Call `load`, which replaces weights, after a token of the open requests and before the next one."""
        self._call_with_time_limit(lambda: self._pause_and_load(load))

    def _pause_and_load(self, load: Callable[[], object]) -> None:
        core: Any = self._engine.engine_core
        # The pause keeps the open requests, and does not clear the cache.
        if self._in_process:
            core.engine_core.pause_scheduler("keep", False)
            # With asynchronous scheduling, a finished forward may wait for the next step to bring its tokens.
            for _ in range(len(core.engine_core.batch_queue or ())):
                self._early_outputs += cast("list[RequestOutput]", self._engine.step())
        else:
            core.call_utility("pause_scheduler", "keep", False)
        try:
            load()
            self._engine.set_weight_version(str(self._update))
            if self._recompute_next:
                self._engine.reset_prefix_cache(reset_running_requests=True)
                self._recompute_next = False
        finally:
            if self._in_process:
                core.engine_core.resume_scheduler()
            else:
                core.call_utility("resume_scheduler")

    def overwrite_all_weights(self, tensors_or_folder: Mapping[str, Tensor] | str) -> None:
        """Overwrite all weights of vLLM in place, by named tensors or by the weights in the folder of a path.

        Open requests continue with the new weights.
        """
        # A tied tensor is given under each of its names, because vLLM on CPUs keeps a packed copy for each name.
        self._wake_up()
        weights: dict[str, Any] = {"weights_path": tensors_or_folder}
        if not isinstance(tensors_or_folder, str):
            weights = {"weights_iterator": list(tensors_or_folder.items())}
        self._replace_between_tokens(lambda: self._engine.collective_rpc("reload_weights", kwargs=weights))
        self.lacks_weights = False

    def load_adapter(self, adapter: LoRARequest) -> None:
        """Load `adapter` from its folder into vLLM, in place of the adapter with the same number."""
        self._wake_up()
        self._replace_between_tokens(lambda: self._engine.add_lora(adapter))

    def unload_adapter(self, adapter_id: int) -> None:
        """Unload the adapter with this `adapter_id` from vLLM."""
        self._wake_up()
        self._call_with_time_limit(lambda: self._engine.remove_lora(adapter_id))

    def sleep(self) -> None:
        """Drop the key-value cache and free the weights as `engine.sleep_level` says, if `engine.sleep` is true."""
        if self._sleep_level and not self._asleep:
            self._call_with_time_limit(lambda: self._engine.sleep(level=self._sleep_level))
            self._asleep = True
            self.lacks_weights = self.discards_weights

    def _wake_up(self) -> None:
        if self._asleep:
            # Torch caches the memory that a learner in this process has freed, and vLLM could not use cached memory.
            torch.cuda.empty_cache()
            self._call_with_time_limit(lambda: self._engine.wake_up())
            self._asleep = False

    def create_transfer_folder(self) -> tempfile.TemporaryDirectory[str]:
        """Return a temporary folder for new weights, from which vLLM loads them."""
        return temporary_weights_folder()

    def close(self) -> None:
        """End vLLM's processes and free their memory. In this process, memory is freed once all engines are closed."""
        if not self._in_process:
            self._engine.engine_core.shutdown()
            self._end_killer()
            return
        # The first shutdown destroys the process group shared by all of vLLM's engines in this process.
        _OPEN_IN_PROCESS_ENGINES.discard(self)
        _CLOSED_VLLM_CORES.append(self._engine.engine_core)
        while _CLOSED_VLLM_CORES and not _OPEN_IN_PROCESS_ENGINES:
            _CLOSED_VLLM_CORES.pop().shutdown()

    def _end_killer(self) -> None:
        if self._killer is not None:
            self._killer.kill()
            self._killer.wait()
            self._killer = None

    @contextmanager
    def _translate_dead_process_errors(self) -> Iterator[None]:
        """Raise vLLM's error about a dead process in the body as an `EngineLostError` that names the likely cause."""
        # vLLM is imported late: see `_start_llm_engine`.
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            yield
        except EngineDeadError as error:
            raise EngineLostError("vLLM's process has died (out of memory, or killed)") from error

    @contextmanager
    def _preserve_torch_random_state(self) -> Iterator[None]:
        """Restore torch's random state at the end of the body, because each step of vLLM changes the state."""
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices), self._disable_torch_compile_if_eager():
            yield

    def _disable_torch_compile_if_eager(self) -> AbstractContextManager[Any]:
        """Return a context in which torch.compile is off if `engine.eager` is true."""
        # Even in eager mode, vLLM compiles a small function of its sampler, which takes 10 s.
        return torch._dynamo.config.patch(disable=True) if self._eager else nullcontext()

    def _call_with_time_limit(self, call: Callable[[], _Value]) -> _Value:
        """Return the result of `call`, a call to vLLM. Separate processes must answer within `engine.timeout_s`."""
        if self._in_process:
            with self._preserve_torch_random_state():
                return call()
        # The watchdog of a game or a credit rule that samples is suspended.
        with (
            self._translate_dead_process_errors(),
            CallWatchdog(lambda: "vLLM's process", math.inf),
            self._end_waits_for_dead_process(),
        ):
            return call()

    @contextmanager
    def _end_waits_for_dead_process(self) -> Iterator[None]:
        """Raise an error in calls of the body that wait for vLLM's process when it dies or `engine.timeout_s` is over.

        vLLM itself waits for ever (`SyncMPClient.call_utility`), although it notices the death of its process.
        """
        from vllm.v1.engine.exceptions import EngineDeadError

        core: Any = self._engine.engine_core
        deadline, returned = time.monotonic() + self._timeout_s, threading.Event()
        late = f"vLLM's process gave no answer within {self._timeout_s:g} s (engine.timeout_s)"

        def watch() -> None:
            while not returned.wait(_LIVENESS_S):
                is_dead = core.resources.engine_dead
                if is_dead or time.monotonic() >= deadline:
                    while core.utility_results:
                        # A future that is removed here belongs to no other thread, so it has no result yet.
                        _, future = core.utility_results.popitem()
                        future.set_exception(EngineDeadError() if is_dead else EngineLostError(late))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            returned.set()
            watcher.join()


_OPEN_IN_PROCESS_ENGINES: WeakSet[LocalVLLM] = WeakSet()
"""Open engines that run vLLM in this process."""
_CLOSED_VLLM_CORES: list[Any] = []
"""vLLM's objects of closed engines in this process, which are shut down together with the last open engine."""


def _start_llm_engine(
    source: PretrainedSource, settings: VLLM, context_length: int, vllm_arguments: Mapping[str, Any]
) -> Any:
    """Start vLLM with the model of `source` and return its `LLMEngine`. `vllm_arguments`: further arguments of vLLM."""
    # vLLM is imported inside `_preserve_process_state`, because the import changes environment variables.
    from vllm import EngineArgs, LLMEngine
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    tokens = max(settings.prefill_tokens, settings.max_sequences)
    limits: dict[str, Any] = {"gpu_memory_utilization": settings.memory_share or DEFAULT_GPU_MEMORY_SHARE}
    if settings.kv_cache_mib or (on_cpu and settings.memory_share is None):
        limits["kv_cache_memory_bytes"] = (settings.kv_cache_mib or DEFAULT_CPU_CACHE_MIB) * 2**20
    if block_size := settings.block_size or (_CPU_CACHE_BLOCK_TOKENS if on_cpu else None):
        limits["block_size"] = block_size
    if on_cpu:
        # On CPUs, vLLM 0.32 cannot read a prompt with a seed in chunks: CPU random generators have no offset.
        limits["enable_chunked_prefill"] = False
        tokens = max(tokens, context_length)
    engine_arguments = EngineArgs(
        dtype=settings.dtype or source.dtype,  # type: ignore[arg-type]  # one of vLLM's names
        trust_remote_code=source.trust_remote_code,
        max_model_len=context_length,
        max_num_seqs=settings.max_sequences,
        max_num_batched_tokens=tokens,
        tensor_parallel_size=settings.tensor_parallel,
        # Log-probabilities refer to the sampling distribution, after temperature and truncation.
        logprobs_mode="processed_logprobs",
        enable_sleep_mode=settings.sleep and current_platform.is_sleep_mode_available(),
        # By default the model's generation_config.json would change sampling settings.
        generation_config="vllm",
        disable_log_stats=True,
        use_tqdm_on_load=False,
        # By default vLLM chooses a backend by the first request, and fails at a later schema of another kind.
        structured_outputs_config={"backend": "guidance"},  # type: ignore[arg-type]  # vLLM converts the dictionary
        **limits,
        **vllm_arguments,
        **cast("Any", settings.args),
    )
    return LLMEngine.from_engine_args(engine_arguments)


def _update_number(label: str) -> int:
    """Return the number of the update that vLLM reports by `label`; 0 for its own label of the initial weights."""
    return int(label) if label.isdecimal() else 0


def _main_guard_advice() -> str:
    """Return advice if the running script has no `__main__` guard, or "" if it has one or there is no script.

    A process of vLLM that is spawned imports the script, and so would start another engine.
    """
    path = vars(sys.modules["__main__"]).get("__file__")
    if path is None or "__main__" in Path(path).read_text(errors="replace"):
        return ""
    return (
        f"; engine.process: true starts processes that import {path} again: put what the script does under "
        "`if __name__ == '__main__':`"
    )


@contextmanager
def _preserve_process_state() -> Iterator[None]:
    """Restore this process's random states, threads and environment variables at the end of the body.

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
        # Variables named VLLM_* stay set, because vLLM reads them again later.
        for name in list(os.environ):
            if name not in variables and not name.startswith("VLLM_"):
                del os.environ[name]
        for name, value in variables.items():
            if not name.startswith("VLLM_"):
                os.environ[name] = value
