"""Scripted player of werewolf, who says only what it knows; as a werewolf it may accuse or imitate others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from marl.engines.scripted import ScriptedConfig
from marl.games.two_player import uniform_over_best_moves
from marl.games.werewolf_talk import NOTHING, SEER, WEREWOLF, role_claims_in

_STATEMENT = re.compile(r"^(\w+)(?: to you)? : (.*)$", re.MULTILINE)
_SEEN = re.compile(r"^you saw : (\w+) is (a|no) werewolf$", re.MULTILINE)


class WerewolfKnowledge(NamedTuple):
    """Facts that a scripted player reads from its information state."""

    name: str
    role: str
    alive: frozenset[str]
    werewolves: frozenset[str]
    """Names of players that it knows to be werewolves."""
    good: frozenset[str]
    """Names of players that it knows to be no werewolves, itself included unless it is a werewolf."""
    accused: Mapping[str, frozenset[str]]
    """Name of a living player -> names of the others who said that it is a werewolf."""
    seers: frozenset[str]
    """Names of other living players who said that they are the seer."""
    said_today: tuple[str, ...]
    """Statements that others made on this day, in the order in which they were made."""


def knowledge_in_information_state(information_state: str) -> WerewolfKnowledge:
    """Return the facts in the information state `information_state` of a player."""
    heading, *_ = information_state.split("\n")
    facts = heading.split(" . ")
    name, role = re.findall(r"you are (\w+) , (?:a|the) (\w+)", facts[0])[0]
    alive = frozenset(facts[2].split(" ")[1:])
    werewolves = set(facts[3].split(" ")[1:]) if role == WEREWOLF else set[str]()
    good = set(alive - werewolves) if role == WEREWOLF else {name}
    for seen, answer in _SEEN.findall(information_state):
        # The seer sees `a werewolf` or `no werewolf`; the first word says whether the player is one.
        (werewolves if answer == "a" else good).add(seen)
    accused: dict[str, set[str]] = {}
    seers: set[str] = set()
    for speaker, statement in _STATEMENT.findall(information_state):
        if speaker == name:
            continue
        for claim in role_claims_in(speaker, statement, alive):
            if claim.role == WEREWOLF and not claim.denied and claim.name != speaker:
                accused.setdefault(claim.name, set()).add(speaker)
            elif claim.role == SEER and speaker in alive:
                seers.add(speaker)
    accusers = {who: frozenset(by) for who, by in accused.items() if who in alive}
    # The death of the last night is told before the first statement of the day.
    _, _, last_night = information_state.rpartition("\nnight ")
    _, _, today = last_night.partition("\n")
    said_today = tuple([statement for speaker, statement in _STATEMENT.findall(today) if speaker != name])
    return WerewolfKnowledge(
        name, role, alive, frozenset(werewolves), frozenset(good), accusers, frozenset(seers - werewolves), said_today
    )


class WerewolfPlayer(ScriptedConfig):
    """Plays every role of werewolf: the seer tells what it saw, and all vote for the player who is accused most."""

    kind: str = "werewolf_player"
    lies: bool = False
    """True if a werewolf accuses a random player who is no werewolf; False if a werewolf says nothing."""
    imitates: bool = False
    """True if a werewolf imitates one of the others' statements of the day, drawn at random, and names a random player
    who is no werewolf where the statement names a player. It says nothing if it speaks first. A village of silent
    players recognizes a werewolf that `lies`, because nobody else accuses, but not one that imitates them."""

    def move_probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        # Where any text can be a move, `moves` are example answers in the format of the role, such as `[nothing]`.
        answer_by_move = {answer.strip("[]"): answer for answer in moves}
        probabilities = self._probabilities_of_bare_moves(state, tuple(answer_by_move))
        return {answer_by_move[move]: probability for move, probability in probabilities.items()}

    def _probabilities_of_bare_moves(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        known = knowledge_in_information_state(state)
        targets = {move: move.split(" ")[-1] for move in moves}
        verb = moves[0].split(" ")[0]
        if verb == "kill":
            accusers = {accuser for wolf in known.werewolves for accuser in known.accused.get(wolf, ())}
            return _uniform_over_preferred(moves, targets, known.seers, accusers)
        if verb == "inspect":
            return _uniform_over_preferred(moves, targets, known.alive - known.good - known.werewolves)
        if verb == "protect":
            return _uniform_over_preferred(moves, targets, known.seers, {known.name} if known.role == SEER else set())
        if verb == "vote":
            return self._vote_probabilities(known, moves, targets)
        if self.imitates and known.role == WEREWOLF:
            return _imitation_probabilities(known, moves)
        return uniform_over_best_moves(self._candidate_statements(known, moves), moves)

    def _vote_probabilities(
        self, knowledge: WerewolfKnowledge, moves: tuple[str, ...], target_by_move: Mapping[str, str]
    ) -> Mapping[str, float]:
        """Return vote probabilities: for a known werewolf, else the most accused player, else anyone unknown."""
        # A werewolf knows everybody, and votes against the others.
        spared = knowledge.werewolves if knowledge.role == WEREWOLF else knowledge.good
        enemies = set[str]() if knowledge.role == WEREWOLF else knowledge.werewolves
        accusers = Counter({who: len(by) for who, by in knowledge.accused.items() if who not in spared})
        most = max(accusers.values(), default=0)
        suspects = {who for who, count in accusers.items() if count == most}
        return _uniform_over_preferred(
            moves, target_by_move, enemies, suspects, knowledge.alive - spared - {knowledge.name}
        )

    def _candidate_statements(self, knowledge: WerewolfKnowledge, moves: tuple[str, ...]) -> list[str]:
        """Return the statements among which the player chooses."""
        accusable = frozenset[str]()
        if knowledge.role == SEER:
            accusable = knowledge.werewolves & knowledge.alive
        elif knowledge.role == WEREWOLF and self.lies:
            accusable = knowledge.good
        chosen = [f"{name} is a werewolf" for name in sorted(accusable)]
        if not chosen and knowledge.role == SEER:
            chosen = [
                f"{name} is no werewolf" for name in sorted((knowledge.good & knowledge.alive) - {knowledge.name})
            ]
        # Whispers begin with the listener's name; this player only talks to all.
        return [move for move in chosen if move in moves] or [NOTHING if NOTHING in moves else moves[0]]


def _imitation_probabilities(knowledge: WerewolfKnowledge, moves: tuple[str, ...]) -> Mapping[str, float]:
    """Return move probabilities of a werewolf that imitates a random statement of this day."""
    probabilities = dict.fromkeys(moves, 0.0)
    said_today = knowledge.said_today or (NOTHING,)
    for statement in said_today:
        _, names_player, claim = statement.partition(" is ")
        candidates = [f"{name} is {claim}" for name in sorted(knowledge.good)] if names_player else [statement]
        imitations = [move for move in candidates if move in probabilities] or [moves[0]]
        for move in imitations:
            probabilities[move] += 1 / len(imitations) / len(said_today)
    return probabilities


def _uniform_over_preferred(
    moves: tuple[str, ...], target_by_move: Mapping[str, str], *preferred_targets: frozenset[str] | set[str]
) -> Mapping[str, float]:
    """Return uniform probabilities over the moves with a target in the first of `preferred_targets` that has any."""
    for names in preferred_targets:
        if chosen := [move for move in moves if target_by_move[move] in names]:
            return uniform_over_best_moves(chosen, moves)
    return uniform_over_best_moves(moves, moves)
