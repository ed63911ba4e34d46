"""Codenames: masters name one word and a number, guessers find their team's words; two teams, or one alone."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from statistics import fmean
from typing import Any, Literal

from pydantic import Field, model_validator

from marl.core.types import EpisodeMeasuresAndNewStarts
from marl.engines.scripted import ScriptedConfig
from marl.games.base import FinalRewards, NextAgent, TextGame, TextGameConfig
from marl.games.marked_events import ObservationLine, observation_with_origins
from marl.games.taboo import normalize_letters
from marl.protocols import EngineConfig

TEAMS = ("red", "blue")
NEUTRAL, ASSASSIN = "neutral", "assassin"
STOP = "stop"
"""Move of a guesser who ends its turn."""
LEXICON: dict[str, tuple[str, ...]] = {
    word: tuple(topics.split())
    for word, topics in {
        **{"shark": "sea animal", "whale": "sea animal", "gull": "sea sky animal", "eagle": "sky animal"},
        **{"ship": "sea travel", "harbour": "sea travel", "plane": "sky travel", "rocket": "sky travel fire"},
        **{"moon": "sky night", "star": "sky night", "owl": "animal night", "lamp": "night home"},
        **{"candle": "night fire", "stove": "home fire", "oven": "home fire food", "soup": "food fire"},
        **{"apple": "food tree", "cherry": "food tree", "leaf": "tree garden", "oak": "tree garden"},
        **{"rose": "garden love", "spade": "garden tool", "hammer": "tool metal", "saw": "tool metal tree"},
        **{"ring": "metal love", "coin": "metal money", "bank": "money", "purse": "money love"},
        **{"bell": "metal music", "drum": "music", "violin": "music tree", "kiss": "love"},
        **{"sofa": "home", "train": "travel metal", "snail": "garden animal", "fish": "sea animal food"},
    }.items()
}
"""Word of the board -> topics by which it can be hinted at."""
MAX_CLUE_LETTERS = 20
MAX_LISTED_NUMBER = 4
"""Greatest number in a clue of the list of moves."""
_CLUE = re.compile(r"([A-Za-z]+) ([0-9])")


def is_allowed_clue(clue_word: str, visible_words: Sequence[str]) -> bool:
    """Return True if a clue's word is none of `visible_words`, no part of one, and contains none, backwards neither."""
    clue = normalize_letters(clue_word)
    for word in map(normalize_letters, visible_words):
        if any(part in whole for part, whole in ((clue, word), (word, clue), (clue[::-1], word), (word[::-1], clue))):
            return False
    return True


class CodenamesPlayer(ScriptedConfig):
    """Player of codenames with clues from a list: the master names the topic of most own words and of no other word.

    The guesser guesses words with this topic, as many as the clue's number, and stops.
    """

    kind: str = "codenames_player"
    associations: dict[str, tuple[str, ...]] = Field(default_factory=lambda: dict(LEXICON))
    """Word of the board -> its topics."""

    def move_probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        facts = dict(re.findall(r"(?:^| \. )(words|red words|blue words|you are|now) ([^.\n]*)(?= \. |\n|$)", state))
        team = facts["you are"].split("_")[0]
        request = state.rsplit("\n", 1)[-1]
        if clue := re.search(r"clue (\w+) (\d) , guesses (\d)", request):
            return self._guess(clue[1], int(clue[2]) - int(clue[3]), moves)
        own = {*facts[f"{team} words"].split(" ")}
        others = {*facts["words"].split(" ")} - own
        scores: dict[str, int] = {}
        for move in moves:
            topic, number = move.split(" ")
            mine = sum(topic in self.associations.get(word, ()) for word in own)
            wrong = sum(topic in self.associations.get(word, ()) for word in others)
            # A topic without an own word leads to a blind guess, and a wrong word makes a second guess unwise.
            safe = mine if not wrong else min(mine, 1)
            scores[move] = (mine - 2 * wrong if mine else -len(state)) - abs(int(number) - max(safe, 1))
        best = [move for move in moves if scores[move] == max(scores.values())]
        return {move: 1 / len(best) for move in best}

    def _guess(self, topic: str, remaining: int, moves: tuple[str, ...]) -> Mapping[str, float]:
        fitting = [move for move in moves if topic in self.associations.get(move, ())]
        if STOP in moves and (remaining <= 0 or not fitting):
            return {STOP: 1.0}
        chosen = fitting or [move for move in moves if move != STOP]
        return {move: 1 / len(chosen) for move in chosen}


