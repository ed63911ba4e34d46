"""Disguise of a game: other words, numbers, names of moves and order of moves, with the same rules and values.

A model that has read about a game may recall how it is played. In the disguised game it can only follow the rules that
it is told, so the difference between both tells recall from reasoning.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Mapping
from functools import cached_property, lru_cache, wraps
from itertools import pairwise
from typing import Any

from marl.core.seeds import hash_to_seed
from marl.engines.scripted import ScriptedConfig
from marl.protocols import EvaluationPosition
from marl.text.origins import Span, TextWithOrigins, origin_spans_of_text, without_origins

_PLAIN_TEXT = """
    a about above add adds after again against alive all alone also always among an and another answer answered
    answers any anybody are as ask asked asks at average away back be because become becomes been before begin
    begins belong below best better between both but by can cannot chance chances choice choose chooses column
    columns count counts dead decide diagonal different divide divided divides do does done drawn during each
    eight either else empty end ends equal equally even every everybody exactly except false far few fewer first
    five for four free from full further game games get gets give given gives greater greatest group half has
    have her hidden high higher highest him his how if in instead into is it its itself kept kind kinds know
    known knows large larger largest last later least leave leaves left less letter level like lines long lose
    loses lost low lower lowest made make makes many may mean means more most move moved moves must name named
    names neither never next nine no nobody none nor not nothing now number numbered numbers odd of off on once
    one ones only opponent opponents or order other others otherwise out own paid part pay pays per player
    players point points possible probability put read replaced rest right round rounds row rows rule rules same
    say says secret secretly see seen sees send sends seven several should shown shows side sides since single
    six size small smaller smallest so some somebody space spaces starts still such sum take takes team teams
    ten than that the their them then there these they thing this those three till time times to together told
    too top total true turn turns twice two until up upright value values was way were what when where which
    while who whole whose will win wins with without word words worse worst worth would wrong yes yet you your
    yours zero
"""
PLAIN_WORDS = frozenset(_PLAIN_TEXT.split())
"""Words that a disguise keeps, because the rules could not be understood without them."""
_DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_CONSONANTS, _VOWELS = "bdfgjklmnprstvwz", "aeiou"
_INFLECTED = re.compile("([a-z]{2,}[^s])(es|s|ed|ing)")
"""English word with an ending that its stem may also stand without."""
_MENU = re.compile(r"\[[^\[\]\n]+\](?: \[[^\[\]\n]+\])+")
"""Moves in square brackets that an observation lists."""
_PIECE = re.compile(
    r"(?P<kept>\bplayer_\d+|\ba(?= [a-z]{2})|(?<![\w,] )\bA(?= [a-z]{2})|\bI(?= [a-z]{2}))"
    r"|(?P<signs>[A-Z]+(?![a-z])|[a-z]{1,2}(?=\d)|(?<![A-Za-z'])[a-z](?![A-Za-z])|\d+)"
    r"|(?P<word>[A-Za-z][a-z]+)"
)
"""Pieces of a text: names of seats, `a` and `I` as words, signs (numbers, `K`, `RY`, the `xd` of `xd1`), words."""


class Disguise:
    """Words, numbers, names of moves and order of moves that replace those of one game."""

    def __init__(self, seed: int, rules: str, moves: tuple[str, ...]) -> None:
        """Draw the replacements from `seed`, for a game with these `rules` and `moves`.

        `moves` are all moves of the game, or () if they are known only during play.
        """
        self._seed, self._rules, self._moves = seed, rules, moves
        words = {word for move in moves if PLAIN_WORDS.issuperset(move.split()) for word in move.split()}
        # A move that consists of plain words alone would keep its name.
        self._kept = PLAIN_WORDS - words
        self._originals = {piece[0].lower() for text in (rules, *moves) for piece in _PIECE.finditer(text)}
        self._disguised_words: dict[str, str] = {}
        syllables = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]
        free = [syllable for syllable in syllables if syllable not in PLAIN_WORDS | self._originals]
        signs = "0123456789abcdefghijklmnopqrstuvwxyz"
        self._signs = dict(zip(signs, random.Random(hash_to_seed(seed, "signs")).sample(free, len(signs)), strict=True))
        self._keeps_stems = True
        if len(set(map(self.move, moves))) < len(moves):
            self._keeps_stems, self._disguised_words = False, {}
        if len(set(map(self.move, moves))) < len(moves):
            raise ValueError(f"disguise: {seed} gives two moves the same name; choices: another seed")

    def __deepcopy__(self, memo: dict[int, Any]) -> Disguise:
        """Return the disguise itself: it does not depend on a game's state."""
        return self

    def text(self, text: str) -> str:
        """Return `text` in other words, with the moves that it lists in another order, and with its origins."""
        spans = origin_spans_of_text(text) if isinstance(text, TextWithOrigins) else ()
        plain = without_origins(text)
        if not spans:
            return self._replace_words(_MENU.sub(self._reorder_menu, plain))
        cuts = sorted({0, len(plain), *[place for begin, end, _ in spans for place in (begin, end)]})
        pieces: list[str] = []
        new_place = {0: 0}
        for begin, end in pairwise(cuts):
            pieces.append(self.text(plain[begin:end]))
            new_place[end] = new_place[begin] + len(pieces[-1])
        moved: list[Span] = [(new_place[begin], new_place[end], origin) for begin, end, origin in spans]
        return TextWithOrigins("".join(pieces), tuple(moved))

    @cached_property
    def rules(self) -> str:
        """The game's rules in other words, and how its numbers are written."""
        rules = self.text(self._rules)
        if not rules:
            return rules
        digits = [f"{self._signs[str(digit)]} is {word}" for digit, word in enumerate(_DIGITS)]
        return f"{rules} Numbers are written with these signs: {', '.join(digits)}."

    def move(self, move: str) -> str:
        """Return the name of a move of the game."""
        return self._replace_words(move)

    def moves(self, moves: Collection[str]) -> tuple[str, ...]:
        """Return the names of `moves`, in an order that depends on the seed alone."""
        return tuple(map(self.move, sorted(moves, key=self._order)))

    def original_move(self, name: str, legal_moves: Collection[str]) -> str:
        """Return the legal move called `name`, or "" if none is."""
        return next((move for move in legal_moves if self.move(move) == name), "")

    def player(self, player: ScriptedConfig) -> DisguisedPlayer:
        """Return `player`, which knows the game's own moves, as a player of the disguised game."""
        return DisguisedPlayer(player=player, original_moves={self.move(move): move for move in self._moves})

    def _order(self, move: str) -> int:
        return hash_to_seed(self._seed, "order", move)

    def _reorder_menu(self, menu: re.Match[str]) -> str:
        return " ".join([f"[{move}]" for move in sorted(menu[0][1:-1].split("] ["), key=self._order)])

    def _replace_words(self, text: str) -> str:
        return _PIECE.sub(self._replace_piece, text)

    def _replace_piece(self, piece: re.Match[str]) -> str:
        text = piece[0]
        match piece.lastgroup:
            case "kept":
                return text
            case "word":
                word = text if text.lower() in self._kept else self._disguise_word(text.lower())
                return word.capitalize() if text[0].isupper() else word
        signs = [self._signs[sign.lower()] for sign in text]
        return "".join([new.capitalize() if old.isupper() else new for old, new in zip(text, signs, strict=True)])

    def _disguise_word(self, word: str) -> str:
        """Return an invented word of three syllables and a consonant, which no sequence of syllables can equal.

        Words with one stem get invented words with one stem, so that rules may speak of `bets` and a move be `bet`.
        """
        if word not in self._disguised_words:
            stem, ending = _split_ending(word) if self._keeps_stems else (word, "")
            number = 0
            while (invented := _invent_word(hash_to_seed(self._seed, stem, number))) in self._originals | PLAIN_WORDS:
                number += 1
            self._disguised_words[word] = invented + ending
        return self._disguised_words[word]


