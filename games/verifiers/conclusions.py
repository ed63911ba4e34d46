"""Last sentences that state an answer in prose, such as "So the area is 84 square units.", and leading yes or no."""

# ruff: noqa: RUF001 (the patterns search for signs of other scripts)

from __future__ import annotations

import re
from typing import NamedTuple

_DOUBTFUL = """
    not no never neither nor cannot if whether unless might may could would should maybe perhaps possibly probably
    likely wrong incorrect false doubt first initial other previous earlier tempting think thinks thought claim claims
    say says said guess question suppose assume his her their suspect believe
    believed hope expect expected nicht kein keine keiner nie
    niemals vielleicht falsch etwa ungefähr rund mindestens höchstens fast ne pas environ presque peut-être
    aproximadamente
    casi quase cerca circa quasi unos unas примерно около почти приблизительно возможно ne pas jamais faux nunca
    jamás quizás falso não nem talvez non mai forse не нет никогда
"""
DOUBTFUL_WORDS = frozenset(_DOUBTFUL.split())
"""Words before the verb of a sentence that qualifies, denies or quotes its statement."""
_VERBS = (
    r"(?:there\s(?:is|are|were)|is\sequal\sto|are\sgiven\sby|is\sgiven\sby|(?:diverges|tends|goes|converges)\sto|comes\sto|measures|amounts\sto|evaluates\sto|"
    r"simplifies\sto|(?:leaves|arrives|starts|begins|ends)\sat|(?:we|I|one)\s(?:get|obtain|find|have)|(?:which|this|that)\s(?:gives|yields|makes|leaves)|is|are|was|were|equals?|has|contains|costs?|weighs|takes"
    r"|beträgt|ist|lautet|sind|est|vaut|sont|es|son|é|vale)"
)
_ADVERB = r"(?:(?:therefore|thus|then|hence|simply|just|indeed|exactly|precisely|also|daher|donc)\b,?\s)?"
_WORD = r"[^\W\d_][^\W\d_'’-]{0,24}\.?"
_FORMULA = r"(?:\$[^$\n]{1,200}\$|\\\((?:(?!\\\)).){1,200}\\\)|`[^`\n]{1,100}`)"
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
"""English names of months, as a pattern."""
_CLOCK = r"\d{1,2}(?::\d\d)?\s?[ap]\.?m\b\.?"
_DATE = rf"(?:(?:{MONTHS})\s\d{{1,2}}(?:st|nd|rd|th)?,?\s\d{{4}}|\d{{1,2}}(?:st|nd|rd|th)?\s(?:{MONTHS})\s\d{{4}})"
_NUMBER = r"[-−+]?(?:[$€£¥]|\\\$)?\d(?:[\d.,:/–-]*\d)?%?"
_EQUATION = (
    r"[A-Za-z](?:_\w|\^\{?-1\}?)?(?:\([^()\s]{1,12}\))?\s?=\s?"
    r"(?:[-−+*/^=()\d.²³√π\s]|(?<![^\W\d_])[^\W\d_](?![^\W\d_])){1,80}"
)
"""Equation without words, such as f(-x) = f(x)."""
_EXPRESSION = (
    r"(?:[-−+*/^()\d.²³√π!{}\s]|(?<![^\W\d_])[a-z](?![^\W\d_])){0,40}"
    r"(?<=[\da-z)}])\s?[-−+*/^]\s?[-−+*/^()\d.²³√π!{}\sa-zA-Z]{1,40}"
)
"""Formula with an operator and without words, such as 3n + 2."""
_ASSIGNMENTS = rf"[A-Za-z]\s?=\s?{_NUMBER}(?:(?:,|,?\sand)\s[A-Za-z]\s?=\s?{_NUMBER}){{0,5}}"
_DOMAIN = rf"(?:,?\s(?:with|where|for|mit|avec|con|com)\s{_FORMULA}(?:\s(?:is|are)\s[a-z\s]{{1,40}})?)?"
"""Domain of a constant or parameter after a formula, such as "with $A \\in \\mathbb{R}$"."""
_VALUE = (
    rf"(?:{_DATE}|{_CLOCK}|(?:(?:positive|negative|plus|minus)\s|[-−+])?(?:infinity|∞|\\infty)|{_EQUATION}|{_EXPRESSION}(?=[.!]?$)"
    rf"|{_FORMULA}(?:(?:,?\s(?:and|or)\s|,\s){_FORMULA}){{0,6}}(?:\s{_WORD}){{0,3}}{_DOMAIN}"
    rf"|(?:[A-Za-z](?:\([a-z]\))?\s?=\s?)?{_NUMBER}(?:\s?(?:{_WORD}(?:[/^][^\W_]{{1,9}}|[\d²³])?|%|°C?)){{0,3}})"
)
_CONCLUSION = re.compile(
    rf"(?:(?P<subject>(?:[^\s$]{{1,30}}\s|\$[^$\n]{{1,60}}\$,?\s){{0,14}}?)"
    rf"{_VERBS}\s{_ADVERB}(?:the\s(?:{_WORD}\s){{1,2}})?(?P<value>{_VALUE})"
    r"|(?:so|thus|hence|therefore|then|also|daher|somit|folglich|damit|donc|ainsi|alors|luego|entonces|portanto|logo|quindi"
    rf"|dunque|значит|итак)\b,?\s(?P<formula>{_ASSIGNMENTS}(?:\s?{_WORD}){{0,2}}))"
    r"(?:,?\s(?:attained|reached|achieved|occurring|obtained|as\s(?:required|desired|claimed|wanted)|which\scompletes"
    r"|(?:such\s[^\W\d_]{1,20}\s)?in\s(?:total|all)|(?:ways?\s)?to\s(?:do|choose|arrange)\b)[^.!?\d]{0,80}|,?\sattained[^.!?]{0,80})?[.!]?",
    re.I,
)
_SENTENCE_END = re.compile(r"(?<!\bp\.m)(?<!\ba\.m)[.!?](?=\s+[A-Z$\\ÀÄÖÜÉ¿¡])")
_DECISION = re.compile(
    r"(?P<word>yes|no|true|false|ja|nein|oui|non|sí|não|sim|да|нет)(?:\s?[,.:;!—–-]\s+|\s(?=because\b|since\b))", re.I
)
"""Yes or no at the beginning of a text, before its reason."""
_YES_OR_NO = re.compile(r"\b(?:yes|no|ja|nein|oui|non|sí|não|sim|да|нет)\b", re.I)
_TRUE_OR_FALSE = re.compile(r"\b(?:true|false)\b", re.I)
_MAX_REASON, _MAX_SENTENCE = 300, 400
"""Maximum lengths of a text with a leading yes or no, and of a concluding sentence, in characters."""
_TURN = re.compile(r"\b(?:but|however|actually|wait|although|unless|maybe|perhaps|or|aber|mais|pero|но)\b", re.I)


