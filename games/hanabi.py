"""Hanabi for two or three with small decks: players see all hands but their own, and hint (Bauza, 2010)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import Field, model_validator

from marl.core.types import EpisodeMeasuresAndNewStarts
from marl.engines.scripted import ScriptedConfig
from marl.games.base import FinalRewards, NextAgent, TextGame, TextGameConfig
from marl.games.hanabi_optimum import HanabiOptimum, HanabiSizes
from marl.games.marked_events import ObservationLine, observation_with_origins
from marl.protocols import EngineConfig, StateRendering

COLOURS = "RYGWB"
Knowledge = tuple[str, str]
"""(colours, ranks) that a card may have after all hints about it, as letters and digits in order."""


class HintingPlayer(ScriptedConfig):
    """Player of Hanabi that plays a card known to fit, else hints at a card that fits, else discards its oldest card.

    A card is known to fit if every combination of its possible colours and ranks fits. Hints prefer to name the rank.
    """

    kind: str = "hanabi_hints"

    def move_probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        heading, *_ = state.split("\n")
        facts = [part.split(" ") for part in heading.split(" . ")]
        fireworks = {word[0]: int(word[1]) for word in facts[3][1:]}
        # The last fact of a state lists the agent's own cards, with their possible colours and ranks.
        for position, card in enumerate(facts[-1][1:], 1):
            colours, ranks = card.split("_")
            fits = [int(rank) == fireworks[colour] + 1 for colour in colours for rank in ranks]
            if all(fits):
                return {f"play {position}": 1.0}
        for name, *words in facts[5:-1]:
            for card, known in zip(words[::2], words[1::2], strict=True):
                if int(card[1]) != fireworks[card[0]] + 1:
                    continue
                colours, ranks = known.split("_")
                missing = [card[1]] if len(ranks) > 1 else []
                missing += [card[0]] if len(colours) > 1 else []
                for hint in missing:
                    if f"hint {name} {hint}" in moves:
                        return {f"hint {name} {hint}": 1.0}
        if "discard 1" in moves:
            return {"discard 1": 1.0}
        hints = [move for move in moves if move.startswith("hint")]
        return {(hints or list(moves))[0]: 1.0}


class HanabiConfig(TextGameConfig):
    """Hanabi. All players get one point when a card joins the fireworks; an illegal move costs all 1."""

    kind: str = "hanabi"
    players: int = Field(default=2, ge=2, le=3)
    """Number of players."""
    colours: int = Field(default=2, ge=1, le=len(COLOURS))
    """Number of colours. The fireworks have one stack of each colour, from 1 up to the highest rank."""
    ranks: int = Field(default=3, ge=2, le=5)
    """Number of ranks. A colour has three cards of rank 1, one of the highest rank and two of each other rank."""
    hand: int = Field(default=2, ge=1, le=5)
    """Number of cards of a player's hand."""
    hints: int = Field(default=3, ge=1, le=8)
    """Largest number of hint tokens, which the team has at the start. A discard, or a full colour, gives one back."""
    lives: int = Field(default=1, ge=1, le=3)
    """Number of life tokens. Playing a card that does not fit costs one, and the last one ends the game."""
    keeps_points: bool = False
    """True if the points so far are paid after the last life is lost; False (the rules) if nothing is paid then."""

    @model_validator(mode="after")
    def _check_deck(self) -> Self:
        if self.players * self.hand >= len(self.deck):
            raise ValueError(
                f"hand: {self.players} hands of {self.hand} need more than the {len(self.deck)} cards of the deck; "
                "choices: smaller hands, more colours or more ranks"
            )
        return self

    @property
    def deck(self) -> tuple[str, ...]:
        """All cards in order, such as `R1`."""
        cards: list[str] = []
        for colour in COLOURS[: self.colours]:
            for rank in range(1, self.ranks + 1):
                cards += [f"{colour}{rank}"] * (3 if rank == 1 else 1 if rank == self.ranks else 2)
        return tuple(cards)

    @property
    def max_score(self) -> int:
        """Number of points of complete fireworks, an upper bound of the score."""
        return self.colours * self.ranks

    def optimal_score(self) -> float | None:
        """Return the expected score of the best team, or None if its computation would take minutes.

        It is known for two players with one card each and at most four kinds of cards (seconds).
        """
        if (self.players, self.hand) != (2, 1) or self.max_score > 4:
            return None
        sizes = HanabiSizes(COLOURS[: self.colours], self.ranks, self.hints, self.lives, self.keeps_points)
        optimum = HanabiOptimum(sizes)
        return optimum.value(optimum.start)

    def build(self) -> Hanabi:
        return Hanabi(self)

    def reference_players(self) -> Mapping[str, EngineConfig]:
        return {"hints": HintingPlayer()}

    def render_state(self, state: str) -> StateRendering | None:
        """Return a table of cards: the fireworks, then the other hands, then the facts known of the agent's cards."""
        facts = [part.split(" ") for part in state.split("\n")[0].split(" . ")]
        if len(facts) < 7:
            return None
        rows = [tuple(facts[3][1:]), *(tuple(words[1::2]) for words in facts[5:-1]), tuple(facts[-1][1:])]
        return StateRendering("cards", tuple(rows), "; ".join(" ".join(words) for words in facts[:3]))


