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
"""An exponent or index that needs no braces: 10^{-4}, unlike x^{2n}."""
_SIGNS = {"\\times": "×", "\\cdot": "·", "−": "-"}
_SIGN = re.compile(r"\\(?:times|cdot)\b|−")
_COMMA = re.compile(r"\s*,\s*")
_OPERATOR = re.compile(r"\s*([-=<>+*/^_,×·])\s*")
_PRAISE = re.compile(r"\s+is\s+(?:the\s+)?(?:correct|right|best)(?:\s+(?:answer|option|choice|one))?$", re.I)
_TITLE = re.compile(
    r"^(?:(?:(?:the|die|la|le|a|o|l['’])\s*)?(?:options?|choices?|letters?|réponse|lettre|choix|proposition|respuesta|opción|letra"
    r"|resposta|opção|alternativa|Antwort(?:möglichkeit)?|Buchstabe|risposta|opzione|lettera|вариант|ответ|буква)\b|选项|选择?|選択肢)"
    r"\s*:?\s*",
    re.I,
)
_CHOSEN = re.compile(
    r"^(?:(?:so|thus|hence|therefore),?\s)?(?:(?:it['’]?s|it\sis|that['’]?s)|I(?:['’]d)?\s(?:would\s)?(?:choose|pick|select|go\swith))\s",
    re.I,
)
"""Words of somebody who chooses an option."""
_ORDINAL = re.compile(
    r"(?:the\s+)?(first|second|third|fourth|fifth|last|[1-5](?:st|nd|rd|th))\s+"
    r"(?:of\s+(?:the|these)\s+(?:\w+\s+)?)?(?:options?|choices?|answers?|alternatives?|one)",
    re.I,
)
_ORDINALS = {
    **{"first": 0, "second": 1, "third": 2, "fourth": 3, "fifth": 4, "last": -1},
    **{"1st": 0, "2nd": 1, "3rd": 2, "4th": 3, "5th": 4},
}
_ARTICLE = re.compile(r"(?:la|el|le|die|der|das|il|o|the)\s+\(?([A-H])(?=[).:]|$)", re.I)
"""Article before the label of an option: "la D"."""
_NOTE = re.compile(
    r"(?:Note|Notice|Remember|Observe|Remark|Beware|Careful|Caution|Do(?:n['’]t|\snot)\sconfuse|Many|Some)\b[^.!?]*[.!?]?$"
)
"""Remark in which other options may be named: "Note that A is a common distractor"."""
_DENIED = re.compile(
    r"\b(?:options?\s|answers?\s)?[A-J](?:(?:,\s|,?\s(?:and|or)\s)[A-J])*\s(?:is|are|was|were)\s(?:(?:all|both|clearly)\s)?"
    r"(?:wrong|incorrect|false|too\s\w+|not\s\w+|excluded|ruled\sout)\b"
)
"""Denial of other options: "A and C are too small"."""
_CONTRAST = re.compile(r",?\s(?:and\s)?not\s\(?[A-J]\)?$")
"""Other option that an answer denies: "B, not C"."""
_DASH = re.compile(r"\s+[—–-]\s+")
_LABELLED = re.compile(r"(?:\(\s*(\w+)\s*\)|\[\s*(\w+)\s*\]|(\w+)\)?)(?:\s*[.:]\s*|\s+[-–—]\s+(?=\S)|\s+|$)(.*)", re.S)
_TEXT_IN_BRACKETS = re.compile(r"\(([^()]*)\)")
_EXPLAINED = re.compile(r"\(?([A-Z])\)?(?:\. +(?=[A-Z])|; +)(.*)", re.S)
_MIN_WORDS = 3
"""Minimum number of words of an explanation after a label."""
_ASSERTING_WORDS = """
    the correct right answer option choice letter is so hence therefore thus it must be we pick choose select i our my
    final one best only that this it's that's would go with alternative as a result consequently
    die der das richtige richtig ist antwort lösung option es somit damit also daher folglich korrekt korrekte lautet
    ich wähle nur antwortmöglichkeit möglichkeit buchstabe stimmt einzig
    la le bonne correcte juste réponse est c'est donc il s'agit de choix lettre proposition ainsi je choisis seule
    exacte
    el respuesta correcta es opción por lo tanto así pues entonces elijo letra alternativa única correcto
    o resposta é opção portanto logo está certa correto correta
    risposta corretta è opzione quindi giusta lettera
    ответ правильный верный вариант это верно правильно значит следовательно поэтому выбираем буква является верным
    правильным
"""
_ASSERTING = frozenset(_ASSERTING_WORDS.split())
"""Words of a sentence that asserts an option."""
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_TRUTH = frozenset(["true", "statement", "holds", "statements"])
_ASKS_FOR_TRUTH = re.compile(r"^(?!.*\b(?:not|false|incorrect|wrong|except|never)\b).*\btrue\b", re.I | re.S)
_PUNCTUATION = frozenset(" .,:;!()[]\"'“”„«»—–")
_MAX_WORDS = 20
_SEPARATOR = re.compile(r"\s*(?:[,;、&\n]|\band\b|和|与|及)\s*(?:\band\b\s*)?", re.I)
_LABEL_LIST = re.compile(r"""(?P<label>[^\W_]+)|[\s,;、&+()\[\]{}"']+|(?<!\.)\.(?!\.)""")
_AND = ("AND", "和", "与", "及")


