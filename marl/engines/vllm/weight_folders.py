"""Folders from which vLLM reads weights."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from marl.models.pretrained import PretrainedSource

_SHARED_MEMORY = Path("/dev/shm")


def temporary_weights_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder for weights that vLLM reads soon, in shared memory if available."""
    parent = str(_SHARED_MEMORY) if _SHARED_MEMORY.is_dir() else None
    # If this process is killed, the process id in the name tells whose folder was left behind.
    return tempfile.TemporaryDirectory(dir=parent, prefix=f"marl-vllm-{os.getpid()}-")


@contextmanager
def vllm_model_folder(source: PretrainedSource) -> Iterator[str]:
    """Yield a Hugging Face folder of the model in `source`, or the model's name on the hub.

    A GGUF file is unpacked into a temporary folder, which is deleted at the end of the context.
    """
    if source.gguf_file is None:
        yield source.path
        return
    # The model is converted, as vLLM 0.32 reads no GGUF files.
    with temporary_weights_folder() as folder:
        replace(source, device="cpu").model().save_pretrained(folder)
        source.tokenizer().save_pretrained(folder)
        yield folder
