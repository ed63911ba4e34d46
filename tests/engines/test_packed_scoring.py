from __future__ import annotations

from marl.engines.transformers.packing import PackedPrompts
from marl.models.chat_template import Prompt


def test_prompts_end_in_one_column_and_equal_texts_are_packed_once() -> None:
    short, long = Prompt((7,)), Prompt((5, 6))
    packed = PackedPrompts.from_texts([short, long], [[(1, 2, 0), (3, 0), (1, 2, 0)], [(4, 0)]])
    assert packed.ids == [[0, 7, 1, 2, 3], [5, 6, 4, 0, 0]]
    assert packed.positions == [[0, 0, 1, 2, 1], [0, 1, 2, 0, 0]]
    assert packed.branches == [[-1, 0, 1, 1, 2], [0, 0, 1, -1, -1]]
    # The logits of a row: after the prompt, then after the tokens 1, 2 and 3 of the first row.
    assert packed.logits_per_row == 4
    assert packed.offsets == [{(1, 2, 0): 1, (3, 0): 3}, {(4, 0): 1}]


def test_texts_of_one_token_add_no_column() -> None:
    packed = PackedPrompts.from_texts([Prompt((5, 6))], [[(1,), (2,)]])
    assert (packed.ids, packed.width, packed.logits_per_row) == ([[5, 6]], 2, 1)
