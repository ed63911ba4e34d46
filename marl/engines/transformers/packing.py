"""Rows that hold a prompt and all texts to score after it, so that one forward reads both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from marl.models.chat_template import Prompt

_PADDING = -1
"""Branch of padding tokens."""


@dataclass(frozen=True, slots=True)
class PackedPrompts:
    """Rows of equal length, each with padding, a prompt, the tokens of texts that continue the prompt, and padding.

    Prompts end in the same column. A token sees its prompt and the earlier tokens of its own text only.
    """

    ids: list[list[int]]
    """Token ids of each row."""
    positions: list[list[int]]
    """Position of each token in its prompt and text; 0 for padding."""
    branches: list[list[int]]
    """0 for tokens of the prompt, n for tokens of the row's n-th text, -1 for padding."""
    logits_per_row: int
    """Number of columns from the last one of the prompts on, after which a next token is scored."""
    offsets: list[dict[tuple[int, ...], int]] = field(default_factory=list)
    """For each row, text -> index of the logits after its first token, among the row's `logits_per_row` logits."""

    @classmethod
    def from_texts(cls, prompts: Sequence[Prompt], texts: Sequence[Sequence[tuple[int, ...]]]) -> Self:
        """Pack `prompts`, each with its `texts`. Equal texts of a prompt are packed once."""
        prompt_end = max([len(prompt.ids) for prompt in prompts])
        ids, positions, branches = list[list[int]](), list[list[int]](), list[list[int]]()
        offsets: list[dict[tuple[int, ...], int]] = []
        for prompt, row_texts in zip(prompts, texts, strict=True):
            length = len(prompt.ids)
            padding = prompt_end - length
            row_ids = [*[0] * padding, *prompt.ids]
            row_positions = [*[0] * padding, *range(length)]
            row_branches = [*[_PADDING] * padding, *[0] * length]
            row_offsets: dict[tuple[int, ...], int] = {}
            for text in row_texts:
                if text not in row_offsets:
                    row_offsets[text] = 1 + len(row_ids) - prompt_end
                    # The last token of a text is left out, because no later token is predicted from it.
                    row_ids += text[:-1]
                    row_positions += range(length, length + len(text) - 1)
                    row_branches += [len(row_offsets)] * (len(text) - 1)
            for table, row in ((ids, row_ids), (positions, row_positions), (branches, row_branches)):
                table.append(row)
            offsets.append(row_offsets)
        width = max(map(len, ids))
        for table, filler in ((ids, 0), (positions, 0), (branches, _PADDING)):
            for row in table:
                row += [filler] * (width - len(row))
        return cls(ids, positions, branches, width - prompt_end + 1, offsets)

    @property
    def width(self) -> int:
        """Length of the rows."""
        return len(self.ids[0])
