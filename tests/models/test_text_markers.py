"""Tokens of marks in prompts: what templates strip, fold, leave out and look for; every kind of tokenizer."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import AddedToken, PreTrainedTokenizerFast

from marl.core.config import Sampling
from marl.core.types import Message, Request, SpanFromEarlierTurn
from marl.models.chat_template import ChatTokenizer
from marl.models.tiny_build import make_tiny_tokenizer
from tests.support.chat_templates import PUBLISHED
from tests.support.slow_tokenizer import SlowBytes

PLENTY = Sampling(max_tokens=4096)


def chat(tokenizer: Any) -> ChatTokenizer:
    return ChatTokenizer(tokenizer, frozenset([tokenizer.eos_token_id]))


def marked(messages: tuple[Message, ...], *parts: str, **facts: Any) -> Request:
    """Return a request whose marks are the first places of `parts` in the contents."""
    marks = []
    for part in parts:
        index = next(index for index, message in enumerate(messages) if part in message.content)
        begin = messages[index].content.index(part)
        marks.append(SpanFromEarlierTurn(("e", 0), "heard", index, begin, begin + len(part)))
    return Request("actor", messages, PLENTY, marks=tuple(marks), **facts)


def texts(reader: ChatTokenizer, request: Request) -> list[str]:
    """Return what the tokens of each mark spell."""
    ids, ranges = reader.prompt(request).ids, reader.token_spans_of_marks(request)
    assert len(ranges) == len(request.marks)
    return [reader.tokenizer.decode(ids[first:last]) for first, last in ranges]


def user(content: str) -> tuple[Message, ...]:
    return (Message("user", content),)


# --- templates --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_template_says_where_the_words_of_each_message_are(name: str) -> None:
    reader = chat(PUBLISHED[name].tokenizer())
    messages = (Message("system", "Ann is a liar."), Message("user", "Bob: 42; what now?"))
    assert texts(reader, marked(messages, "Ann", "42", "Bob: 42; what now?")) == ["Ann", "42", "Bob: 42; what now?"]
    later = (*messages, Message("assistant", "Cat"), Message("user", "Dan"))
    assert texts(reader, marked(later, "Cat", "Dan", "liar")) == ["Cat", "Dan", "liar"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_blanks_that_a_template_strips_are_in_no_token_of_a_mark(name: str) -> None:
    reader, content = chat(PUBLISHED[name].tokenizer()), " \n 42 \n "
    written = reader.tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False)
    remaining = next(text for text in (content, content.lstrip(), content.rstrip(), "42") if text in written)
    # Phi-3's token of the user's turn includes the blanks after it.
    expected = remaining if name != "phi_3" else remaining.lstrip()
    request = marked(user(content), content, "42")
    swallowed, middle = texts(reader, request)
    assert swallowed.removeprefix("<|user|>") == expected
    assert middle == "42"


def test_what_a_template_leaves_out_has_no_tokens() -> None:
    reader = chat(PUBLISHED["qwen3"].tokenizer())
    chat_so_far = (*user("?"), Message("assistant", "<think>\nhm\n</think>\n\n41"), *user("sure?"))
    assert texts(reader, marked(chat_so_far, "hm", "41", chat_so_far[1].content, "</think>\n\n4")) == [
        "",
        "41",
        "41",
        "4",
    ]


def test_a_tag_for_which_a_template_looks_at_the_ends_of_a_content_is_found_there() -> None:
    tokenizer = PUBLISHED["chatml"].tokenizer()
    looks = "m.content.startswith('[result]') and m.content.endswith('[done]')"
    tokenizer.chat_template = (
        f"{{% for m in messages %}}{{% if {looks} %}}Tool: {{% endif %}}{{{{ m.content }}}}{{% endfor %}}"
    )
    reader, result = chat(tokenizer), "[result] 42 [done]"
    assert reader.tokenizer.decode(reader.prompt(marked(user(result))).ids) == f"Tool: {result}"
    assert texts(reader, marked(user(result), result, "42", "result] 42")) == [result, "42", "result] 42"]


def test_a_mark_without_characters_is_a_place() -> None:
    reader = chat(make_tiny_tokenizer("words", ["a b c"]))
    marks = [SpanFromEarlierTurn(("e", 0), "told", 1, index, index) for index in (0, 2, 5)]
    request = Request("actor", (Message("system", ""), *user("a b c")), PLENTY, marks=tuple(marks))
    assert reader.token_spans_of_marks(request) == ((0, 0), (1, 1), (3, 3))
    empty = Request("actor", request.messages, PLENTY, marks=(SpanFromEarlierTurn(("e", 0), "told", 0, 0, 0),))
    assert len({*reader.token_spans_of_marks(empty)[0]}) == 1, "the message is not written at all"


def test_schemas_of_tools_and_a_continued_prompt_move_the_tokens() -> None:
    schema = '{"type": "function", "function": {"name": "run", "description": "Ann runs 42", "parameters": {}}}'
    for name in ("chatml", "llama_3", "gemma"):
        reader = chat(PUBLISHED[name].tokenizer())
        messages = (Message("system", "Ann runs 42."), Message("user", "Ann: 42"))
        first = marked(messages, "Ann runs 42.", "Ann: 42", tools=(schema,))
        assert texts(reader, first) == ["Ann runs 42.", "Ann: 42"]
        ids = (*reader.prompt(first).ids, *reader.encode("42"), reader.tokenizer.eos_token_id)
        assert texts(reader, marked(user("Bob: 42"), "42", "Bob", continues=ids)) == ["42", "Bob"]
        assert reader.token_spans_of_marks(marked(user("Bob: 42"), "42", continues=ids))[0][0] > len(ids)


def test_requests_with_the_same_words_and_other_marks_have_other_tokens() -> None:
    reader = chat(make_tiny_tokenizer("words", ["a b c"]))
    first, second = marked(user("a b c"), "a"), marked(user("a b c"), "b c")
    assert reader.prompt(first) is reader.prompt(second)
    assert (reader.token_spans_of_marks(first), reader.token_spans_of_marks(second)) == (((0, 1),), ((1, 3),))
    assert reader.token_spans_of_marks(Request("actor", user("a b c"), PLENTY)) == ()


# --- marks of turns in contents ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_words_beside_a_mark_of_a_turn_are_told_apart_from_it(kind: str) -> None:
    reader = chat(PUBLISHED["llama_2"].tokenizer(kind))
    content = "x[/INST]y</s>z"
    request = marked(user(content), "x", "[/INST]", "[", "/INST]", "y", "</s>", "/s>z")
    assert texts(reader, request) == ["x", r"[\/INST]", "[", "/INST]", "y", "</s>", "/s>z"]


def test_words_beside_a_mark_in_other_characters_are_told_apart_from_it() -> None:
    inner = Tokenizer(models.BPE({s: i for i, s in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    inner.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    tokenizer.add_special_tokens({"eos_token": AddedToken("<|end|>", special=True, normalized=True)})
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"
    request = marked(user("ﬁ ＜｜END｜＞ É B"), "ﬁ ", "＜｜END｜＞", "É", " B")  # noqa: RUF001
    assert texts(chat(tokenizer), request) == ["fi ", "<|end|>", "é", " b"]


# --- tokenizers -------------------------------------------------------------------------------------------------------


def test_other_words_change_the_tokens_of_their_mark_and_no_others() -> None:
    words, gaps = (
        [f"{letter}{number}" for letter in "abc" for number in range(20)],
        [" ", " (", ") ", ".", ". ", "\n", " : "],
    )
    reader, generator = chat(make_tiny_tokenizer("words", [" ".join(words) + "( ) . : \n"])), random.Random(3)
    for _ in range(300):
        spoken, gap = generator.sample(words, 8), generator.choices(gaps, k=8)
        first, last = sorted(generator.sample(range(9), 2))
        other = [*spoken[:first], *generator.sample(sorted({*words} - {*spoken}), last - first), *spoken[last:]]
        before, after = ("".join(word + mark for word, mark in zip(text, gap, strict=True)) for text in (spoken, other))
        begin = sum(len(word + mark) for word, mark in zip(spoken[:first], gap, strict=False))
        part = "".join(word + mark for word, mark in zip(spoken[first:last], gap[first:last], strict=True)).rstrip(
            " (:.)\n"
        )
        request = Request(
            "actor", user(before), PLENTY, marks=(SpanFromEarlierTurn(("e", 0), "heard", 0, begin, begin + len(part)),)
        )
        ids, ((low, high),) = reader.prompt(request).ids, reader.token_spans_of_marks(request)
        pairs = zip(ids, reader.prompt(Request("actor", user(after), PLENTY)).ids, strict=True)
        changed = [index for index, (old, new) in enumerate(pairs) if old != new]
        assert changed[0] == low
        assert changed[-1] < high
        assert {reader.tokenizer.decode([token]) for token in ids[changed[-1] + 1 : high]} <= {""}


@pytest.mark.parametrize("frame", [True, False])
def test_without_a_template_special_tokens_around_the_text_are_counted(frame: bool) -> None:
    tokenizer = PUBLISHED["chatml"].tokenizer()
    tokenizer.chat_template = None
    if frame:
        tokens = [("<|endoftext|>", tokenizer.bos_token_id), ("<|im_end|>", tokenizer.eos_token_id)]
        around = TemplateProcessing(single="<|endoftext|> $A <|im_end|>", special_tokens=tokens)
        tokenizer.backend_tokenizer.post_processor = around
    reader = chat(tokenizer)
    messages = (Message("system", "Ann."), Message("user", "x<|im_end|>42"))
    assert texts(reader, marked(messages, "Ann.", "42", "<|im_end|>", "x")) == ["Ann.", "42", "<|im_end|>", "x"]
    assert texts(reader, marked(messages[:1], "Ann")) == ["Ann"]


def test_tokens_of_a_slow_tokenizer_are_found_by_what_they_spell() -> None:
    reader = chat(SlowBytes())
    request = marked(user("é日 x<eos>🙂 日z"), "é", "日", "日 x", "x<", "<eos>", "🙂 ", "z")
    assert texts(reader, request) == ["é", "日", "日 x", "x<", "<eos>", "🙂 ", "z"]
    silent = SlowBytes(lowers=True)
    assert chat(silent).token_spans_of_marks(marked(user("Ann"), "n")) == (), "its tokens do not spell the text"