"""Words by which a reason may turn against the decision before it."""


class Conclusion(NamedTuple):
    """An answer that the last sentence of a text states."""

    start: int
    """Offset of the sentence in the text."""
    content: str


_BEHAVIOUR = re.compile(
    r"(?:(?:so|thus|hence|therefore),?\s)?(?:it|(?:the|this)\s(?:[^\W\d_]{1,20}\s){0,2}[^\W\d_]{1,20})\s"
    r"(?:(?P<verb>converges|diverges|exists|does\snot\sexist)(?:\sby\s[^.!?]{1,60})?|is\s(?P<truth>true|false|undefined|impossible))[.!]?",
    re.I,
)
"""Sentence that says whether a series converges, a limit exists or a statement is true."""


_EAST_ASIAN = re.compile(
    r"(?:(?:所以|因此|故|于是|したがって|よって)?[,、]?[^\s$不非没无否可能大约約如ない]{0,20}(?:是|为|等于|得|は|が)|よって|したがって|所以|因此)\s?"
    rf"({_FORMULA}|√\d+|[一二三四五六七八九十百]{{1,8}}|-?\d[\d.,/]*%?[^\s\d,、。.]{{0,6}}?)(?:です|になります|である)?[。.]?"
)
"""Sentence in Chinese or Japanese that states a value: 面积是12。"""


def find_conclusion(text: str) -> Conclusion | None:
    """Return the answer in the last sentence of `text`, or None if it states none, or a doubtful answer."""
    stripped = text.rstrip()
    if east := _EAST_ASIAN.fullmatch(stripped[stripped.rfind("\n") + 1 :].strip()):
        return Conclusion(stripped.rfind("\n") + 1, east[1])
    line = stripped.rfind("\n") + 1
    ends = [match.end() for match in _SENTENCE_END.finditer(stripped, line)]
    start = ends[-1] if ends else line
    sentence = stripped[start:].strip()
    if len(sentence) > _MAX_SENTENCE:
        return None
    if behaviour := _BEHAVIOUR.fullmatch(sentence):
        return Conclusion(start, behaviour["verb"] or behaviour["truth"])
    match = _CONCLUSION.fullmatch(sentence)
    if match is None:
        return None
    if match["formula"]:
        return Conclusion(start, match["formula"])
    words = set(re.findall(r"[^\W\d_]+", match["subject"].lower()))
    is_doubtful = not DOUBTFUL_WORDS.isdisjoint(words) or "n't" in match["subject"] or "n’t" in match["subject"]
    has_verb = re.search(rf"(?:^|\s)(?:{_VERBS})\s", match["subject"], re.I)
    return None if is_doubtful or has_verb else Conclusion(start, match["value"].strip("`"))


def find_decision(text: str) -> str:
    """Return the yes or no with which `text` begins, or "" if no reason or a contradiction follows it."""
    match = _DECISION.match(text.strip())
    if match is None or len(text) > _MAX_REASON:
        return ""
    reason = text.strip()[match.end() :]
    group = _TRUE_OR_FALSE if _TRUE_OR_FALSE.fullmatch(match["word"]) else _YES_OR_NO
    others = {word.lower() for word in group.findall(reason)} - {match["word"].lower()}
    return "" if others or not reason or _TURN.search(reason) else match["word"]
