"""Talk in werewolf: statements about roles, lies that contradict the speaker's knowledge, and cleaning of texts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from marl.games.taboo import normalize_letters
from marl.text.word_count import MAX_WORD, count_words

WEREWOLF, SEER, DOCTOR, VILLAGER = "werewolf", "seer", "doctor", "villager"
NOTHING = "nothing"
"""Move and text of a player who says nothing."""
_ROLE_PHRASES = {SEER: "the seer", DOCTOR: "the doctor", VILLAGER: "a villager", WEREWOLF: "a werewolf"}
_SELF_CLAIM = re.compile(r"i(?: am|['\u2019]m) (?:the|a) (?P<role>seer|doctor|villager|werewolf)")
_CLAIM_ABOUT = re.compile(r"(?P<name>\w+) is (?P<denied>a|no|not a) werewolf")
_WHISPER = re.compile(r"tell (?P<name>\w+) : (?P<statement>.*\S.*)", re.DOTALL)


class RoleClaim(NamedTuple):
    """Statement that a player has a role, or has not."""

    name: str
    role: str
    denied: bool = False
    """True if the statement says that the player does not have the role."""


def role_with_article(role: str) -> str:
    """Return a role with its article, such as `the seer`."""
    return _ROLE_PHRASES[role]


def possible_statements(speaker: str, others: Iterable[str], roles: Collection[str]) -> tuple[str, ...]:
    """Return the statements of a player named `speaker` about itself and the players named `others`, and `nothing`."""
    statements = [NOTHING]
    for role in (VILLAGER, SEER, DOCTOR):
        if role in roles:
            statements.append(f"I am {role_with_article(role)}")
    for name in others:
        if name != speaker:
            statements += [f"{name} is a werewolf", f"{name} is no werewolf"]
    return tuple(statements)


def role_claims_in(speaker: str, statement: str, names: Collection[str]) -> Iterator[RoleClaim]:
    """Yield the claims of a statement: each sentence or clause that says nothing but a role.

    Letters that look like Latin ones, accents and case do not matter. Text in quotes, with a doubt or within a
    longer sentence is no claim.
    """
    for sentence in re.split(r"[.!?;,]", normalize_letters(statement)):
        words = " ".join(sentence.split())
        if claim := _SELF_CLAIM.fullmatch(words):
            yield RoleClaim(speaker, claim["role"])
        elif (claim := _CLAIM_ABOUT.fullmatch(words)) and claim["name"] in names:
            yield RoleClaim(claim["name"], WEREWOLF, denied=claim["denied"] != "a")


def is_known_false(claim: RoleClaim, known_roles: Mapping[str, str], known_good: Collection[str]) -> bool:
    """Return True if a claim contradicts the speaker's knowledge.

    `known_roles` maps names to roles, and `known_good` are names of players known to be no werewolves.
    """
    if claim.name in known_roles:
        return (known_roles[claim.name] == claim.role) == claim.denied
    return claim.name in known_good and claim.role == WEREWOLF and not claim.denied


def to_one_line_statement(text: str, max_words: int) -> str:
    """Return a statement of a model as one line of at most `max_words` words, or `nothing` if none is left.

    Line breaks, control characters and invisible characters of any alphabet become spaces, so that no player can forge
    a line of the game or hide words. Words are counted by `count_words`, so that gluing them together gains nothing.
    """
    # The text is cut before normalization: 20 characters count as a word, and as many are left for spaces.
    beginning = unicodedata.normalize("NFKC", text[: 2 * MAX_WORD * max_words])
    visible = "".join(" " if unicodedata.category(sign)[0] in "CZ" else sign for sign in beginning)
    kept: list[str] = []
    remaining = max_words
    for word in visible.split():
        piece = word[: MAX_WORD * remaining]
        while count_words(piece) > remaining:
            piece = piece[:-1]
        if not piece:
            break
        kept.append(piece)
        remaining -= count_words(piece)
    return " ".join(kept) or NOTHING


def parse_whisper(move: str) -> tuple[str, str] | None:
    """Return the listener's name and the statement of the move `tell NAME : STATEMENT`, or None for any other text."""
    whisper = _WHISPER.fullmatch(move.strip())
    return (whisper["name"], whisper["statement"]) if whisper else None
