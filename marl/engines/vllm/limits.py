"""Limits of what vLLM can hold, checked before it loads a weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from marl.engines.vllm.installation import made_for_processors

if TYPE_CHECKING:
    from marl.models.pretrained import PretrainedSource

CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Widths of heads for which vLLM computes attention on processors."""
NO_DORA = "vLLM has no DoRA; leave out use_dora, or use engine: {kind: transformers}"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks of adapters for which vLLM makes room; lower ones fit into the next higher."""


def check_heads(source: PretrainedSource, config: Any) -> None:
    """Check that a model's attention can be computed: vLLM itself would fail at the first forward.

    Raises:
        ValueError: if it cannot.
    """
    text = config.get_text_config()
    width = text.to_dict().get("head_dim") or text.hidden_size // text.num_attention_heads
    if made_for_processors() and (problem := head_problem(width)):
        raise source.fault(problem)


def head_problem(width: int) -> str | None:
    """Return what is to be done about heads of this width on a processor; None if nothing is."""
    if width in CPU_HEAD_DIMS:
        return None
    known = ", ".join(map(str, CPU_HEAD_DIMS))
    return (
        f"its heads are {width} wide, but on a processor vLLM computes attention for widths of {known} alone; give "
        "a tiny model `head_dim: 32`, or the policy engine: {kind: transformers}"
    )


def context_of(config: Any, max_context: int | None) -> int:
    """Return the most tokens of a prompt and its completion.

    Raises:
        ValueError: if `max_context` is more than the model was made for.
    """
    longest: int = config.get_text_config().max_position_embeddings
    if max_context is not None and max_context > longest:
        raise ValueError(f"max_context: {max_context} tokens, but the model was made for {longest}")
    return max_context or longest


def rank_room(rank: int) -> int:
    """Return the rank for which vLLM makes room so that adapters of `rank` fit.

    Raises:
        ValueError: if none is enough.
    """
    for room in RANKS:
        if rank <= room:
            return room
    raise ValueError(f"an adapter of rank {rank}, but vLLM holds ranks of at most {RANKS[-1]}")