def read_options(problem: Problem) -> dict[str, str]:
    r"""Return the text of each option by label, from `facts.choices`: a list (labels A, B, ...) or a mapping.

    If a problem has no `facts.choices`, the options are read from its answer, such as `\textbf{(B)}\ 15`.

    Raises:
        ValueError: `facts.choices` is no list and no mapping, or a list of more than 26 texts.
    """
    choices: Any = problem.facts.get("choices")
    if choices is None:
        answer = _without_markup(problem.answer)
        label, text = _split_label(answer)
        return {label: _normalized_option(text)} if text else dict.fromkeys(_listed_labels(answer), "")
    if isinstance(choices, list | tuple) and len(choices) <= len(ascii_uppercase):
        choices = dict(zip(ascii_uppercase, choices, strict=False))
    if not isinstance(choices, Mapping):
        raise ValueError(f"facts.choices: {str(choices)[:200]}; must be up to 26 texts in a list, or label -> text")
    return {str(label).upper(): _normalized_option(str(text)) for label, text in choices.items()}


def named_options(answer: str, options: Mapping[str, str]) -> frozenset[str]:
    """Return the labels of the options that `answer` names, or the empty set for any other text, such as "A or B".

    If "B" is the label of one option and the text of another, "B" names the option with the label.
    """
    answer = _CONTRAST.sub("", _CHOSEN.sub("", _without_markup(answer)))
    if (ordinal := _ORDINAL.fullmatch(answer.strip(" ."))) and len(options) > 1:
        index = _ORDINALS[ordinal[1].lower()]
        return frozenset([list(options)[index]]) if index < len(options) else frozenset()
    if (article := _ARTICLE.match(answer)) and article[1].upper() in options:
        answer = answer[article.start(1) :].replace(")", "", 1)
    if label := _label_of_named_option(answer, options) or _label_before_explanation(answer, options):
        return frozenset([label])
    if answer.endswith(("..", "…")):
        return frozenset()  # an answer that ends in "..." lists only some of its options
    labels = frozenset(_listed_labels(answer))
    if labels and labels <= options.keys():
        return labels
    named = [_label_of_named_option(piece, options) for piece in _SEPARATOR.split(_TITLE.sub("", answer))]
    return frozenset(named) if all(named) else frozenset()


def asserted_option(sentence: str, options: Mapping[str, str], question: str) -> str:
    """Return the label in a sentence such as "Richtig ist Antwort C.", or "" if it has words that assert nothing.

    "A is true" asserts A if the question asks for what is true.
    """
    asserting = _ASSERTING | (_TRUTH if _ASKS_FOR_TRUTH.search(question) else frozenset())
    sentence = _without_markup(sentence)
    words = [(match[0], match.start()) for match in _WORD.finditer(sentence)]
    labels = [(word, start) for word, start in words if word in options]
    if len(labels) > 1 and re.match(r"[AOE] [^\W\d_A-Z]", sentence):
        del labels[0]  # an article, as in "A resposta é B"
    if not labels or len(words) > _MAX_WORDS or not _PUNCTUATION.issuperset(_WORD.sub("", sentence)):
        return ""
    label, start = labels[0]
    others = [word for word, position in words if position != start]
    if len(labels) == 1 and asserting.issuperset(word.lower() for word in others):
        return label
    before = [word.lower() for word, position in words if position < start]
    return label if asserting.issuperset(before) and _label_of_named_option(sentence[start:], options) == label else ""


