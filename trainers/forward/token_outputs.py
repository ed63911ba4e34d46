"""Outputs of a model at completion tokens: log-probabilities, entropies, and KL divergences from anchors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from marl.trainers.batching.batches import Batch
from marl.trainers.forward.divergences import entropy
from marl.trainers.forward.model_inputs import HiddenStates, hidden_states
from marl.trainers.optim.memory_estimate import MAX_LOGIT_ENTRIES

_LOGIT_SOFTCAP_SETTINGS = ("final_logit_softcapping", "logits_soft_cap")
"""Settings of Gemma 2 to 4 and RecurrentGemma that cap logits x at c: c tanh(x / c)."""
_LOGIT_SCALE_SETTINGS = ("logit_scale", "lm_head_multiplier", "logits_scaling")
"""Settings of Cohere, Falcon H1 and HyperCLOVA X that multiply logits. Granite divides by `logits_scaling`."""
_TABLE_AT_ONCE = 1 << 23
"""Maximum number of logits at once in `_outputs_with_stored_gradients`: 32 MiB in float32, which the allocator reuses
for the next logits. Memory newly requested from the system would cost as much time as the logits."""
_SMALL_TABLE = 1 << 20
"""Maximum number of logits that are saved for the backward pass, because they fit in a processor's cache."""
DivergenceFunction = Callable[[Tensor, Tensor], Tensor]
"""Function (policy's log-probabilities [N, V], anchor's [N, V]) -> divergences [N], such as `exact_kl`."""
_TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 1e-2}
"""Relative error up to which two computations of logits count as equal, by dtype (default: 1e-3)."""
_LOGIT_TRANSFORMS: WeakKeyDictionary[nn.Module, Callable[[Tensor], Tensor]] = WeakKeyDictionary()
"""Model -> function from the output of its output embeddings to its logits."""


@dataclass(frozen=True, slots=True)
class TokenOutputRequest:
    """Requested per-token outputs, beside the log-probability."""

    entropy: bool = False
    differentiable_entropy: bool = False
    """True if the loss needs the entropy's gradient."""
    divergences: Mapping[str, DivergenceFunction] = field(default_factory=dict)
    """Anchor name -> divergence that is the anchor's output. Other anchors' output is the token's log-probability."""


@dataclass(frozen=True, slots=True)
class TokenOutputs:
    """Outputs of a model at a batch's completion tokens."""

    logprobs_BT: Tensor
    """[B, T], log-probability under the sampling distribution, with its temperature, top-p and top-k."""
    states: HiddenStates
    entropy_BT: Tensor | None = None
    """[B, T], entropy over the whole vocabulary at the sampling temperature, without top-p and top-k."""
    anchors: Mapping[str, Tensor] | None = None
    """Anchor name -> [B, T]: the divergence from the anchor, or the anchor's log-probability of the token."""


def token_outputs(
    model: Any,
    batch: Batch,
    requested: TokenOutputRequest | None = None,
    anchor_models: Mapping[str, Any] | None = None,
) -> TokenOutputs:
    """Return the outputs of `model` at the batch's completion tokens, and of the `anchor_models`, by name, without
    gradient.

    Logits are computed for a few tokens at a time, so that memory does not grow with tokens times vocabulary. The
    backward pass recomputes them, unless they fit in `MAX_LOGIT_ENTRIES` or gradients are stored instead.
    """
    requested, anchor_models = requested or TokenOutputRequest(), anchor_models or {}
    states = hidden_states(model, batch.inputs)
    # Anchors with a KL gradient come first, since recomputation stops at the last output that needs a gradient.
    ordered = dict(sorted(anchor_models.items(), key=lambda item: item[0] not in requested.divergences))
    inputs = [states.tokens_NH, batch.tokens_N, batch.sampling_N3]
    # Anchors that are the same model share one forward pass.
    states_of: dict[int, Tensor] = {}
    with torch.no_grad():
        for anchor in ordered.values():
            if id(anchor) not in states_of:
                states_of[id(anchor)] = hidden_states(anchor, batch.inputs).tokens_NH
            inputs.append(states_of[id(anchor)])
    head = _TokenOutputHead(model, requested, ordered)
    # Gradients can be stored, not recomputed, if only log-probabilities need them and the head is frozen.
    has_state_gradient_alone = (
        torch.is_grad_enabled()
        and states.tokens_NH.requires_grad
        and not (requested.differentiable_entropy or requested.divergences)
        and not any(parameter.requires_grad for parameter in model.get_output_embeddings().parameters())
    )
    has_many_logits = len(states.tokens_NH) * head.vocabulary_size > _SMALL_TABLE
    compute = _outputs_with_stored_gradients if has_state_gradient_alone and has_many_logits else _outputs_by_chunk
    logprobs_N, entropy_N, *anchors_N = compute(head, inputs)
    outputs_N = dict(zip(ordered, anchors_N, strict=True))
    entropy_BT = batch.scatter_token_values(entropy_N) if requested.entropy else None
    anchors_BT = {name: batch.scatter_token_values(outputs_N[name]) for name in anchor_models}
    return TokenOutputs(batch.scatter_token_values(logprobs_N), states, entropy_BT, anchors_BT)


