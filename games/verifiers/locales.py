"""Numbers with the separators of other locales, where the question says which ones are used."""

from __future__ import annotations

import re

from marl.games.verifiers.foreign_numbers import language_of

_COMMA_AS_POINT = re.compile(
    r"\bDezimalkomma|\bdecimal comma\b|\bcomma as (?:the |a )?decimal|\bvirgule (?:décimale|comme)"
    r"|\b(?:coma|vírgula) decimal\b"
    r"|\b(?:Punkt|dot|point|period|punto|ponto) (?:als|as|como) (?:the |a )?(?:Tausender|thousand|separador)"
    r"|\b(?:deutsche[nr]?|German|European|continental) (?:Schreibweise|notation|format|number format)\b",
    re.I,
)
_DECIMAL_COMMA = re.compile(r"(?<![\d.,])\d+,\d{1,2}(?![\d,])")
_NUMBER = re.compile(
    r"([A-Za-z]\s*=\s*)?(\$?)"
    r"([-+]?(?:[0-9]{1,3}(?:(?:[.\s\u202f\u00a0]|\\[,;: ])[0-9]{3})+|[0-9]+))(?:(?:,|\{,\})([0-9]+))?(?![0-9.,])"
)


def with_plain_number(text: str, question: str, *, is_one_number: bool = False) -> str:
    """Return `text` with the number 12.500,5 as 12500.5 if `question` says that a comma stands before the decimals.

    Args:
        is_one_number: True if `text` should be one number and no list, so that a comma before one or two digits stands
            before decimals if the question is written in a language other than English.
    """
    match = _NUMBER.match(text)
    if match is None or not (match[4] or "." in match[3]):
        return text
    is_short = is_one_number and match[4] and len(match[4]) < 3 and "." not in match[3]
    is_told = _COMMA_AS_POINT.search(question) or (_DECIMAL_COMMA.search(question) and language_of(question))
    if not (is_told or (is_short and language_of(question))):
        return text
    integer = re.sub(r"[^-+0-9]", "", match[3])
    return f"{match[1] or ''}{match[2]}{integer}{'.' + match[4] if match[4] else ''}{text[match.end() :]}"
