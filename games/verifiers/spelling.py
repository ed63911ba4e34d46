"""Normal form of texts for comparison word by word. Signs, digits and marks with a meaning stay."""

# ruff: noqa: RUF001 (the patterns search for signs of other scripts)

from __future__ import annotations

import re
import unicodedata

_KEPT_FORMS = ("<super>", "<sub>", "<fraction>", "<circle>")
"""Unicode decompositions that change the meaning, so that they are not applied: x² is not x2."""
_ARTICLE = re.compile(r"(?<!\b[Nn][Oo] )(?:\b[Tt][Hh][Ee]|^An?|\ban?) (?=[\"'“‘(]?\w)")
"""An article before a word. The A of "vitamin A" is no article, and "no a dog" denies "a dog", unlike "no dog"."""
_IGNORED = frozenset(".,;:!'\"…`、。")
"""Punctuation without meaning, beside brackets and quotation marks."""
_HYPHEN = re.compile(r"(?<=[^\W\d_]{2})[-\u2010\u2011](?=[^\W\d_]{2})")
"""The hyphen of a compound word, unlike a minus."""
_INITIALS = re.compile(r"(?<!\w)[^\W\d_]\.(?:(?: ?[^\W\d_]\.)+[^\W\d_]?|[^\W\d_])(?![\w.])")
"""An abbreviation such as U.S.A. or J. R. R., the same without its full stops."""
_QUOTES = str.maketrans("‘’“”", "''\"\"")
_SYMBOL = re.compile(r"(?<!\w)\w$")
"""A single letter: n! and n' differ from n."""


def normalize_spelling(text: str, *, case: bool = False, punctuation: bool = True, articles: bool = True) -> str:
    """Return `text` in normal form for comparison.

    Args:
        case: True if upper and lower case differ.
        punctuation: True if punctuation counts. With False, marks next to a digit ("1,5", but not "May 4, 1776"), signs
            and doubt ("Paris?") still count.
        articles: True if a, an and the count.
    """
    text = " ".join(unicodedata.normalize("NFC", "".join(map(_compatible, text))).split())
    text = text if articles else _ARTICLE.sub(" ", text)
    text = text if punctuation else _without_punctuation(text)
    return " ".join((text if case else text.casefold()).split())


def _compatible(sign: str) -> str:
    """Return the plain form of a full-width letter, a ligature and the like; other characters are unchanged."""
    if sign.isascii() or unicodedata.decomposition(sign).startswith(_KEPT_FORMS):
        return sign
    return unicodedata.normalize("NFKC", sign)


def _without_punctuation(text: str) -> str:
    """Return `text` with a space for each punctuation mark without meaning."""
    text = _INITIALS.sub(lambda initials: re.sub("[. ]", "", initials[0]), text)
    text = _HYPHEN.sub(" ", text.translate(_QUOTES).rstrip(".,;: "))
    signs = list(text)
    for index, sign in enumerate(text):
        if sign not in _IGNORED and unicodedata.category(sign) not in ("Ps", "Pe", "Pi", "Pf"):
            continue
        if sign in "!'" and _SYMBOL.search(text[max(0, index - 2) : index]):
            continue
        # A mark next to a digit may belong to a number, but a comma before a space does not.
        if text.startswith(", ", index) or not any(map(str.isdigit, text[max(0, index - 1) : index + 2])):
            signs[index] = " "
    return "".join(signs)
