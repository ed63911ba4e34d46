"""A tokenizer of words that loses nothing: what it reads is what it writes, blank for blank.

A token is a word, a mark or a line break. Blanks are not tokens where they stand as usual: one between two words, none
between a mark and the word that it stands close to. Which marks do so is learnt from the texts of the vocabulary, so in
`card K . moves [fold]` and in `<answer>0.5</answer>` each word and mark is one token. Only where a text differs from
what is usual is there a token more: BLANK for a blank too many, JOIN for one too few. If none of the texts has a line
break, or needs BLANK or JOIN, the vocabulary lacks it, and what is read later is read as if it were spaced as usual.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, Self

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

JOIN, BLANK = "\ufdd2", "\ufdd3"
"""Two of the code points that Unicode keeps for use inside programs."""
_TOKEN = pre_tokenizers.Split(Regex(r"\w+|[^\w ]"), "removed", invert=True)
_OPENERS, _CLOSERS, _BREAKS = "([{", ")]}.,:;!?%", "\n\t"
"""Marks with no blank behind them, before them, and on either side, if the texts do not say."""


class Spacing(NamedTuple):
    """Marks that usually have no blank behind them, and those that have none before them."""

    openers: frozenset[str]
    closers: frozenset[str]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """Return how most texts place each mark beside words."""
        behind, before = Counter[str](), Counter[str]()
        for text in texts:
            tokens = _TOKEN.pre_tokenize_str(text)
            for (left, (_, end)), (right, (start, _)) in pairwise(tokens):
                close = 1 if end == start else -1
                if _is_word(left) and not _is_word(right):
                    before[right] += close
                elif _is_word(right) and not _is_word(left):
                    behind[left] += close
        return cls(_close(behind, _OPENERS), _close(before, _CLOSERS))

    def normalizer(self, breaks: Iterable[str], inserted: Collection[str] = (BLANK, JOIN)) -> normalizers.Normalizer:
        """Return a writer of BLANK and JOIN, or of one of them, where a text is not spaced as usual.

        All white space but `breaks` becomes a blank first.
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
        """Writer of a text's tokens with the usual blanks, and with the others."""
        left, right = _characters(self.openers, BLANK, JOIN), _characters(self.closers, BLANK, JOIN)
        steps = [
            # The prefix marks continuations in other vocabularies; here it only puts blanks between all tokens.
            decoders.WordPiece(prefix="##", cleanup=False),
            decoders.Fuse(),
            decoders.Replace(Regex(f"(?<=[{left}]) | (?=[{right}])"), ""),
            decoders.Replace(JOIN, ""),
            decoders.Replace(BLANK, " "),
        ]
        return decoders.Sequence(steps)


def words_of(texts: Iterable[str]) -> list[str]:
    """Return every token of the texts, sorted: their order does not matter."""
    texts = set(texts)
    normalizer = Spacing.of(texts).normalizer(_breaks(chain.from_iterable(texts)))
    return sorted({token for text in texts for token, _ in _TOKEN.pre_tokenize_str(normalizer.normalize_str(text))})


def word_tokenizer(texts: Iterable[str], special: Sequence[str], unknown: str) -> Tokenizer:
    """Return a tokenizer of the words in `texts`. Its first tokens are `special`; `unknown` stands for other words."""
    texts = {text.replace(JOIN, "\ufffd").replace(BLANK, "\ufffd") for text in texts}
    words, spacing = words_of(texts), Spacing.of(texts)
    vocabulary = {word: index for index, word in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.normalizer, tokenizer.decoder = spacing.normalizer(_breaks(words), words), spacing.decoder
    tokenizer.pre_tokenizer = _TOKEN
    return tokenizer


def _breaks(characters: Iterable[str]) -> set[str]:
    """Return the white space other than blanks."""
    return {character for character in characters if character.isspace()} - {" "}


def _is_word(token: str) -> bool:
    return token[0].isalnum() or token[0] == "_"


def _close(closeness: Counter[str], usual: str) -> frozenset[str]:
    """Return line breaks and marks that stand close to words more often than not; without evidence, `usual` ones."""
    marks = {*closeness, *usual, *_BREAKS}
    return frozenset(
        mark for mark in marks if mark.isspace() or closeness[mark] > 0 or (not closeness[mark] and mark in usual)
    )


def _characters(*groups: Iterable[str]) -> str:
    """Return characters as a regular expression's brackets take them."""
    return "".join(f"\\x{{{ord(character):x}}}" for group in groups for character in sorted(group))
