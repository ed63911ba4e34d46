"""What `marl check` expects vLLM to take, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

from marl.engines.vllm.settings import VLLM
from marl.protocols.memory_estimates import AdapterSize, ModelSize, Workload

GPU = 80e9
SIZE = ModelSize(1000, 2, 2, 8, 16, 2, 8, 4, 100)
WORK = Workload(completions=16, distinct_prompts=4, max_prompt_tokens=200, max_completion_tokens=8)


def uses(settings: dict[str, Any], size: ModelSize = SIZE, device: float | None = None) -> dict[str, float]:
    return {use.content: use.bytes for use in VLLM(**settings).memory_uses([size], WORK, device)}


def test_on_a_gpu_it_takes_its_share_whatever_it_holds() -> None:
    assert uses({}, device=GPU) == {"vLLM's share of memory": 0.5 * GPU}
    assert uses({"memory_share": 0.3}, device=GPU) == {"vLLM's share of memory": 0.3 * GPU}
    [(content, size)] = uses({"memory_share": 0.1}, device=2e4).items()
    assert content == "vLLM's share of memory is less than it must hold: give it a greater memory_share"
    assert size == float("inf")


def test_on_a_processor_it_takes_weights_a_cache_and_packed_outputs() -> None:
    held = uses({})
    assert held["weights in vLLM"] == 2 * (1000 + 100 * 8)
    assert held["keys and values"] == 256 * 2**20
    assert uses({"dtype": "float32", "kv_cache_mib": 64})["weights in vLLM"] == 2 * held["weights in vLLM"]


def test_adapters_have_places_of_their_own_rank_and_two_to_spare() -> None:
    adapted = ModelSize(1000, 2, 2, 8, 16, 2, 8, 4, 100, adapter=AdapterSize(120, 12, 4))
    # Rank 12 takes the room of 16: 160 numbers in each of 1 + 2 + 1 places; and as read in 16 bits, and ours in 32.
    assert uses({}, adapted)["adapters in vLLM"] == 2 * (4 * 160 + 120) + 4 * 120
    assert uses({"max_adapters": 7}, adapted)["adapters in vLLM"] == 2 * (8 * 160 + 120) + 4 * 120