@dataclass(frozen=True, slots=True)
class _TokenOutputHead:
    """Function from the last hidden states of some tokens to their outputs, by way of their logits."""

    model: Any
    spec: TokenOutputRequest
    anchors: Mapping[str, Any]

    @property
    def vocabulary_size(self) -> int:
        return self.model.config.get_text_config(decoder=True).vocab_size

    def __call__(
        self, states_NH: Tensor, tokens_N: Tensor, sampling_N3: Tensor | None, *anchors_NH: Tensor
    ) -> tuple[Tensor, ...]:
        """Return [N] each: log-probability, entropy (empty unless requested), then the output of each anchor."""
        logprobs_NV = _logprobs_at_temperature(logits(self.model, states_NH), sampling_N3)
        chosen_N = _truncated_logprobs(logprobs_NV, tokens_N, sampling_N3)
        with torch.set_grad_enabled(self.spec.differentiable_entropy and torch.is_grad_enabled()):
            entropy_N = entropy(logprobs_NV) if self.spec.entropy else chosen_N.new_empty(0)
        outputs: list[Tensor] = []
        computed: dict[int, Tensor] = {}
        for (name, anchor), anchor_NH in zip(self.anchors.items(), anchors_NH, strict=True):
            if id(anchor) not in computed:
                with torch.no_grad():
                    computed[id(anchor)] = _logprobs_at_temperature(logits(anchor, anchor_NH), sampling_N3)
            anchor_NV = computed[id(anchor)]
            divergence = self.spec.divergences.get(name)
            outputs.append(
                divergence(logprobs_NV, anchor_NV) if divergence else _gather_token_logprobs(anchor_NV, tokens_N)
            )
        return chosen_N, entropy_N, *outputs


