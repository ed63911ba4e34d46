"""Scenarios of other libraries' games: rules in words, moves with names, illegal moves that may be repeated."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from marl.core.types import Deal
from marl.games.base import TextGame
from marl.protocols import Game
from marl.roles.answering import PlayerRole
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.episode import Episode
from marl.scenario.load import load

WRAPPED = Path(__file__).parents[2] / "scenarios" / "wrapped"
FILES = sorted(WRAPPED.glob("*.yaml"))
MOVES = {
    "battleship": r"(across|down) from \(\d, \d\)|shoot at \(\d, \d\)",
    "battleship_textarena": r"[a-e][0-4]",
    "blotto": r"\(\d,\d,\d\)",
    "colonel_blotto": r"A\d B\d C\d",
    "first_sealed_auction": r"bid \d",
    "hanabi_openspiel": r"(Play|Discard) \d|Reveal player \+1 (color [RY]|rank [123])",
    "tiny_bridge": r"Pass|[12](H|S|NT)",
    "ultimate_tic_tac_toe": r"[0-8] [0-8]",
    "universal_poker": r"Fold|Call|Bet|AllIn|HalfPot",
}
"""Scenario -> regular expression of its moves."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_agents_read_rules_that_explain_every_kind_of_move_in_play(file: Path) -> None:
    game = load(file, (), random_play=True).game.build()
    assert isinstance(game, TextGame)
    rng, examples = random.Random(0), set[str]()
    for seed in range(3):
        game.reset(seed)
        for _ in range(60):
            if any(game.terminations.values()):
                break
            info = game.infos[game.agent_selection]
            assert len(info.get("rules", "").split()) > 60
            for move in info["legal"] or ():
                assert re.fullmatch(MOVES[file.stem], move)
                examples.add(re.sub("[a-e]#", "a#", re.sub(r"\d", "#", move)))
            game.step(rng.choice(info["legal"] or ("",)))
    quoted = re.sub(r"\d", "#", game.rules)
    # A move, or its first word, occurs in the rules: `shoot at (0, 1)`, `Pass`, `A4 B1 C1`.
    assert {move for move in examples if move not in quoted and move.split()[0] not in quoted} == set()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_model_that_follows_instructions_reads_rules_and_moves_and_may_repeat_an_illegal_move(file: Path) -> None:
    scenario = load(file, (), random_play=True)
    game: Game = scenario.game.build()
    role = PlayerRole(policy="actor").with_default_prompts(understands_instructions=True)
    episode = Episode(game, Deal("a", "a", 0, scenario.seats, "eval"), RoleRequestBuilder({"player": role}, 0))
    agent, request = next(iter(episode.take_new_requests()))
    instructions, situation = [message.content for message in request.messages]
    assert game.infos[agent].get("rules", "") in instructions
    assert f"[{(game.infos[agent]['legal'] or ('',))[0]}]" in situation
    episode.force_action(None)
    assert not episode.done
    _, again = next(iter(episode.take_new_requests()))
    assert "named no legal move" in again.messages[-1].content


def test_every_scenario_of_a_wrapped_game_is_tested() -> None:
    assert {file.stem for file in FILES} == {*MOVES}
