"""Real processes that learn together, and weights in float64."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from marl.models.adapter import AdapterSource
from marl.models.torch_process_group import ProcessGroupJoinSettings, TorchProcessGroup, join_process_group
from marl.protocols import DataParallel
from tests.support.learning_samples import TinySource, Tokenizer

WAIT_S = 240.0


def to_float64(model: Any) -> Any:
    """Return a Llama in float64 throughout: its own norms compute in float32, whatever their input."""
    for path, module in list(model.named_modules()):
        if isinstance(module, LlamaRMSNorm):
            norm = nn.RMSNorm(module.weight.shape, module.variance_epsilon)
            norm.weight = module.weight
            model.set_submodule(path, norm)
    return model.double()


class Float64Source(TinySource):
    """A model in float64, whose sums hardly depend on their order."""

    def model(self) -> Any:
        return to_float64(super().model())


class Float64AdapterSource(AdapterSource):
    """An adapter and its base in float64."""

    def model(self) -> Any:
        return to_float64(super().model())

    def tokenizer(self) -> Any:
        return Tokenizer()


def run_in_processes(work: Callable[[TorchProcessGroup], Any], size: int = 2, way: DataParallel = "ddp") -> list[Any]:
    """Return what `work` returns in each of `size` processes, by rank. They are forks: nothing is loaded again."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    context, ends = get_context("fork"), []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            member = ProcessGroupJoinSettings(rank, size, (Path(folder) / "meeting").as_uri(), way, WAIT_S)
            process = context.Process(target=_work, args=(work, member, theirs), daemon=True)
            process.start()
            theirs.close()
            ends.append((process, ours))
        results = [_result(ours) for _, ours in ends]
        for process, _ in ends:
            process.join(WAIT_S)
            assert process.exitcode == 0
    return results


def _work(work: Callable[[TorchProcessGroup], Any], member: ProcessGroupJoinSettings, end: Connection) -> None:
    with join_process_group(member) as group:
        end.send(work(group))


def _result(end: Connection) -> Any:
    assert end.poll(WAIT_S), f"no result for {WAIT_S:g} s"
    return end.recv()
