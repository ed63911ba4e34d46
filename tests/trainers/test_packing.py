"""Packed sequences: nothing lost, nothing twice without need, each token sees its own text and no other."""

import random
import time

import numpy as np
import pytest

from marl.trainers.batching.packing import PackedBatch, PackingLimits, pack_texts_into_micro_batches
from tests.support.shared_prefix_samples import KINDS


def tokens(widths):
    """Return costs of tokens alone."""
    return widths.astype(float)


def squares(widths):
    """Return costs of tokens and of a sequence's width."""
    return widths + 0.05 * widths**2


def whole(texts):
    return [prompt + answer for prompt, answer in texts]


def alone(texts):
    return list(range(len(texts)))


def tree_size(texts) -> int:
    """Return the number of distinct prefixes."""
    return len({text[:end] for text in texts for end in range(1, len(text) + 1)})


def packed_tokens(packs: list[PackedBatch]) -> int:
    """Return the number of tokens without padding."""
    return sum(len(np.unique(np.concatenate(list(batch.token_indices.values())))) for batch in packs)


def check(texts, bundles, packs: list[PackedBatch]) -> None:
    """Check by enumeration what each token sees, in each sequence, by the rule j <= i < last[j]."""
    batch_of = {}
    for number, batch in enumerate(packs):
        width = batch.ids_LW.shape[1]
        here = np.arange(width)
        seen = (here[:, None] >= here) & (here[:, None] < batch.ends_LW[:, None, :])
        assert seen.any(-1).all(), "a token that sees nothing has no softmax"
        for text, place in batch.token_indices.items():
            assert text not in batch_of
            batch_of[text] = number
            line = place[0] // width
            assert (batch.ids_LW.ravel()[place] == texts[text]).all()
            assert (batch.depths_LW.ravel()[place] == np.arange(len(place))).all()
            for nth, at in enumerate(place - line * width):
                assert (np.flatnonzero(seen[line, at]) == place[: nth + 1] - line * width).all()
        assert batch.attended_pair_count == seen.sum()
    assert sorted(batch_of) == alone(texts)
    for bundle in set(bundles):
        assert len({batch_of[text] for text in batch_of if bundles[text] == bundle}) == 1


