"""Explicit statements of an answer in prose, such as a box or "The answer is 5.", in English and Chinese."""

# ruff: noqa: RUF001 (the patterns search for signs of other scripts)

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice

from marl.games.verifiers.conclusions import find_conclusion, find_decision
from marl.text.answers import (
    AnswerSpan,
    drop_retracted_answers,
    drop_uncertain_answers,
    find_latex_boxes,
    find_tagged_spans,
)

MAX_LENGTH = 2000
"""Maximum length of an answer, in characters; a longer text is no answer."""
_MAX_STATEMENTS = 20
"""Maximum number of statements in a text; a text with more statements has no answer."""
_MAX_WORDS = 3
"""Maximum number of words of a short statement. Longer statements beside a short one are ignored as prose: "The answer
is the sum. Answer: 5"."""
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_IS = r"(?:(?:is|are|was|equals|(?:would|should|must|will)\sbe)\b(?!n['’]t|\s(?:not|never)\b)\s{0,3}:?|[:=])"
_TOPIC = r"(?:\s(?:to|for|of)\s(?:[^.,;:\n=]|[.,](?=\d)){1,60}?)?"
_ADVERBS = (
    r"(?:(?:therefore|thus|then|hence|simply|just|indeed|clearly|definitely|certainly|surely|obviously|exactly|equal\sto"
    r"|given\sby)\b[,:]?\s{0,3}){0,3}"
)
_WORDS_FOR_ANSWER = (
    r"(?:het\s)?antwoord|odpowiedź|cevap|yanıt|(?:정)?답|الجواب|الإجابة|الناتج|النتيجة|svaret?"
    r"|odpověď|đáp án|उत्तर|відповідь|απάντηση"
    r"|תשובה|vastaus|válasz|răspuns(?:ul)?|jawaban|odgovor"
)
"""The word "answer" in Dutch, Polish, Turkish, Korean, Arabic, Swedish, Czech, Vietnamese, Hindi and others."""
OTHER_LANGUAGES = (
    r"\b(?:(?:die|meine|unsere)\s)?(?:(?:richtige|korrekte|endgültige|gesuchte)\s)?(?:Antwort|Lösung)\s?(?:ist|lautet|:)(?!\s(?:nicht|kein))"
    r"|\b(?:das\s)?(?:End)?Ergebnis\s?(?:ist|lautet|:)(?!\snicht)"
    r"|\b(?:le\s)?résultat(?:\sfinal)?\s?(?:est|vaut|:)(?!\spas)(?:\sdonc)?"
    r"|\b(?:el\s|o\s)?resultado(?:\sfinal)?\s?(?:es|é|:)|\b(?:il\s)?risultato(?:\sfinale)?\s?(?:è|:)"
    r"|\b(?:(?:la|ma|notre)\s)?(?:(?:bonne|juste)\s)?réponse(?:\s(?:finale|correcte|exacte))?\s?(?:est|:)(?!\spas)(?:\sdonc)?"
    r"|\b(?:(?:la|mi|nuestra)\s)?respuesta(?:\s(?:final|correcta))?\s?(?:es|:)"
    r"|\b(?:(?:a|minha|nossa)\s)?resposta(?:\s(?:final|correta|certa))?\s?(?:é|:)"
    r"|\b(?:(?:la|mia)\s)?risposta(?:\s(?:finale|corretta|esatta))?\s?(?:è|:)"
    r"|\b(?:(?:правильный|верный|окончательный|итоговый)\s)?ответ(?!\s(?:не|неверн))\s?(?:[:=—–-]|равен|это|(?=[-$\\\d]))\s?(?:это\s)?(?!не\s)"
    rf"|(?<![^\W\d_])(?:{_WORDS_FOR_ANSWER})(?:(?<=उत्तर)\s|\s(?:is|to|jest|är|er|on|este|je|là|هو|هي)\s|\s?[:：은는]\s?)"
    r"(?!\s?(?:nie|niet|inte|ikke|ei|nu|không))"
    r"|(?:最終的な|正しい)?(?:答え|解答|正解|回答|選択肢)(?:は|:)"
)
"""Words before an answer in German, French, Spanish, Portuguese, Italian, Russian and Japanese."""
_WORDS_BEFORE_ANSWER = re.compile(
    rf"(?:{OTHER_LANGUAGES})\s{{0,3}}:?\s{{0,3}}"
    r"|(?:\b(?:the|my|our|your)\s{1,3})?(?:\b(?:final|correct|right|best|required)\s{1,3}){0,3}"
    rf"\b(?:(?:answers?|ans)\b{_TOPIC}|(?:option|choice|letter)\b(?=\s{{1,3}}is\b(?!\s{{1,3}}(?:correct|right)\b)))\s{{0,3}}(?:\*\*)?\s{{0,3}}{_IS}"
    rf"(?:\*\*(?=\s))?\s{{0,9}}{_ADVERBS}"
    r"|^[#*\s]{0,8}(?:the\s)?(?:final\s)?answer[*:\s]{0,4}\n\s{0,9}"
    r"|^\**(?:final\s)?(?:result|conclusion|ergebnis|résultat|resultado)\s?:\**(?=\s)"
    r"|(?:(?<=wrong[;,.]\s)|(?<=incorrect[;,.]\s)|(?<=mistake[;,.]\s))(?:it|this|that)\s(?:must|should|has\sto)\sbe\s"
    r"|(?<!\#)\#{4}[ \t]{1,3}(?!(?:step|part|case|method|solution|answer)\b|.*:$)"
    r"|(?<=correction:\s)(?=[-$\\\d])|(?<=wait[:,]\s)it\sis\s(?=[-$\\\d])"
    r"|(?:答案|正确选项)(?!不|并非)(?:应该|应|就|便)?(?:(?:是|为|為|等于):?|[:=])\s{0,3}|答:\s{0,3}"
    r"|(?:^|(?<=[.,;:!?。(*∴\n]))[ \t]{0,3}"
    r"(?:综上|因此|所以|于是|最后|最终|本题|此题|答案|[故则我应该当可就]){0,4}选择?(?=\s{0,3}\(?(?:[A-Z]|\d{1,2}\)?(?:[\s.,;。]|$)))",
    re.I | re.M,
)
"""Words before an answer, such as "The answer is". 选 (choose) counts only where a clause or an assertion begins."""
_WORD_OF_ANSWER = re.compile(
    rf"(?:{_WORDS_BEFORE_ANSWER.pattern})(?:[*_$\s]{{0,4}}no\b(?=[.!*_$\s]{{0,6}}$))?", re.I | re.M
)
"""Words before an answer together with the answer "no", which does not retract an earlier answer."""
_SENTENCE = re.compile(r"(?:[^.!?。\n]|[.!?](?![)\]*_\"'”’]{0,4}(?:\s|$))){0,2000}+[.!?]?")
_LABELLED_LINE = re.compile(
    r"[~\s]{0,4}[A-J]\s?\. [^\n]{0,2000}"
    r"|[~\s$*({'\"“‘]{0,4}(?:\\\w{1,12}\{\(?)?(?:[A-J]|\d{1,2}(?=\. [^A-Z\s]))[)}$*]{0,4}"
    r"\.\*{0,2}[~ ]{1,3}\S{1,99}+(?: \S{1,99}+){0,2}$",
    re.M,
)
"""Line with an option: its label and its text, or its label and a reason."""
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
"""Last sentence that ends with a single formula, such as "Hence the n-th term is $2n+1$" and a full stop."""
_CONCLUDED = re.compile(
    r"(?:\A|[.!?:。\n]\s{0,3})(?:so|thus|hence|therefore)\b,?\s{1,3}"
    r"(\$[^$\n=<>]{1,40}(?:[=<>]|\\(?:in|leq?|geq?)\b)[^$\n]{1,160}\$(?:\s{1,2}[^\s.,;:?!]{1,20}){0,2})[\s.]{0,9}\Z",
    re.I,
)
"""Last sentence that is one formula with its unit: "Therefore $A = 12$ cm²." """
_ALTERNATIVE = re.compile(
    r"\b(?:or|could|may|might|maybe|perhaps|possibly|probably|alternatively)\b(?:\W{1,9}\w{1,20}){0,4}\W*$", re.I
)
"""Words between an answer and another one that may be the answer as well."""
_FINAL = re.compile(r"(?:(?:the|my|our)\s)?final\s(?:answer|result)\b(?:\sis)?[\s:*$]{0,6}", re.I)
"""Words before an answer that make earlier boxes the results of steps."""
_UNSURE = re.compile(
    r"\bnot\s(?:\w{1,20}\s)?(?:sure|certain|know)\b|n['’]t\s(?:sure|certain|know)\b|\b(?:unsure|uncertain|guessing|kidding)\b"
    r"|\bno\sidea\b|\bjust\s(?:a\s)?guess\b|\b(?:could|may|might)\sbe\swrong\b|\bit\s(?:could|may|might)(?:\salso|\sas\swell)?\sbe\s[-$\\\d]|不确定|不知道",
    re.I,
)


