"""Orders of words or letters, such as "C, A, B", in any of the usual ways of writing an order."""

from __future__ import annotations

import re

from marl.games.verifiers.latex_notation import normalize_notation, plain_words

_ASCENDING = re.compile(
    r"\b(?:ascending|increasing|(?:smallest|least|lowest|shortest|youngest|slowest|lightest) (?:first|to))\b", re.I
)
_SEPARATOR = re.compile(
    r"\s*(?:[,;]\s*(?:and\s+then\s|and\s+finally\s|finally\s|and\s|then\s)?|\s(?:and\s+then|and|then)\s|[>→]|->|\\(?:to|rightarrow|succ)\b|(?<=\w)\s+-\s+(?=\w)|\bthen\b)\s*"
)
_LETTERS_APART = re.compile(r"[A-Za-z](?:(?:\s*[-,>→]\s*|\s+)[A-Za-z])+")


def matches_order(gold: str, answer: str, question: str) -> bool:
    """Return True if `answer` lists the items of `gold` in the same order, in another notation.

    "C > A > B", "C → A → B" and "CAB" are the order C, A, B; H-T-H is the word HTH. The sign > is not accepted if the
    question asks for the smallest item first.
    """
    right = _ranked_items(gold)
    stated = _ranked_items(answer) if len(right) > 1 else []
    if ">" in normalize_notation(answer) and _ASCENDING.search(question):
        return False
    return len(right) > 1 and right == stated


def _ranked_items(text: str) -> list[str]:
    """Return the items of an ordered list of words, or the letters of a word of capitals, or [] for any other text."""
    if len(text) > 300:
        return []
    plain = re.sub(r"^\((.*)\)$|^first\s", r"\1", plain_words(text).strip(" ."), flags=re.I)
    if re.fullmatch("[A-Z]{2,30}", plain) or _LETTERS_APART.fullmatch(plain):
        return re.findall("[a-z]", plain.casefold()) if plain.upper() == plain else []
    items = [item.strip() for item in _SEPARATOR.split(plain)]
    is_list_of_words = all(re.fullmatch(r"[^\W\d_][\w '-]{0,40}", item) for item in items)
    return [re.sub(r"^(?:an?|the) ", "", item.casefold()) for item in items] if is_list_of_words else []
