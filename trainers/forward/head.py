"""The last step of a model, from hidden states to logits, taken as the model itself takes it.

Shape suffixes: N = states in one line, H = hidden, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

Finish = Callable[[Tensor], Tensor]
_CAPS = ("final_logit_softcapping", "logits_soft_cap")
"""Gemma 2 to 4, RecurrentGemma: c tanh(x / c)."""
_FACTORS = ("logit_scale", "lm_head_multiplier", "logits_scaling")
"""Cohere, Falcon H1, HyperCLOVA X: x times a number. Granite divides by what has the last of these names."""
_TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 1e-2}
_FITTED: WeakKeyDictionary[nn.Module, Finish] = WeakKeyDictionary()
"""What models do to the output of their embeddings; found out once."""


def head(model: Any, states_NH: Tensor) -> Tensor:
    """[N, V] logits of last hidden states, at least float32; what comes before that is in the model's own type.

    Raises:
        ValueError: as `fit_head`.
    """
    logits_NV = fit_head(model)(model.get_output_embeddings()(states_NH))
    return logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))


def fit_head(model: Any) -> Finish:
    """What the model does to what its output embeddings say, compared with the model's own logits the first time.

    Raises:
        ValueError: if it does what is not known here.
    """
    if model not in _FITTED:
        _FITTED[model] = _fitted(model)
    return _FITTED[model]


def _fitted(model: Any) -> Finish:
    raw_NV, own_NV = _probed(model)
    tolerance = _TOLERANCE.get(own_NV.dtype, 1e-3)
    size = float(own_NV.float().norm())
    for finish in _candidates(model):
        if float((finish(raw_NV).float() - own_NV.float()).norm()) <= tolerance * size + 1e-6:
            return finish
    known = ", ".join((*_CAPS, *_FACTORS))
    raise ValueError(
        f"{type(model).__name__}: makes its logits of its output embeddings in a way that is not known here (known are "
        f"none and {known}), so what it says of a token cannot be computed a few tokens at a time; use another model"
    )


def _candidates(model: Any) -> Iterator[Finish]:
    """What the settings name; where two readings are possible, both. Small logits look alike with and without a cap,
    so a cap that is named is believed."""
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
def _probed(model: Any) -> tuple[Tensor, Tensor]:
    """What the output embeddings say of a few tokens, and the model's own logits."""
    said: list[Tensor] = []

    def catch(_: Any, __: Any, output: Tensor) -> None:
        said.append(output)

    vocabulary: int = model.config.get_text_config(decoder=True).vocab_size
    ids_1L = torch.tensor([[token % vocabulary for token in (3, 5, 7, 11)]], device=model.device)
    training = model.training
    model.eval()
    with model.get_output_embeddings().register_forward_hook(catch):
        own_NV = model(input_ids=ids_1L, use_cache=False).logits[0]
    model.train(training)
    if len(said) != 1:
        raise ValueError(f"{type(model).__name__}: its logits are not made by its output embeddings; use another model")
    return said[0][0], own_NV
