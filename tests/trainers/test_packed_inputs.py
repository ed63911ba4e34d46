"""Models that read packed sequences compute what they compute of each text alone, and learn the same from it."""

import random
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MambaConfig

from marl.core.config import Sampling
from marl.trainers.batching.packing import PackingLimits, pack_texts_into_micro_batches
from marl.trainers.batching.planner import MASK_BYTES, BatchPlan, BatchPlanner
from marl.trainers.batching.rows import BatchRow
from marl.trainers.forward import attention
from marl.trainers.forward.attention import (
    PrefixForest,
    attention_masks,
    can_skip_masked_blocks,
    has_dropout,
    reason_packing_is_unsupported,
)
from marl.trainers.forward.model_inputs import hidden_states
from marl.trainers.forward.token_outputs import token_outputs
from marl.trainers.imitation.settings import Sft
from marl.trainers.optim.settings import KlAnchor
from marl.trainers.policy_gradient.critic_settings import CriticConfig
from marl.trainers.policy_gradient.settings import Grpo, Ppo
from marl.trainers.preferences.settings import Dpo
from tests.support.learning_samples import context, distance, gradient, log_distributions, read_logprobs, turn
from tests.support.shared_prefix_samples import CONFIGS, KINDS, SMALL, model_of, rows_of, samples, siblings

CUT = Sampling(temperature=1.3, top_p=0.7, top_k=20)
LAYOUTS = ("packed", "shared")


def alone_logits(model: Any, row: BatchRow) -> torch.Tensor:
    """[T, V] from one unpadded pass over one text."""
    ids = torch.tensor([[*row.prompt_ids, *row.token_ids]])
    return model(ids, use_cache=False).logits[0, len(row.prompt_ids) - 1 : -1]