class CodenamesConfig(TextGameConfig):
    """Codenames. With two teams, a win is worth 1 and a loss -1 to both players of a team.

    With one team, both players get the share of their words that they have found after `max_turns` clues, or 0 if they
    found the assassin.
    """

    kind: str = "codenames"
    teams: Literal[1, 2] = 2
    """Number of teams. With one, the words of the other team are bystanders."""
    counts: tuple[int, int, int, int] = (9, 8, 7, 1)
    """Number of words of the team that begins, of the other team, of bystanders and of assassins."""
    max_turns: int = Field(default=9, ge=1, le=100)
    """`teams: 1`: number of clues."""
    clues: Literal["listed", "text"] = "listed"
    """`listed`: clues are moves from a list, a topic and a number from 1 to 4. `text`: any one word of Latin letters
    and a number from 0 to 9, such as `river 2`."""
    words: dict[str, tuple[str, ...]] = Field(default_factory=lambda: dict(LEXICON))
    """Words that boards are drawn from -> their topics, which are the clues of the list."""

    @model_validator(mode="after")
    def _check_counts(self) -> CodenamesConfig:
        if min(self.counts) < 0 or self.counts[0] < 1 or self.counts[1] < self.teams - 1 or self.counts[3] > 1:
            raise ValueError(
                f"counts: {list(self.counts)}; choices: four numbers from 0, at least 1 word for each team, and at "
                "most 1 assassin"
            )
        if sum(self.counts) > len(self.words):
            raise ValueError(f"counts: {sum(self.counts)} words are on the board, but there are {len(self.words)}")
        for word in self.words:
            if not re.fullmatch("[a-z]+", word) or word == STOP:
                raise ValueError(f"words: {word!r}; choices: small Latin letters, no blank, and not {STOP!r}")
        return self

    @cached_property
    def topics(self) -> tuple[str, ...]:
        """All topics, sorted."""
        return tuple(sorted({topic for topics in self.words.values() for topic in topics}))

    def build(self) -> Codenames:
        return Codenames(self)

    def default_role_of_agent(self) -> Mapping[str, str]:
        return {f"{team}_{part}": part for team in TEAMS[: self.teams] for part in ("master", "guesser")}

    def reference_players(self) -> Mapping[str, EngineConfig]:
        return {"topics": CodenamesPlayer(associations=self.words)} if self.clues == "listed" else {}