_MAY_STATE = re.compile(r"(?<![\\A-Za-z])[^\W\d_]{2}|\\(?:boxed|fbox|framebox)|</?answer|\*\*|\#\#|[^\x00-\x7f]")
"""Anything that could introduce an answer: a word, a mark, a sign of another script."""


@lru_cache(256)
def find_statements(text: str, *, in_boxes: bool = False) -> Sequence[str] | None:
    """Return the valid statements of an answer in `text`, or None if the text states no answer explicitly.

    Denied, qualified and retracted statements are not valid, so that the list may be empty. An unreadable statement is
    returned as "".

    Args:
        text: text without thoughts, with full-width characters folded.
        in_boxes: True if a text without a box has no answer. Short statements in prose are returned beside the boxes.
    """
    if not in_boxes and not _MAY_STATE.search(text):
        return None
    leads = list(islice(_WORDS_BEFORE_ANSWER.finditer(text), _MAX_STATEMENTS + 1))
    marks = find_latex_boxes(text) if in_boxes else _marked_answers(text, has_leads=bool(leads))
    if not marks and (in_boxes or not leads):
        return [] if in_boxes else None
    if len(marks) > _MAX_STATEMENTS or len(leads) > _MAX_STATEMENTS:
        return []
    unmarked = list[AnswerSpan]()
    for lead in leads:
        sentence = _statement_after(lead, text)
        if not any(sentence.start < mark.end and mark.start < sentence.end for mark in marks):
            unmarked.append(sentence)
    # Sentences become empty spans, so that their words still count: "The answer is 5, no, 6" retracts 5.
    empty = [sentence._replace(end=sentence.start) for sentence in drop_uncertain_answers(text, unmarked)]
    # Words that introduce an answer, such as "Answer: No", are masked: this "No" retracts nothing.
    masked = _WORD_OF_ANSWER.sub(lambda lead: "x" * len(lead[0]), text)
    valid = drop_retracted_answers(masked, [*drop_uncertain_answers(text, marks), *empty])
    if valid and (_UNSURE.search(text, valid[0].start) or _is_followed_by_alternative(text, marks, valid)):
        return []
    last = next((index for index, span in enumerate(valid) if _is_final(text, span)), 0)
    marked, sentences, short = list[str](), list[str](), list[str]()
    for span in valid[last:]:
        if span.end > span.start:
            marked.append(span.content)
            continue
        sentences.append(span.content)
        if len(_WORD.findall(span.content)) <= _MAX_WORDS:
            short.append(span.content)
    if in_boxes and not marked:
        return []
    return marked + (short if short or marked else sentences)


