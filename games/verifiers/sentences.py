"""Answers in sentences that repeat the words of the question: "Bob is the tallest." for "Who is the tallest?"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from marl.games.verifiers.conclusions import DOUBTFUL_WORDS, MONTHS
from marl.games.verifiers.foreign_numbers import is_number_word
from marl.games.verifiers.units import read_unit

_SMALL_WORDS = """
    a an the is are was were be been it it's its this that there there's so thus hence therefore then of on in at by
    for to as total altogether overall answer result value called named he she they we get gets got must has have had
    will one finally falls lands prints print printed returns gives outputs equals yields certain sure confident i am
    und der die das den dem des ist sind also es gibt somit damit daher folglich beträgt ergibt ergeben ergibt
    lautet wir
    erhalten bekommen man erhält ergebnis antwort lösung wert fläche kostet hat haben macht gleich
    il y a donc est sont le la les l' un une des du de cela ça fait font c'est on obtient nous obtenons trouve ainsi
    alors
    résultat réponse vaut égal égale à produit somme elle ils
    el los las lo son hay es entonces obtenemos tenemos resulta resultado respuesta valor da luego por tanto así
    vale igual
    o os as é são então portanto logo temos obtemos dá igual resposta resultado fica
    è sono fa quindi dunque risultato risposta otteniamo si ottiene uguale il lo gli
    получаем получим будет равен равно равна равны ответ результат итак значит следовательно поэтому имеем это
    составляет находим тогда произведение сумма
"""
_FUNCTION_WORDS = frozenset(_SMALL_WORDS.split())
"""Words beside an answer that say nothing about it, also in German, French, Spanish, Portuguese, Italian, Russian."""
_ALWAYS_DOUBTFUL = frozenset(
    ["not", "no", "never", "nor", "neither", "none", "without", "or", "but", "either", "except"]
)
_COMPARING_WORDS = """
    than more fewer less although though however instead rather another each every per least most about around roughly
    approximately almost nearly over under between unless because since while when before after until only would both
    near somewhere circa estimated mehr weniger als oder moins ou más menos más mais menos più meno больше меньше
    или minus negative plus times half twice double thrice squared cubed root page see
