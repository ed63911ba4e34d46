"""Prompts of real chat templates: system messages, thoughts, the templates' own variables, and what users are told."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import pytest

from marl.core.config import Sampling
from marl.core.errors import Notice
from marl.core.types import Message, Request
from marl.models.adapter import Adapter
from marl.models.chat_template import ChatTokenizer
from marl.models.pretrained import Pretrained, PretrainedSource
from marl.models.template_defaults import with_defaults
from marl.models.tiny_build import make_tokenizer
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
    tokenizer.chat_template = with_defaults(tokenizer.chat_template, variables)
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
    once = with_defaults(tokenizer.chat_template, {"enable_thinking": False})
    for template in (once, with_defaults(once, {"enable_thinking": False})):
        tokenizer.chat_template = template
        text = tokenizer.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=True, enable_thinking=True)
        assert not text.endswith(closed)
    assert with_defaults(with_defaults(once, {"enable_thinking": True}), {}).count("else true") == 1


@pytest.mark.parametrize("name", sorted(PUBLISHED.keys() - {"qwen3"}))
def test_a_template_that_reads_no_such_variable_stays_as_it_is(name: str) -> None:
    assert with_defaults(PUBLISHED[name].template, {"enable_thinking": False}) == PUBLISHED[name].template


def test_values_of_every_kind_reach_the_template() -> None:
    values = {"a": None, "b": [True, 1.5], "c": {"d'": 'e"\n'}, "f": "{{ g }}"}
    tokenizer = PUBLISHED["chatml"].tokenizer()
    tokenizer.chat_template = with_defaults("{{ [a, b, c, f] | tojson }}", values)
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
    openings = {name: chat(name).thought_opening for name in PUBLISHED if chat(name).thought_opening}
    assert openings == {"deepseek_r1": "<think>\n"}


def test_a_recorded_thought_is_scored_once_though_the_template_begins_it() -> None:
    reader = chat("deepseek_r1")
    assert reader.forced_ids("<think>\nhm</think>5") == reader.forced_ids("hm</think>5")
    assert reader.tokenizer.decode(reader.forced_ids("<think>\nhm</think>5")[:-1]) == "hm</think>5"


def test_an_answer_too_short_for_the_thoughts_that_a_template_begins_is_told_once() -> None:
    reader = chat("deepseek_r1")
    with pytest.warns(Notice, match=r"policy 'actor'.*sampling\.max_tokens: 256 may cut off"):
        prompt_text(reader, *ASKED)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prompt_text(reader, *ASKED)
        for sampling in (Sampling(max_tokens=4096), Sampling(thinking_tokens=200)):
            prompt_text(chat("deepseek_r1"), *ASKED, sampling=sampling)
        prompt_text(chat("qwen3"), *ASKED)


# --- what is told -----------------------------------------------------------------------------------------------------


def test_words_that_a_vocabulary_lacks_are_told_once() -> None:
    reader = ChatTokenizer(make_tokenizer("words", ["card K . [fold]"]), frozenset())
    with pytest.warns(Notice, match="lacks 'Q', 'raise': <unk> stands for it"):
        prompt_text(reader, Message("user", "card Q . [raise]"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prompt_text(reader, Message("user", "card J"))
        prompt_text(chat("qwen3"), Message("user", "日本 \x00"))


def test_a_model_without_a_chat_template_is_told_once(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    source = Pretrained(path=str(folder)).prepare(CONTEXT)
    with pytest.warns(Notice, match="has no chat template .* it reads the messages line by line"):
        tokenizer = source.tokenizer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source.tokenizer()
    ids = ChatTokenizer(tokenizer, frozenset()).prompt(Request("actor", ASKED, Sampling())).ids
    assert len(ids) > 0