def _is_final(text: str, span: AnswerSpan) -> bool:
    """Return True if `span` is, or follows upon, the words "final answer"."""
    before = _FINAL.search(text, max(0, span.start - 40), span.start)
    return bool(_FINAL.match(text, span.start)) or (before is not None and before.end() == span.start)


def _is_followed_by_alternative(text: str, marked_answers: list[AnswerSpan], valid_answers: list[AnswerSpan]) -> bool:
    """Return True if a qualified mark with another content follows the answer: "[3/4], though it could be [4/3]"."""
    contents = {mark.content for mark in valid_answers}
    certain = {mark.start for mark in drop_uncertain_answers(text, marked_answers)}
    later = [mark for mark in marked_answers if mark.start > valid_answers[-1].start and mark.start not in certain]
    return any(
        mark.content not in contents and _ALTERNATIVE.search(text[valid_answers[-1].end : mark.start]) for mark in later
    )


def _marked_answers(text: str, *, has_leads: bool) -> list[AnswerSpan]:
    """Return the innermost boxes and `<answer>` tags, or else a concluding formula, or a leading yes or no."""
    tagged = find_tagged_spans(text, "answer")
    if tagged is None:
        return [AnswerSpan(0, len(text), "")]
    boxed = find_latex_boxes(text)
    box_starts = [box.start for box in boxed]
    # A tag that contains a box is dropped, because the box holds the same answer.
    innermost = [tag for tag in tagged if bisect(box_starts, tag.start) == bisect(box_starts, tag.end)]
    if boxed or tagged or has_leads:
        return sorted([*boxed, *innermost])
    line = max(0, text.rstrip(" \n.").rfind("\n"))
    last = _LAST_IN_BOLD.search(text) or _CONCLUSION.search(text, line) or _CONCLUDED.search(text, line)
    if last:
        return [AnswerSpan(last.start(), len(text), last[1])]
    if conclusion := find_conclusion(text):
        return [AnswerSpan(conclusion.start, len(text), conclusion.content)]
    decision = find_decision(text)
    return [AnswerSpan(0, len(text), decision)] if decision else []


def _statement_after(introduction: re.Match[str], text: str) -> AnswerSpan:
    """Return the statement after `introduction` ("The answer is"), up to the end of its sentence or displayed
    formula."""
    start = introduction.end()
    line = _LABELLED_LINE.match(text, start)
    if line and not _WORDS_BEFORE_ANSWER.search(line[0]):
        statement: re.Match[str] | None = line
    else:
        statement = _DISPLAY.match(text, start) or _SENTENCE.match(text, start)
    end = statement.end() if statement else start
    content = _REASON.split(text[start:end], maxsplit=1)[0].strip()
    if content.count("**") % 2:
        content = content.removeprefix("**").removesuffix("**").strip()
    if text[introduction.start() - 1 : introduction.start()] == "(":
        content = content.removesuffix(")")
    return AnswerSpan(introduction.start(), end, content)
