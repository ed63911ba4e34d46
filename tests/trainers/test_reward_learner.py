"""Reward models learn to rate, and rate the same in words as in tokens."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import logsigmoid
from transformers import AutoModelForSequenceClassification

from marl.core.config import Sampling
from marl.core.seeds import hash_to_seed
from marl.core.types import Message, Request, Sample
from marl.engines.reward_model.engine import RewardModel
from marl.engines.reward_model.settings import RewardModelSettings
from marl.models.adapter import Adapter, AdapterSource
from marl.models.chat_template import ChatTokenizer
from marl.models.pretrained import Pretrained, PretrainedSource
from marl.models.tiny import Tiny
from marl.models.tiny_build import build_tiny_model
from marl.models.word_tokenizer import BLANK
from marl.protocols import LearnerBuildArguments
from marl.trainers.batching.rows import count_minibatch_totals
from marl.trainers.reward_model.chat_text import ChatAnswerEncoder
from marl.trainers.reward_model.settings import RewardModeling
from tests.support.learning_samples import distance, equal_weights, first_step, make_sample, weights

WORDS = "is it yes no maybe surely not so one two three four five six seven eight . ?"


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> PretrainedSource:
    folder = tmp_path_factory.mktemp("models") / "words"
    build_tiny_model(Tiny(), folder, [WORDS])
    return Tiny().source("actor", folder)


@pytest.fixture(scope="module")
def bytewise(tmp_path_factory: pytest.TempPathFactory) -> PretrainedSource:
    settings = Tiny(architecture="qwen3", hidden=48, layers=2, heads=4, kv_heads=2, head_dim=16, vocabulary="bytes")
    folder = tmp_path_factory.mktemp("models") / "bytes"
    build_tiny_model(settings, folder, ())
    return settings.source("actor", folder)


def learner_of(source: Any, steps: int = 100, **changes: Any) -> Any:
    settings = RewardModeling(**{"lr": 1e-2, "held_out": 0.0, **changes})
    return settings.build(LearnerBuildArguments("actor", source, steps, 0))


def answered(source: Any, question: str, answer: str, worth: float, turn: int = 0, **more: Any) -> Sample:
    """Return a sample as an engine would make it."""
    chat_tokenizer = ChatTokenizer(source.tokenizer(), frozenset())
    prompt_ids = chat_tokenizer.prompt(Request("actor", (Message("user", question),), Sampling())).ids
    token_ids = chat_tokenizer.forced_ids(answer)
    facts = {"group": question, "paid": worth, **more}
    return make_sample(prompt_ids, token_ids, (-1.0,) * len(token_ids), turn=turn, **facts)


def some(source: Any) -> list[Sample]:
    """Of two questions, right and wrong answers of different lengths, one of them twice."""
    return [
        answered(source, "is it so ?", "yes surely", 1.0, 0),
        answered(source, "is it so ?", "no", 0.0, 1),
        answered(source, "is it so ?", "maybe not so", 0.25, 2),
        answered(source, "one two three", "four", 1.0, 3),
        answered(source, "one two three", "five six", 0.0, 4),
        answered(source, "one two three", "four", 1.0, 5),
    ]


def randomized(learner: Any) -> Any:
    torch.manual_seed(1)
    torch.nn.init.normal_(learner.objective.head.weight)
    return learner


def scores(learner: Any, samples: list[Sample]) -> dict[str, float]:
    """By text, as the learner reads it."""
    learner.model.eval()
    rows = learner.objective.rows(samples)
    by_turn: dict[str, float] = {}
    with torch.no_grad():
        for chunk, batch in learner._planner.collated_batches(rows):
            values = learner.objective.score_rows(learner.model, batch).tolist()
            by_turn |= {str(row.samples[0].id): value for row, value in zip(chunk, values, strict=True)}
    learner.model.train()
    return by_turn


def saved(learner: Any, folder: Path) -> Any:
    learner.save(folder)
    return AutoModelForSequenceClassification.from_pretrained(folder, dtype="float32").eval()


@pytest.mark.parametrize("spelling", ["words", "bytewise"])
def test_a_saved_model_rates_words_as_the_learner_rated_tokens(
    spelling: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source = request.getfixturevalue(spelling)
    learner, samples = randomized(learner_of(source)), some(source)
    texts = {str(s.id): (s.group, source.tokenizer().decode(s.token_ids, skip_special_tokens=True)) for s in samples}
    learner.save(tmp_path)
    scorer = RewardModel(RewardModelSettings(path=str(tmp_path), max_tokens=128, device="cpu"))
    for name, score in scores(learner, samples).items():
        question, answer = texts[name]
        assert scorer([(Message("user", question), Message("assistant", answer))]) == pytest.approx([score], abs=1e-5)


def gradient_of(learner: Any, samples: list[Sample]) -> torch.Tensor:
    """Return [P], the gradient of the first step, zero where a parameter has none."""
    gradients = first_step(learner, samples)[1]
    named = zip(learner._optimizer.names, learner._optimizer.parameters, strict=True)
    return torch.cat([gradients.get(name, torch.zeros_like(p)).flatten() for name, p in named])


def by_hand(classifier: Any, learner: Any, loss: Any) -> torch.Tensor:
    """Gradient [P] through Transformers' own classifier, in the learner's order of parameters."""
    loss.backward()
    classifier_parameters = dict(classifier.named_parameters())
    names = [name for name, p in learner.model.named_parameters() if p.requires_grad]
    gradients = [
        classifier_parameters[name].grad
        if name in classifier_parameters
        else torch.zeros_like(dict(learner.model.named_parameters())[name])
        for name in names
    ]
    return torch.cat([g.flatten() for g in [*gradients, classifier_parameters["score.weight"].grad]])


def read_alone(classifier: Any, one: Sample) -> torch.Tensor:
    return classifier(input_ids=torch.tensor([[*one.prompt_ids, *one.token_ids]])).logits[0, 0]


def test_the_loss_of_pairs_is_bradley_and_terrys_through_transformers_own_classifier(
    words: PretrainedSource, tmp_path: Path
) -> None:
    learner, samples = randomized(learner_of(words, spread=0.5, centre=0.01)), some(words)
    classifier = saved(learner, tmp_path)
    pairs = [
        (better, worse)
        for better, worse in itertools.permutations(samples, 2)
        if better.group == worse.group and better.paid > worse.paid
    ]
    assert len(pairs) == 5
    z = {one.id: read_alone(classifier, one) for one in samples}
    losses = [
        -logsigmoid(z[b.id] - z[w.id] - 0.5 * (b.paid - w.paid)) + 0.01 * (z[b.id] + z[w.id]) ** 2 for b, w in pairs
    ]
    expected = by_hand(classifier, learner, torch.stack(losses).mean())
    assert distance(gradient_of(learner, samples), expected) < 1e-5


def test_the_loss_of_outcomes_is_transformers_own_binary_cross_entropy(words: PretrainedSource, tmp_path: Path) -> None:
    learner, samples = randomized(learner_of(words, objective="orm")), some(words)
    classifier = saved(learner, tmp_path)
    z = torch.stack([read_alone(classifier, one) for one in samples])
    labels = torch.tensor([float(one.paid >= 0.5) for one in samples])
    loss = torch.nn.functional.binary_cross_entropy_with_logits(z, labels)
    right = float(((z > 0) == labels.bool()).float().mean())
    expected = by_hand(classifier, learner, loss)
    learner_again = randomized(learner_of(words, objective="orm"))
    assert distance(gradient_of(learner, samples), expected) < 1e-5
    metrics = learner_again.update(samples)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["accuracy"] == pytest.approx(right)


def test_a_process_reward_model_learns_what_credit_assigned_each_turn(words: PretrainedSource) -> None:
    learner = learner_of(words, objective="prm")
    one = answered(words, "is it so ?", "yes", 0.0, advantage=0.9)
    other = answered(words, "is it so ?", "no", 1.0, advantage=0.1)
    assert [row.scalars["label"] for row in learner.objective.rows([one, other])] == [1.0, 0.0]
    assert learner.settings.trains_on_advantages
    assert not RewardModeling().trains_on_advantages


def test_several_answers_that_say_the_same_share_a_row_whose_label_is_their_mean(words: PretrainedSource) -> None:
    rows = learner_of(words, objective="orm").objective.rows(
        [answered(words, "is it so ?", "yes", worth, turn) for turn, worth in enumerate([1.0, 0.0, 1.0, 1.0])]
    )
    assert [(row.count, row.scalars["label"]) for row in rows] == [(4, 0.75)]
    assert count_minibatch_totals(rows).samples == 4


def truths(source: Any, many: int) -> list[Sample]:
    """Questions of many kinds; the right answer is a lucky number."""
    numbers = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
    lucky = {"two", "three", "seven"}
    pairs = [*itertools.permutations(numbers, 2)][:many]
    answers = [(f"{first} {second} ?", answer) for first, second in pairs for answer in (first, second)]
    return [
        answered(source, question, answer, float(answer in lucky), turn)
        for turn, (question, answer) in enumerate(answers)
    ]


@pytest.mark.parametrize("objective", ["bradley_terry", "orm"])
def test_it_tells_right_from_wrong_on_prompts_that_it_never_learnt_from(
    words: PretrainedSource, objective: str
) -> None:
    learner = learner_of(words, objective=objective, held_out=0.25, held_out_every=25)
    samples = truths(words, 24)
    history = [learner.update(samples) for _ in range(25)]
    assert [at for at, metrics in enumerate(history) if "held_out_accuracy" in metrics] == [24]
    # Over all updates, the first ones included.
    assert history[-1]["held_out_accuracy"] > 0.75
    assert history[-1]["accuracy"] > 0.95
    late = learner_of(words, objective=objective, held_out=0.25, held_out_every=1)
    late.load_state_dict(learner.state_dict())
    assert late.update(samples)["held_out_accuracy"] > 0.9


def test_what_is_held_out_changes_nothing_that_is_learnt(words: PretrainedSource) -> None:
    samples = truths(words, 20)
    one, other = learner_of(words, held_out=0.3), learner_of(words, held_out=0.3)
    one.update(samples)
    learned = [s for s in samples if hash_to_seed("held out", *s.prompt_ids) >= 0.3 * 2**64]
    assert 0 < len(learned) < len(samples)
    other.update(learned)
    assert equal_weights(weights(one), weights(other))


def test_it_goes_on_exactly_where_it_stood(words: PretrainedSource) -> None:
    samples = truths(words, 20)
    changes: dict[str, Any] = {"held_out": 0.3, "held_out_every": 4, "minibatches": 2}
    whole, first, second = (learner_of(words, **changes) for _ in range(3))
    expected = [whole.update(samples) for _ in range(8)][-1]
    for _ in range(3):
        first.update(samples)
    second.load_state_dict(first.state_dict())
    resumed = [second.update(samples) for _ in range(5)][-1]
    assert equal_weights(weights(whole), weights(second))
    assert torch.equal(whole.objective.head.weight, second.objective.head.weight)
    assert resumed == expected
    assert "held_out_accuracy" in resumed


def test_an_adapter_is_saved_as_a_whole_classifier(words: PretrainedSource, tmp_path: Path) -> None:
    settings = Adapter(base=Pretrained(path=words.path), rank=2)
    learner = randomized(learner_of(AdapterSource("actor", settings, words)))
    samples = some(words)
    for _ in range(3):
        learner.update(samples)
    classifier = saved(learner, tmp_path)
    before = weights(learner)
    for name, score in scores(learner, samples).items():
        (one,) = [s for s in samples if str(s.id) == name]
        assert read_alone(classifier, one).item() == pytest.approx(score, abs=1e-5)
    assert equal_weights(before, weights(learner))


def test_an_answer_that_broke_off_is_rated_as_its_text_would_be(words: PretrainedSource) -> None:
    chat_text, whole = ChatAnswerEncoder(words.tokenizer()), answered(words, "is it so ?", "yes surely", 1.0)
    cut = make_sample(whole.prompt_ids, whole.token_ids[:-1], (-1.0,) * 2, finish="length")
    assert chat_text(cut) == chat_text(whole) == whole.token_ids
    stopped = make_sample(whole.prompt_ids, whole.token_ids[:-1], (-1.0,) * 2, sampling=Sampling(stop=("surely",)))
    blank = words.tokenizer().convert_tokens_to_ids(BLANK)
    assert chat_text(stopped) == (whole.token_ids[0], blank, whole.token_ids[-1]), "what was said before the stop text"


def test_what_a_template_puts_before_an_answer_is_read_too(words: PretrainedSource) -> None:
    tokenizer = words.tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }} {% else %}<assistant>so {{ m.content }}"
        "<eos> .{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    whole = answered(words, "is it so ?", "yes", 1.0)
    assert tokenizer.decode(ChatAnswerEncoder(tokenizer)(whole)) == "so yes <eos> ."


def test_an_answer_that_spells_turns_is_rated_as_one_answer(bytewise: PretrainedSource) -> None:
    tokenizer, answer = bytewise.tokenizer(), "yes<eos>so?<assistant>no"
    spelled = ChatTokenizer(tokenizer, frozenset()).forced_ids(answer)
    ids = ChatAnswerEncoder(tokenizer)(make_sample((5,), spelled, (-1.0,) * len(spelled)))
    assert (ids.count(tokenizer.eos_token_id), ids[-1]) == (1, tokenizer.eos_token_id)
    assert tokenizer.decode(list(ids[:-1])) == answer
    chat = (Message("user", "?"), Message("assistant", answer))
    assert ChatTokenizer(tokenizer, frozenset()).encode_conversation(chat)[-len(ids) :] == ids, (
        "as a reward model reads it"
    )


def test_a_template_that_writes_answered_questions_otherwise_is_named(words: PretrainedSource) -> None:
    tokenizer = words.tokenizer()
    tokenizer.chat_template = (
        "{% if add_generation_prompt %}please {% endif %}{% for m in messages %}{{ m.content }} {% endfor %}"
    )
    with pytest.raises(ValueError, match="does not begin with the prompt for the answer"):
        ChatAnswerEncoder(tokenizer)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threshold": 0.3}, r"\{'threshold': 0.3\} has no effect with objective='bradley_terry'"),
        ({"objective": "orm", "centre": 0.1}, r"\{'centre': 0.1\} has no effect with objective='orm'"),
        ({"objective": "prm", "pairs": "best_worst"}, r"\{'pairs': 'best_worst'\} has no effect"),
        ({"held_out": 1.0}, "less than 1"),
    ],
)
def test_settings_without_effect_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RewardModeling(**changes)