class Hanabi(TextGame):
    """Hanabi with OpenSpiel's rules. A player reads all hands but its own, and all moves since its last one."""

    name = "hanabi"
    common_reward = True
    reset_options = ("deck",)

    def __init__(self, config: HanabiConfig) -> None:
        self.config = config
        self.colours, self.ranks = COLOURS[: config.colours], "12345"[: config.ranks]
        agents = tuple(f"player_{index}" for index in range(config.players))
        positions = range(1, config.hand + 1)
        moves = [f"{verb} {position}" for verb in ("play", "discard") for position in positions]
        hints = [f"hint {agent} {fact}" for agent in agents for fact in self.colours + self.ranks]
        super().__init__(agents, config.illegal, (*moves, *hints))
        lost = "the points so far count" if config.keeps_points else "no point counts"
        self.rules = (
            f"This is Hanabi for {config.players}. All play together and build fireworks: a stack of each colour "
            f"({', '.join(self.colours)}), with the ranks 1 to {config.ranks} in order. The deck has three cards of "
            "rank 1, one of the highest rank and two of each other rank in each colour; `R1` is a red one. Each player "
            f"has {config.hand} cards, which all others see, but not itself. In turn each makes one move: `play 1` "
            "plays its oldest card, which must be the next of its colour or costs a life; `discard 1` discards it and "
            f"gives a hint token back; `hint player_1 R` or `hint player_1 2` takes one of the {config.hints} tokens "
            "and tells that player which of its cards have this colour or rank, at least one. A complete colour gives "
            "a token back. A played or discarded card is replaced by the next of the deck, as the last in the hand. "
            "When the deck is empty, each player has one more move. You get a point for each card of the fireworks; "
            f"after {config.lives} li{'fe is' if config.lives == 1 else 'ves are'} lost the game ends and {lost}. "
            "You are told the tokens, the size of the deck, the height of each stack, the discarded cards, the cards "
            "of each other player with the colours and ranks possible to it (`R1 RY_12`), the same of your cards, and "
            "the moves since your last one."
        )

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        if "deck" in options:
            order = options["deck"]
            cards = order.split(" ") if isinstance(order, str) else []
            if Counter(cards) != Counter(self.config.deck):
                raise ValueError(
                    f"hanabi: option deck: {order!r} is no order of the cards; choices: "
                    f"{' '.join(self.config.deck)!r} in any order"
                )
        else:
            cards = rng.sample(self.config.deck, len(self.config.deck))
        self._order = " ".join(cards)
        hand, count = self.config.hand, len(self.seats)
        self.hands = {agent: cards[index * hand : (index + 1) * hand] for index, agent in enumerate(self.seats)}
        self.deck = cards[count * hand :]
        """Cards that are not dealt yet, the next one first."""
        self.known: dict[str, list[Knowledge]] = {}
        for agent in self.seats:
            self.known[agent] = [(self.colours, self.ranks)] * hand
        self.fireworks = dict.fromkeys(self.colours, 0)
        self.discards: list[str] = []
        self.hints, self.lives = self.config.hints, self.config.lives
        self.events: list[ObservationLine] = []
        self.last_moves = count
        """Number of moves that remain once the deck is empty."""
        return self.seats[0]

    def start_state_key(self) -> str:
        return self._order

    @property
    def score(self) -> int:
        """Number of points for the cards of the fireworks, or 0 if all lives are lost and no points are kept."""
        return sum(self.fireworks.values()) if self.lives or self.config.keeps_points else 0

    def heard_agents(self, agent: str) -> tuple[str, ...]:
        # An agent does not hear others' texts, which could reveal its cards. Its observation lists their moves.
        return (agent,)

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        size = len(self.hands[agent])
        moves = [f"play {position}" for position in range(1, size + 1)]
        if self.hints < self.config.hints:
            moves += [f"discard {position}" for position in range(1, size + 1)]
        if self.hints:
            for other in self.seats:
                if other != agent:
                    shown = "".join(self.hands[other])
                    moves += [f"hint {other} {fact}" for fact in self.colours + self.ranks if fact in shown]
        return tuple(moves)

    def _describe_visible_table(self, agent: str) -> str:
        """Return all that `agent` sees of the table, as parts divided by ` . `."""
        me = self.seats.index(agent)
        stacks = [f"{colour}{height}" for colour, height in self.fireworks.items()]
        parts = [
            f"lives {self.lives}",
            f"hints {self.hints}",
            f"deck {len(self.deck)}",
            f"fireworks {' '.join(stacks)}",
        ]
        parts.append(f"discards {' '.join(sorted(self.discards)) or 'none'}")
        for other in (*self.seats[me + 1 :], *self.seats[:me]):
            cards = zip(self.hands[other], map("_".join, self.known[other]), strict=True)
            parts.append(" ".join([other, *(f"{card} {facts}" for card, facts in cards)]))
        return " . ".join([*parts, f"you {' '.join(map('_'.join, self.known[agent]))}"])

    def describe_observation(self, agent: str) -> str:
        """Return the table as `agent` sees it, and the moves since its last move."""
        own = [number for number, event in enumerate(self.events) if event.sources[0][0] == agent]
        recent: Sequence[ObservationLine] = self.events[own[-1] + 1 :] if own else self.events
        return observation_with_origins(agent, self._describe_visible_table(agent), recent, f"now {agent}")

    def information_state(self, agent: str) -> str:
        """Return the table as `agent` sees it, and all moves so far."""
        return observation_with_origins(agent, self._describe_visible_table(agent), self.events, f"now {agent}")

    def redeal(self, agent: str, rng: random.Random) -> bool:
        """Draw the hand of `agent` and the order of the deck anew, given all hints, as `TextGame.redeal` says."""
        known, unseen = self.known[agent], [*self.hands[agent], *self.deck]
        # Cards that are known fully are fixed first, so that few draws contradict the hints.
        certain = [place for place, (colours, ranks) in enumerate(known) if len(colours) == len(ranks) == 1]
        for place in certain:
            unseen.remove("".join(known[place]))
        places = [place for place in range(len(known)) if place not in certain]
        while True:
            rng.shuffle(unseen)
            drawn = list(zip(unseen, places, strict=False))
            if all(card[0] in known[place][0] and card[1] in known[place][1] for card, place in drawn):
                break
        hand = ["".join(facts) for facts in known]
        for card, place in drawn:
            hand[place] = card
        self.hands[agent], self.deck = hand, unseen[len(places) :]
        return True

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        agent, score_before = self.agent_selection, self.score
        self.last_moves -= not self.deck
        verb, target, *fact = action.split(" ")
        text = f"{agent} : {action}"
        if verb == "hint":
            self._give_hint(target, fact[0])
        else:
            card = self.hands[agent].pop(int(target) - 1)
            del self.known[agent][int(target) - 1]
            text += f" {card} {self._play_card(card) if verb == 'play' else self._discard_card(card)}"
            if self.deck:
                self.hands[agent].append(self.deck.pop(0))
                self.known[agent].append((self.colours, self.ranks))
        self.events.append(ObservationLine(text, None, ((agent, self.steps_taken - 1),)))
        # Points are paid when they are gained, as in OpenSpiel, so that credit can tell which move gained them.
        gained = dict.fromkeys(self.seats, float(self.score - score_before))
        if not self.lives or not self.last_moves or self.score == self.config.max_score:
            return gained
        if any(gained.values()):
            self.add_rewards(gained, cause="a card fits")
        return self.seats[(self.seats.index(agent) + 1) % len(self.seats)]

    def _give_hint(self, listener: str, colour_or_rank: str) -> None:
        """Tell `listener` which of its cards are of `colour_or_rank`."""
        self.hints -= 1
        updated: list[Knowledge] = []
        for card, (colours, ranks) in zip(self.hands[listener], self.known[listener], strict=True):
            kept = [
                colour_or_rank if colour_or_rank in card else facts.replace(colour_or_rank, "")
                for facts in (colours, ranks)
            ]
            updated.append((kept[0], ranks) if colour_or_rank in self.colours else (colours, kept[1]))
        self.known[listener] = updated

    def _play_card(self, card: str) -> str:
        """Play `card` and return the last word of the move's line: `fits` or `wrong`."""
        colour, rank = card[0], int(card[1])
        if self.fireworks[colour] + 1 != rank:
            self.lives -= 1
            self.discards.append(card)
            return "wrong"
        self.fireworks[colour] = rank
        if rank == self.config.ranks:
            self.hints = min(self.hints + 1, self.config.hints)
        return "fits"

    def _discard_card(self, card: str) -> str:
        self.discards.append(card)
        self.hints += 1
        return "gone"

    def episode_measures(self) -> EpisodeMeasuresAndNewStarts:
        """Return the measures: `score` (points), `score_share` of complete fireworks, and `lives` that are left."""
        share = self.score / self.config.max_score
        return EpisodeMeasuresAndNewStarts(
            {"score": float(self.score), "score_share": share, "lives": float(self.lives)}
        )
