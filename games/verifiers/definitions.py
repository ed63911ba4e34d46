r"""Symbols that an answer defines in words: \frac{\varphi}{2} where \varphi = \frac{1+\sqrt5}{2}."""

from __future__ import annotations

import re

_SYMBOL = r"\\?[A-Za-z]{1,10}(?:_\{?\w\}?)?"
_DEFINITION = re.compile(
    rf"(?:\b(?:where|with|let|for|setting|denote|wobei|mit|sei|où|avec|soit|donde|con|sea|onde|com|где|пусть)\s|\uff0c其中)\s*"
    rf"\$?\s*({_SYMBOL})\s*(?:=|:=|\sis\s)\s*([^$,;\n]{{1,80}}?)\s*\$?(?=[,;\n]|\.\s|\.?$|\s(?:is|denotes|the|and|or)\b)",
    re.I,
)
_CLAUSE = re.compile(r",?\s(?:where|with|wobei|mit|où|avec|donde|con|onde|com|где)\s.*$", re.I | re.S)


def with_defined_symbols(answer: str, text: str) -> str:
    r"""Return `answer` with the values of the symbols that `text` defines, or "" if it uses none, or one of two values.

    The clause with the definition, such as "where \varphi = ...", is removed.
    """
    if "=" not in text:
        return ""
    definitions = dict[str, str]()
    for symbol, value in _DEFINITION.findall(text):
        if definitions.setdefault(_plain(symbol), value) != value:
            return ""
    formula = _CLAUSE.sub("", answer).strip(" $")
    replaced = formula
    for symbol, value in definitions.items():
        name = (
            rf"\\(?:var)?{symbol[1:]}(?![A-Za-z])"
            if symbol.startswith("\\")
            else rf"(?<![A-Za-z\\]){symbol}(?![A-Za-z])"
        )
        if len(re.findall(rf"(?:{name})\s*=", text)) > 1:
            return ""
        replaced = re.sub(name, lambda _, value=value: f"({value.strip()})", replaced)
    return replaced if replaced != formula else ""


def _plain(symbol: str) -> str:
    return symbol.replace("\\var", "\\")
