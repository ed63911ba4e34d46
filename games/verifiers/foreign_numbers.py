"""Number words of other languages, which are read if the question is written in the language."""

from __future__ import annotations

import re
from functools import lru_cache

from marl.games.verifiers.number_words import read_words

_LANGUAGES = {
    "German": (
        "wie viele ist der die das und welche welcher welches gibt es berechne bestimme wieviel sind ein eine",
        "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn"
        " siebzehn achtzehn neunzehn zwanzig",
        "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
    ),
    "French": (
        "combien quel quelle est le la les des une y a-t-il calculer déterminer trouver de solutions",
        "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept"
        " dix-huit dix-neuf vingt",
        "vingt trente quarante cinquante soixante",
    ),
    "Spanish": (
        "cuántas cuántos cuánto cuánta cuál qué es el los las hay vale calcula halla encuentra",
        "cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciséis"
        " diecisiete dieciocho diecinueve veinte",
        "veinte treinta cuarenta cincuenta sesenta setenta ochenta noventa",
    ),
    "Portuguese": (
        "quantos quantas quanto qual são é o os as vale há calcule encontre",
        "zero um dois três quatro cinco seis sete oito nove dez onze doze treze catorze quinze dezesseis dezessete"
        " dezoito dezenove vinte",
        "vinte trinta quarenta cinquenta sessenta setenta oitenta noventa",
    ),
    "Dutch": (
        "hoeveel welke wat is het de een zijn er bereken oplossingen van hoe",
        "nul een twee drie vier vijf zes zeven acht negen tien elf twaalf dertien veertien vijftien zestien zeventien"
        " achttien negentien twintig",
        "twintig dertig veertig vijftig zestig zeventig tachtig negentig",
    ),
    "Italian": (
        "quanti quante quanto qual quale è il gli sono calcola trova ci",
        "zero uno due tre quattro cinque sei sette otto nove dieci undici dodici tredici quattordici quindici sedici"
        " diciassette diciotto diciannove venti",
        "venti trenta quaranta cinquanta sessanta settanta ottanta novanta",
    ),
    "Russian": (
        "сколько чему равен равно найдите какое какая решений число вычислите это",
        "ноль один два три четыре пять шесть семь восемь девять десять одиннадцать двенадцать тринадцать четырнадцать"
        " пятнадцать шестнадцать семнадцать восемнадцать девятнадцать двадцать",
        "двадцать тридцать сорок пятьдесят шестьдесят семьдесят восемьдесят девяносто",
    ),
}
"""Language -> common words of its questions, its numbers from 0 to 20, and its multiples of ten from 20."""
_MIN_MARKERS = 2
"""Minimum number of common words by which the language of a question is known."""


def read_foreign_number(word: str, question: str) -> int | None:
    """Return the value of a number word in the language of `question`, or None if it is none."""
    return _numbers_of(language_of(question)).get(word.lower()) if word[:1].isalpha() else None


def is_number_word(word: str, question: str) -> bool:
    """Return True for a single word for a number, in English or in the language of `question`."""
    english = read_words(word) if re.fullmatch(r"[A-Za-z-]+", word) else None
    is_english = (
        english is not None and not english.following_text and word.lower() not in ("a", "an", "half", "second")
    )
    return is_english or read_foreign_number(word, question) is not None


@lru_cache(256)
def language_of(question: str) -> str:
    """Return the language other than English in which `question` is written, or "" if this is unknown."""
    if re.search("[\u0400-\u04ff]", question):
        return "Russian"
    words = set(re.findall(r"[^\W\d_]+(?:-[^\W\d_]+)*", question.lower()))
    counts = {language: len(words & set(markers.split())) for language, (markers, _, _) in _LANGUAGES.items()}
    language = max(counts, key=lambda name: counts[name])
    return language if counts[language] >= _MIN_MARKERS else ""


@lru_cache(16)
def _numbers_of(language: str) -> dict[str, int]:
    """Return the value of each number word of `language`."""
    if not language:
        return {}
    _, small, tens = _LANGUAGES[language]
    return {name: value for value, name in enumerate(small.split())} | {
        name: 10 * n for n, name in enumerate(tens.split(), 2)
    }
