"""Text from outside."""

from __future__ import annotations

from marl.text import for_terminal, well_formed


def test_lone_surrogates_become_replacement_characters_and_nothing_else_changes() -> None:
    assert well_formed("a\ud800b\udfff") == "a\ufffdb\ufffd"
    assert well_formed("😀 é\x1b") == "😀 é\x1b"


def test_a_terminal_sees_control_characters_spelled_out() -> None:
    assert for_terminal("\x1b[31mred\x9b2J\r\x07") == r"\x1b[31mred\x9b2J\x0d\x07"
    assert for_terminal("a\tb\nc é 😀") == "a\tb\nc é 😀"
    assert for_terminal("\u202egnp.exe\ud800") == r"\u202egnp.exe\ud800"