@pytest.mark.parametrize("seed", range(40))
def test_random_prefix_trees_come_out_as_they_went_in(seed):
    rng = random.Random(seed)
    texts: list[tuple[int, ...]] = []
    for _ in range(rng.randint(1, 16)):
        start = rng.choice(texts)[: rng.randint(0, 12)] if texts and rng.random() < 0.8 else ()
        texts.append(start + tuple(rng.randrange(3) for _ in range(rng.randint(0 if start else 1, 8))))
    bundles = [rng.choice([i, i, "one", "other"]) for i in range(len(texts))]
    frame = PackingLimits(
        rng.choice([1, 20, 40, 1000]), rng.choice([tokens, squares]), rng.random() < 0.3, rng.choice([1, 8])
    )
    packs = pack_texts_into_micro_batches(texts, bundles, frame, share_prefixes=rng.random() < 0.7)
    check(texts, bundles, packs)
    assert all(batch.ids_LW.shape[1] % frame.block == 0 for batch in packs)
    if len(set(bundles)) == len(bundles):
        longest = -(-max(map(len, texts)) // frame.block) * frame.block
        assert all(batch.ids_LW.size <= max(frame.max_tokens, longest) for batch in packs)


@pytest.mark.parametrize("kind", KINDS)
def test_each_beginning_is_laid_down_once_where_there_is_room(kind):
    texts = whole(KINDS[kind](random.Random(1)))
    assert packed_tokens(
        pack_texts_into_micro_batches(texts, alone(texts), PackingLimits(10_000, tokens))
    ) == tree_size(texts)
    assert packed_tokens(
        pack_texts_into_micro_batches(texts, alone(texts), PackingLimits(10_000, tokens), share_prefixes=False)
    ) == sum(map(len, set(texts)))


def test_cuts_are_where_they_cost_least():
    # Six answers to one prompt, three to another: forests of at most three answers fit. The second group stays whole.
    texts = [(1,) * 10 + (n, n) for n in range(6)] + [(2,) * 10 + (n, n) for n in range(3)]
    packs = pack_texts_into_micro_batches(texts, alone(texts), PackingLimits(16, tokens))
    assert [batch.ids_LW.shape for batch in packs] == [(1, 16)] * 3
    assert sorted(sorted(batch.token_indices) for batch in packs) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_wide_forests_are_cut_where_attention_over_them_costs_more_than_their_beginning():
    texts = [(1,) * 10 + (n,) * 30 for n in range(8)]
    shapes = {
        cost: pack_texts_into_micro_batches(texts, alone(texts), PackingLimits(1000, cost))[0].ids_LW.shape
        for cost in (tokens, squares)
    }
    assert shapes == {tokens: (1, 250), squares: (8, 40)}


def test_masks_have_no_more_pairs_than_they_may_but_for_a_single_wide_text() -> None:
    rng = random.Random(0)
    texts = [tuple(rng.choices(range(9), k=rng.randint(1, 60))) for _ in range(80)]
    for pairs in (50**2, 3 * 60**2, 10 * 60**2):
        packs = pack_texts_into_micro_batches(texts, alone(texts), PackingLimits(4096, tokens, max_pairs=pairs))
        check(texts, alone(texts), packs)
        for each in packs:
            assert each.ids_LW.size * each.ids_LW.shape[1] <= pairs or len(each.ids_LW) == len(each.token_indices) == 1
    free = pack_texts_into_micro_batches(texts, alone(texts), PackingLimits(4096, tokens))
    assert len(free) < len(
        pack_texts_into_micro_batches(texts, alone(texts), PackingLimits(4096, tokens, max_pairs=50**2))
    )


def test_bundles_stay_together_and_share_within_and_among_themselves():
    group = [(1,) * 20 + (n,) for n in range(4)]
    pairs = [text + end for text in group for end in ((5, 6), (7, 8))]
    bundles = [index // 2 for index in range(8)]
    packs = pack_texts_into_micro_batches(pairs, bundles, PackingLimits(30, tokens))
    check(pairs, bundles, packs)
    assert packed_tokens(packs) == 2 * (20 + 2 * (1 + 4))
    other = [(2,) * 20 + text[20:] for text in pairs[::2]]
    both = [text for two in zip(pairs[::2], other, strict=True) for text in two]
    assert packed_tokens(pack_texts_into_micro_batches(both, bundles, PackingLimits(1000, tokens))) == 2 * (20 + 4 * 3)


def test_ragged_texts_leave_little_padding():
    rng = random.Random(0)
    texts = [(n, *[0] * rng.randint(10, 99)) for n in range(400)]
    for frame in (PackingLimits(2000, squares), PackingLimits(2000, tokens, one_sequence_per_batch=True, block=128)):
        size = sum(batch.ids_LW.size for batch in pack_texts_into_micro_batches(texts, alone(texts), frame))
        assert size < 1.1 * sum(map(len, texts))


def test_the_work_is_linear_in_tokens():
    def seconds(groups: int, length: int) -> float:
        rng = random.Random(0)
        starts = [tuple(rng.choices(range(5000), k=length)) for _ in range(groups)]
        texts = [(*start, *rng.choices(range(5000), k=length // 8)) for start in starts for _ in range(8)]
        spent = []
        for _ in range(3):
            started = time.process_time()
            packs = pack_texts_into_micro_batches(texts, alone(texts), PackingLimits(32768, squares))
            spent.append(time.process_time() - started)
        assert packed_tokens(packs) <= 1.01 * groups * 2 * length
        return min(spent)

    once = seconds(16, 200)
    assert seconds(16, 1600) < 16 * once
    assert seconds(128, 200) < 16 * once
