"""A thought over its limit is ended for the model, and what was written for it is known."""

from __future__ import annotations

import pytest

from marl.core.config import Sampling
from marl.core.types import Advantage, Deal, Message, Request
from marl.credit_stage.stage import StepCredit
from marl.engines.thinking_budget import ThinkingBudget
from marl.engines.transformers.engine import TransformersEngine
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.models.chat_template import ChatTokenizer
from marl.models.pretrained import PretrainedSource
from marl.models.tiny_build import make_tiny_tokenizer
from marl.roles.answering import SolverRole
from marl.training.samples import collect_samples
from tests.support.small_games import make_simulator
from tests.support.transformers_engines import answers, ask, engine, plain_logprobs

END = "</think>"


@pytest.fixture
def thinker(bytewise: PretrainedSource) -> TransformersEngine:
    """A sampler whose template begins every answer with a thought."""
    sampler = engine(bytewise, slots=4)
    sampler.chat_tokenizer.tokenizer.chat_template += "{% if add_generation_prompt %}<think>\n{% endif %}"
    return sampler


def test_a_thought_is_ended_after_its_limit_and_the_answer_is_sampled(
    thinker: TransformersEngine, bytewise: PretrainedSource
) -> None:
    free = answers(thinker, [ask("why?", seed, max_tokens=24) for seed in range(8)])
    limited = answers(thinker, [ask("why?", seed, max_tokens=24, thinking_tokens=5) for seed in range(8)])
    ended = [pair for pair in zip(free, limited, strict=True) if len(pair[0].token_ids) > 5]
    assert len(ended) > 3
    model = bytewise.model()
    for without, completion in ended:
        assert completion.token_ids[:5] == without.token_ids[:5]
        assert completion.imposed == tuple(range(5, 5 + len(END)))
        assert completion.text.startswith("<think>\n")
        assert completion.text.find(END) >= len("<think>\n")
        assert completion.logprobs == pytest.approx(plain_logprobs(model, completion, Sampling()), abs=1e-5)
    assert all(not completion.imposed and completion.text.startswith("<think>\n") for completion in free)


def test_a_limit_changes_nothing_for_others_in_the_batch(thinker: TransformersEngine) -> None:
    free = [ask("why?", seed, max_tokens=24) for seed in range(3)]
    alone = answers(thinker, free)
    together = answers(thinker, [*free, ask("why?", 1, max_tokens=24, thinking_tokens=2)])
    assert [completion.token_ids for completion in together[:3]] == [completion.token_ids for completion in alone]


def test_a_thought_that_may_take_no_token_is_ended_at_once(thinker: TransformersEngine) -> None:
    [completion] = answers(thinker, [ask("why?", max_tokens=12, thinking_tokens=0)])
    assert completion.imposed == tuple(range(len(END)))
    assert completion.text.startswith(f"<think>\n{END}")


def followed(said: str, tokens: int) -> str:
    """Return what a model has written that goes on with `said`, with the imposed characters in capitals."""
    chat = ChatTokenizer(make_tiny_tokenizer("bytes"), frozenset())
    limit = ThinkingBudget.from_request(Request("a", (Message("user", "?"),), Sampling(thinking_tokens=tokens)), chat)
    assert limit is not None
    ids: list[int] = []
    wanted = list(chat.encode(said))
    while wanted or limit.token_to_impose is not None:
        ids.append(wanted.pop(0) if limit.token_to_impose is None else limit.token_to_impose)
        limit.record_last_token(ids)
    text = chat.text(tuple(ids))
    return "".join(letter.upper() if place in limit.imposed else letter for place, letter in enumerate(text))


@pytest.mark.parametrize(
    ("said", "tokens", "written"),
    [
        ("<think>abc</think>x", 12, "<think>abc</think>x"),
        ("<think>abcdef", 3, "<think>abc</THINK>def"),
        ("a<think>bc</think>d<think>efghij", 12, "a<think>bc</think>d<think>ef</THINK>ghij"),
        ("no thought at all, <b>", 0, "no thought at all, <b>"),
        ("<think>a", 0, "<think></THINK>a"),
    ],
)
def test_the_limit_counts_the_tokens_of_all_thoughts(said: str, tokens: int, written: str) -> None:
    assert followed(said, tokens) == written


def test_a_vocabulary_that_cannot_end_a_thought_is_refused(words: PretrainedSource) -> None:
    with pytest.raises(ValueError, match=r"policy 'actor': sampling\.thinking_tokens: .* cannot spell </think>"):
        engine(words).submit(0, ask("card K", thinking_tokens=3))


def test_a_sample_knows_which_of_its_tokens_were_not_sampled(thinker: TransformersEngine) -> None:
    role = SolverRole(policy="actor", sampling=Sampling(max_tokens=16, thinking_tokens=2))
    laid = make_simulator(KuhnPokerConfig(), {"actor": thinker}, player=role)
    [trajectory] = laid.play([Deal("a", "a", 1, {"player_0": "player", "player_1": "player"})])
    judgement = StepCredit({}, {turn.id: Advantage(1.0) for turn in trajectory.turns}, {})
    samples = collect_samples([trajectory], judgement, {"player": role}, {})["actor"]
    assert [sample.imposed for sample in samples] == [turn.completion.imposed for turn in trajectory.turns]
    assert any(sample.imposed for sample in samples)
