"""One spelling for texts that are compared word by word. Signs, digits and marks that carry a meaning stay."""

# ruff: noqa: RUF001 (signs of other scripts are what is looked for)

from __future__ import annotations

import re
import unicodedata

_KEPT_FORMS = ("<super>", "<sub>", "<fraction>", "<circle>")
"""Compatible characters that mean something else: x² is not x2."""
_ARTICLE = re.compile(r"(?<!\b[Nn][Oo] )(?:\b[Tt][Hh][Ee]|^An?|\ban?) (?=[\"'“‘(]?\w)")
"""An article before a word. The A of "vitamin A" is none, and "no a dog" denies "a dog", unlike "no dog"."""
_IGNORED = frozenset(".,;:!'\"…`、。")
"""With brackets and quotation marks, the punctuation that may be left out."""
_HYPHEN = re.compile(r"(?<=[^\W\d_]{2})[-\u2010\u2011](?=[^\W\d_]{2})")
"""The hyphen of a compound word, unlike a minus."""
_INITIALS = re.compile(r"(?<!\w)[^\W\d_]\.(?:(?: ?[^\W\d_]\.)+[^\W\d_]?|[^\W\d_])(?![\w.])")
"""An abbreviation such as U.S.A. or J. R. R., which may be written without its full stops."""
_QUOTES = str.maketrans("‘’“”", "''\"\"")
_SYMBOL = re.compile(r"(?<!\w)\w$")
"""A letter on its own, of which n! and n' are something else."""


def spell(text: str, *, case: bool = False, punctuation: bool = True, articles: bool = True) -> str:
    """Return the text in the spelling that is compared.

    Args:
        case: upper and lower case differ.
        punctuation: punctuation counts. Without it, marks next to a digit ("1,5", but not "May 4, 1776"), signs and
            doubt ("Paris?") still count.
        articles: a, an and the count.
    """
    text = " ".join(unicodedata.normalize("NFC", "".join(map(_compatible, text))).split())
    text = text if articles else _ARTICLE.sub(" ", text)
    text = text if punctuation else _without_punctuation(text)
    return " ".join((text if case else text.casefold()).split())


def _compatible(sign: str) -> str:
    """Return a full-width letter, a ligature and the like as its plain form."""
    if sign.isascii() or unicodedata.decomposition(sign).startswith(_KEPT_FORMS):
        return sign
    return unicodedata.normalize("NFKC", sign)


def _without_punctuation(text: str) -> str:
    text = _INITIALS.sub(lambda initials: re.sub("[. ]", "", initials[0]), text)
    text = _HYPHEN.sub(" ", text.translate(_QUOTES).rstrip(".,;: "))
    return "".join(" " if _is_ignored(text, place) else sign for place, sign in enumerate(text))


def _is_ignored(text: str, place: int) -> bool:
    sign = text[place]
    if sign not in _IGNORED and unicodedata.category(sign) not in ("Ps", "Pe", "Pi", "Pf"):
        return False
    if sign in "!'" and _SYMBOL.search(text[max(0, place - 2) : place]):
        return False
    if text.startswith(", ", place):
        return True
    return not any(map(str.isdigit, text[max(0, place - 1) : place + 2]))