def _split_ending(word: str) -> tuple[str, str]:
    """Return the stem of an English word, and its ending: `raises` as `rais` and `s`, `betting` as `bet` and `ing`."""
    match = _INFLECTED.fullmatch(word)
    stem, ending = match.groups() if match else (word, "")
    if ending in ("ed", "ing") and stem[-1] == stem[-2]:
        stem = stem[:-1]
    return stem.removesuffix("e"), ending.removeprefix("e") if ending == "es" else ending


def _invent_word(seed: int) -> str:
    rng = random.Random(seed)
    syllables = [rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(3)]
    return "".join(syllables) + rng.choice(_CONSONANTS)


class DisguisedPlayer(ScriptedConfig):
    """Player that knows a game's own moves, in the disguised game."""

    kind: str = "disguised_player"
    player: ScriptedConfig
    """Player of the game without a disguise."""
    original_moves: Mapping[str, str]
    """Name of a move in the disguised game -> the game's own name of this move."""

    def move_probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        names = {self.original_moves[name]: name for name in moves}
        probabilities = self.player.move_probabilities(state, tuple(names))
        return {names[move]: probability for move, probability in probabilities.items()}


def disguise_results_of_methods(settings_class: type) -> None:
    """Replace the methods of a class of settings that speak of moves: their results follow the setting `disguise`.

    Methods that `settings_class` inherits are left alone: they belong to a class for which this was done before.
    """
    for name, disguise_result in _RESULTS_WITH_MOVES.items():
        if name in vars(settings_class):
            setattr(settings_class, name, _disguised_method(vars(settings_class)[name], disguise_result))


def _disguised_method(method: Callable[..., Any], disguise_result: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    @wraps(method)
    def call_and_disguise(settings: Any, *arguments: Any) -> Any:
        result = method(settings, *arguments)
        return result if settings.disguise is None else disguise_result(settings, result)

    return call_and_disguise


def _disguise_game(settings: Any, game: Any) -> Any:
    """Return `game` with its disguise, from the method `build` of `settings`."""
    if game.all_actions is None and not game.enumerates_legal_moves:
        raise ValueError(f"disguise: the moves of {settings.kind!r} are texts without a list; choices: null")
    game.disguise = _make_disguise(settings.disguise, game.rules, game.all_actions or ())
    return game


@lru_cache(maxsize=64)
def _make_disguise(seed: int, rules: str, moves: tuple[str, ...]) -> Disguise:
    """Return a `Disguise`; cached, because a new game is built for every episode."""
    return Disguise(seed, rules, moves)


def _disguise_positions(settings: Any, positions: Collection[EvaluationPosition]) -> tuple[EvaluationPosition, ...]:
    disguise = settings.build().disguise
    return tuple([(options, tuple(map(disguise.move, moves))) for options, moves in positions])


def _disguise_optimal_moves(settings: Any, moves: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return moves and tuple(map(settings.build().disguise.move, moves))


def _disguise_players(settings: Any, players: Mapping[str, ScriptedConfig]) -> dict[str, ScriptedConfig]:
    disguise = settings.build().disguise
    return {name: disguise.player(player) for name, player in players.items()}


_RESULTS_WITH_MOVES: dict[str, Callable[[Any, Any], Any]] = {
    "build": _disguise_game,
    "evaluation_positions": _disguise_positions,
    "optimal_moves": _disguise_optimal_moves,
    "reference_players": _disguise_players,
}
"""Name of a method of a game's settings -> function of settings and result that returns the disguised result."""
