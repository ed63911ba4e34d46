"""Devices and their memory."""

from __future__ import annotations

import os

import pytest
import torch

from marl.memory.device import device_memory


@pytest.mark.parametrize(
    ("name", "size"), [("80GiB", 80 * 2**30), ("80 GB", 80e9), ("0.5tib", 2**39), ("1500MB", 1.5e9), ("7B", 7)]
)
def test_a_size_stands_for_a_device(name: str, size: float) -> None:
    assert device_memory(name).bytes == size
    assert not device_memory(name).is_cpu


def test_the_processors_memory_is_that_of_this_machine() -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert device_memory("cpu").bytes == pages
    assert 0 < device_memory("cpu").usable_bytes < pages


@pytest.mark.parametrize("name", ["gpu", "80", "-1GiB", "0GiB", "cuda:x", ""])
def test_what_is_no_device_is_told_with_choices(name: str) -> None:
    with pytest.raises(ValueError, match=r"--device: .* is no device; choices: cpu, cuda:0 .* 80GiB"):
        device_memory(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told() -> None:
    with pytest.raises(ValueError, match="'cuda:1': there is no CUDA device here; choices: cpu, or the size"):
        device_memory("cuda:1")


@pytest.mark.gpu
def test_the_memory_of_a_gpu_is_that_of_its_driver() -> None:
    assert device_memory("cuda:0").bytes == torch.cuda.mem_get_info(0)[1]
