"""Outputs of a model at completion tokens: hidden states -> distributions over the vocabulary -> numbers of tokens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from marl.trainers.batching.batches import Batch
from marl.trainers.forward.divergences import entropy, exact_kl
from marl.trainers.forward.model_inputs import HiddenStates, hidden_states
from marl.trainers.optim.memory_estimate import MAX_LOGIT_ENTRIES

_CAPS = ("final_logit_softcapping", "logits_soft_cap")
"""Settings of Gemma 2 to 4, RecurrentGemma: c tanh(x / c)."""
_FACTORS = ("logit_scale", "lm_head_multiplier", "logits_scaling")
"""Settings of Cohere, Falcon H1, HyperCLOVA X: x times a number. Granite divides by the last of them."""
_TABLE_AT_ONCE = 1 << 23
"""Numbers in a table of tokens by vocabulary where gradients are computed along with it: below 32 MiB in float32, which
the allocator keeps for the next one; a new table from the system costs as much as the numbers in it."""
_SMALL_TABLE = 1 << 20
"""Smaller ones stay in a processor's cache, and are kept for the backward pass."""
_TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 1e-2}
_FITTED: WeakKeyDictionary[nn.Module, Callable[[Tensor], Tensor]] = WeakKeyDictionary()
"""Model -> function from the output of its embeddings to its logits."""


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Numbers wanted of each token, other than its log-probability."""

    entropy: bool = False
    differentiable_entropy: bool = False
    """Gradients flow through the entropy."""
    exact_kl_anchors: frozenset[str] = frozenset()
    """Anchors whose exact KL divergence is wanted; of other anchors, the token's log-probability."""


@dataclass(frozen=True, slots=True)
class TokenOutputs:
    """Numbers of a batch's completion tokens."""

    logprobs_BT: Tensor
    """Log-probability under the sampling distribution, truncation included."""
    states: HiddenStates
    entropy_BT: Tensor | None = None
    """Entropy over the whole vocabulary at the sampling temperature, without top-p and top-k."""
    anchors: Mapping[str, Tensor] | None = None
    """Anchor -> [B, T]: KL(model ‖ anchor), or the anchor's log-probability of the token."""


def token_outputs(
    model: Any, batch: Batch, spec: OutputSpec | None = None, anchors: Mapping[str, Any] | None = None
) -> TokenOutputs:
    """Return the outputs of a forward pass of `model`, and of one without gradient of each of the `anchors`.

    Distributions over the vocabulary are computed for a few tokens at a time, so that memory does not grow with tokens
    times vocabulary. The backward pass computes them again, unless they fit in `MAX_LOGIT_ENTRIES` or `_learns_below`.
    """
    spec, anchors = spec or OutputSpec(), anchors or {}
    states, anchored = hidden_states(model, batch.inputs), _anchor_states(anchors, spec, batch)
    head = _Head(model, spec, {name: anchor for name, (anchor, _) in anchored.items()})
    inputs = [states.tokens_NH, batch.tokens_N, batch.sampling_N3, *(states_NH for _, states_NH in anchored.values())]
    compute = _with_slopes if _learns_below(head, states.tokens_NH) else _by_chunk
    logprobs_N, entropy_N, *anchors_N = compute(head, inputs)
    by_name = dict(zip(anchored, anchors_N, strict=True))
    entropy_BT = batch.scatter_tokens(entropy_N) if spec.entropy else None
    spread = {name: batch.scatter_tokens(by_name[name]) for name in anchors}
    return TokenOutputs(batch.scatter_tokens(logprobs_N), states, entropy_BT, spread)


@dataclass(frozen=True, slots=True)
class _Head:
    """Function from last hidden states of some tokens to a few numbers of each; makes tokens by vocabulary tables."""

    model: Any
    spec: OutputSpec
    anchors: Mapping[str, Any]

    @property
    def vocabulary(self) -> int:
        return self.model.config.get_text_config(decoder=True).vocab_size

    def __call__(
        self, states_NH: Tensor, tokens_N: Tensor, sampling_N3: Tensor | None, *anchors_NH: Tensor
    ) -> tuple[Tensor, ...]:
        """Return [N] each: log-probability, entropy (empty unless wanted), then a number for each anchor."""
        logprobs_NV = _tempered(logits(self.model, states_NH), sampling_N3)
        chosen_N = _truncated(logprobs_NV, tokens_N, sampling_N3)
        with torch.set_grad_enabled(self.spec.differentiable_entropy and torch.is_grad_enabled()):
            entropy_N = entropy(logprobs_NV) if self.spec.entropy else chosen_N.new_empty(0)
        outputs: list[Tensor] = []
        computed: dict[int, Tensor] = {}
        for (name, anchor), anchor_NH in zip(self.anchors.items(), anchors_NH, strict=True):
            if id(anchor) not in computed:
                with torch.no_grad():
                    computed[id(anchor)] = _tempered(logits(anchor, anchor_NH), sampling_N3)
            anchor_NV = computed[id(anchor)]
            exact = name in self.spec.exact_kl_anchors
            outputs.append(exact_kl(logprobs_NV, anchor_NV) if exact else _chosen(anchor_NV, tokens_N))
        return chosen_N, entropy_N, *outputs


