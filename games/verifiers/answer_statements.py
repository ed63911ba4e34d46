"""Explicit statements of an answer in prose, such as a box or "The answer is 5.", in English and Chinese."""

# ruff: noqa: RUF001 (the patterns search for signs of other scripts)

from __future__ import annotations

import re
from bisect import bisect
from itertools import islice

from marl.text.answers import AnswerSpan, drop_retracted, drop_uncertain, find_boxes, tags

MAX_LENGTH = 2000
"""Maximum length of an answer, in characters; longer text is no answer."""
_MAX_STATEMENTS = 20
"""Maximum number of statements in a text; a text with more states no answer."""
_MAX_WORDS = 3
"""Maximum number of words of a short statement. A longer one beside it is prose: "The answer is the sum. Answer: 5"."""
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
    r"|(?<!\#)\#{4}[ \t]{1,3}(?!(?:step|part|case|method|solution|answer)\b|.*:$)"
    r"|答案(?!不|并非)(?:应该|应|就|便)?(?:(?:是|为|為|等于):?|[:=])\s{0,3}|答:\s{0,3}"
    r"|(?:^|(?<=[.,;:!?。(*∴\n]))[ \t]{0,3}"
    r"(?:综上|因此|所以|于是|最后|最终|本题|此题|答案|[故则我应该当可就]){0,4}选择?(?=\s{0,3}\(?(?:[A-Z]|\d{1,2}\)?(?:[\s.,;。]|$)))",
    re.I | re.M,
)
"""Words before an answer. 选 counts at the beginning of a clause, or after words of assertion."""
_SENTENCE = re.compile(r"(?:[^.!?。\n]|[.!?](?![)\]*_\"'”’]{0,4}(?:\s|$))){0,2000}+[.!?]?")
_LABELLED_LINE = re.compile(
    r"[~\s]{0,4}[A-J]\s?\. [^\n]{0,2000}"
    r"|[~\s$*({'\"“‘]{0,4}(?:\\\w{1,12}\{\(?)?(?:[A-J]|\d{1,2}(?=\. [^A-Z\s]))[)}$*]{0,4}"
    r"\.\*{0,2}[~ ]{1,3}\S{1,99}+(?: \S{1,99}+){0,2}$",
    re.M,
)
"""An option with its text, or a label and a reason. After a label in brackets or bold face, few words are its text."""
_REASON = re.compile(r"[,;]?\s{1,3}(?:because|since)\b|[,;]?\s{0,3}(?:因为|由于)", re.I)
_DISPLAY = re.compile(r"\$\$.{1,2000}?\$\$|\\\[.{1,2000}?\\\]", re.S)
_LAST_IN_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*[\s.]{0,9}\Z")
_CONCLUSION = re.compile(
    r"(?:\A|[.!?:。\n]\s{0,3})(?:so|thus|hence|therefore)\b,?\s{1,3}"
    r"(?:(?!(?:not|no|never|neither|nor|cannot|if|whether|unless|might|may|could|would|should|maybe|perhaps|possibly"
    r"|probably|likely|wrong|incorrect|false|doubt|first|initial|other|previous|earlier|tempting|thinks?|thought|claims?"
    r"|says?|said|guess|question|his|her|their)\b)[\w-]{1,20}\s{1,3}){1,10}(?<=\s)(?:is|are|equals)\s{1,3}"
    r"(\$[^$\n]{1,200}\$|\\\((?:(?!\\\)).){1,200}\\\))[\s.]{0,9}\Z",
    re.I,
)
"""A last sentence that concludes with a single formula: "Hence the n-th term is $2n+1$."""
_CONCLUDED = re.compile(
    r"(?:\A|[.!?:。\n]\s{0,3})(?:so|thus|hence|therefore)\b,?\s{1,3}"
    r"(\$[^$\n=<>]{1,40}(?:[=<>]|\\(?:in|leq?|geq?)\b)[^$\n]{1,160}\$(?:\s{1,2}[^\s.,;:?!]{1,20}){0,2})[\s.]{0,9}\Z",
    re.I,
)
"""A last sentence of one formula with its unit: "Therefore $A = 12$ cm²." """
_UNSURE = re.compile(
    r"\bnot\s(?:\w{1,20}\s)?(?:sure|certain|know)\b|n['’]t\s(?:sure|certain|know)\b|\b(?:unsure|uncertain|guessing|kidding)\b"
    r"|\bno\sidea\b|\bjust\s(?:a\s)?guess\b|\b(?:could|may|might)\sbe\swrong\b|不确定|不知道",
    re.I,
)


