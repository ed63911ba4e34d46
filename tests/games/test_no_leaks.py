"""No game tells an agent what it cannot know: pairs of deals that differ only in what is hidden from the agent."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from itertools import permutations, product
from typing import Any, NamedTuple

import pytest

import marl
from marl.core.plugins import find_plugin, known_kinds
from tests.support.every_game import example_settings
from tests.support.paths import ROOT

AGENTS = ("player_0", "player_1")


class Pair(NamedTuple):
    """Reset options of two deals, the agents who cannot tell them apart, and the facts that moves may not ask for."""

    one: Mapping[str, str]
    other: Mapping[str, str]
    blind: tuple[str, ...]
    avoided: tuple[str, ...] = ()
    """Words of moves that are not played, since the game would truthfully tell what they ask for."""


def pairs_of_cards(deals: Iterable[str], option: str, hidden_from: Callable[[str, int], str]) -> list[Pair]:
    """Return all pairs of deals that are the same to a player: `hidden_from` masks what the player cannot know."""
    pairs: list[Pair] = []
    for one, other in permutations(deals, 2):
        for player, agent in enumerate(AGENTS):
            if hidden_from(one, player) == hidden_from(other, player):
                pairs.append(Pair({option: one}, {option: other}, (agent,)))
    return pairs


def own_part(deal: str, player: int) -> str:
    """Return a player's own part of a deal `MINE THEIRS`."""
    return deal.split(" ")[player]


def kuhn() -> list[Pair]:
    return pairs_of_cards(map("".join, permutations("JQK", 2)), "cards", lambda deal, player: deal[player])


def leduc() -> list[Pair]:
    deals = [deal for deal in map("".join, product("JQK", repeat=3)) if max(map(deal.count, deal)) < 3]
    # The card of the board is the same, as both players see it in the second round.
    return pairs_of_cards(deals, "cards", lambda deal, player: deal[player] + deal[2])


def leduc_before_the_board() -> list[Pair]:
    deals = [deal for deal in map("".join, product("JQK", repeat=3)) if max(map(deal.count, deal)) < 3]
    # A second round would begin with a call or a second check.
    pairs = pairs_of_cards(deals, "cards", lambda deal, player: deal[player])
    return [pair._replace(avoided=("call", "check")) for pair in pairs]


def dice() -> list[Pair]:
    hands = ["".join(hand) for hand in product("123", repeat=2) if [*hand] == sorted(hand)]
    return pairs_of_cards([f"{mine} {theirs}" for mine, theirs in product(hands, repeat=2)], "roll", own_part)


def next_prizes() -> list[Pair]:
    pairs: list[Pair] = []
    for one, other in permutations(permutations("1234"), 2):
        if one[:2] == other[:2]:
            pairs.append(Pair({"prizes": " ".join(one)}, {"prizes": " ".join(other)}, AGENTS))
    return pairs


def words() -> list[Pair]:
    targets = ("cherry", "apple", "lime", "fox")
    # Players who name a target end the game, or not, as the target is.
    return [Pair({"word": one}, {"word": other}, ("defender",), targets) for one, other in permutations(targets, 2)]


def symbols() -> list[Pair]:
    return [Pair({"symbol": one}, {"symbol": other}, ("guesser",)) for one, other in permutations(("red", "green"), 2)]


def symbols_of_the_first_layer() -> list[Pair]:
    return [pair._replace(blind=("agent_1", "agent_2", "agent_3")) for pair in symbols()]


def keys() -> list[Pair]:
    pairs: list[Pair] = []
    board = "shark moon apple rose coin drum sofa train"
    for seed in range(20):
        key = random.Random(seed).sample("rrrbbnna", 8)
        changed = [*key]
        first = random.Random(seed).randrange(8)
        second = next(place for place in range(first - 1, first - 8, -1) if key[place] != key[first])
        changed[first], changed[second] = changed[second], changed[first]
        swapped = (board.split(" ")[first], board.split(" ")[second])
        options = [{"words": board, "key": "".join(letters)} for letters in (key, changed)]
        pairs.append(Pair(options[0], options[1], ("red_guesser", "blue_guesser"), swapped))
    return pairs


def keys_of_one_team() -> list[Pair]:
    return [pair._replace(blind=("red_guesser",)) for pair in keys()]


class Case(NamedTuple):
    """A game with its pairs of deals."""

    kind: str
    settings: Mapping[str, Any]
    pairs: Callable[[], list[Pair]]
    steps: int = 100
    """Number of moves after which what was hidden is shown."""


