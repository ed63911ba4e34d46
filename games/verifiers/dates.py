"""Dates of the calendar, whose month is written in letters or in the order of ISO 8601."""

from __future__ import annotations

import re
from datetime import date

from marl.games.verifiers.latex_notation import plain_words

_MONTH = r"(?P<month>[^\W\d_]{3,10})\.?"
_DAY = r"(?P<day>[0-9]{1,2})(?:st|nd|rd|th|er|º|\.)?"
_YEAR = r"(?P<year>[0-9]{4})"
_FORMS = (
    re.compile(r"(?P<year>[0-9]{4})([-/])(?P<month>[0-9]{2})\2(?P<day>[0-9]{2})"),
    re.compile(r"(?P<day>[0-9]{2})\.(?P<month>[0-9]{2})\.(?P<year>[0-9]{4})"),
    re.compile(rf"(?:on\s)?{_MONTH}\s?(?:the\s)?{_DAY}\s?,?\s?{_YEAR}", re.I),
    re.compile(rf"(?:on\s)?(?:the\s|le\s|el\s|am\s)?{_DAY}\s(?:of\s|de\s)?{_MONTH},?\s(?:de\s)?{_YEAR}", re.I),
)
_MONTHS = (
    "january february march april may june july august september october november december",
    "jan feb mar apr may jun jul aug sep oct nov dec",
    "januar februar märz april mai juni juli august september oktober november dezember",
    "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
    "января февраля марта апреля мая июня июля августа сентября октября ноября декабря",
)
"""Names of the months in English, also abbreviated, German, French, Spanish, Portuguese and Russian."""


def read_date(text: str) -> date | None:
    """Return the date that `text` states, as 2024-01-15, January 15, 2024 or 15 January 2024; None for any other text.

    Dates such as 1/2/2024, whose month depends on the country, are not read.
    """
    if len(text) > 60:
        return None
    plain = plain_words(text).strip(" .")
    match = next(filter(None, (form.fullmatch(plain) for form in _FORMS)), None)
    month = month_number(match["month"]) if match else 0
    if match is None or not month:
        return None
    try:
        return date(int(match["year"]), month, int(match["day"]))
    except ValueError:
        return None


def month_number(name: str) -> int:
    """Return the number of a month from its digits, or its name in one of six languages, or 0 if it is none."""
    name = name.lower()
    if name.isdecimal():
        return int(name) if 1 <= int(name) <= 12 else 0
    for language in _MONTHS:
        names = language.split()
        if name in names:
            return names.index(name) + 1
    return 0
