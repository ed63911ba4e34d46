"""A lossless word tokenizer: decoding the tokens of a text gives the same text, with the same blanks.

A token is a word, a punctuation mark or a line break. Usual spacing takes no tokens: one blank between two words, none
between a word and a punctuation mark that attaches to words. The attaching marks are counted in the texts of the
vocabulary, so that each word and mark of `card K . moves [fold]` and of `<answer>0.5</answer>` is one token. Unusual
spacing takes one more token: BLANK for an additional blank, JOIN for a missing blank. The vocabulary has line breaks,
BLANK and JOIN only if a text needs them; otherwise later texts are read with usual spacing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, Self

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

JOIN, BLANK = "\ufdd2", "\ufdd3"
"""Two Unicode noncharacters, reserved for use inside programs."""
_TOKEN = pre_tokenizers.Split(Regex(r"\w+|[^\w ]"), "removed", invert=True)
_OPENERS, _CLOSERS, _BREAKS = "([{", ")]}.,:;!?%", "\n\t"
"""Defaults for marks that the texts do not show: no blank after openers, before closers, or around breaks."""


class PunctuationSpacing(NamedTuple):
    """Punctuation marks that attach to words: `openers` to the next word, `closers` to the previous word."""

    openers: frozenset[str]
    closers: frozenset[str]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """Return the more frequent spacing of each mark beside words in `texts`."""
        after, before = Counter[str](), Counter[str]()
        for text in texts:
            tokens = _TOKEN.pre_tokenize_str(text)
            for (left, (_, end)), (right, (start, _)) in pairwise(tokens):
                vote = 1 if end == start else -1
                if _is_word(left) and not _is_word(right):
                    before[right] += vote
                elif _is_word(right) and not _is_word(left):
                    after[left] += vote
        return cls(_attaching(after, _OPENERS), _attaching(before, _CLOSERS))

    def normalizer(self, breaks: Iterable[str], inserted: Collection[str] = (BLANK, JOIN)) -> normalizers.Normalizer:
        """Return the normalizer inserting the `inserted` tokens, BLANK or JOIN, at unusual spacing.

        White space other than `breaks` becomes a blank first.
        """
        left, right = _characters(self.openers, BLANK), _characters(self.closers, BLANK)
        patterns = {
            BLANK: f"(?<![^ {left}]) | (?![^ {right}])",
            JOIN: rf"(?<=[^ {left}])(?=[^ {right}])(?:(?<!\w)|(?!\w))",
        }
        spaces = normalizers.Replace(Regex(rf"(?![{_characters(breaks, ' ')}])\s"), " ")
        replaced = [normalizers.Replace(Regex(patterns[token]), token) for token in patterns if token in inserted]
        return normalizers.Sequence([spaces, *replaced])

    @property
    def decoder(self) -> decoders.Decoder:
        """Decoder that joins tokens with usual spacing, and applies BLANK and JOIN."""
        left, right = _characters(self.openers, BLANK, JOIN), _characters(self.closers, BLANK, JOIN)
        steps = [
            # WordPiece puts a blank between all tokens without the prefix, and no token of this vocabulary has it.
            decoders.WordPiece(prefix="##", cleanup=False),
            decoders.Fuse(),
            decoders.Replace(Regex(f"(?<=[{left}]) | (?=[{right}])"), ""),
            decoders.Replace(JOIN, ""),
            decoders.Replace(BLANK, " "),
        ]
        return decoders.Sequence(steps)


def words_of(texts: Iterable[str]) -> list[str]:
    """Return every token of `texts`, sorted, so that the order of the texts does not matter."""
    texts = set(texts)
    normalizer = PunctuationSpacing.of(texts).normalizer(_breaks(chain.from_iterable(texts)))
    words = set[str]()
    for text in texts:
        for token, _ in _TOKEN.pre_tokenize_str(normalizer.normalize_str(text)):
            words.add(token)
    return sorted(words)


def word_tokenizer(texts: Iterable[str], special: Sequence[str], unknown: str) -> Tokenizer:
    """Return a tokenizer of the words in `texts`. Token ids begin with `special`; other words become `unknown`."""
    texts = {text.replace(JOIN, "\ufffd").replace(BLANK, "\ufffd") for text in texts}
    words, spacing = words_of(texts), PunctuationSpacing.of(texts)
    vocabulary = {word: index for index, word in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.normalizer, tokenizer.decoder = spacing.normalizer(_breaks(words), words), spacing.decoder
    tokenizer.pre_tokenizer = _TOKEN
    return tokenizer


def _breaks(characters: Iterable[str]) -> set[str]:
    """Return the white space among `characters` other than blanks."""
    return {character for character in characters if character.isspace()} - {" "}


def _is_word(token: str) -> bool:
    return token[0].isalnum() or token[0] == "_"


def _attaching(votes: Counter[str], usual: str) -> frozenset[str]:
    """Return the line breaks, and the marks with positive `votes`; without a majority, the `usual` marks."""
    attaching = set[str]()
    for mark in {*votes, *usual, *_BREAKS}:
        if mark.isspace() or votes[mark] > 0 or (not votes[mark] and mark in usual):
            attaching.add(mark)
    return frozenset(attaching)


def _characters(*groups: Iterable[str]) -> str:
    """Return the characters of `groups` for use in the brackets of a regular expression."""
    return "".join(f"\\x{{{ord(character):x}}}" for group in groups for character in sorted(group))
