"""Folders from which vLLM reads weights."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marl.models.pretrained import PretrainedSource

_SHARED_MEMORY = Path("/dev/shm")


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for files that other processes read at once: in memory, where there is a place for that.

    Its name holds the number of this process, which says whose it is if the process is killed.
    """
    place = str(_SHARED_MEMORY) if _SHARED_MEMORY.is_dir() else None
    return tempfile.TemporaryDirectory(dir=place, prefix=f"marl-vllm-{os.getpid()}-")


@contextmanager
def readable_folder(source: PretrainedSource) -> Iterator[str]:
    """Yield a Hugging Face folder of the model, or its name on the hub.

    Of a GGUF file it is a copy, unpacked, which is there as long as the context: vLLM 0.32 reads none itself.
    """
    if source.gguf_file is None:
        yield source.path
        return
    with temporary_folder() as folder:
        replace(source, device="cpu").model().save_pretrained(folder)
        source.tokenizer().save_pretrained(folder)
        yield folder
