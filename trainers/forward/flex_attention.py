"""Lines on an accelerator: FlexAttention skips blocks of what is hidden, so a line costs what its texts cost.

Shape suffixes: L = lines, W = width of a line, Q = blocks of a line.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "marl_lines"
BLOCK = 128


@cache
def _compiled() -> Any:
    """Compiled once for all lengths; not before it is needed, for the compiler alone takes seconds to import."""
    return torch.compile(flex_attention, dynamic=True)


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **more: Any
) -> tuple[Tensor, None]:
    """Attention of one layer: over lines if the mask is one of blocks, else as ever."""
    if not isinstance(attention_mask, BlockMask):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **more)
    run = _compiled() if query.is_cuda else flex_attention
    grouped, scale = query.shape[1] != key.shape[1], more.get("scaling")
    found = run(query, key, value, block_mask=attention_mask, scale=scale, enable_gqa=grouped)
    return found.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


def block_mask(depths_LW: Tensor, last_LW: Tensor, window: int | None = None, block: int = BLOCK) -> BlockMask:
    """Which tokens see which, made from two numbers a block and never as a table of all pairs.

    A token of block q sees one of an earlier block k if and only if something in k goes on to q's first token; all see
    all if everything in k goes on past q's last one. `window` is how many tokens one sees, itself included.
    """
    lines, width = last_LW.shape
    blocks = torch.arange(width // block, device=last_LW.device)
    last_LQB, depths_LQB = (table_LW.view(lines, -1, block) for table_LW in (last_LW, depths_LW))
    earlier_QQ = blocks[:, None] > blocks
    some_LQQ = earlier_QQ & (last_LQB.amax(2)[:, None] > (blocks * block)[:, None])
    full_LQQ = earlier_QQ & (last_LQB.amin(2)[:, None] >= (blocks * block + block)[:, None])
    if window is not None:
        least_LQ, most_LQ = depths_LQB.amin(2), depths_LQB.amax(2)
        some_LQQ &= least_LQ[:, :, None] - most_LQ[:, None] < window
        full_LQQ &= most_LQ[:, :, None] - least_LQ[:, None] < window

    def sees(line: Tensor, _: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = (key <= query) & (query < last_LW[line, key])
        return seen if window is None else seen & (depths_LW[line, query] - depths_LW[line, key] < window)

    part_LQQ = (some_LQQ & ~full_LQQ) | torch.eye(len(blocks), dtype=torch.bool, device=last_LW.device)
    return BlockMask.from_kv_blocks(
        *_listed(part_LQQ), *_listed(full_LQQ), BLOCK_SIZE=block, mask_mod=sees, seq_lengths=(width, width)
    )


def _listed(chosen_LQQ: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks each block looks at, and which: these first, in order; for all heads."""
    order_LQQ = chosen_LQQ.int().argsort(dim=2, descending=True, stable=True)
    return chosen_LQQ.sum(2)[:, None].int(), order_LQQ[:, None].int().contiguous()