def find_statements(text: str, *, in_boxes: bool = False) -> list[str] | None:
    """Return the valid statements of an answer in `text`, or None if the text makes no explicit statement.

    Denied, qualified and retracted statements are not valid, so that the list may be empty. An unreadable statement is
    "".

    Args:
        text: text without thoughts, with full-width characters folded.
        in_boxes: True if only boxes state the answer; short statements in prose are returned with them.
    """
    marks = find_boxes(text) if in_boxes else _marks(text)
    leads = list(islice(_LEAD.finditer(text), _MAX_STATEMENTS + 1))
    if not marks and (in_boxes or not leads):
        return [] if in_boxes else None
    if len(marks) > _MAX_STATEMENTS or len(leads) > _MAX_STATEMENTS:
        return []
    valid = _valid_spans(text, marks, [_sentence(text, lead) for lead in leads])
    if valid and _UNSURE.search(text, valid[0].start):
        return []
    marked, sentences, short = list[str](), list[str](), list[str]()
    for span in valid:
        if span.end > span.start:
            marked.append(span.content)
            continue
        sentences.append(span.content)
        if len(_WORD.findall(span.content)) <= _MAX_WORDS:
            short.append(span.content)
    if in_boxes and not marked:
        return []
    return marked + (short if short or marked else sentences)


def _valid_spans(text: str, marks: list[AnswerSpan], sentences: list[AnswerSpan]) -> list[AnswerSpan]:
    """Return the valid `marks`, and the valid `sentences` outside marks as empty spans."""
    unmarked = list[AnswerSpan]()
    for sentence in sentences:
        if not any(sentence.start < mark.end and mark.start < sentence.end for mark in marks):
            unmarked.append(sentence)
    # Empty spans, so that a sentence does not hide its words: "The answer is 5, no, 6" retracts 5.
    empty = [sentence._replace(end=sentence.start) for sentence in drop_uncertain(text, unmarked)]
    # The leads are masked, since the words of "Answer: No." retract nothing.
    return drop_retracted(_LEAD.sub(lambda lead: "x" * len(lead[0]), text), [*drop_uncertain(text, marks), *empty])


def _marks(text: str) -> list[AnswerSpan]:
    """Return the innermost boxes and tags or, without any, the bold or concluding formula at the end of the text."""
    tagged = tags(text, "answer")
    if tagged is None:
        return [AnswerSpan(0, len(text), "")]
    boxed = find_boxes(text)
    box_starts = [box.start for box in boxed]
    # A tag with a box inside only wraps the box.
    innermost = [tag for tag in tagged if bisect(box_starts, tag.start) == bisect(box_starts, tag.end)]
    if boxed or tagged or _LEAD.search(text):
        return sorted([*boxed, *innermost])
    line = max(0, text.rstrip(" \n.").rfind("\n"))
    last = _LAST_IN_BOLD.search(text) or _CONCLUSION.search(text, line) or _CONCLUDED.search(text, line)
    return [AnswerSpan(last.start(), len(text), last[1])] if last else []


def _sentence(text: str, lead: re.Match[str]) -> AnswerSpan:
    """Return the statement after `lead`, up to the end of its sentence or displayed formula."""
    start = lead.end()
    line = _LABELLED_LINE.match(text, start)
    if line and not _LEAD.search(line[0]):
        statement: re.Match[str] | None = line
    else:
        statement = _DISPLAY.match(text, start) or _SENTENCE.match(text, start)
    end = statement.end() if statement else start
    content = _REASON.split(text[start:end], maxsplit=1)[0].strip()
    if content.count("**") % 2:
        content = content.removeprefix("**").removesuffix("**").strip()
    if text[lead.start() - 1 : lead.start()] == "(":
        content = content.removesuffix(")")
    return AnswerSpan(lead.start(), end, content)