"""
_DOUBT = DOUBTFUL_WORDS | _ALWAYS_DOUBTFUL | frozenset(_COMPARING_WORDS.split())
"""Words that deny or qualify an answer, or that make a phrase more than an answer."""
_SENTENCE_END = re.compile(r"(?<!\bp\.m)(?<!\ba\.m)(?<!\bi\.e)(?<!\be\.g)[.!?](?=\s+[A-Z$\\¿¡ÄÖÜÉ*])|\n+")
_PIECE = re.compile(r"\$[^$\n]{1,200}\$|\*\*[^*\n]{1,120}\*\*|\\\((?:(?!\\\)).){1,200}\\\)|\S+")
_REASON = re.compile(
    r",?\s(?:because|since|denn|weil|car|porque|so that)\b.*$|,\s(?:which|who|as)\s.*$"
    r"|,\s\d+\sof\s(?:which|whom|them)\b.*$",
    re.I | re.S,
)
_REMARK = re.compile(r",\s(?:that\sis|i\.e\.,?|which\sis)\s[^.;]{1,30}\s(?:more|less|fewer)\sthan\b.*$", re.I | re.S)
_CLAUSE = re.compile(r",\s(?:so|thus|hence|therefore)\s", re.I)
_DECISION = re.compile(r"(?:so|thus|hence|therefore),?\s(yes|no)\b(?:,|$)", re.I)
_IN_OTHER_WORDS = re.compile(r"\bi\.e\.,?\s+([^,;]{1,60})$", re.I)
_COPULA = re.compile(
    r"(?:(?:so|thus|hence|therefore),?\s)?the\s([^,;:$]{1,80}?)\s(?:is|are|was|were|must\sbe)\s(?:an?\s|the\s)?"
    r"((?:[^\s,;]{1,30}\s){0,3}[^\s,;]{1,30})",
    re.I,
)
"""Sentence about the subject of the question: "So the tallest person is Bob"."""
_DERIVED = re.compile(
    r"(?:by|using|with|from|so|thus|hence|therefore|then|now|finally|we\s(?:get|have|obtain|find))\b[^$]{0,60}(\$[^$]*=[^$]*\$)",
    re.I,
)
"""Sentence that ends with its only formula, a calculation: "By Heron, $A = ... = 84$"."""
_RATE = re.compile(
    r"((?:[^\s$\d]{1,30}\s){1,10})((?:[$\u20ac\u00a3]|\\\$)?\d[\d.,]*(?:\s[^\W\d_]{1,20})?\s(?:per|an?|every|each)\s[a-z]{3,20})",
    re.I,
)
"""Sentence that ends with a rate: "He earns $60 an hour"."""
_CALCULATION = re.compile(
    r"((?:[^\W\d_]{1,20},?\s){0,8})((?:[A-Za-z]\s?=\s?)?[-(]?\d[\d\s.()+*/^\u00d7\u00b7\u00f7\u2212-]{0,80}(?:=[\d\s.()+*/^\u00d7\u00b7\u00f7\u2212-]{1,80}){1,4})"
)
"""Sentence that ends with a calculation without dollar signs: "We get 6 + 7 = 13"."""
_DATE = re.compile(
    rf"(?:(?:{MONTHS})\s\d{{1,2}}(?:st|nd|rd|th)?(?:,?\s\d{{4}})?|\d{{1,2}}(?:st|nd|rd|th)?\s(?:of\s)?(?:{MONTHS})(?:,?\s\d{{4}})?)\b"
)
_RANGE = re.compile(r"\b(?:pages?|pp\.|rows?|days?|years?)\s\d+\s?(?:to|through|[-\u2013\u2014]+)\s?\d+$", re.I)
_NUMBER = re.compile(r"[-\u2212+]?(?:[$€£¥]|\\\$)?\d(?:[\d.,:/]*\d)?%?")
_OPERATOR = re.compile(
    r"[<>\u2260\u2264\u2265\u2248~+^|]|(?<!\*)\*(?!\*)|^[^\w\s$\u00a3\u20ac=:\u2192\u21d2\u2234*]+$|__|\w\(|[\"']\)"
)
"""Sign outside of a formula that makes a number more than an answer: x > 5."""
_CHANCE = re.compile(r"\b(\d+) (?:in|out of) (?:an? )?(\d+) (?:chance|probability)\b", re.I)
_VALUE_VERBS = """
    is are was were be has have had needs need takes took take costs cost weighs gets got get finds found obtains obtain
    leaves left yields yield gives makes made contains holds bought sold ate earned earns paid pays spent spends saved
    ends remains remain total equals comes amounts lasts travels drives measures there gibt ist sind hay son est sont a
    beträgt ergibt lautet kostet hat erhalten bekommen fait font c'est obtient obtenons vaut es obtenemos resulta da
    vale é
    são dá temos obtemos è fa sono otteniamo получаем получим будет равен равно равна составляет имеем