def results_alone(model: Any, rows: list[BatchRow]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the tokens, and the gradient of a weighted sum of them and of entropies."""
    logprobs = [alone_logits(model, row).float().log_softmax(-1) for row in rows]
    chosen = torch.cat(
        [each.gather(1, torch.tensor(row.token_ids)[:, None])[:, 0] for each, row in zip(logprobs, rows, strict=True)]
    )
    return chosen.detach(), _gradient(model, chosen, torch.cat(logprobs))


def _gradient(model: Any, chosen_N: torch.Tensor, logprobs_NV: torch.Tensor) -> torch.Tensor:
    loss = (chosen_N * torch.linspace(-1, 1, len(chosen_N))).sum() + (logprobs_NV.exp() * logprobs_NV).sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def results_packed(model: Any, rows: list[BatchRow], layout: str, micro_tokens: int = 1000):
    """The same, of all micro-batches, in the order of `rows`."""
    spans = torch.tensor([len(row.token_ids) for row in rows])
    starts = dict(zip(map(id, rows), (spans.cumsum(0) - spans).tolist(), strict=True))
    many = int(spans.sum())
    chosen_N, logprobs_NV = torch.zeros(many), torch.zeros(many, 40)
    for chunk, batch in BatchPlanner(model, micro_tokens, layout).collated_batches(rows):
        where = torch.cat([starts[id(row)] + torch.arange(len(row.token_ids)) for row in chunk])
        chosen_N = chosen_N.index_add(0, where, token_outputs(model, batch).logprobs_BT[batch.mask_BT])
        logprobs_NV = logprobs_NV.index_add(0, where, log_distributions(model, batch))
    return chosen_N.detach(), _gradient(model, chosen_N, logprobs_NV)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_log_probabilities_and_gradients_are_those_of_each_text_alone(name, kind):
    model, rows = model_of(CONFIGS[name]), rows_of(kind)
    assert not reason_packing_is_unsupported(model)
    expected, gradients = results_alone(model, rows)
    layouts = (("packed", 1000), ("shared", 1000), ("shared", 40), ("prompted", 1000), ("prompted", 40))
    for layout, micro_tokens in layouts:
        chosen, computed = results_packed(model, rows, layout, micro_tokens)
        assert torch.allclose(chosen, expected, atol=1e-5)
        assert distance(computed, gradients) < 1e-5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_that_are_recomputed_compute_the_same(layout):
    model, rows = model_of(CONFIGS["qwen3_windows"]), rows_of("dialogues")
    expected, gradients = results_alone(model, rows)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    chosen, computed = results_packed(model, rows, layout)
    assert torch.allclose(chosen, expected, atol=1e-5)
    assert distance(computed, gradients) < 1e-5


@pytest.mark.parametrize("name", ["llama", "qwen3_windows", "gpt2"])
def test_states_at_the_ends_are_those_of_each_text_alone(name):
    model, rows = model_of(CONFIGS[name]).eval(), rows_of("dialogues") + rows_of("short")
    embedded = model.get_decoder() if name != "gpt2" else model.transformer
    for layout in ("padded", *LAYOUTS):
        for chunk, batch in BatchPlanner(model, 60, layout).collated_batches(rows, with_end_states=True):
            ends_B2H: Any = hidden_states(model, batch.inputs).ends_B2H
            for index, row in enumerate(chunk):
                alone = embedded(torch.tensor([row.prompt_ids + row.token_ids])).last_hidden_state[0]
                assert torch.allclose(ends_B2H[index], alone[[len(row.prompt_ids) - 1, -1]], atol=1e-5)


EVERYTHING = {
    "lr": 1e-3,
    "magnet": KlAnchor(coefficient=0.5, final=0.1),
    "proximal": KlAnchor(coefficient=0.3, refresh=1, estimator="k3"),
    "entropy": 0.05,
}
LEARNERS = {
    "grpo": Grpo(lr=1e-3),
    "anchors": Grpo(**EVERYTHING),
    "minibatches": Grpo(**EVERYTHING, minibatches=2, epochs=2, merge=False),
    "checkpointed": Grpo(**EVERYTHING, gradient_checkpointing=True),
    "sft": Sft(lr=1e-3),
    "ppo": Ppo(lr=1e-3, critic=CriticConfig(clip=None)),
    "ppo_trunk": Ppo(lr=1e-3, critic=CriticConfig(where="trunk", clip=None)),
    "dpo": Dpo(lr=1e-3),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_moves_its_weights_to_the_same_place(name, layout):
    ends = []
    for packing in ("padded", layout):
        learner = LEARNERS[name].model_copy(update={"packing": packing, "micro_tokens": 400}).build(context())
        for seed in range(3):
            metrics = learner.update(samples(seed))
        ends.append((torch.cat([tensor.flatten() for _, tensor in learner.publish()]), metrics))
    (plain, expected), (packed, metrics) = ends
    assert distance(packed, plain) < 5e-6
    assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_gradient_does_not_depend_on_micro_batches():
    every = samples()
    whole = gradient(Grpo(packing="padded", **EVERYTHING), every)
    for micro_tokens in (1, 40, 100, 400):
        assert distance(gradient(Grpo(packing="shared", micro_tokens=micro_tokens, **EVERYTHING), every), whole) < 2e-6


@pytest.mark.parametrize("layout", LAYOUTS)
def test_readings_are_the_same(layout):
    turns = [turn(s.prompt_ids, s.token_ids, CUT) for s in samples()]
    packed, plain = (read_logprobs(Grpo(packing=packing).build(context()), *turns) for packing in (layout, "padded"))
    for one, other in zip(packed, plain, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def group(prompts: int, completions: int, prompt: int, answer: int) -> list[BatchRow]:
    rng = random.Random(0)
    starts = [tuple(rng.choices(range(40), k=prompt)) for _ in range(prompts)]
    return [BatchRow(start, tuple(rng.choices(range(40), k=answer))) for start in starts for _ in range(completions)]


def test_the_layout_is_the_one_that_saves_more_than_it_costs():
    planner = BatchPlanner(model_of(CONFIGS["llama"]), 32768, "auto")
    assert planner.fastest_plan(group(2, 3, 20, 4)).layout == "padded", "too little work to lay anything out"
    assert planner.fastest_plan(group(64, 1, 100, 16)).layout == "padded", "nothing to share, all of one length"
    assert planner.fastest_plan(group(16, 8, 400, 50)).layout == "prompted", (
        "a small model: attention over wide lines is most of the work"
    )
    ragged = [BatchRow(row.prompt_ids, row.token_ids[: 1 + 3 * n]) for n, row in enumerate(group(64, 1, 8, 200))]
    assert planner.fastest_plan(ragged).layout == "shared"


def grown(prompt: int, turns: int, answer: int = 16, *, in_one_pass: bool = False) -> list[BatchRow]:
    """Return rows whose prompts go on where the ones before ended, which only `shared` computes once."""
    unit = "all" if in_one_pass else None
    rng = random.Random(0)
    tokens = tuple(rng.choices(range(40), k=prompt + turns * answer))
    rows: list[BatchRow] = []
    for n in range(turns):
        rows.append(BatchRow(tokens[: prompt + n * answer], tuple(rng.choices(range(40), k=answer)), unit=unit))
    return rows


def mask_pairs(plan: BatchPlan) -> list[int]:
    """Return the pairs of tokens in the masks of each micro-batch; 0 where there is none."""
    layouts = [layout for _, layout in plan.batches]
    packs = [layout.args[0] for layout in layouts if isinstance(layout, partial)]
    return [0 if pack.is_causal else pack.ids_LW.size * pack.ids_LW.shape[1] for pack in packs]


@pytest.mark.parametrize("config", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("prompt", [500, 4000, 16_000])
def test_masks_of_the_chosen_layout_take_no_more_memory_than_the_texts_themselves(config: str, prompt: int) -> None:
    model = model_of(CONFIGS[config])
    planner = BatchPlanner(model, 32768, "auto")
    for plan in (
        planner.plan_micro_batches(grown(prompt, 12)),
        planner.plan_micro_batches(grown(prompt, 12), "shared"),
    ):
        assert plan.fits_memory
        assert max([0, *mask_pairs(plan)]) * attention.mask_bytes_per_pair(model) <= MASK_BYTES
    rows = grown(16_000, 2, in_one_pass=True)
    assert planner.plan_micro_batches(rows).layout == planner.plan_micro_batches(rows, "shared").layout == "padded"
    assert planner.plan_micro_batches(grown(500, 12), "shared").layout == "shared"


def test_a_wide_model_may_have_wide_masks_since_its_states_take_more() -> None:
    wide, narrow = model_of(LlamaConfig(**{**SMALL, "hidden_size": 512})), model_of(CONFIGS["llama"])
    rows = grown(8000, 6, in_one_pass=True)
    assert BatchPlanner(wide, 32768, "auto").plan_micro_batches(rows, "shared").layout == "shared"
    assert BatchPlanner(narrow, 32768, "auto").plan_micro_batches(rows, "shared").layout == "padded"
    # Whoever asks for a layout by name gets it.
    assert BatchPlanner(narrow, 32768, "shared").plan_micro_batches(rows).layout == "shared"


@pytest.mark.slow
def test_long_prompts_take_no_more_memory_than_padded_ones() -> None:
    peaks = {}
    for packing in ("padded", "auto"):
        code = PEAK.format(packing=packing)
        said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        peaks[packing] = int(said.stdout)
    assert peaks["auto"] < 1.1 * peaks["padded"]


PEAK = f"""
import resource, sys
sys.path[:0] = {sys.path!r}
from tests.support.learning_samples import context, make_sample
from test_packed_inputs import grown
from marl.trainers.policy_gradient.settings import Grpo
learner = Grpo(packing={{packing!r}}, fidelity=None).build(context(max_position_embeddings=20000))
learner.update([make_sample(r.prompt_ids, r.token_ids, (-3.0,) * 16, turn=n) for n, r in enumerate(grown(10_000, 2))])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_predicted_flops_of_a_shared_prompt_are_those_counted_by_hand():
    rows = [BatchRow((9,) * 64, (n, *range(8))) for n in range(8)]
    planner = BatchPlanner(model_of(CONFIGS["llama"]), 32768, "shared")
    made = {name: planner.packed_plan(rows, name).flops for name in LAYOUTS}
    # 3 layers of q, o 32x32; k, v 32x16; three of 32x64; norms of 2x32, and one of 32. Head 40x32 at 72 tokens.
    token, pair, outputs = 2 * (3 * (2 * 1024 + 2 * 512 + 3 * 2048 + 64) + 32), 4 * 3 * 32, 2 * 40 * 32 * 72
    # Each of the eight texts has a sequence of its own, of which causal attention computes half of the pairs.
    assert made["packed"] == 8 * 72 * token + 8 * 72**2 * pair / 2 + outputs
    assert made["shared"] == 128 * token + 128**2 * pair + outputs


def test_with_dropout_completions_have_their_own_noise_and_readings_share():
    model = model_of(LlamaConfig(**SMALL, attention_dropout=0.3))
    assert has_dropout(model)
    planner, rows = BatchPlanner(model, 32768, "auto"), group(16, 8, 400, 50)
    assert planner.fastest_plan(rows).layout not in ("shared", "prompted")
    model.eval()
    assert planner.fastest_plan(rows).layout in ("shared", "prompted")
    with pytest.raises(ValueError, match=r"packing='shared'.*dropout.*auto"):
        BatchPlanner(model, 32768, "shared")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_models_with_another_memory_are_given_padded_texts():
    sizes: dict[str, Any] = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}
    mamba = AutoModelForCausalLM.from_config(MambaConfig(**sizes))
    assert reason_packing_is_unsupported(mamba)
    ((_, batch),) = BatchPlanner(mamba, 32768, "auto").collated_batches(group(16, 8, 40, 5))
    assert batch.inputs.forest is None
    with pytest.raises(ValueError, match="packing='packed' is not for MambaForCausalLM"):
        BatchPlanner(mamba, 32768, "packed")


