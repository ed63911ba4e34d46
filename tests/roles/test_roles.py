"""Prompts of player roles, and the moves that they parse."""

import pytest

from marl.core.types import Message
from marl.roles.answering import PlayerRole
from tests.support.role_views import make_turn, make_view


@pytest.mark.parametrize(
    ("text", "move"),
    [
        ("[bet]", "bet"),
        ("I think... [ Bet ]!", "bet"),
        ("[bet] yes, [BET]", "bet"),
        ("[bet] or [check]", None),
        ("bet", None),
        ("[fold]", None),
        ("", None),
        ("[]", None),
        ("[bet", None),
        ("[hm] [bet]", "bet"),
    ],
)
def test_a_player_names_exactly_one_legal_move_in_brackets(text: str, move: str | None) -> None:
    assert PlayerRole(policy="actor").parse(text, ("bet", "check")) == move


def test_a_move_is_handed_to_the_game_as_the_game_spells_it() -> None:
    player = PlayerRole(policy="actor")
    assert player.parse("[nf3]", ("Nf3", "e4")) == "Nf3"
    for move in ("Nf3", "e4", "O-O", "Take 2"):
        assert player.parse(player.phrase(move), ("Nf3", "e4", "O-O", "Take 2")) == move


def test_free_text_keeps_its_letters_and_silence_is_no_move() -> None:
    player = PlayerRole(policy="actor")
    assert player.parse("It is [Paris].", None) == "Paris"
    assert player.parse("[ ]", None) is None
    assert player.parse("[a] [b]", None) is None


def test_instructions_are_a_system_message_and_the_prompt_a_user_message() -> None:
    role = PlayerRole(
        policy="actor", instructions="You are {{ agent }}.", prompt="{{ observation }}: {{ legal | join(' ') }}"
    )
    assert role.messages(make_view()) == (Message("system", "You are player_0."), Message("user", "pile 3: 1 2"))
    assert PlayerRole(policy="actor").messages(make_view()) == (Message("user", "pile 3"),)


def test_a_copy_with_another_prompt_says_the_other_prompt() -> None:
    role = PlayerRole(policy="actor")
    role.messages(make_view())
    assert role.model_copy(update={"prompt": "?"}).messages(make_view()) == (Message("user", "?"),)
    assert role == PlayerRole(policy="actor")


def test_a_prompt_can_hold_what_was_heard() -> None:
    role = PlayerRole(policy="actor", prompt="{% for t in heard %}{{ t.agent }}: {{ t.text }} {% endfor %}")
    assert role.messages(make_view(new_turns=[make_turn("player_1", "[1]")]))[0].content.strip() == "player_1: [1]"
    assert role.messages(make_view(new_turns=[make_turn("player_1", "[2]")]))[0].content.strip() == "player_1: [2]"


def test_a_role_that_appends_goes_on_from_its_last_turns_tokens() -> None:
    role = PlayerRole(policy="actor", history="append", instructions="Rules.")
    first, later = make_view(), make_view(own_turns=[make_turn("player_0", "[1]")])
    assert (role.continued_ids(first), role.continued_ids(later)) == ((), (1, 2, 3))
    assert [m.role for m in role.messages(first)] == ["system", "user"]
    assert [m.role for m in role.messages(later)] == ["user"]
    assert PlayerRole(policy="actor").continued_ids(later) == ()


@pytest.mark.parametrize("template", ["{{ observaton }}", "{% if x %}", "{{ heared }}"])
def test_a_template_that_cannot_work_is_refused_before_anything_is_loaded(template: str) -> None:
    with pytest.raises(ValueError, match=r"observation|heard|jinja2"):
        PlayerRole(policy="actor", prompt=template)