def _anchor_states(anchors: Mapping[str, Any], spec: OutputSpec, batch: Batch) -> dict[str, tuple[Any, Tensor]]:
    """Return each anchor with its last hidden states; those that are one model are run once."""
    computed: dict[int, Tensor] = {}
    with torch.no_grad():
        for anchor in anchors.values():
            if id(anchor) not in computed:
                computed[id(anchor)] = hidden_states(anchor, batch.inputs).tokens_NH
    # Those without a gradient come last: the backward pass stops to recompute where it needs no more.
    ordered = sorted(anchors, key=lambda name: name not in spec.exact_kl_anchors)
    return {name: (anchors[name], computed[id(anchors[name])]) for name in ordered}


def _by_chunk(head: _Head, inputs: Sequence[Tensor | None]) -> list[Tensor]:
    """Return the outputs of all tokens, computed a few at a time if all are too many."""
    first_NH, output = inputs[0], head.model.get_output_embeddings()
    assert first_NH is not None
    pieces = -(-len(first_NH) * head.vocabulary // MAX_LOGIT_ENTRIES)
    if pieces <= 1:
        return list(head(*inputs))  # type: ignore[arg-type]  # only sampling_N3 may be None
    # An adapter on the head may have dropout, which must be the same when it is recomputed.
    random = output.training and any(isinstance(m, nn.Dropout) and m.p > 0 for m in output.modules())
    chunks: list[tuple[Tensor, ...]] = [
        checkpoint(head, *chunk, use_reentrant=False, preserve_rng_state=random) for chunk in _chunks(inputs, pieces)
    ]
    return [torch.cat(column) for column in zip(*chunks, strict=True)]


def _chunks(inputs: Sequence[Tensor | None], pieces: int) -> Iterator[list[Any]]:
    """Yield the inputs of a few tokens at a time."""
    assert inputs[0] is not None
    tokens = len(inputs[0])
    size = -(-tokens // pieces)
    for start in range(0, tokens, size):
        yield [None if each is None else each[start : start + size] for each in inputs]


def _learns_below(head: _Head, states_NH: Tensor) -> bool:
    """Return True if only the log-probabilities have a gradient, to the states alone, and their tables are large."""
    spec = head.spec
    return (
        torch.is_grad_enabled()
        and states_NH.requires_grad
        and not (spec.differentiable_entropy or spec.exact_kl_anchors)
        and len(states_NH) * head.vocabulary > _SMALL_TABLE
        and not any(parameter.requires_grad for parameter in head.model.get_output_embeddings().parameters())
    )


def _with_slopes(head: _Head, inputs: Sequence[Tensor | None]) -> list[Tensor]:
    """Return the outputs of all tokens, computed a few at a time, where the log-probabilities alone have a gradient.

    A token's log-probability depends on no other token's state. So each one's gradient is computed along with it, while
    its distribution is at hand, and the backward pass only scales it: nothing is kept but as many numbers as a state
    has, and nothing is computed twice.
    """
    states_NH = inputs[0]
    assert states_NH is not None
    slopes: list[Tensor] = []
    chunks: list[tuple[Tensor, ...]] = []
    for states, *more_inputs in _chunks(inputs, -(-len(states_NH) * head.vocabulary // _TABLE_AT_ONCE)):
        leaf = states.detach().requires_grad_()
        outputs = head(leaf, *more_inputs)
        slopes += torch.autograd.grad(outputs[0].sum(), leaf)
        chunks.append(tuple(output.detach() for output in outputs))
    logprobs_N, *more = [torch.cat(column) for column in zip(*chunks, strict=True)]
    still_NH = states_NH - states_NH.detach()  # zeros, with the gradient of the states
    return [logprobs_N + (torch.cat(slopes) * still_NH).sum(1), *more]


def _tempered(logits_NV: Tensor, sampling_N3: Tensor | None) -> Tensor:
    if sampling_N3 is not None:
        logits_NV = logits_NV.div_(sampling_N3[:, :1])  # a table of our own
    return logits_NV.log_softmax(-1)


def _chosen(logprobs_NV: Tensor, tokens_N: Tensor) -> Tensor:
    return logprobs_NV.gather(1, tokens_N[:, None]).squeeze(1)


def _truncated(logprobs_NV: Tensor, tokens_N: Tensor, sampling_N3: Tensor | None) -> Tensor:
    """Return [N], log-probabilities of the tokens after top-p and top-k."""
    chosen_N = _chosen(logprobs_NV, tokens_N)
    if sampling_N3 is not None and bool(((sampling_N3[:, 1] < 1) | (sampling_N3[:, 2] > 0)).any()):
        nucleus_NV = _nucleus(logprobs_NV.detach(), sampling_N3).scatter(1, tokens_N[:, None], True)
        chosen_N = chosen_N - logprobs_NV.masked_fill(~nucleus_NV, -torch.inf).logsumexp(1)
    return chosen_N


def _nucleus(logprobs_NV: Tensor, sampling_N3: Tensor) -> Tensor:
    """Return [N, V], the tokens left by top-k, then by top-p of those: the smallest set that holds that much."""
    top_p_N1, top_k_N1 = sampling_N3[:, 1:2], sampling_N3[:, 2:3]
    sorted_NV, order_NV = logprobs_NV.sort(dim=1, descending=True)
    rank_V = torch.arange(sorted_NV.shape[1], device=sorted_NV.device)
    probabilities_NV = torch.where((rank_V < top_k_N1) | (top_k_N1 == 0), sorted_NV.exp(), 0.0)
    probabilities_NV = probabilities_NV / probabilities_NV.sum(1, keepdim=True)
    before_NV = probabilities_NV.cumsum(1) - probabilities_NV
    inside_NV = (probabilities_NV > 0) & ((before_NV < top_p_N1) | (top_p_N1 == 1))
    return torch.zeros_like(inside_NV).scatter(1, order_NV, inside_NV)


def logits(model: Any, states_NH: Tensor) -> Tensor:
    """Return [N, V], logits of last hidden states as the model itself computes them, at least float32.

    Raises:
        ValueError: as `fit_head`.
    """
    logits_NV = find_logit_transform(model)(model.get_output_embeddings()(states_NH))
    return logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))


def find_logit_transform(model: Any) -> Callable[[Tensor], Tensor]:
    """Return the model's function from the output of its embeddings to its logits; found once, by comparison.

    Raises:
        ValueError: if the model does something unknown there.
    """
    if model in _FITTED:
        return _FITTED[model]
    raw_NV, model_NV = _probe(model)
    tolerance = _TOLERANCE.get(model_NV.dtype, 1e-3)
    size = float(model_NV.float().norm())
    for finish in _candidates(model):
        if float((finish(raw_NV).float() - model_NV.float()).norm()) <= tolerance * size + 1e-6:
            _FITTED[model] = finish
            return finish
    known = ", ".join((*_CAPS, *_FACTORS))
    raise ValueError(
        f"{type(model).__name__}: makes its logits of its output embeddings in a way that is not known here (known are "
        f"none and {known}), so its outputs cannot be computed a few tokens at a time; use another model"
    )


def _candidates(model: Any) -> Iterator[Callable[[Tensor], Tensor]]:
    """Yield the settings' logit modifiers; where two readings are possible, both.

    Small logits look alike with and without a cap, so a cap in the settings is believed.
    """
    settings = model.config.get_text_config(decoder=True).to_dict()
    caps = [float(settings[name]) for name in _CAPS if settings.get(name)]
    factors = [float(settings[name]) for name in _FACTORS if settings.get(name)]
    if caps:
        yield lambda logits_NV: torch.tanh(logits_NV / caps[0]) * caps[0]
    elif factors:
        yield lambda logits_NV: logits_NV * factors[0]
        yield lambda logits_NV: logits_NV / factors[0]
    else:
        yield lambda logits_NV: logits_NV


@torch.no_grad()
def _probe(model: Any) -> tuple[Tensor, Tensor]:
    """Return the output of the embeddings at a few tokens, and the model's own logits."""
    outputs: list[Tensor] = []
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    ids_1L = torch.tensor([[token % vocabulary for token in (3, 5, 7, 11)]], device=model.device)
    training = model.training
    model.eval()
    with model.get_output_embeddings().register_forward_hook(lambda _, __, output: outputs.append(output)):
        model_NV = model(input_ids=ids_1L, use_cache=False).logits[0]
    model.train(training)
    if len(outputs) != 1:
        raise ValueError(f"{type(model).__name__}: its logits are not made by its output embeddings; use another model")
    return outputs[0][0], model_NV
