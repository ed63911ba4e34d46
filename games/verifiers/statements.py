"""Explicit statements of an answer in prose, such as a box or "The answer is 5.", in English and Chinese."""

# ruff: noqa: RUF001 (signs of other scripts are what is looked for)

from __future__ import annotations

import re
from bisect import bisect
from itertools import islice

from marl.answer_text import Mark, boxes, certain, standing, tags

MAX_LENGTH = 2000
"""Characters of an answer; longer text is no answer."""
_MAX_STATEMENTS = 20
"""Places at which a text may state its answer; a text with more of them states none."""
_MAX_WORDS = 3
"""Words of a short statement. A longer one beside short ones is prose: "The answer is the sum of both. Answer: 5"."""
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_IS = r"(?:(?:is|are|was|equals|(?:would|should|must|will)\sbe)\b(?!n['’]t|\s(?:not|never)\b)\s{0,3}:?|[:=])"
_TOPIC = r"(?:\s(?:to|for|of)\s(?:[^.,;:\n=]|[.,](?=\d)){1,60}?)?"
_ADVERBS = (
    r"(?:(?:therefore|thus|then|hence|simply|just|indeed|clearly|exactly|equal\sto|given\sby)\b[,:]?\s{0,3}){0,3}"
)
_LEAD = re.compile(
    r"(?:\b(?:the|my|our|your)\s{1,3})?(?:\b(?:final|correct|right|best|required)\s{1,3}){0,3}"
    rf"\b(?:(?:answers?|ans)\b{_TOPIC}|(?:option|choice|letter)\b(?=\s{{1,3}}is\b))\s{{0,3}}(?:\*\*)?\s{{0,3}}{_IS}"
    rf"(?:\*\*(?=\s))?\s{{0,9}}{_ADVERBS}"
    r"|^[#*\s]{0,8}(?:the\s)?(?:final\s)?answer[*:\s]{0,4}\n\s{0,9}"
    r"|^\#{4}[ \t]{1,3}(?!(?:step|part|case|method|solution|answer)\b|.*:$)"
    r"|答案(?!不|并非)(?:应该|应|就|便)?(?:(?:是|为|為|等于):?|[:=])\s{0,3}|答:\s{0,3}"
    r"|(?<!不)(?<!不应)(?<!不该)选择?(?=\s{0,3}\(?[A-Z])",
    re.I | re.M,
)
"""Words that lead to an answer."""
_SENTENCE = re.compile(r"(?:[^.!?。\n]|[.!?](?![)\]*_\"'”’]{0,4}(?:\s|$))){0,2000}+[.!?]?")
_LABELLED_LINE = re.compile(r"[A-J]\. [^\n]{0,2000}")
"""An option with its text, or a label and a reason."""
_REASON = re.compile(r"[,;]?\s{1,3}(?:because|since)\b|[,;]?\s{0,3}(?:因为|由于)", re.I)
_DISPLAY = re.compile(r"\$\$.{1,2000}?\$\$|\\\[.{1,2000}?\\\]", re.S)
_LAST_IN_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*[\s.]{0,9}\Z")
_UNSURE = re.compile(
    r"\bnot\s(?:\w{1,20}\s)?(?:sure|certain|know)\b|n['’]t\s(?:sure|certain|know)\b|\b(?:unsure|uncertain|guessing|kidding)\b"
    r"|\bno\sidea\b|\bjust\s(?:a\s)?guess\b|\b(?:could|may|might)\sbe\swrong\b|不确定|不知道",
    re.I,
)


def stated(text: str, *, in_boxes: bool = False) -> list[str] | None:
    """Return the contents of all statements that stand; None if the text makes no explicit statement.

    What is denied, qualified or taken back does not stand, so that none may be left of several statements. One that
    cannot be read is "".

    Args:
        text: without thoughts, and with full-width characters folded.
        in_boxes: only boxes state the answer, and short statements beside them must agree.
    """
    marks = boxes(text) if in_boxes else _marks(text)
    leads = list(islice(_LEAD.finditer(text), _MAX_STATEMENTS + 1))
    if not marks and (in_boxes or not leads):
        return [] if in_boxes else None
    if len(marks) > _MAX_STATEMENTS or len(leads) > _MAX_STATEMENTS:
        return []
    stand = _standing(text, marks, [_sentence(text, lead) for lead in leads])
    marked = [mark.content for mark in stand if mark.end > mark.start]
    if (in_boxes and not marked) or (stand and _UNSURE.search(text, stand[0].start)):
        return []
    sentences = [mark.content for mark in stand if mark.end == mark.start]
    short = [content for content in sentences if len(_WORD.findall(content)) <= _MAX_WORDS]
    return marked + (short if short or marked else sentences)


def _standing(text: str, marks: list[Mark], sentences: list[Mark]) -> list[Mark]:
    """Return what stands of marks and of sentences without marks, these as empty places."""
    apart = [each for each in sentences if not any(_overlap(each, mark) for mark in marks)]
    # A sentence does not hide its words: "The answer is 5, no, 6" takes 5 back. "Answer: No." takes nothing back.
    places = [sentence._replace(end=sentence.start) for sentence in certain(text, apart)]
    return standing(_LEAD.sub(lambda lead: "x" * len(lead[0]), text), [*certain(text, marks), *places])


def _overlap(one: Mark, other: Mark) -> bool:
    return one.start < other.end and other.start < one.end


def _marks(text: str) -> list[Mark]:
    """Return boxes and tags, the innermost ones; if there are none, what stands in bold at the very end."""
    tagged = tags(text, "answer")
    if tagged is None:
        return [Mark(0, len(text), "")]
    boxed = boxes(text)
    places = [box.start for box in boxed]
    innermost = [tag for tag in tagged if bisect(places, tag.start) == bisect(places, tag.end)]
    bold = None if boxed or tagged or _LEAD.search(text) else _LAST_IN_BOLD.search(text)
    return [Mark(bold.start(), bold.end(1) + 2, bold[1])] if bold else sorted([*boxed, *innermost])


def _sentence(text: str, lead: re.Match[str]) -> Mark:
    """Return the statement that begins with `lead`, up to the end of its sentence or displayed formula."""
    start = lead.end()
    line = _LABELLED_LINE.match(text, start)
    whole = line if line and not _LEAD.search(line[0]) else _DISPLAY.match(text, start) or _SENTENCE.match(text, start)
    end = whole.end() if whole else start
    content = _REASON.split(text[start:end], maxsplit=1)[0].strip()
    if content.count("**") % 2:
        content = content.removeprefix("**").removesuffix("**").strip()
    if text[lead.start() - 1 : lead.start()] == "(":
        content = content.removesuffix(")")
    return Mark(lead.start(), end, content)
