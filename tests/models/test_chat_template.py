"""Prompts of real chat templates: system messages, thoughts, the templates' own variables, and what users are told."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import pytest

from marl.core.config import Sampling
from marl.core.errors import UserNotice
from marl.core.types import Message, Request
from marl.core.watchdog import CallTimeoutError
from marl.models import chat_template
from marl.models.adapter import Adapter
from marl.models.bounded_chat_template import render_chat_template
from marl.models.chat_template import ChatTokenizer
from marl.models.pretrained import Pretrained, PretrainedSource
from marl.models.template_defaults import add_variable_defaults
from marl.models.tiny_build import make_tiny_tokenizer
from tests.support.chat_templates import PUBLISHED
from tests.support.transformers_engines import CONTEXT

HELLO = [{"role": "user", "content": "?"}]
_USUAL = Sampling()
ASKED = (Message("system", "Be brief."), Message("user", "How many?"))


def chat(name: str) -> ChatTokenizer:
    tokenizer = PUBLISHED[name].tokenizer()
    return ChatTokenizer(tokenizer, frozenset([tokenizer.eos_token_id]))


def prompt_text(reader: ChatTokenizer, *messages: Message, sampling: Sampling = _USUAL) -> str:
    return reader.tokenizer.decode(reader.prompt(Request("actor", messages, sampling)).ids)


def rendered(published: str, **variables: object) -> str:
    tokenizer = PUBLISHED[published].tokenizer()
    tokenizer.chat_template = add_variable_defaults(tokenizer.chat_template, variables)
    return tokenizer.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=True)


@pytest.fixture
def folder(words: PretrainedSource, tmp_path: Path) -> Path:
    """A model with the template of Qwen3."""
    folder_copy = Path(shutil.copytree(words.path, tmp_path / "model"))
    (folder_copy / "chat_template.jinja").write_text(PUBLISHED["qwen3"].template)
    return folder_copy


# --- system messages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_instructions_reach_the_model_through_every_template(name: str) -> None:
    text = prompt_text(chat(name), *ASKED)
    assert "Be brief." in text
    assert "How many?" in text
    assert chat(name).supports_system_message == PUBLISHED[name].system


@pytest.mark.parametrize("name", ["gemma", "mistral"])
def test_a_system_message_that_a_template_refuses_begins_the_users(name: str) -> None:
    both = Message("user", "Be brief.\n\nHow many?")
    assert prompt_text(chat(name), *ASKED) == prompt_text(chat(name), both)
    answer = Message("assistant", "Two.")
    assert chat(name).encode_conversation([*ASKED, answer]) == chat(name).encode_conversation([both, answer])


def test_a_system_message_that_a_template_leaves_out_begins_the_users() -> None:
    reader = chat("chatml")
    reader.tokenizer.chat_template = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    assert prompt_text(reader, *ASKED) == "Be brief.\n\nHow many?"


# --- variables of templates -------------------------------------------------------------------------------------------


def test_a_template_has_the_values_that_it_was_given_unless_its_caller_gives_others() -> None:
    closed = "<think>\n\n</think>\n\n"
    assert rendered("qwen3", enable_thinking=False).endswith(closed)
    assert not rendered("qwen3", enable_thinking=True).endswith(closed)
    tokenizer = PUBLISHED["qwen3"].tokenizer()
    once = add_variable_defaults(tokenizer.chat_template, {"enable_thinking": False})
    for template in (once, add_variable_defaults(once, {"enable_thinking": False})):
        tokenizer.chat_template = template
        text = tokenizer.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=True, enable_thinking=True)
        assert not text.endswith(closed)
    assert add_variable_defaults(add_variable_defaults(once, {"enable_thinking": True}), {}).count("else true") == 1


@pytest.mark.parametrize("name", sorted(PUBLISHED.keys() - {"qwen3"}))
def test_a_template_that_reads_no_such_variable_stays_as_it_is(name: str) -> None:
    assert add_variable_defaults(PUBLISHED[name].template, {"enable_thinking": False}) == PUBLISHED[name].template


def test_values_of_every_kind_reach_the_template() -> None:
    values = {"a": None, "b": [True, 1.5], "c": {"d'": 'e"\n'}, "f": "{{ g }}"}
    tokenizer = PUBLISHED["chatml"].tokenizer()
    tokenizer.chat_template = add_variable_defaults("{{ [a, b, c, f] | tojson }}", values)
    assert json.loads(tokenizer.apply_chat_template(HELLO, tokenize=False)) == list(values.values())


def test_a_model_that_may_think_answers_at_once_unless_it_is_told_to_think(folder: Path) -> None:
    def prompt(settings: Pretrained | Adapter) -> str:
        tokenizer = settings.prepare(CONTEXT).tokenizer()
        return tokenizer.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=True)

    thinking = Pretrained(path=str(folder), chat_template_kwargs={"enable_thinking": True})
    assert prompt(Pretrained(path=str(folder))).endswith("<think>\n\n</think>\n\n")
    assert prompt(thinking).endswith("assistant\n")
    assert prompt(Adapter(base=thinking)).endswith("assistant\n")
    assert thinking.with_saved_weights(folder).chat_template_kwargs == {"enable_thinking": True}
    assert thinking.prepare(CONTEXT) != Pretrained(path=str(folder)).prepare(CONTEXT), "they share no engine"


@pytest.mark.parametrize("name", ["messages", "no name"])
def test_a_variable_that_cannot_be_given_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is no variable"):
        Pretrained(path="x", chat_template_kwargs={name: 1})


def test_a_variable_that_the_template_does_not_read_is_refused_when_it_is_loaded(folder: Path) -> None:
    source = Pretrained(path=str(folder), chat_template_kwargs={"enable_thinkin": True}).prepare(CONTEXT)
    with pytest.raises(ValueError, match=r"policy 'actor'.*its chat template reads no enable_thinkin"):
        source.tokenizer()


# --- thoughts ---------------------------------------------------------------------------------------------------------


def test_the_beginning_of_a_thought_that_a_template_writes_is_known() -> None:
    openings = {name: chat(name).thinking_prefix for name in PUBLISHED if chat(name).thinking_prefix}
    assert openings == {"deepseek_r1": "<think>\n"}


def test_a_recorded_thought_is_scored_once_though_the_template_begins_it() -> None:
    reader = chat("deepseek_r1")
    assert reader.forced_ids("<think>\nhm</think>5") == reader.forced_ids("hm</think>5")
    assert reader.tokenizer.decode(reader.forced_ids("<think>\nhm</think>5")[:-1]) == "hm</think>5"


def test_an_answer_too_short_for_the_thoughts_that_a_template_begins_is_told_once() -> None:
    reader = chat("deepseek_r1")
    with pytest.warns(UserNotice, match=r"policy 'actor'.*sampling\.max_tokens: 256 may cut off"):
        prompt_text(reader, *ASKED)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prompt_text(reader, *ASKED)
        for sampling in (Sampling(max_tokens=4096), Sampling(thinking_tokens=200)):
            prompt_text(chat("deepseek_r1"), *ASKED, sampling=sampling)
        prompt_text(chat("qwen3"), *ASKED)


# --- what is told -----------------------------------------------------------------------------------------------------


def test_words_that_a_vocabulary_lacks_are_told_once() -> None:
    reader = ChatTokenizer(make_tiny_tokenizer("words", ["card K . [fold]"]), frozenset())
    with pytest.warns(UserNotice, match="lacks 'Q', 'raise': <unk> stands for it"):
        prompt_text(reader, Message("user", "card Q . [raise]"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prompt_text(reader, Message("user", "card J"))
        prompt_text(chat("qwen3"), Message("user", "日本 \x00"))


def test_a_model_without_a_chat_template_is_told_once(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    source = Pretrained(path=str(folder)).prepare(CONTEXT)
    with pytest.warns(UserNotice, match="has no chat template .* it reads the messages line by line"):
        tokenizer = source.tokenizer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source.tokenizer()
    ids = ChatTokenizer(tokenizer, frozenset()).prompt(Request("actor", ASKED, Sampling())).ids
    assert len(ids) > 0


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("schemas", [None, [{"type": "function", "function": {"name": "turn", "parameters": {}}}]])
def test_published_templates_are_rendered_as_transformers_renders_them(name: str, schemas: list[Any] | None) -> None:
    tokenizer = PUBLISHED[name].tokenizer()
    asked = [{"role": "user", "content": "1 < 2 & \n<b>"}, {"role": "assistant", "content": "yes"}, *HELLO]
    for chat, answered in ((HELLO, False), (asked, False), (asked, True)):
        options = {"tools": schemas, "tokenize": False, "add_generation_prompt": not answered}
        expected = tokenizer.apply_chat_template(chat, **options)
        assert render_chat_template(tokenizer, chat, schemas, ends_with_answer=answered) == expected


REPEATED = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}"


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10**10 }}",
        "{{ [1] * 10**10 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ 'a'.center(10**10) }}",
        "{{ 'a'|center(10**10) }}",
        "{{ '0'.zfill(10**10) }}",
        "{{ 'a'|map('center', 10**10)|list }}",
        "{{ 'a'|indent(10**10, true) }}",
        "{{ '%10000000000d'|format(1) }}",
        "{{ '%*d' % (10**10, 1) }}",
        "{{ '{:{w}}'.format(1, w=10**10) }}",
        "{{ ('{0}' * 30000).format('a' * 1000000) }}",
        "{{ ('a' * 1000000).join(range(99999)) }}",
        "{{ range(99999)|join('a' * 1000000) }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000)|replace('a', 'b' * 1000000) }}",
        "{{ 'aaaa'.translate({97: 'x' * 1000000}) }}",
        "{{ (1).to_bytes(10**10, 'big') }}",
        "{{ [1]|tojson(indent=10**10) }}",
        "{{ range(99999)|list|tojson(separators=('a' * 1000000, ':')) }}",
        "{{ [1]|batch(10**10, 'x')|list }}",
        "{{ lipsum(10**9) }}",
        "{% set x = 'a' * 1000000 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
        "{% set x %}{% for i in range(99999) %}{{ 'a' * 100000 }}{% endfor %}{% endset %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{% filter center(10**10) %}a{% endfilter %}",
        "{% macro m(x) %}{{ m(x ~ x) }}{% endmacro %}{{ m('aaaa') }}",
        REPEATED.replace("START", "'aa'").replace("STEP", "ns.x ~ ns.x"),
        REPEATED.replace("START", "['a']").replace("STEP", "ns.x + ns.x"),
        REPEATED.replace("START", "['a']").replace("STEP", "[ns.x, ns.x]") + "{{ ns.x }}",
        REPEATED.replace("START", "['a']").replace("STEP", "[ns.x, ns.x]") + "{{ ns.x|tojson }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ cycler.__init__.__globals__.os }}",
    ],
)
def test_a_template_of_a_stranger_is_bounded_in_time_and_memory(template: str) -> None:
    tokenizer = make_tiny_tokenizer("bytes")
    tokenizer.chat_template = template
    began, memory = time.process_time(), getrusage(RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"the chat template refuses messages with roles \['user'\]: ."):
        render_chat_template(tokenizer, HELLO)
    assert time.process_time() - began < 5
    assert getrusage(RUSAGE_SELF).ru_maxrss - memory < 1_000_000, "kilobytes"


def test_a_template_that_loops_is_named_and_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_RENDERING_S", 0.5)
    made = "{% set x = 'a' * 10000000 %}{% set y = 'a' * 10000000 %}"
    loop = f"{made}{{% for a in range(99999) %}}{{% if x == y %}}x{{% endif %}}{{% endfor %}}"
    (folder / "chat_template.jinja").write_text(loop)
    tokenizer = PretrainedSource("actor", str(folder)).tokenizer()
    began = time.monotonic()
    with pytest.raises(CallTimeoutError, match=rf"the chat template of {folder} did not come back within 0\.5 s"):
        ChatTokenizer(tokenizer, frozenset()).prompt(Request("actor", ASKED, _USUAL))
    assert time.monotonic() - began < 20
