"""Thoughts are kept to those who had them, unless their role shows them; rule-bound seats judge the whole text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from marl.core.graph import Trajectory
from marl.core.types import Completion, Deal
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.protocols import RoleConfig
from marl.roles.answering import PlayerRole
from marl.roles.rule_based import VerifierRole
from tests.support.small_games import FunctionEngine, make_simulator, random_move

THOUGHT = "<think>a secret [bet]</think>"
HEARD = "{% for turn in heard %} heard {{ turn.text }}{% endfor %}"
PROMPT = "{{ observation }}" + HEARD + "{% for text in mine %} I {{ text }}{% endfor %}"


def played(roles: Mapping[str, RoleConfig], seats: Mapping[str, str]) -> list[Trajectory]:
    """Return games in which everybody thinks before a move."""
    voice = FunctionEngine(lambda request: THOUGHT + random_move(request))
    return make_simulator(KuhnPokerConfig(), voice, **roles).play([Deal(f"{i}", f"{i}", i, seats) for i in range(12)])


def prompts(thinking: str) -> list[str]:
    roles = {name: PlayerRole(policy="actor", prompt=PROMPT, thinking=thinking) for name in ("one", "two")}  # type: ignore[arg-type]
    games = played(roles, {"player_0": "one", "player_1": "two"})
    assert all(turn.completion.text.startswith(THOUGHT) for game in games for turn in game.turns), "it is recorded"
    assert all(turn.action for game in games for turn in game.turns), "a move named in a thought does not count"
    return [turn.request.messages[-1].content for game in games for turn in game.turns if turn.id[1] > 0]


def test_thoughts_are_cut_out_of_what_others_hear_and_of_what_a_prompt_repeats() -> None:
    assert all("heard [" in prompt and "secret" not in prompt for prompt in prompts("hide"))
    assert any("I [check]" in prompt for prompt in prompts("hide"))


def test_a_role_may_show_its_thoughts() -> None:
    assert all(f"heard {THOUGHT}[" in prompt for prompt in prompts("show"))


def test_a_verifier_hears_the_whole_text() -> None:
    roles = {"one": PlayerRole(policy="actor"), "check": VerifierRole(policy="actor")}
    games = played(roles, {"player_0": "one", "player_1": "check"})
    assert all(game.turns[1].request.messages[0].content.startswith(THOUGHT) for game in games)


@pytest.mark.parametrize("text", [" a\n", "think", "a </b> ", ""])
def test_a_text_without_thoughts_is_heard_as_it_is(text: str) -> None:
    said: Any = FunctionEngine(lambda request: text + "[check]" if "check" in str(request.options) else "[fold]")
    roles = {name: PlayerRole(policy="actor", prompt=PROMPT) for name in ("one", "two")}
    [game] = make_simulator(KuhnPokerConfig(), said, **roles).play(
        [Deal("a", "a", 1, {"player_0": "one", "player_1": "two"})]
    )
    assert game.turns[1].request.messages[-1].content.endswith(f"heard {text}[check]")
    assert isinstance(game.turns[1].completion, Completion)
