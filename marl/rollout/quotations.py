"""Search for quotations of earlier answers in later prompts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

_Source = TypeVar("_Source", bound=Hashable)
_MIN_INLINE_LENGTH = 16
"""Minimum length in characters of an answer to count as quoted if it fills only a part of a line."""
_MAX_BLOCK_LENGTH = 1 << 14
"""Length of a block of joined texts in characters after which a new block begins."""


class Quotation(NamedTuple, Generic[_Source]):
    """Quotation of an earlier answer in a text."""

    source: _Source
    """Source of the quoted answer, such as a turn id."""
    text: int
    """Index of the text that contains the quotation."""
    begin: int
    """Offset of the quotation's first character in the text."""
    end: int
    """Offset after the quotation's last character in the text."""


class QuotationFinder(Generic[_Source]):
    """Finder of answers that a text quotes: as full lines, or, from 16 characters on, anywhere.

    An answer within a longer quoted answer does not count. If several sources gave equal answers, the quotations are
    assigned to the last of these sources, one to each.
    """

    def __init__(self) -> None:
        self._sources: dict[str, list[tuple[Any, _Source]]] = defaultdict(list)
        """Answer -> (sort key, source) of each source that gave it."""
        self._answers: list[str] = []
        """Different answers, in the order of their first source."""
        self._by_beginning: dict[str, list[str]] = defaultdict(list)
        """First `_MIN_INLINE_LENGTH` characters of longer answers, or first line of shorter ones -> answers."""
        self._found: dict[str, tuple[int, list[tuple[int, int]]]] = {}
        """Text -> (number of answers searched, spans of the quotations). Long dialogues repeat earlier messages."""

    def add_answer(self, source: _Source, answer: str, sort_key: Any = ()) -> None:
        """Search for `answer` of `source` from now on. `sort_key` is a sort key among sources with equal answers."""
        if not answer:
            return
        if answer not in self._sources:
            self._answers.append(answer)
            beginning = answer[:_MIN_INLINE_LENGTH] if len(answer) >= _MIN_INLINE_LENGTH else _first_line(answer)
            self._by_beginning[beginning].append(answer)
        self._sources[answer].append((sort_key, source))

    def count_sources(self, answer: str) -> int:
        """Return the number of sources that gave `answer`."""
        return len(self._sources[answer])

    def find_quotations(self, indexed_texts: Sequence[tuple[int, str]]) -> Iterable[Quotation[_Source]]:
        """Yield the quotations in `indexed_texts`, which are (index, text) pairs."""
        places: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for index, text in indexed_texts:
            for begin, end in self._quotation_spans(text):
                places[text[begin:end]].append((index, begin, end))
        for answer, quoted in places.items():
            sources = [source for _, source in sorted(self._sources[answer], key=lambda entry: entry[0])]
            sources = sources[-len(quoted) :]
            for number, (index, begin, end) in enumerate(quoted):
                yield Quotation(sources[min(number, len(sources) - 1)], index, begin, end)

    def _quotation_spans(self, text: str) -> list[tuple[int, int]]:
        """Return (begin, end) of each quotation in `text`, in order, without quotations within longer ones."""
        searched, spans = self._found.get(text, (0, []))
        if searched < len(self._answers):
            new: list[tuple[int, int]] = []
            for answer in self._answers_possibly_quoted_in(text, searched):
                # Most answers do not occur in `text`, which a single search shows.
                if answer in text:
                    new += _find_whole_line_or_long_occurrences(text, answer)
            if new:
                new += spans
                spans = sorted({span for span in new if not any(_strictly_contains_span(other, span) for other in new)})
            self._found[text] = len(self._answers), spans
        return spans

    def _answers_possibly_quoted_in(self, text: str, searched_answer_count: int) -> Iterable[str]:
        """Return the answers that may occur in `text`. The first `searched_answer_count` answers may be left out."""
        if len(self._answers) - searched_answer_count < len(text):
            return self._answers[searched_answer_count:]
        # For a short text and many answers, looking up pieces of the text is faster than searching for each answer.
        pieces = {line.strip() for line in text.split("\n")}
        for begin in range(len(text) - _MIN_INLINE_LENGTH + 1):
            pieces.add(text[begin : begin + _MIN_INLINE_LENGTH])
        candidates: list[str] = []
        for piece in pieces & self._by_beginning.keys():
            candidates += self._by_beginning[piece]
        return candidates


class SearchedTexts:
    """Texts that were searched for quotations, to tell whether they may quote a further answer."""

    def __init__(self) -> None:
        self._blocks = [""]
        """Joined texts, in blocks of limited length, because appending to a text copies it."""
        self._lines: set[str] = set()
        self._added: list[str] = []
        """Texts that are not in blocks and lines yet: those of most conversations are never asked for."""

    def add(self, text: str) -> None:
        """Add a text."""
        self._added.append(text)

    def may_quote(self, answer: str) -> bool:
        """Return False only if no text quotes `answer`."""
        for text in self._added:
            if len(self._blocks[-1]) > _MAX_BLOCK_LENGTH:
                self._blocks.append("")
            self._blocks[-1] += f"\n{text}"
            self._lines.update([line.strip() for line in text.split("\n")])
        self._added.clear()
        if len(answer) < _MIN_INLINE_LENGTH:
            return _first_line(answer) in self._lines
        return any(answer in block for block in self._blocks)


def _first_line(answer: str) -> str:
    return answer.partition("\n")[0].strip()


def _find_whole_line_or_long_occurrences(text: str, answer: str) -> list[tuple[int, int]]:
    """Return (begin, end) of each occurrence of `answer` in `text` that fills its lines or is long enough."""
    spans: list[tuple[int, int]] = []
    begin = text.find(answer)
    while begin >= 0:
        end = begin + len(answer)
        before, after = text[:begin].rpartition("\n")[2], text[end:].partition("\n")[0]
        if len(answer) >= _MIN_INLINE_LENGTH or not (before.strip() or after.strip()):
            spans.append((begin, end))
        begin = text.find(answer, end)
    return spans


def _strictly_contains_span(outer_span: tuple[int, int], inner_span: tuple[int, int]) -> bool:
    return outer_span != inner_span and outer_span[0] <= inner_span[0] and inner_span[1] <= outer_span[1]
