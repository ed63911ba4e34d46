"""Each distinct prompt computed once: the same numbers as whole texts, for less."""

import random

import pytest
import torch
from learning_samples import Source, brief, distance, gradient, said, sample, turn
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, LlamaConfig, MambaConfig, Qwen3Config

from marl.config import Sampling
from trainers import plans
from trainers.batches import collate
from trainers.rows import Row
from trainers.settings import Anchor, Grpo, Sft
from trainers.texts import can_share, drops_out, shared_texts, whole_texts
from trainers.vocabulary import log_distributions
from trainers.vocabulary import said as spoken

SMALL = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "head_dim": 8,
}
CONFIGS = {
    "llama": LlamaConfig(**SMALL),
    "qwen3": Qwen3Config(**SMALL),
    "qwen3_windows": Qwen3Config(**SMALL, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "gemma2": Gemma2Config(**SMALL, sliding_window=5, attn_logit_softcapping=5.0, final_logit_softcapping=2.0),
    "gpt2": GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
}
CUT = Sampling(temperature=1.3, top_p=0.7, top_k=20)
SHAPES = {
    "equal": ([12] * 3, [4] * 5),
    "ragged": ([3, 12, 7, 9], [1, 6, 2, 9, 5]),
    "one_token": ([3, 12, 7], [1] * 4),
    "one_token_prompts": ([1, 9], [3, 1, 2]),
}


def texts(prompts: list[int], answers: list[int], seed: int = 0) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Each prompt with all answers, one that says the same with another end, and one prompt that comes once."""
    rng = random.Random(seed)

    def words(many: int) -> tuple[int, ...]:
        return tuple(rng.randrange(40) for _ in range(many))

    made = [(prompt, words(many)) for prompt in map(words, prompts) for many in answers]
    made += [(prompt, (*answer[:-1], (answer[-1] + 1) % 40)) for prompt, answer in made[::4]]
    return [*made, (words(10), words(min(4, max(answers))))]


def samples(seed: int = 0, sampling: Sampling | None = None):
    rng = random.Random(seed)
    every = texts([3, 12, 7, 9], [1, 6, 2, 9, 5], seed)
    every += every[::3]
    return [
        sample(p, a, (rng.gauss(-3.5, 0.01),) * len(a), advantage=rng.gauss(0, 1), turn=i, sampling=sampling)
        for i, (p, a) in enumerate(every)
    ]


def model_of(config):
    torch.manual_seed(0)
    config.initializer_range = 0.15
    return AutoModelForCausalLM.from_config(config).train()


@pytest.fixture
def eager(monkeypatch):
    """Shares however little it saves."""
    monkeypatch.setattr(plans, "PASS", dict.fromkeys(plans.PASS, 0.0))
    monkeypatch.setattr(plans, "GAIN", 0.0)


@pytest.fixture
def passes(monkeypatch):
    """Counts the tokens of each forward pass of the models made from here on."""
    counted: list[int] = []
    build = Source.model

    def watched(self):
        model = build(self)
        model.register_forward_pre_hook(
            lambda _, __, inputs: counted.append(inputs["input_ids"].numel()), with_kwargs=True
        )
        return model

    monkeypatch.setattr(Source, "model", watched)
    return counted


@pytest.mark.parametrize("sampling", [Sampling(), CUT], ids=["whole", "truncated"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CONFIGS)
def test_log_probabilities_and_gradients_are_those_of_whole_texts(name, shape, sampling):
    model = model_of(CONFIGS[name])
    assert can_share(model)
    rows = [Row(prompt, answer, sampling) for prompt, answer in texts(*SHAPES[shape])]
    weights = torch.linspace(-1, 1, sum(len(row.token_ids) for row in rows))
    said, gradients = [], []
    for layout in (whole_texts, shared_texts):
        batch = collate(rows, torch.device("cpu"), layout)
        logprobs = log_distributions(model, batch)
        chosen = spoken(model, batch).logprobs_BT[batch.mask_BT]
        loss = (chosen * weights).sum() + (logprobs.exp() * logprobs).sum()
        found = torch.autograd.grad(loss, list(model.parameters()))
        said.append((logprobs.detach(), chosen.detach()))
        gradients.append(torch.cat([g.flatten() for g in found]))
    for plain, shared in zip(*said, strict=True):
        assert torch.allclose(plain, shared, atol=1e-5)
    assert distance(gradients[1], gradients[0]) < 1e-5


def moved(settings, seeds=(0, 1, 2), **options):
    """The weights, and the metrics of the last update."""
    learner = settings.build(brief(**options))
    for seed in seeds:
        metrics = learner.update(samples(seed))
    return torch.cat([tensor.flatten() for _, tensor in learner.publish()]), metrics


EVERYTHING = {
    "lr": 1e-3,
    "magnet": Anchor(coefficient=0.5, final=0.1),
    "proximal": Anchor(coefficient=0.3, refresh=1, estimator="k3"),
    "entropy": 0.05,
}


@pytest.mark.parametrize(
    "settings",
    [Grpo(lr=1e-3), Grpo(**EVERYTHING), Grpo(**EVERYTHING, minibatches=2, epochs=2, merge=False), Sft(lr=1e-3)],
    ids=["grpo", "anchors", "minibatches", "sft"],
)
def test_updates_move_the_weights_to_the_same_place(eager, passes, settings):
    shared, metrics = moved(settings)
    tokens, several = sum(passes), len(passes)
    passes.clear()
    plain, expected = moved(settings.model_copy(update={"share_prompts": False}))
    assert several == 2 * len(passes)
    assert tokens < sum(passes)
    assert distance(shared, plain) < 1e-6
    assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_gradient_does_not_depend_on_micro_batches(eager):
    every = samples()
    whole = gradient(Grpo(share_prompts=False, **EVERYTHING), every)
    for micro_tokens in (1, 40, 100, 400):
        assert distance(gradient(Grpo(micro_tokens=micro_tokens, **EVERYTHING), every), whole) < 2e-6


def test_readings_are_the_same(eager, passes):
    turns = [turn(s.prompt_ids, s.token_ids, CUT) for s in samples()]
    shared, plain = (said(Grpo(share_prompts=share).build(brief()), *turns) for share in (True, False))
    assert len(passes) == 3
    for one, other in zip(shared, plain, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_groups_stay_together_within_micro_batches():
    rows = [Row(prompt, answer) for prompt, answer in texts([5, 8, 5, 8, 6], [3] * 6)]
    chunks = plans.by_prompt(rows, 120)
    assert sorted(row.length for chunk in chunks for row in chunk) == sorted(row.length for row in rows)
    owners = [{row.prompt_ids for row in chunk} for chunk in chunks]
    assert sum(map(len, owners)) == len(set.union(*owners)), "no prompt is computed twice"
    assert len(chunks) > 2
    for chunk in chunks:
        padded = max(len(row.prompt_ids) for row in chunk) + max(len(row.token_ids) for row in chunk)
        assert len(chunk) * padded <= 120


def test_a_group_that_does_not_fit_is_split():
    rows = [Row((1, 2, 3), (4, 5, n)) for n in range(30)]
    assert [len(chunk) for chunk in plans.by_prompt(rows, 60)] == [10, 10, 10]
    assert [len(chunk) for chunk in plans.by_prompt(rows, 1)] == [1] * 30


def test_it_is_done_only_where_it_saves_more_than_it_costs(passes):
    def tokens_read(prompts: int, completions: int, prompt: int, answer: int) -> list[int]:
        passes.clear()
        rng = random.Random(0)
        starts = [tuple(rng.randrange(40) for _ in range(prompt)) for _ in range(prompts)]
        rows = [(start, (*rng.choices(range(40), k=answer),)) for start in starts for _ in range(completions)]
        Sft().build(brief()).update([sample(p, a, (), turn=i) for i, (p, a) in enumerate(rows)])
        return list(passes)

    assert tokens_read(12, 3, 20, 4) == [36 * 23], "too little work for two passes"
    assert tokens_read(128, 1, 100, 16) == [128 * 115], "nothing to share"
    assert tokens_read(16, 8, 100, 16) == [16 * 100, 128 * 15]


def test_with_dropout_completions_have_their_own_noise_and_readings_share(eager, passes):
    learner = Grpo().build(brief(attention_dropout=0.3))
    learner.update(samples())
    assert len(passes) == 1
    learner.read([turn(s.prompt_ids, s.token_ids) for s in samples()])
    assert len(passes) == 3


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_models_with_another_memory_and_those_that_recompute_are_left_alone():
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}
    assert not can_share(AutoModelForCausalLM.from_config(MambaConfig(**sizes)))
    model = model_of(CONFIGS["llama"])
    assert can_share(model)
    model.gradient_checkpointing_enable()
    assert not can_share(model)


def test_positions_that_depend_on_the_length_of_the_text_are_noticed():
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    assert not can_share(model_of(LlamaConfig(**SMALL, max_position_embeddings=8, rope_parameters=rope)))


def test_dropout_is_noticed():
    assert drops_out(AutoModelForCausalLM.from_config(GPT2Config(vocab_size=40, n_embd=32, n_layer=1, n_head=2)))
    assert not drops_out(model_of(CONFIGS["llama"]))