def _label_of_named_option(answer: str, options: Mapping[str, str]) -> str:
    """Return the label of the single option named by `answer`, or "" if `answer` names none or several."""
    for spelling in (answer, _TITLE.sub("", answer)):
        label, text = _split_label(spelling)
        if label in options and (not text.strip() or _normalized_option(text) == options[label] != ""):
            return label
        stated, *remark = _DASH.split(text, maxsplit=1)
        is_hedged = not HEDGES.isdisjoint(re.findall(r"\w+", "".join(remark).lower()))
        if label in options and remark and not is_hedged and _normalized_option(stated) == options[label] != "":
            return label
        if label in options and (inner := _TEXT_IN_BRACKETS.fullmatch(text.strip(" ."))) and options[label]:
            is_other = any(text in _normalized_option(inner[1]) for other, text in options.items() if other != label)
            is_hedged = not HEDGES.isdisjoint(re.findall(r"\w+", inner[1].lower()))
            is_other = is_other or not options.keys().isdisjoint(re.findall(r"\w+", inner[1]))
            return "" if _normalized_option(inner[1]) != options[label] and (is_other or is_hedged) else label
        normalized = _normalized_option(spelling)
        named = [label for label, text in options.items() if text and text == normalized]
        if len(named) == 1:
            return named[0]
    return ""


def _label_before_explanation(answer: str, options: Mapping[str, str]) -> str:
    """Return the label in "B. It is the second planet.", or "" if the sentence names another option or is in doubt."""
    explained = _EXPLAINED.fullmatch(answer)
    if not explained or explained[1] not in options:
        return ""
    if len(explained[2].split()) < _MIN_WORDS:
        return ""
    if _NOTE.fullmatch(explained[2]):
        return explained[1]
    remark = explained[2] if re.search(rf"\b{explained[1]}\b", explained[2]) else _DENIED.sub("", explained[2])
    words, normalized = remark.split(), f" {_normalized_option(remark)} "
    is_hedged = not HEDGES.isdisjoint(re.findall(r"\w+", remark.lower()))
    if is_hedged or not options.keys().isdisjoint([word.strip(".,;:()") for word in words]):
        return ""
    for label, text in options.items():
        if text and label != explained[1] and f" {text} " in normalized:
            return ""
    return explained[1]


def _split_label(text: str) -> tuple[str, str]:
    """Return label and text of an option: "B", "15" for `(B) 15`; both are "" if there is no label."""
    match = _LABELLED.fullmatch(text)
    return ((match[1] or match[2] or match[3]).upper(), match[4]) if match else ("", "")


def _listed_labels(text: str) -> list[str]:
    """Return the labels A and C for "A, C", "(A)(C)", "A and C" or "AC", or [] if `text` is no list of labels."""
    text, labels, end = _TITLE.sub("", text), list[str](), 0
    for part in _LABEL_LIST.finditer(text):
        label = part["label"]
        if part.start() != end:
            return []
        end = part.end()
        if label and label.upper() not in _AND:
            # Different capital letters such as "AC" are several labels; "Ac" and "AA" are one each.
            letters = label.isalpha() and label.isascii() and label.isupper() and len(set(label)) == len(label)
            labels += label if letters else [label.upper()]
    return labels if end == len(text) else []


def _normalized_option(text: str) -> str:
    """Return the text of an option in normal form for comparison: plain signs, no spaces around operators."""
    text = _SIMPLE_INDEX.sub(r"\1", _COMMA.sub(",", _without_markup(text)))
    text = _SIGN.sub(lambda sign: _SIGNS[sign[0]], text)
    return _OPERATOR.sub(r"\1", normalize_spelling(text, punctuation=False, articles=False))


def _without_markup(text: str) -> str:
    """Return `text` without LaTeX commands for fonts and spaces, and without "is correct" at its end."""
    text = re.sub(r"\\[dt]frac\b", r"\\frac", _SPACE.sub(" ", text))
    while (plainer := _STYLE.sub(lambda style: style[style.lastindex or 0], text)) != text:
        text = plainer
    return _PRAISE.sub("", text.strip())
