"""Werewolf: its rules against a second implementation, private channels, leaks, lies and tricks with words."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Generator, Iterable
from itertools import combinations
from typing import Any

import pytest
from pettingzoo.test import api_test, seed_test
from pydantic import ValidationError

from marl.engines.scripted import Random
from marl.games.werewolf import WerewolfConfig, WerewolfGame
from marl.games.werewolf_player import WerewolfPlayer
from marl.games.werewolf_talk import NOTHING
from tests.support.small_games import make_deal, make_simulator

FIVE = {"names": "ben dan ann cleo eve"}
"""werewolf_0 is ben, the seer is dan, the villagers are ann, cleo and eve."""
SETTINGS: list[dict[str, Any]] = [
    {},
    {"players": 7, "doctor": True, "whispers": True},
    {"players": 9, "werewolves": 3, "doctor": True, "rounds": 2, "reveal": False},
    {"players": 8, "seer": False, "rounds": 0, "max_days": 2},
]
TEXT: dict[str, Any] = {"players": 7, "doctor": True, "talk": "text", "whispers": True}


NIGHT = ("night talk", "kill", "inspect", "protect")


def werewolf(**settings: object) -> WerewolfConfig:
    return WerewolfConfig.model_validate(settings)


def played(*moves: str, options: dict[str, str] = FIVE, **settings: object) -> WerewolfGame:
    game = werewolf(**settings).build()
    game.reset(0, options)
    for move in moves:
        game.step(move)
    return game


def text(game: WerewolfGame, agent: str) -> str:
    return str(game.observe(agent)["text"])


def moves_of(game: WerewolfGame) -> tuple[str, ...]:
    info = game.infos[game.agent_selection]
    return info["legal"] or info["examples"]


def over(game: WerewolfGame) -> bool:
    return any(game.terminations.values())


# --- rules -----------------------------------------------------------------------------------------------------------


def test_a_night_and_a_day_follow_the_rules() -> None:
    game = played("kill eve", "inspect ben")
    assert text(game, "villager_0").split("\n") == [
        "you are ann , a villager . day 1 . alive ann ben cleo dan",
        "night 1 : eve was killed , a villager",
        "now speak",
    ]
    assert text(game, "seer").split("\n")[1] == "you saw : ben is a werewolf"
    assert text(game, "werewolf_0").split("\n")[0].endswith(" . werewolves ben")
    for move in ("nothing", "dan is a werewolf", "nothing", "ben is a werewolf"):
        game.step(move)
    assert game.infos[game.agent_selection]["together"] == ("villager_0", "werewolf_0", "villager_1", "seer")
    for move in ("vote ben", "vote dan", "vote nobody", "vote ben"):
        game.step(move)
    assert game.rewards == {
        "werewolf_0": -1.0,
        **dict.fromkeys(("seer", "villager_0", "villager_1", "villager_2"), 1.0),
    }
    assert game.episode_measures().measures == {
        **{"werewolf_win": 0.0, "village_win": 1.0, "days": 1.0, "claims": 2.0, "werewolf_lies": 1.0},
        **{"village_lies": 0.0, "village_votes": 3.0, "words": 8.0, "votes_for_truth": 2 / 3},
    }


def test_a_tied_vote_kills_nobody_and_another_player_begins_the_next_day() -> None:
    talk = ("nothing",) * 4
    game = played("kill eve", "inspect ann", *talk, "vote ben", "vote ann", "vote ann", "vote ben")
    assert "day 1 : nobody was voted out" in text(game, "seer")
    game.step("kill ann")
    game.step("inspect cleo")
    assert over(game) is False
    assert game.agent_selection == "villager_1", "cleo is the second of ben, cleo and dan"


def test_the_doctor_saves_the_player_that_the_werewolves_chose() -> None:
    seven = {"names": "ben dan ann cleo eve finn gina"}
    saved = ("kill ann", "inspect ben", "protect ann", "kill ann")
    game = played(*saved, options=seven, players=7, doctor=True)
    assert "night 1 : nobody was killed" in text(game, "villager_0")
    assert "you protected ann" in text(game, "doctor")
    assert "protect" not in text(game, "villager_0")


def test_of_two_proposals_at_night_the_later_one_decides() -> None:
    seven = {"names": "ben dan ann cleo eve finn gina"}
    game = played("kill ann", "inspect ben", options=seven, players=7)
    assert game.agent_selection == "werewolf_1"
    assert "ben at night : kill ann" in text(game, "werewolf_1")
    game.step("kill cleo")
    assert "night 1 : cleo was killed" in text(game, "seer")


Asked = tuple[str, set[str]]
"""Name of the player to move, and its moves."""


class PlainWerewolf:
    """Second implementation, written from the rules in words: who moves, its moves, and the lines that each reads."""

    def __init__(self, roles: dict[str, str], config: WerewolfConfig) -> None:
        """`roles`: name -> role, in the order in which the players sit."""
        self.roles, self.config, self.living = roles, config, list(roles)
        self.lines: dict[str, list[str]] = {name: [] for name in roles}

    def with_role(self, role: str) -> list[str]:
        return [name for name in self.living if self.roles[name] == role]

    def tell(self, line: str, readers: Iterable[str] | None = None) -> None:
        for reader in self.roles if readers is None else readers:
            self.lines[reader].append(line)

    def play(self) -> Generator[Asked, str, str]:
        for day in range(1, (self.config.max_days or len(self.roles)) + 1):
            for part in (self.night, self.day):
                yield from part(day)
                wolves = len(self.with_role("werewolf"))
                if not wolves:
                    return "village"
                if wolves >= len(self.living) - wolves:
                    return "werewolf"
        return "werewolf"

    def die(self, name: str, what: str) -> None:
        self.living = [other for other in self.living if other != name]
        article = "the" if self.roles.get(name) in ("seer", "doctor") else "a"
        self.tell(what + (f" , {article} {self.roles[name]}" if self.config.reveal and name in self.roles else ""))

    def night(self, day: int) -> Generator[Asked, str, None]:
        wolves = self.with_role("werewolf")
        prey = [name for name in self.living if name not in wolves]
        if self.config.talk == "text" and len(wolves) > 1:
            for name in wolves:
                said = yield name, {"nothing", *(f"let us kill {other}" for other in prey)}
                self.tell(f"{name} at night : {said}", wolves)
        proposed: list[str] = []
        shield = ""
        for name in (wolves[0], *self.with_role("seer"), *self.with_role("doctor"), *wolves[1:]):
            others = {*self.living} - {name}
            if name in wolves:
                proposed.append((yield name, {f"kill {other}" for other in prey}).split(" ")[1])
                self.tell(f"{name} at night : kill {proposed[-1]}", wolves)
            elif self.roles[name] == "seer":
                seen = (yield name, {f"inspect {other}" for other in others}).split(" ")[1]
                self.tell(f"you saw : {seen} is {'a' if seen in wolves else 'no'} werewolf", [name])
            else:
                shield = (yield name, {f"protect {other}" for other in self.living}).split(" ")[1]
                self.tell(f"you protected {shield}", [name])
        victim = [name for name in proposed if proposed.count(name) == max(map(proposed.count, proposed))][-1]
        victim = "nobody" if victim == shield else victim
        self.die(victim, f"night {day} : {victim} was killed")

    def day(self, day: int) -> Generator[Asked, str, None]:
        first = (day - 1) % len(self.living)
        order = self.living[first:] + self.living[:first]
        whispered: list[tuple[str, str, str]] = []
        for name in order if self.config.whispers else ():
            moves = {f"tell {o} : {said}" for o in order if o != name for said in self.statements(name)}
            move = yield name, moves | {"nothing"}
            if move != "nothing":
                whispered.append((name, *move.removeprefix("tell ").split(" : ")))  # type: ignore[arg-type]  # two parts
        for name, listener, said in whispered:
            self.tell(f"{name} to you : {said}", [listener])
            self.tell(f"you to {listener} : {said}", [name])
        for _ in range(self.config.rounds):
            for name in order:
                said = yield name, self.statements(name) | {"nothing"}
                self.tell(f"{name} : {said}")
        votes: dict[str, str] = {}
        for name in order:
            votes[name] = (yield name, {f"vote {o}" for o in (*order, "nobody") if o != name}).split(" ")[1]
        for name, vote in votes.items():
            self.tell(f"{name} votes {vote}")
        counts = Counter(votes.values()).most_common(2)
        victim = "nobody" if len(counts) == 2 and counts[0][1] == counts[1][1] else counts[0][0]
        self.die(victim, f"day {day} : {victim} was voted out")

    def statements(self, speaker: str) -> set[str]:
        own = {"seer": "I am the seer", "doctor": "I am the doctor", "villager": "I am a villager"}
        said = {own[role] for role in self.roles.values() if role in own}
        for name in self.living:
            said |= {f"{name} is a werewolf", f"{name} is no werewolf"} if name != speaker else set()
        return said


@pytest.mark.parametrize("settings", [*SETTINGS, TEXT], ids=str)
def test_random_games_agree_with_a_second_implementation(settings: dict[str, Any]) -> None:
    expect_agreement(werewolf(**settings), range(12))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [*SETTINGS, TEXT], ids=str)
def test_2_000_random_games_agree_with_a_second_implementation(settings: dict[str, Any]) -> None:
    expect_agreement(werewolf(**settings), range(100, 600))


def expect_agreement(config: WerewolfConfig, seeds: range) -> None:
    """Compare one random game per seed after every move: who moves, its moves, the lines of two players, who wins."""
    game, rng = config.build(), random.Random(0)
    for seed in seeds:
        game.reset(seed)
        other = PlainWerewolf({name: config.role_of_agent[game.agent_of[name]] for name in game.table}, config)
        asked, winner = other.play(), None
        name, moves = next(asked)
        while not over(game):
            assert game.name_of[game.agent_selection] == name
            assert {*moves_of(game)} == moves
            assert game.alive == other.living
            for reader in (name, rng.choice(game.table)):
                assert text(game, game.agent_of[reader]).split("\n")[1:-1] == other.lines[reader]
            move = rng.choice(sorted(moves))
            game.step(move)
            try:
                name, moves = asked.send(move)
            except StopIteration as end:
                winner = end.value
        assert game.winner == winner
        for agent, role in config.role_of_agent.items():
            assert game.rewards[agent] == (1.0 if (role == "werewolf") == (winner == "werewolf") else -1.0)


# --- who knows what --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [*SETTINGS, {"players": 7, "doctor": True, "talk": "text"}], ids=str)
def test_nobody_learns_which_of_two_others_has_which_role(settings: dict[str, Any]) -> None:
    """Two players of different roles change roles. At night the same is done by the new holders of the roles, and by
    day everybody says and votes the same: then nobody else can tell the two deals apart, as long as both are alive."""
    config, compared = werewolf(**settings), 0
    one, other = config.build(), config.build()
    for seed in range(40):
        rng = random.Random(seed)
        one.reset(seed)
        pairs = [pair for pair in combinations(one.seats, 2) if one.roles[pair[0]] != one.roles[pair[1]]]
        first, second = rng.choice(pairs)
        names = dict(one.name_of)
        names[first], names[second] = names[second], names[first]
        other.reset(seed, {"names": " ".join(names.values())})
        blind = [agent for agent in one.seats if agent not in (first, second)]
        # A werewolf knows its own, and the seer learns who is one.
        if "werewolf" in (one.roles[first], one.roles[second]):
            blind = [agent for agent in blind if one.roles[agent] not in ("werewolf", "seer")]
        swapped = {one.name_of[first], one.name_of[second]}
        while not over(one) and swapped <= {*one.alive}:
            for agent in blind:
                assert text(one, agent) == text(other, agent)
                told = ("legal", "hears", "state", "attempt", "examples", "rules")
                ours, theirs = one.infos[agent], other.infos[agent]
                assert not (ours and theirs) or [ours.get(f) for f in told] == [theirs.get(f) for f in told]
                compared += 1
            common = [move for move in moves_of(one) if move in moves_of(other)]
            if one._turns[0][1] in NIGHT:
                assert one.roles[one.agent_selection] == other.roles[other.agent_selection]
                # The answer of the seer, or a death, may reveal the role of one of the two.
                common = [move for move in common if move.split(" ")[-1] not in swapped]
            else:
                assert one.name_of[one.agent_selection] == other.name_of[other.agent_selection]
            if not common:
                break
            move = rng.choice(common)
            one.step(move)
            other.step(move)
    assert compared > 100


def test_whispers_are_read_by_two_players_after_all_have_whispered() -> None:
    game = played("kill eve", "inspect ben", whispers=True)
    assert game.infos["villager_0"]["together"] == ("villager_0", "werewolf_0", "villager_1", "seer")
    before = [text(game, agent) for agent in ("seer", "werewolf_0", "villager_1")]
    game.step("tell dan : I am a villager")
    assert before == [text(game, agent) for agent in ("seer", "werewolf_0", "villager_1")]
    for move in ("nothing", "nothing", "tell ann : ben is a werewolf"):
        game.step(move)
    assert "ann to you : I am a villager" in text(game, "seer")
    assert "dan to you : ben is a werewolf" in text(game, "villager_0")
    assert "you to dan : I am a villager" in text(game, "villager_0")
    assert "to you" not in text(game, "werewolf_0") + text(game, "villager_1")


def test_private_messages_are_edges_of_the_graph_to_those_who_read_them_alone() -> None:
    config = werewolf(players=7, doctor=True, whispers=True)
    simulator = make_simulator(config, Random().build(None))
    readers: dict[str, set[str]] = {"kill": set(), "inspect": set(), "tell": set()}
    for trajectory in simulator.play([make_deal(f"e{seed}", config, seed) for seed in range(8)]):
        for turn in trajectory.turns:
            said = turn.request.messages[-1].content
            for source_id in trajectory.graph.predecessors(turn.id):
                source = trajectory.graph.nodes[source_id]["turn"]
                verb, *others = (source.action or "").split(" ")
                # All read who died, but only werewolves read the proposals.
                if verb == "inspect" or (verb == "kill" and f"at night : {source.action}" in said):
                    readers[verb].add(turn.agent)
                elif verb == "tell":
                    assert f"to you : {' '.join(others[2:])}" in said or f"you to {' '.join(others)}" in said
                    readers[verb].add(turn.agent)
    assert readers["kill"] == {"werewolf_0", "werewolf_1"}
    assert readers["inspect"] == {"seer"}
    assert len(readers["tell"]) == 7


# --- scripted players and settings ------------------------------------------------------------------------------------


def win_rate(villagers: WerewolfPlayer | None, wolves: WerewolfPlayer | None, games: int = 250) -> float:
    """Return the share of games that the village wins; None plays at random."""
    game, rng, wins = werewolf().build(), random.Random(0), 0
    for seed in range(games):
        game.reset(seed)
        while not over(game):
            agent, moves = game.agent_selection, moves_of(game)
            player = wolves if game.roles[agent] == "werewolf" else villagers
            chances = (
                player.move_probabilities(game.infos[agent]["state"], moves) if player else dict.fromkeys(moves, 1.0)
            )
            game.step(rng.choices(list(chances), list(chances.values()))[0])
        wins += game.winner == "village"
    return wins / games


def test_scripted_players_beat_random_ones_and_lies_pay_a_werewolf() -> None:
    honest, liar = WerewolfPlayer(), WerewolfPlayer(lies=True)
    # Five players, 250 games: a standard error of at most .032.
    random_play, against_random, honest_play = win_rate(None, None), win_rate(honest, None), win_rate(honest, honest)
    assert random_play < against_random
    assert honest_play > win_rate(honest, liar) + 0.1
    assert honest_play > random_play + 0.1


@pytest.mark.parametrize(
    ("said", "imitations"),
    [
        ("nothing", {"nothing": 1.0}),
        ("I am the seer", {"I am the seer": 1.0}),
        # ben, the werewolf, names ann, cleo and dan with the same probability.
        ("ben is a werewolf", {f"{name} is a werewolf": 1 / 3 for name in ("ann", "cleo", "dan")}),
        ("cleo is no werewolf", {f"{name} is no werewolf": 1 / 3 for name in ("ann", "cleo", "dan")}),
    ],
)
def test_a_werewolf_that_imitates_says_the_same_about_others(said: str, imitations: dict[str, float]) -> None:
    game = played("kill eve", "inspect ben", said)
    assert game.agent_selection == "werewolf_0"
    player = werewolf().reference_players()["mimic"]
    assert isinstance(player, WerewolfPlayer)
    state = str(game.infos["werewolf_0"]["state"])
    probabilities = player.move_probabilities(state, moves_of(game))
    assert {move: value for move, value in probabilities.items() if value} == pytest.approx(imitations)


def test_a_werewolf_that_imitates_says_nothing_if_it_speaks_first() -> None:
    accusation = "cleo is a werewolf"
    first_day = (accusation, accusation, "nothing", accusation, *("vote nobody",) * 4)
    game = played("kill eve", "inspect ben", *first_day, "kill cleo", "inspect ann")
    assert game.agent_selection == "werewolf_0"
    state = str(game.infos["werewolf_0"]["state"])
    # The accusations of the day before are not imitated.
    probabilities = WerewolfPlayer(imitates=True).move_probabilities(state, moves_of(game))
    assert probabilities["nothing"] == 1


class SilentAccuserHunter(WerewolfPlayer):
    """Says nothing, and votes for a player who accused another."""

    def move_probabilities(self, state: str, moves: tuple[str, ...]) -> dict[str, float]:
        accusers = re.findall(r"^(\w+) : \w+ is a werewolf$", state, re.MULTILINE)
        chosen = [move for move in moves if move in {f"vote {name}" for name in accusers}] or list(moves)
        return {NOTHING: 1.0} if NOTHING in moves else {move: 1 / len(chosen) for move in chosen}


def test_silent_villages_find_every_werewolf_that_accuses_but_not_one_that_imitates() -> None:
    hunter = SilentAccuserHunter()
    assert win_rate(hunter, WerewolfPlayer(lies=True)) == 1
    assert win_rate(hunter, WerewolfPlayer(imitates=True)) < 0.3


def test_rules_tell_the_settings() -> None:
    rules = werewolf(players=7, doctor=True, talk="text", max_words=12, word_cost=0.01, whispers=True).build().rules
    for words in ("2 werewolf, 1 seer, 1 doctor, 3 villager", "at most 12 words", "costs you 0.01", "`tell ann : ...`"):
        assert words in rules
    assert "doctor" not in werewolf().build().rules


def test_a_drawing_shows_what_the_agent_knows() -> None:
    game = played("kill eve", "inspect ben")
    picture = werewolf().render_state(str(game.infos["villager_0"]["state"]))
    assert picture.rows == (("ann", "ben", "cleo", "dan", "eve"), ("you: a villager", "?", "?", "?", "dead"))
    assert werewolf().render_state(text(game, "seer")).rows[1][1] == "a werewolf"
    assert werewolf().render_state(text(game, "werewolf_0")).rows[1][1] == "you: a werewolf"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"players": 4}, "players"),
        ({"players": 10}, "players"),
        ({"werewolves": 2}, "werewolves: 2 of 5 players; choices: 1 to 1"),
        ({"word_cost": 0.5}, "word_cost"),
        ({"talk": "song"}, "talk"),
    ],
    ids=str,
)
def test_impossible_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        werewolf(**settings)


@pytest.mark.parametrize("names", ["ann ben", "ann ben cleo dan dan", 5, "ann ben cleo dan zoe"], ids=str)
def test_impossible_names_are_named(names: object) -> None:
    with pytest.raises(ValueError, match=r"werewolf: option names: .* choices: 'ann ben cleo dan eve' in any order"):
        werewolf().build().reset(0, {"names": names})


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "settings",
    [*SETTINGS, {"talk": "text"}, {"illegal": {"retry": 1, "then": "penalty"}}, {"illegal": {"then": "random"}}],
    ids=str,
)
def test_it_is_an_ordinary_pettingzoo_environment(settings: dict[str, Any]) -> None:
    config = werewolf(**settings)
    api_test(config.build(), num_cycles=60)
    seed_test(config.build, num_cycles=40)
