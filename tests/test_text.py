"""Text from outside."""

from __future__ import annotations

from marl.host.untrusted_text import escape_for_terminal, replace_surrogates


def test_lone_surrogates_become_replacement_characters_and_nothing_else_changes() -> None:
    assert replace_surrogates("a\ud800b\udfff") == "a\ufffdb\ufffd"
    assert replace_surrogates("😀 é\x1b") == "😀 é\x1b"


def test_a_terminal_sees_control_characters_spelled_out() -> None:
    assert escape_for_terminal("\x1b[31mred\x9b2J\r\x07") == r"\x1b[31mred\x9b2J\x0d\x07"
    assert escape_for_terminal("a\tb\nc é 😀") == "a\tb\nc é 😀"
    assert escape_for_terminal("\u202egnp.exe\ud800") == r"\u202egnp.exe\ud800"