def _outputs_by_chunk(head: _TokenOutputHead, inputs: Sequence[Tensor | None]) -> list[Tensor]:
    """Return the outputs of all tokens, computed for a few tokens at a time if their logits would take much memory."""
    first_NH, output = inputs[0], head.model.get_output_embeddings()
    assert first_NH is not None
    pieces = -(-len(first_NH) * head.vocabulary_size // MAX_LOGIT_ENTRIES)
    if pieces <= 1:
        return list(head(*inputs))  # type: ignore[arg-type]  # only sampling_N3 may be None
    # If the head's adapter has dropout, its random state is kept, so that recomputation uses the same mask.
    random = output.training and any(isinstance(m, nn.Dropout) and m.p > 0 for m in output.modules())
    chunks: list[tuple[Tensor, ...]] = [
        checkpoint(head, *chunk, use_reentrant=False, preserve_rng_state=random)
        for chunk in _chunks_of_tokens(inputs, pieces)
    ]
    return [torch.cat(column) for column in zip(*chunks, strict=True)]


def _chunks_of_tokens(inputs: Sequence[Tensor | None], chunk_count: int) -> Iterator[list[Any]]:
    """Yield the inputs of `_TokenOutputHead` in at most `chunk_count` chunks of tokens."""
    assert inputs[0] is not None
    tokens = len(inputs[0])
    size = -(-tokens // chunk_count)
    for start in range(0, tokens, size):
        yield [None if tensor is None else tensor[start : start + size] for tensor in inputs]


def _outputs_with_stored_gradients(head: _TokenOutputHead, inputs: Sequence[Tensor | None]) -> list[Tensor]:
    """Return the outputs of all tokens, if only log-probabilities have a gradient, and only to the hidden states.

    A token's log-probability depends on the token's own state alone. So the forward pass computes the gradient [H] of
    each log-probability and keeps no logits; the backward pass scales the gradients and recomputes nothing.
    """
    states_NH = inputs[0]
    assert states_NH is not None
    slopes: list[Tensor] = []
    chunks: list[tuple[Tensor, ...]] = []
    for states, *more_inputs in _chunks_of_tokens(inputs, -(-len(states_NH) * head.vocabulary_size // _TABLE_AT_ONCE)):
        leaf = states.detach().requires_grad_()
        outputs = head(leaf, *more_inputs)
        slopes += torch.autograd.grad(outputs[0].sum(), leaf)
        chunks.append(tuple(output.detach() for output in outputs))
    logprobs_N, *more = [torch.cat(column) for column in zip(*chunks, strict=True)]
    zeros_NH = states_NH - states_NH.detach()  # x - x.detach() has value 0 and gradient 1
    return [logprobs_N + (torch.cat(slopes) * zeros_NH).sum(1), *more]


def _logprobs_at_temperature(logits_NV: Tensor, sampling_N3: Tensor | None) -> Tensor:
    """Return [N, V], log-probabilities at the sampling temperature."""
    if sampling_N3 is not None:
        logits_NV = logits_NV.div_(sampling_N3[:, :1])  # `div_` saves memory, as nothing else uses the logits
    return logits_NV.log_softmax(-1)


def _gather_token_logprobs(logprobs_NV: Tensor, tokens_N: Tensor) -> Tensor:
    """Return [N], the log-probabilities of the given tokens."""
    return logprobs_NV.gather(1, tokens_N[:, None]).squeeze(1)


def _truncated_logprobs(logprobs_NV: Tensor, tokens_N: Tensor, sampling_N3: Tensor | None) -> Tensor:
    """Return [N], the tokens' log-probabilities under the distribution truncated by top-p and top-k."""
    chosen_N = _gather_token_logprobs(logprobs_NV, tokens_N)
    if sampling_N3 is None or not bool(((sampling_N3[:, 1] < 1) | (sampling_N3[:, 2] > 0)).any()):
        return chosen_N
    top_p_N1, top_k_N1 = sampling_N3[:, 1:2], sampling_N3[:, 2:3]
    sorted_NV, order_NV = logprobs_NV.detach().sort(dim=1, descending=True)
    rank_V = torch.arange(sorted_NV.shape[1], device=sorted_NV.device)
    # Top-k is applied first, then top-p to the normalised rest, as by samplers.
    probabilities_NV = torch.where((rank_V < top_k_N1) | (top_k_N1 == 0), sorted_NV.exp(), 0.0)
    probabilities_NV = probabilities_NV / probabilities_NV.sum(1, keepdim=True)
    before_NV = probabilities_NV.cumsum(1) - probabilities_NV
    inside_NV = (probabilities_NV > 0) & ((before_NV < top_p_N1) | (top_p_N1 == 1))
    nucleus_NV = torch.zeros_like(inside_NV).scatter(1, order_NV, inside_NV).scatter(1, tokens_N[:, None], True)
    return chosen_N - logprobs_NV.masked_fill(~nucleus_NV, -torch.inf).logsumexp(1)


def logits(model: Any, states_NH: Tensor) -> Tensor:
    """Return [N, V], logits of last hidden states as the model itself computes them, at least float32.

    Raises:
        ValueError: if the model computes its logits in an unknown way.
    """
    logits_NV = find_logit_transform(model)(model.get_output_embeddings()(states_NH))
    return logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))


def find_logit_transform(model: Any) -> Callable[[Tensor], Tensor]:
    """Return the function from the output of the model's output embeddings to its logits; found once, by comparison.

    Raises:
        ValueError: if the model computes its logits in an unknown way.
    """
    if model in _LOGIT_TRANSFORMS:
        return _LOGIT_TRANSFORMS[model]
    text_config = model.config.get_text_config(decoder=True)
    settings = text_config.to_dict()
    caps = [float(settings[name]) for name in _LOGIT_SOFTCAP_SETTINGS if settings.get(name)]
    factors = [float(settings[name]) for name in _LOGIT_SCALE_SETTINGS if settings.get(name)]
    candidates: list[Callable[[Tensor], Tensor]] = [lambda logits_NV: logits_NV]
    if caps:
        # With a cap there is one candidate, because small logits look the same with and without it.
        candidates = [lambda logits_NV: torch.tanh(logits_NV / caps[0]) * caps[0]]
    elif factors:
        candidates = [lambda logits_NV: logits_NV * factors[0], lambda logits_NV: logits_NV / factors[0]]
    raw: list[Tensor] = []
    ids_1L = torch.tensor([[3, 5, 7, 11]], device=model.device) % text_config.vocab_size
    training = model.training
    model.eval()
    embeddings = model.get_output_embeddings()
    with torch.no_grad(), embeddings.register_forward_hook(lambda _, __, output: raw.append(output)):
        model_NV = model(input_ids=ids_1L, use_cache=False).logits[0]
    model.train(training)
    if len(raw) != 1:
        raise ValueError(f"{type(model).__name__}: its logits are not made by its output embeddings; use another model")
    tolerance = _TOLERANCE.get(model_NV.dtype, 1e-3)
    size = float(model_NV.float().norm())
    for transform in candidates:
        if float((transform(raw[0][0]).float() - model_NV.float()).norm()) <= tolerance * size + 1e-6:
            _LOGIT_TRANSFORMS[model] = transform
            return transform
    known = ", ".join((*_LOGIT_SOFTCAP_SETTINGS, *_LOGIT_SCALE_SETTINGS))
    raise ValueError(
        f"{type(model).__name__}: makes its logits of its output embeddings in a way that is not known here (known are "
        f"none and {known}), so its outputs cannot be computed a few tokens at a time; use another model"
    )