CASES = (
    Case("kuhn_poker", {}, kuhn),
    Case("leduc_poker", {}, leduc),
    Case("leduc_poker", {}, leduc_before_the_board),
    Case("liars_dice", {"dice": 2}, dice),
    Case("goofspiel", {}, next_prizes, steps=3),
    Case("goofspiel", {"bids": "hidden"}, next_prizes, steps=3),
    Case("taboo", {}, words),
    Case("hint", {}, symbols),
    Case("layered_hint", {}, symbols_of_the_first_layer),
    Case("codenames", {"counts": (3, 2, 2, 1)}, keys),
    Case("codenames", {"counts": (3, 2, 2, 1), "teams": 1}, keys_of_one_team),
)
ELSEWHERE = {
    "holdem": "test_holdem.py: nobody_reads_the_cards_of_the_other_or_of_the_future",
    "hanabi": "test_hanabi.py: nobody_reads_its_own_cards_or_the_deck",
    "werewolf": "test_werewolf.py: nobody_learns_which_of_two_others_has_which_role",
    "colonel_blotto": "test_colonel_blotto.py: a_player_is_told_its_troops_and_never_the_division_of_the_other",
    "first_price_auction": "test_first_price_auction.py: a_bidder_is_told_its_own_value_alone",
    "negotiation": "test_negotiation.py: nothing_that_an_agent_observes_depends_on_the_others_values",
    "guess_who": "test_guess_who.py: nothing_that_an_agent_observes_tells_the_others_secret",
}
"""Game -> test with pairs of its deals that knows the game's own rules for what is told."""
OPEN = {
    **dict.fromkeys(("nim", "tic_tac_toe", "connect_four"), "both players see the board"),
    **dict.fromkeys(("repeated_matrix", "matrix", "two_step", "coalition"), "there is nothing but moves"),
    "stopping": "one agent, who sees all",
    "team": "its stages say who hears whom",
    "communication": "the graph that agents choose says who hears whom",
}
"""Game without a hidden deal -> reason. Moves that are made at once are hidden: see the second test."""
OF_OTHERS = {"pettingzoo", "gymnasium", "openspiel", "textarena", "verifiers_environment", "trl_environment"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.pairs.__name__}")
def test_an_agent_is_told_the_same_in_deals_that_differ_in_what_is_hidden_from_it(case: Case) -> None:
    one: Any = marl.env(case.kind, **case.settings)
    other: Any = marl.env(case.kind, **case.settings)
    rng, compared, differed = random.Random(0), 0, 0
    for pair in case.pairs():
        for seed in range(3):
            one.reset(seed, pair.one)
            other.reset(seed, pair.other)
            differed += one.start_state_key() != other.start_state_key()
            for _ in range(case.steps):
                for agent in pair.blind:
                    assert repr(one.observe(agent)) == repr(other.observe(agent))
                    assert one.infos[agent] == other.infos[agent]
                    assert one.information_state(agent) == other.information_state(agent)
                    compared += 1
                if any(one.terminations.values()) or any(other.terminations.values()):
                    break
                info = one.infos[one.agent_selection]
                moves = [move for move in info["legal"] or info["examples"] if not {*pair.avoided} & {*move.split()}]
                if not moves:
                    break
                move = rng.choice(moves)
                one.step(move)
                other.step(move)
                # The end of the game may show who has won, but nobody is told anything more.
                assert one.agent_selection == other.agent_selection or any(one.terminations.values())
    assert compared > 15
    assert differed == 3 * len(case.pairs())


@pytest.mark.parametrize("kind", ["goofspiel", "repeated_matrix", "matrix", "two_step", "coalition", "colonel_blotto"])
def test_moves_that_are_made_at_once_are_hidden_from_those_who_have_not_moved(kind: str) -> None:
    env: Any = marl.env(kind, **example_settings(kind))
    env.reset(seed=0)
    first, second = env.infos[env.agent_selection]["together"][:2]
    seen: set[str] = set()
    for move in env.infos[first]["legal"]:
        after = env.copy()
        after.step(move)
        seen.add(repr((after.observe(second), after.infos[second], after.information_state(second))))
    assert len(seen) == 1


def test_every_game_of_ours_is_compared_here_or_by_a_test_of_its_own_or_hides_nothing() -> None:
    ours = {kind for kind in known_kinds("games") if find_plugin("games", kind).__module__.startswith("marl.games.")}
    assert ours - OF_OTHERS == {case.kind for case in CASES} | ELSEWHERE.keys() | OPEN.keys()
    for place in ELSEWHERE.values():
        file, _, name = place.partition(": ")
        assert f"def test_{name}(" in (ROOT / "tests" / "games" / file).read_text()
