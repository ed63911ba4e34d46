"""Segments of a completion: where each ends, in tokens and in the text."""

from __future__ import annotations

import pytest

from marl.core.config import Segments
from marl.models.chat_template import ChatTokenizer
from marl.models.segment_tokens import find_segment_ends
from marl.models.tiny_build import make_tiny_tokenizer
from marl.text.segments import segment_end_offsets


def pieces(text: str, **settings: object) -> list[str]:
    """Return the segments of `text`."""
    ends = segment_end_offsets(text, Segments(**settings))  # type: ignore[arg-type]
    return [text[begin:end] for begin, end in zip((0, *ends), ends, strict=False)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\nc", ["a\n", "b\n", "c"]),
        ("a\nb\n", ["a\n", "b\n"]),
        ("\n\na\n \n\nb", ["\n\na\n \n\n", "b"]),
        ("one line", ["one line"]),
        ("", [""]),
        (" \n ", [" \n "]),
    ],
)
def test_lines_end_at_line_breaks_and_blank_lines_belong_to_the_line_before(text: str, expected: list[str]) -> None:
    assert pieces(text, by="line") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is 3.14. So what? Yes!", ["It is 3.14.", " So what?", " Yes!"]),
        ('He said "no." Then he left.', ['He said "no."', " Then he left."]),
        ("Title\nText. More", ["Title\n", "Text.", " More"]),
        ("\u5929\u3002\u5730\u3002", ["\u5929\u3002", "\u5730\u3002"]),
        ("...", ["..."]),
    ],
)
def test_sentences_end_at_marks_before_a_blank_and_at_line_breaks(text: str, expected: list[str]) -> None:
    assert pieces(text, by="sentence") == expected


def test_a_closing_tag_ends_a_segment() -> None:
    assert pieces("<step>a</step>\n<step>b</step> c", by="tag") == ["<step>a</step>", "\n<step>b</step>", " c"]
    assert pieces("a</s>b", by="tag", tag="s") == ["a</s>", "b"]
    assert pieces("a</s>b", by="tag") == ["a</s>b"]


@pytest.mark.parametrize("text", ["a" * 200_000, " " * 200_000, "." * 200_000, '."' * 100_000, "\n" * 200_000])
def test_hostile_texts_are_divided_in_linear_time(text: str) -> None:
    for by in ("line", "sentence", "tag"):
        assert "".join(pieces(text, by=by)) == text


def ends_of(text: str, kind: str, cut: str = "", **settings: object) -> tuple[list[str], tuple[int, ...]]:
    """Return the texts of a completion's segments, and the index of the last token of each."""
    chat = ChatTokenizer(make_tiny_tokenizer(kind), frozenset())  # type: ignore[arg-type]
    ids = (*chat.encode(text), chat.tokenizer.eos_token_id)
    read = chat.truncate_at_stop_text((cut,), chat.text(ids)) if cut else chat.text(ids)
    ends = find_segment_ends(chat, Segments(**settings), ids, read)  # type: ignore[arg-type]
    assert ends.last_tokens[-1] == len(ids) - 1
    texts = [read[begin:end] for begin, end in zip((0, *ends.offsets), ends.offsets, strict=False)]
    begins = [0, *[last + 1 for last in ends.last_tokens[:-1]]]
    decoded = [chat.text(ids[begin : last + 1]) for begin, last in zip(begins, ends.last_tokens, strict=True)]
    if not cut:
        assert [piece.strip() for piece in decoded] == [piece.strip() for piece in texts]
    return texts, ends.last_tokens


def test_the_end_token_belongs_to_the_last_segment() -> None:
    assert ends_of("ab\ncd\n", "bytes", by="line") == (["ab\n", "cd\n"], (2, 6))


def test_a_character_of_several_tokens_is_never_divided() -> None:
    text = "\u5929\u3002\u5730\u3002"  # 3 bytes each, one token a byte
    assert ends_of(text, "bytes", by="sentence") == (["\u5929\u3002", "\u5730\u3002"], (5, 12))


def test_segments_of_n_tokens_end_after_every_nth_token() -> None:
    assert ends_of("abcdefg", "bytes", by="tokens", length=3) == (["abc", "def", "g"], (2, 5, 7))


def test_an_end_token_alone_is_no_segment() -> None:
    assert ends_of("abcdef", "bytes", by="tokens", length=3) == (["abc", "def"], (2, 6))


def test_text_behind_a_stop_text_belongs_to_the_last_segment() -> None:
    assert ends_of("a\nb\nSTOP\nc\nd", "bytes", cut="STOP", by="line") == (["a\n", "b\n"], (1, 12))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [({"by": "line", "tag": "s"}, "tag: 's' has no effect with by: line"), ({"by": "tag", "length": 3}, "length: 3")],
)
def test_settings_of_another_division_are_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Segments(**settings)  # type: ignore[arg-type]