def test_positions_that_depend_on_the_length_of_the_text_are_noticed():
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    assert reason_packing_is_unsupported(
        model_of(LlamaConfig(**SMALL, max_position_embeddings=8, rope_parameters=rope))
    )


def test_dropout_is_noticed():
    assert has_dropout(AutoModelForCausalLM.from_config(GPT2Config(vocab_size=40, n_embd=32, n_layer=1, n_head=2)))
    assert not has_dropout(model_of(CONFIGS["llama"]))


def packed_forest(block: int) -> PrefixForest:
    """All in one line."""
    texts = [prompt + answer for prompt, answer in siblings(random.Random(0))]
    frame = PackingLimits(100 * block, lambda widths: widths.astype(float), one_sequence_per_batch=True, block=block)
    (packed,) = pack_texts_into_micro_batches(texts, range(len(texts)), frame)
    return PrefixForest(torch.from_numpy(packed.depths_LW), torch.from_numpy(packed.ends_LW))


@pytest.mark.parametrize("window", [None, 5])
def test_blocks_hold_all_that_is_seen_and_skip_what_is_hidden(window):
    forest, block = packed_forest(8), 8
    made: Any = attention.block_mask(forest, window, block)
    here = torch.arange(forest.ends_US.shape[1])
    seen = (here[:, None] >= here) & (here[:, None] < forest.ends_US[0])
    if window is not None:
        seen &= forest.depths_US[0][:, None] - forest.depths_US[0] < window
    blocks = seen.view(len(here) // block, block, -1, block)
    some, full = blocks.any(3).any(1), blocks.all(3).all(1)
    listed = made.to_dense()[0, 0].bool()
    assert bool((listed | ~some).all()), "nothing that is seen is skipped"
    assert int(listed.sum()) < 0.7 * len(some) * (len(some) + 1) / 2
    if window is None:
        assert (listed == some).all()
        assert int(made.full_kv_num_blocks.sum()) == int(full.sum())


@pytest.mark.parametrize("name", ["llama", "qwen3_windows"])
@torch.no_grad()
def test_flex_attention_computes_what_an_explicit_mask_gives(name):
    # There is no backward pass of it on a CPU: tests/test_gpu.py has the whole.
    model, forest = model_of(CONFIGS[name]), packed_forest(128)
    ids = torch.randint(40, forest.ends_US.shape, generator=torch.Generator().manual_seed(0))
    logits = []
    for kind in ("sdpa", attention.ATTENTION_NAME):
        model.set_attn_implementation(kind)
        assert can_skip_masked_blocks(model) == (kind == attention.ATTENTION_NAME)
        seen = attention_masks(model, forest)
        logits.append(model(ids, attention_mask=seen, position_ids=forest.depths_US, use_cache=False).logits)
    assert torch.allclose(*logits, atol=1e-5)