class Codenames(TextGame):
    """Codenames with the rules of Vlaada Chvatil (2015), without unlimited clues other than 0.

    Red begins. A guesser reads clues and guesses, but no text around a clue, which could tell more than one word.
    """

    name = "codenames"
    reset_options = ("words", "key")
    plays_examples = True

    def __init__(self, config: CodenamesConfig) -> None:
        self.config = config
        self.teams = TEAMS[: config.teams]
        self.zero_sum, self.common_reward = config.teams == 2, config.teams == 1
        listed = tuple(f"{topic} {number}" for topic in config.topics for number in range(1, MAX_LISTED_NUMBER + 1))
        moves = (*listed, *config.words, STOP) if config.clues == "listed" else None
        super().__init__(tuple(config.default_role_of_agent()), config.illegal, moves)
        goal = (
            "The team whose words are all found first wins; a team that finds the assassin loses."
            if config.teams == 2
            else f"After {config.max_turns} clues, or when all words are found, you are paid the share of words that "
            "were found; nothing is paid if the assassin is found."
        )
        clue = "one word of Latin letters that is no part of a word on the board, and a number, such as `river 2`"
        if config.clues == "listed":
            clue = "one of the listed words, and a number, such as `sea 2`"
        self.rules = (
            f"This is codenames. {'Two teams, red and blue, play' if config.teams == 2 else 'The team red plays'} with "
            f"{sum(config.counts)} words: {config.counts[0]} belong to red, {config.counts[1]} to blue, "
            f"{config.counts[2]} are neutral, and {config.counts[3]} is the assassin. Only the masters know which. In "
            f"a turn, the master of a team names a clue: {clue}. The number tells how many words of the team fit. Then "
            "its guesser names words of the board one by one, at least one and at most one more than the number "
            f"(after 0, as many as it likes), or says `{STOP}`. A turn ends with a word that is not the team's own. "
            f"{goal} You are told who you are, the words that are not found yet, and all clues and guesses so far; "
            "masters are also told whose the words are."
        )

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        config, size = self.config, sum(self.config.counts)
        self.words = options.get("words") or " ".join(rng.sample(list(config.words), size))
        kinds = [kind for kind, count in zip("rbna", config.counts, strict=True) for _ in range(count)]
        key = options["key"] if "key" in options else "".join(rng.sample(kinds, size))
        board = self.words.split(" ") if isinstance(self.words, str) else []
        if len({*board}) != size or not {*board} <= {*config.words}:
            raise ValueError(f"codenames: option words: {self.words!r}; choices: {size} different words of the game")
        if not isinstance(key, str) or sorted(key) != sorted(kinds):
            raise ValueError(f"codenames: option key: {key!r}; choices: {''.join(kinds)!r} in any order")
        owners = {"r": TEAMS[0], "b": TEAMS[1], "n": NEUTRAL, "a": ASSASSIN}
        self.owner = {word: owners[letter] for word, letter in zip(board, key, strict=True)}
        """Word of the board -> its team, `neutral` or `assassin`."""
        self.hidden = list(board)
        """Words that are not found yet."""
        self.key, self.team = key, TEAMS[0]
        self.clue: tuple[str, int] | None = None
        self.guesses = 0
        """Number of guesses in this turn."""
        self.clues_given: list[int] = []
        self.hits: list[bool] = []
        """For each guess, whether the word was the team's own."""
        self.found_assassin = False
        self.events: list[ObservationLine] = []
        return f"{self.team}_master"

    def start_state_key(self) -> str:
        return f"{self.words} {self.key}"

    def heard_agents(self, agent: str) -> tuple[str, ...]:
        return (agent,)

    def legal_actions(self, agent: str) -> tuple[str, ...] | None:
        if agent.endswith("_guesser"):
            return (*self.hidden, STOP) if self.guesses else tuple(self.hidden)
        if self.config.clues == "text":
            return None
        topics = [topic for topic in self.config.topics if is_allowed_clue(topic, self.hidden)]
        return tuple([f"{topic} {number}" for topic in topics for number in range(1, MAX_LISTED_NUMBER + 1)])

    def is_legal(self, action: str) -> bool:
        if self._legal is not None:
            return super().is_legal(action)
        clue = _CLUE.fullmatch(action.strip())
        return clue is not None and len(clue[1]) <= MAX_CLUE_LETTERS and is_allowed_clue(clue[1], self.hidden)

    def example_actions(self, agent: str) -> tuple[str, ...]:
        if self.legal_actions(agent) is not None:
            return ()
        return tuple([f"{topic} 2" for topic in self.config.topics if is_allowed_clue(topic, self.hidden)])

    def words_left(self, owner: str) -> list[str]:
        """Return the words of `owner` that are not found yet."""
        return [word for word in self.hidden if self.owner[word] == owner]

    def describe_observation(self, agent: str) -> str:
        """Return the words and, for masters, whose they are; then all clues and guesses; then what is asked."""
        parts = [f"you are {agent}", f"words {' '.join(self.hidden) or 'none'}"]
        for team in TEAMS:
            parts.append(f"{team} left {len(self.words_left(team))}")
        if agent.endswith("_master"):
            for owner in (*TEAMS, NEUTRAL, ASSASSIN):
                parts.append(f"{owner} words {' '.join(self.words_left(owner)) or 'none'}")
        request = f"now {self.team}_{'guesser' if self.clue else 'master'}"
        if self.clue:
            request += f" : clue {self.clue[0]} {self.clue[1]} , guesses {self.guesses}"
        return observation_with_origins(agent, " . ".join(parts), self.events, request)

    information_state = describe_observation

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        agent = self.agent_selection
        source = ((agent, self.steps_taken - 1),)
        if self.clue is None:
            word, number = action.strip().split(" ")
            # Case could carry a message, so a clue is told in small letters.
            self.clue, self.guesses = (word.lower(), int(number)), 0
            self.clues_given.append(int(number))
            self.events.append(ObservationLine(f"{agent} : {word.lower()} {number}", None, source))
            return f"{self.team}_guesser"
        if action == STOP:
            self.events.append(ObservationLine(f"{agent} : {STOP}", None, source))
            return self._end_turn()
        owner = self.owner[action]
        self.hidden.remove(action)
        self.guesses += 1
        self.hits.append(owner == self.team)
        self.events.append(ObservationLine(f"{agent} : {action} , {owner}", None, source))
        if owner == ASSASSIN:
            self.found_assassin = True
            return self._final_rewards(next((team for team in self.teams if team != self.team), None))
        for team in self.teams:
            if not self.words_left(team):
                return self._final_rewards(team)
        allowed = self.clue[1] + 1 if self.clue[1] else len(self.owner)
        return agent if owner == self.team and self.guesses < allowed else self._end_turn()

    def _end_turn(self) -> NextAgent | FinalRewards:
        self.clue, self.guesses = None, 0
        if len(self.teams) == 1:
            if len(self.clues_given) == self.config.max_turns:
                return self._final_rewards(None)
            return f"{self.team}_master"
        self.team = TEAMS[self.team == TEAMS[0]]
        return f"{self.team}_master"

    def _final_rewards(self, winner: str | None) -> FinalRewards:
        self.clue = None
        if len(self.teams) == 1:
            share = 1 - len(self.words_left(TEAMS[0])) / self.config.counts[0]
            return dict.fromkeys(self.seats, 0.0 if self.found_assassin else share)
        return {seat: 1.0 if seat.startswith(f"{winner}_") else -1.0 for seat in self.seats}

    def _illegal_move_rewards(self, offender: str) -> dict[str, float]:
        if self.common_reward:
            return super()._illegal_move_rewards(offender)
        team = offender.split("_")[0]
        return {seat: -self.penalty if seat.startswith(f"{team}_") else self.penalty for seat in self.seats}

    def episode_measures(self) -> EpisodeMeasuresAndNewStarts:
        """Return the measures of the episode.

        `win_TEAM`: 1 if the team has found all its words or the other team lost; `found_TEAM`: share of its words that
        were found; `assassin`: 1 if it was found; `clues`, `clue_number`: number of clues, and mean of their numbers;
        `accuracy`: share of guesses that were the team's own.
        """
        return EpisodeMeasuresAndNewStarts(dict(self._measures()))

    def _measures(self) -> Iterator[tuple[str, float]]:
        for index, team in enumerate(self.teams):
            won = self.rewards[f"{team}_master"] >= 1
            yield f"win_{team}", float(won)
            yield f"found_{team}", 1 - len(self.words_left(team)) / self.config.counts[index]
        yield ASSASSIN, float(self.found_assassin)
        yield "clues", float(len(self.clues_given))
        yield "clue_number", fmean(self.clues_given) if self.clues_given else 0.0
        yield "accuracy", fmean(self.hits) if self.hits else 0.0
