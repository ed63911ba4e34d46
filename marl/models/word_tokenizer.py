"""Lossless word tokenizer: decoding the tokens of a text gives the same text, with the same blanks.

A token is a word, a punctuation mark or a line break. Usual spacing takes no tokens: one blank between two words, and
no blank between a word and a punctuation mark that attaches to words. The texts of the vocabulary decide which marks
attach, so that each word and mark of `card K . moves [fold]` and of `<answer>0.5</answer>` is one token. Unusual
spacing takes one more token: BLANK for an additional blank, JOIN for a missing blank. The vocabulary has line breaks,
BLANK and JOIN only if a text needs them. Otherwise later texts are read with usual spacing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, Self

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

JOIN, BLANK = "\ufdd2", "\ufdd3"
"""Tokens for a missing and for an additional blank: Unicode noncharacters, which texts do not contain."""
_TOKEN = pre_tokenizers.Split(Regex(r"\w+|[^\w ]"), "removed", invert=True)
_OPENERS, _CLOSERS, _BREAKS = "([{", ")]}.,:;!?%", "\n\t"
"""Marks that attach by default if the texts of the vocabulary lack these marks. No blank follows openers, precedes
closers, or stands beside breaks."""


class PunctuationSpacing(NamedTuple):
    """Punctuation marks that attach to words: `openers` attach to the next word, `closers` to the previous word."""

    openers: frozenset[str]
    closers: frozenset[str]

    @classmethod
    def from_most_frequent_spacing_in(cls, texts: Iterable[str]) -> Self:
        """Return the spacing by which each punctuation mark most often stands beside words in `texts`."""
        after, before = Counter[str](), Counter[str]()
        for text in texts:
            tokens = _TOKEN.pre_tokenize_str(text)
            for (left, (_, end)), (right, (start, _)) in pairwise(tokens):
                vote = 1 if end == start else -1
                if _is_word_token(left) and not _is_word_token(right):
                    before[right] += vote
                elif _is_word_token(right) and not _is_word_token(left):
                    after[left] += vote
        return cls(_punctuation_attached_to_words(after, _OPENERS), _punctuation_attached_to_words(before, _CLOSERS))

    def normalizer(
        self, line_breaks: Iterable[str], inserted_tokens: Collection[str] = (BLANK, JOIN)
    ) -> normalizers.Normalizer:
        """Return a normalizer that inserts the tokens `inserted_tokens` (BLANK, JOIN or both) at unusual spacing.

        The normalizer first replaces white space other than `line_breaks` by blanks.
        """
        left, right = (
            _escape_for_regex_character_class(self.openers, BLANK),
            _escape_for_regex_character_class(self.closers, BLANK),
        )
        patterns = {
            BLANK: f"(?<![^ {left}]) | (?![^ {right}])",
            JOIN: rf"(?<=[^ {left}])(?=[^ {right}])(?:(?<!\w)|(?!\w))",
        }
        spaces = normalizers.Replace(Regex(rf"(?![{_escape_for_regex_character_class(line_breaks, ' ')}])\s"), " ")
        replaced = [
            normalizers.Replace(Regex(patterns[token]), token) for token in patterns if token in inserted_tokens
        ]
        return normalizers.Sequence([spaces, *replaced])

    @property
    def decoder(self) -> decoders.Decoder:
        """Decoder that joins tokens with usual spacing, one blank more at BLANK and one blank less at JOIN."""
        left, right = (
            _escape_for_regex_character_class(self.openers, BLANK, JOIN),
            _escape_for_regex_character_class(self.closers, BLANK, JOIN),
        )
        steps = [
            # WordPiece puts a blank before tokens without the prefix "##", hence before all tokens of this vocabulary.
            decoders.WordPiece(prefix="##", cleanup=False),
            decoders.Fuse(),
            decoders.Replace(Regex(f"(?<=[{left}]) | (?=[{right}])"), ""),
            decoders.Replace(JOIN, ""),
            decoders.Replace(BLANK, " "),
        ]
        return decoders.Sequence(steps)


def sorted_tokens(texts: Iterable[str]) -> list[str]:
    """Return the distinct tokens of `texts`, sorted, so that the order of the texts does not matter."""
    texts = set(texts)
    normalizer = PunctuationSpacing.from_most_frequent_spacing_in(texts).normalizer(
        _line_break_characters_in(chain.from_iterable(texts))
    )
    words = set[str]()
    for text in texts:
        for token, _ in _TOKEN.pre_tokenize_str(normalizer.normalize_str(text)):
            words.add(token)
    return sorted(words)


def make_word_tokenizer(texts: Iterable[str], special_tokens: Sequence[str], unknown_token: str) -> Tokenizer:
    """Return a tokenizer for the words in `texts`. `special_tokens` get the first ids, other words `unknown_token`."""
    texts = {text.replace(JOIN, "\ufffd").replace(BLANK, "\ufffd") for text in texts}
    words, spacing = sorted_tokens(texts), PunctuationSpacing.from_most_frequent_spacing_in(texts)
    vocabulary = {word: index for index, word in enumerate([*special_tokens, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown_token))
    tokenizer.normalizer, tokenizer.decoder = (
        spacing.normalizer(_line_break_characters_in(words), words),
        spacing.decoder,
    )
    tokenizer.pre_tokenizer = _TOKEN
    return tokenizer


def _line_break_characters_in(characters: Iterable[str]) -> set[str]:
    """Return the white-space characters other than the blank among `characters`."""
    return set(filter(str.isspace, characters)) - {" "}


def _is_word_token(token: str) -> bool:
    return token[0].isalnum() or token[0] == "_"


def _punctuation_attached_to_words(spacing_votes: Counter[str], default_marks: str) -> frozenset[str]:
    """Return line breaks, and marks that mostly attach to words by `spacing_votes` or, at 0 votes, `default_marks`."""
    attaching = set[str]()
    for mark in {*spacing_votes, *default_marks, *_BREAKS}:
        if mark.isspace() or spacing_votes[mark] > 0 or (not spacing_votes[mark] and mark in default_marks):
            attaching.add(mark)
    return frozenset(attaching)


def _escape_for_regex_character_class(*groups: Iterable[str]) -> str:
    """Return the characters of all `groups`, escaped for the brackets of a regular expression."""
    return "".join(f"\\x{{{ord(character):x}}}" for group in groups for character in sorted(group))
