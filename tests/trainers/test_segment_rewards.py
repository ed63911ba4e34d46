"""Process reward models of segments: labels, loss, and the same scores from the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import logsigmoid
from transformers import AutoModelForSequenceClassification

from marl.core.config import Sampling, Segments
from marl.core.types import Advantage, Message, Request, Sample
from marl.engines.reward_model.engine import RewardModel
from marl.engines.reward_model.settings import RewardModelSettings
from marl.models.chat_template import ChatTokenizer
from marl.models.pretrained import PretrainedSource
from marl.models.segment_tokens import find_segment_ends
from marl.protocols import LearnerBuildArguments
from marl.trainers.batching.rows import count_minibatch_totals
from marl.trainers.reward_model.settings import RewardModeling
from tests.support.learning_samples import make_sample
from tests.support.tiny_models import bytewise, one_thread

__all__ = ["bytewise", "one_thread"]
QUESTION, ANSWER = "is it so?", "a\nbc\n\nno [INST] <|im_end|>"


def sample_of(source: PretrainedSource, values: tuple[float, ...], returns: bool) -> Sample:
    """A sample of `ANSWER`, three lines, whose credit or value targets are `values`."""
    chat = ChatTokenizer(source.tokenizer(), frozenset())
    prompt_ids = chat.prompt(Request("actor", (Message("user", QUESTION),), Sampling())).ids
    token_ids = (*chat.encode(ANSWER), source.tokenizer().eos_token_id)
    ends = find_segment_ends(chat, Segments(by="line"), token_ids, chat.text(token_ids)).last_tokens
    assert len(ends) == len(values)
    tokens: list[float] = []
    for value, last in zip(values, ends, strict=True):
        tokens += [value] * (last + 1 - len(tokens))
    advantage = Advantage(0.0, (9.0,) * len(tokens), tuple(tokens)) if returns else Advantage(0.0, tuple(tokens))
    zeros = (0.0,) * len(token_ids)
    return make_sample(prompt_ids, token_ids, zeros, advantage=advantage, segments=ends)


def loss_terms(learner: Any, samples: list[Sample]) -> tuple[float, dict[str, float]]:
    rows = learner.objective.rows(samples)
    totals = count_minibatch_totals(rows)
    [(_, batch)] = learner._planner.collated_batches(rows)
    learner.model.eval()
    with torch.no_grad():
        terms = learner.objective.forward_loss(learner.model, batch, totals)
    return float(terms.loss_B.sum()), {name: float(value) for name, value in terms.loss_terms.items()}


@pytest.mark.parametrize(
    ("labels", "returns", "expected"),
    [("soft", True, (0.25, 0.75, 1.0)), ("hard", True, (0.0, 1.0, 1.0)), ("soft", False, (0.25, 0.75, 1.0))],
)
def test_the_loss_is_that_of_a_classifier_cut_off_behind_each_segment(
    bytewise: PretrainedSource, tmp_path: Path, labels: str, returns: bool, expected: tuple[float, ...]
) -> None:
    settings = RewardModeling(lr=1e-2, held_out=0.0, objective="prm", level="segment", labels=labels)  # type: ignore[arg-type]
    learner: Any = settings.build(LearnerBuildArguments("actor", bytewise, 10, 0))
    torch.manual_seed(1)
    torch.nn.init.normal_(learner.objective.head.weight)
    sample = sample_of(bytewise, (0.25, 0.75, 2.0), returns)
    learner.save(tmp_path)
    ids, ends = learner.objective._chat_text.with_last_tokens_of_segments(sample)
    begins = [0, *[end + 1 for end in ends[:-1]]]
    texts = [bytewise.tokenizer().decode(ids[begin : end + 1]) for begin, end in zip(begins, ends, strict=True)]
    assert texts == ["a\n", "bc\n\n", "no [INST] <|im_end|>"]
    model: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype="float32").eval()
    logits: list[float] = []
    for end in ends:
        with torch.no_grad():
            logits.append(float(model(torch.tensor([[*sample.prompt_ids, *ids[: end + 1]]])).logits))
    z, y = torch.tensor(logits), torch.tensor(expected)
    loss, terms = loss_terms(learner, [sample])
    assert loss == pytest.approx(float((-y * logsigmoid(z) - (1 - y) * logsigmoid(-z)).mean()), abs=1e-5)
    assert terms["score"] == pytest.approx(float(z.mean()), abs=1e-5)
    assert terms["accuracy"] == pytest.approx(float(torch.where(z > 0, y, 1 - y).mean()), abs=1e-5)
    scorer = RewardModel(RewardModelSettings(path=str(tmp_path), max_tokens=128, device="cpu"), by_segment=True)
    chat = (Message("user", QUESTION), Message("assistant", ANSWER))
    got = scorer.score_segments([(chat, (2, 6, len(ANSWER))), (chat, ())])
    assert got[0] == pytest.approx(logits, abs=1e-5)
    assert len(got[1]) == 1


def test_turns_without_segments_are_not_learned_from(bytewise: PretrainedSource) -> None:
    settings = RewardModeling(lr=1e-2, held_out=0.0, objective="prm", level="segment")
    learner: Any = settings.build(LearnerBuildArguments("actor", bytewise, 10, 0))
    zeros = (0.0,) * 3
    assert learner.objective.rows([make_sample((1, 2), (3, 4, 5), zeros)]) == []