"""
_VERBS_OF_VALUE = frozenset(_VALUE_VERBS.split())
"""Verbs before a number that make it an answer, in contrast to the number of a page."""
_SUBJECT = re.compile(
    r"(?:(?:so|thus|hence|therefore),?\s)?([-+]?\d[\d.,/]*)\s(?:is|are|equals)\s(the\s[^,;:$]{1,120})", re.I
)
"""Sentence about a number: "19 is the largest prime below 20"."""
_ALTERNATIVES = re.compile(r"([^\W\d_]+),? or ([^\W\d_]+)")
"""Pattern of two words, one of which the question asks for ("odd or even?")."""
_VERBS = frozenset(["is", "are", "was", "were", "has", "have", "had", "does", "do", "did", "ist", "est", "es"])
_AFTER_NUMBER = frozenset(["in", "of", "for", "on", "at", "now", "altogether", "left"])
"""Words after a number that begin no name of counted things."""
_DIGITS = re.compile(r"\d[\d.,]*\d|\d")
_MARKS = ".,;:!?()*\"'=→"
_MAX_TEXT, _MAX_LENGTH, _MAX_WORDS, _MAX_PHRASE = 2000, 600, 30, 6
_STEM = re.compile(r"(?:'s|ing|ies|ied|es|ed|en|s|d)$")


def readings_of_sentence(text: str, question: str) -> Iterator[str]:
    """Yield the answers that the last sentence of `text` may state: a phrase beside the words of `question`, a number.

    A sentence that denies or qualifies something states none. What a reason or remark says does not count.
    """
    sentence = concluding_clauses(text)[-1]
    if rate := _RATE.fullmatch(sentence):
        yield from () if _is_doubtful(rate[1].split(), question) else (rate[2],)
        return
    if calculation := _CALCULATION.fullmatch(sentence):
        words = calculation[1].split()
        yield from () if _is_doubtful(words, question) else (calculation[2],)
    pieces = [piece for piece in _PIECE.findall(sentence) if piece.strip(_MARKS) or len(piece) > 1]
    if not 2 <= len(pieces) <= _MAX_WORDS or _is_doubtful(pieces, question):
        return
    if short := _IN_OTHER_WORDS.search(sentence):
        yield short[1]
    if question.strip():
        known = _known_stems(question)
        for known_pieces in (known, known | set(_DIGITS.findall(question))):
            yield from filter(None, [_new_phrase(pieces, known_pieces)])
        match = _COPULA.fullmatch(sentence)
        if match and not _known_stems(question).isdisjoint(map(_stem, match[1].lower().split())):
            yield match[2]
    if (subject := _SUBJECT.fullmatch(sentence)) and _question_contains_all_words(question, subject[2]):
        yield subject[1]
    if decision := _DECISION.match(sentence):
        yield decision[1]
    bold = [piece for piece in pieces if piece.startswith("**")]
    if len(bold) == 1 and pieces[0] != bold[0] and re.search(r"\*\*(?:[\s.!]|$)", sentence):
        yield _without_marks(bold[0])
    if (derived := _DERIVED.fullmatch(sentence)) and sentence.count("$") == 2:
        yield derived[1]
    dates = _DATE.findall(sentence)
    if len(dates) == 1:
        yield dates[0]
    if extent := _RANGE.search(sentence):
        yield extent[0]
    if chance := _CHANCE.search(sentence):
        yield f"{chance[1]}/{chance[2]}"
    yield from _only_number_of_sentence(pieces, question)


def _question_contains_all_words(question: str, text: str) -> bool:
    """Return True if all words and numbers of `text` are function words or occur in `question`."""
    known = _known_stems(question) | set(_DIGITS.findall(question))
    return not any(_is_new(piece, known) for piece in text.split())


def _only_number_of_sentence(tokens: Sequence[str], question: str) -> Iterator[str]:
    """Yield the only number among the words of a sentence, with the noun or unit after it."""
    words = [token.strip(_MARKS) for token in tokens]
    indices = [i for i, word in enumerate(words) if _NUMBER.fullmatch(word) or is_number_word(word, question)]
    with_digits = sum(any(map(str.isdecimal, token)) for token in tokens)
    if len(indices) != 1 or with_digits > 1 or any("$" in token or "\\" in token for token in tokens):
        return
    (index,) = indices
    known = _known_stems(question)
    # A sentence must not continue with a verb after the number, and a label such as "lambda:" must be in the question.
    labels = [word for word, token in zip(words[:index], tokens, strict=False) if token.endswith(":")]
    if not any(re.search(r"[^\W\d_]{2}", word) for word in words[:index]):
        return  # without a word before it, a number with words is no sentence, and x = 5 is an equation
    if not _VERBS.isdisjoint(words[index + 1 :]) or any(_is_new(label, known) for label in labels):
        return
    has_verb = not _VERBS_OF_VALUE.isdisjoint(word.lower() for word in words[:index])
    if not has_verb and not (labels or any("=" in token for token in tokens[:index])):
        return
    following = words[index + 1 :]
    yield from (f"{words[index]} {noun}" for noun in following[:1])
    if not following or (following[0].lower() in _AFTER_NUMBER and len(following) > 1):
        yield words[index]


def _is_doubtful(pieces: Sequence[str], question: str) -> bool:
    """Return True if a word of a sentence denies or qualifies something, other than a word of the question."""
    allowed = set(re.findall(r"[^\W\d_]+", question.lower())) - _ALWAYS_DOUBTFUL
    for before, piece in zip(("", *pieces), pieces, strict=False):
        word = piece.strip(_MARKS)
        if (word == "May" and before.strip(_MARKS).isdecimal()) or (word == "each" and not before):
            continue
        if _OPERATOR.search(piece) and piece[0] not in "$\\":
            return True
        if word.lower() in _DOUBT - allowed or word.lower().endswith(("n't", "n\u2019t")):
            return True
    return False


def concluding_clauses(text: str) -> list[str]:
    """Return the last clause of each sentence of `text`, without a reason or remark after it; "" for a question."""
    if len(text) > _MAX_TEXT:
        return [""]
    clauses = list[str]()
    for sentence in _SENTENCE_END.split(text.strip()):
        plain = sentence.strip(" .!")
        if len(plain) > _MAX_LENGTH or plain.endswith("?"):
            clauses.append("")
        else:
            clauses.append(_CLAUSE.split(_REASON.sub("", _REMARK.sub("", plain)))[-1])
    return clauses


def _known_stems(question: str) -> set[str]:
    """Return the stems of the words of `question`, without function words."""
    words = re.findall(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?", question.lower())
    alternatives = {word for pair in _ALTERNATIVES.findall(question.lower()) for word in pair}
    return {_stem(word) for word in words if word not in _FUNCTION_WORDS | alternatives}


def _new_phrase(pieces: Sequence[str], known: set[str]) -> str:
    """Return the words that are neither `known` nor function words, or "" if they are not in one piece."""
    is_new = [_is_new(piece, known) for piece in pieces]
    if not any(is_new):
        return ""
    first, last = is_new.index(True), len(is_new) - 1 - is_new[::-1].index(True)
    if not all(is_new[first : last + 1]) or last - first >= _MAX_PHRASE:
        return ""
    if first == 0 and _NUMBER.fullmatch(pieces[0].strip(_MARKS)):
        return ""  # a number at the beginning, followed by words, is no sentence
    # The unit after a number is part of the answer, even if the question names the unit.
    has_unit = last + 1 < len(pieces) and _NUMBER.fullmatch(pieces[last]) and read_unit(pieces[last + 1])
    return _without_marks(" ".join(pieces[first : last + 1 + bool(has_unit)]))


def _is_new(piece: str, known_stems: set[str]) -> bool:
    """Return True if `piece` is no function word and not in the question."""
    if piece[0] in "$\\" or piece.startswith("**"):
        return True
    word = piece.strip(_MARKS).lower()
    return bool(word) and word not in _FUNCTION_WORDS and _stem(word) not in known_stems


def _stem(word: str) -> str:
    """Return `word` without its ending: falls and fall are the same word."""
    return _STEM.sub("", word) if len(word) > 3 else word


def _without_marks(phrase: str) -> str:
    phrase = phrase.strip(" ,;:!")
    return phrase[2:-2].strip() if phrase.startswith("**") and phrase.endswith("**") else phrase
