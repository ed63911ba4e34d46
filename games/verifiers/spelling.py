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
"""Punctuation marks that are removed, in addition to brackets and quotation marks."""
_HYPHEN = re.compile(r"(?<=[^\W\d_]{2})[-\u2010\u2011](?=[^\W\d_]{2})")
"""The hyphen of a compound word, unlike a minus."""
_INITIALS = re.compile(r"(?<!\w)[^\W\d_]\.(?:(?: ?[^\W\d_]\.)+[^\W\d_]?|[^\W\d_])(?![\w.])")
"""Abbreviation such as U.S.A. or J. R. R., whose full stops are removed for the comparison."""
_QUOTES = str.maketrans("‘’“”", "''\"\"")
_SYMBOL = re.compile(r"(?<!\w)\w$")
"""Single letter before a mark. The marks of n! and n' are kept, because both differ from n."""


def normalize_spelling(text: str, *, case: bool = False, punctuation: bool = True, articles: bool = True) -> str:
    """Return `text` in normal form: two texts with the same normal form are accepted as equal.

    Args:
        case: False to convert the text to lower case.
        punctuation: False to remove punctuation, except signs, question marks, and marks next to a digit: the comma of
            "1,5" stays, that of "May 4, 1776" goes.
        articles: False to remove a, an and the.
    """
    signs = list(text)
    for index, sign in enumerate(text):
        # Full-width letters, ligatures and the like get their plain form.
        if not sign.isascii() and not unicodedata.decomposition(sign).startswith(_KEPT_FORMS):
            signs[index] = unicodedata.normalize("NFKC", sign)
    text = " ".join(unicodedata.normalize("NFC", "".join(signs)).split())
    text = text if articles else _ARTICLE.sub(" ", text)
    text = text if punctuation else _without_punctuation(text)
    return " ".join((text if case else text.casefold()).split())


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
