"""Options named by an answer: by label, by text or by both, one option or several."""

# ruff: noqa: RUF001 (the patterns search for signs of other scripts)

from __future__ import annotations

import re
from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any

from marl.core.types import Problem
from marl.games.verifiers.answer_verifier import HEDGES
from marl.games.verifiers.spelling import normalize_spelling

_STYLE = re.compile(
    r"\\(?:text\w*|math\w+|[mh]box|bf|rm)\s*\{([^{}]*)\}|\$([^$]*)\$|(?<!\w)\*\*(\(?\w\)?\.?)\*\*(?!\w)"
)
_SPACE = re.compile(r"\\[ ,;:!]|\\q?quad\b|~|\{\}")
_SIMPLE_INDEX = re.compile(r"(?<=[\^_])\{\s*([-+]?(?:\d+|[A-Za-z]))\s*\}(?!\w)")
"""An exponent or index without need of braces: 10^{-4}, unlike x^{2n}."""
_SIGNS = {"\\times": "×", "\\cdot": "·", "−": "-"}
_SIGN = re.compile(r"\\(?:times|cdot)\b|−")
_COMMA = re.compile(r"\s*,\s*")
_OPERATOR = re.compile(r"\s*([-=<>+*/^_,×·])\s*")
_PRAISE = re.compile(r"\s+is\s+(?:the\s+)?(?:correct|right|best)(?:\s+(?:answer|option|choice|one))?$", re.I)
_TITLE = re.compile(r"^(?:(?:the\s+)?(?:options?|choices?|letters?)\b|选项|选择?)\s*:?\s*", re.I)
_LABELLED = re.compile(r"(?:\(\s*(\w+)\s*\)|\[\s*(\w+)\s*\]|(\w+)\)?)(?:\s*[.:]\s*|\s+[-–—]\s+(?=\S)|\s+|$)(.*)", re.S)
_EXPLAINED = re.compile(r"\(?([A-Z])\)?\. +([A-Z].*)", re.S)
_MIN_WORDS = 3
"""Minimum number of words of an explanation after a label."""
_SEPARATOR = re.compile(r"\s*(?:[,;、&\n]|\band\b|和|与|及)\s*(?:\band\b\s*)?", re.I)
_LABEL_LIST = re.compile(r"""(?P<label>[^\W_]+)|[\s,;、&+()\[\]{}"']+|(?<!\.)\.(?!\.)""")
_AND = ("AND", "和", "与", "及")


def read_options(problem: Problem) -> dict[str, str]:
    r"""Return label -> text of the options in `facts.choices`, a list (labels A, B, ...) or a mapping.

    Without choices, the options are read from the right answer, such as `\textbf{(B)}\ 15`.

    Raises:
        ValueError: `facts.choices` is neither, or a list of more than 26 texts.
    """
    choices: Any = problem.facts.get("choices")
    if choices is None:
        label, text = _split_label(_bare(problem.answer))
        return {label: _spell(text)} if text else dict.fromkeys(_label_list(_bare(problem.answer)), "")
    if isinstance(choices, list | tuple) and len(choices) <= len(ascii_uppercase):
        choices = dict(zip(ascii_uppercase, choices, strict=False))
    if not isinstance(choices, Mapping):
        raise ValueError(f"facts.choices: {str(choices)[:200]}; must be up to 26 texts in a list, or label -> text")
    return {str(label).upper(): _spell(str(text)) for label, text in choices.items()}


def named_options(answer: str, options: Mapping[str, str]) -> frozenset[str]:
    """Return the labels of the options named by `answer`, or the empty set for any other text, such as "A or B".

    A label has precedence over an option with a letter as its text.
    """
    answer = _bare(answer)
    if label := _label(answer, options) or _explained_label(answer, options):
        return frozenset([label])
    if answer.endswith(("..", "…")):
        return frozenset()  # a list that goes on
    labels = frozenset(_label_list(answer))
    if labels and labels <= options.keys():
        return labels
    named = [_label(piece, options) for piece in _SEPARATOR.split(_TITLE.sub("", answer))]
    return frozenset(named) if all(named) else frozenset()


def _label(answer: str, options: Mapping[str, str]) -> str:
    """Return the label of the single option named by `answer`, or "" if there is none."""
    for spelling in (answer, _TITLE.sub("", answer)):
        label, text = _split_label(spelling)
        if label in options and (not text.strip() or _spell(text) == options[label] != ""):
            return label
        spelled = _spell(spelling)
        named = [label for label, text in options.items() if text and text == spelled]
        if len(named) == 1:
            return named[0]
    return ""


def _explained_label(answer: str, options: Mapping[str, str]) -> str:
    """Return the label in "B. It is the second planet.", or "" if the sentence qualifies it or names another option."""
    explained = _EXPLAINED.fullmatch(answer)
    if not explained or explained[1] not in options:
        return ""
    words, spelled = explained[2].split(), f" {_spell(explained[2])} "
    if len(words) < _MIN_WORDS or not HEDGES.isdisjoint(re.findall(r"\w+", explained[2].lower())):
        return ""
    if any(word.strip(".,;:()") in options for word in words):
        return ""
    for label, text in options.items():
        if text and label != explained[1] and f" {text} " in spelled:
            return ""
    return explained[1]


def _split_label(text: str) -> tuple[str, str]:
    """Return label and text of an option: "B", "15" for `(B) 15`; both are "" if there is no label."""
    match = _LABELLED.fullmatch(text)
    return ((match[1] or match[2] or match[3]).upper(), match[4]) if match else ("", "")


def _label_list(text: str) -> list[str]:
    """Return the labels in "A, C", "(A)(C)", "A and C" or "AC", or [] for any other text."""
    text, labels, end = _TITLE.sub("", text), list[str](), 0
    for part in _LABEL_LIST.finditer(text):
        label = part["label"]
        if part.start() != end:
            return []
        end = part.end()
        if label and label.upper() not in _AND:
            # "AC" are two labels, "Ac" or "AA" is one.
            letters = label.isalpha() and label.isascii() and label.isupper() and len(set(label)) == len(label)
            labels += label if letters else [label.upper()]
    return labels if end == len(text) else []


def _spell(text: str) -> str:
    """Return the text of an option in the spelling for comparison: plain signs, no spaces around operators."""
    text = _SIGN.sub(lambda sign: _SIGNS[sign[0]], _SIMPLE_INDEX.sub(r"\1", _COMMA.sub(",", _bare(text))))
    return _OPERATOR.sub(r"\1", normalize_spelling(text, punctuation=False, articles=False))


def _bare(text: str) -> str:
    """Return `text` without LaTeX commands for fonts and spaces, and without "is correct" at its end."""
    text = re.sub(r"\\[dt]frac\b", r"\\frac", _SPACE.sub(" ", text))
    while (plainer := _STYLE.sub(lambda style: style[style.lastindex or 0], text)) != text:
        text = plainer
    return _PRAISE.sub("", text.strip())
