"""What a model reads, and its last hidden states at completion tokens: whole texts, or each distinct prompt once.

Shape suffixes: P = distinct prompts, L = prompt, U = rows with different tokens, S = what is read of each of them,
B = rows, N = completion tokens of all rows in one line, H = hidden.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.modeling_layers import GradientCheckpointingLayer

from trainers.rows import Row

Key = TypeVar("Key", bound=Hashable)
_ORDINARY = {DynamicLayer, DynamicSlidingWindowLayer}
_UNLIKE = ("chunked_attention", "dynamic", "longrope")
"""Layers that see less than a mask over all keys would show, and positions that depend on the text's length."""
_INPUTS = {"input_ids", "attention_mask", "position_ids", "past_key_values", "use_cache"}


@dataclass(frozen=True, slots=True)
class Prompts:
    """Distinct prompts, padded on the left, so that all end in the last column."""

    ids_PL: Tensor
    mask_PL: Tensor | None
    """None if there is no padding."""
    owner_U: Tensor
    """The prompt that each row goes on from."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Tokens to read. A completion's last token predicts nothing that is asked for and is left out."""

    ids_US: Tensor
    """Prompts and completions, or completions alone; padded on the right, where causal attention never looks."""
    states_N: Tensor
    """Which hidden state predicts each completion token: the prompts' last ones, then those of `ids_US`, in a line."""
    prompts: Prompts | None = None
    ends_B2: Tensor | None = None
    """Where each row's last prompt token and its last completion token are in `ids_US`, flattened."""


def ended_texts(rows: Sequence[Row], rows_N: Tensor, t_N: Tensor, device: torch.device) -> Texts:
    """Every row with its prompt and all of its completion, so that the states at its end are computed, too."""
    lengths_B2 = torch.tensor([[len(row.prompt_ids), row.length] for row in rows])
    ids_BS = _table([row.prompt_ids + row.token_ids for row in rows])
    ends_B2 = torch.arange(len(rows))[:, None] * ids_BS.shape[1] + lengths_B2 - 1
    return Texts(ids_BS.to(device), (ends_B2[:, 0][rows_N] + t_N).to(device), ends_B2=ends_B2.to(device))


def whole_texts(rows: Sequence[Row], rows_N: Tensor, t_N: Tensor, device: torch.device) -> Texts:
    """Every row with its prompt. Rows that are read alike, such as those of either sign, share a line."""
    keys = [row.prompt_ids + row.token_ids[:-1] for row in rows]
    line_of = _numbered(keys)
    ids_US = _table(list(line_of))
    ends_B = torch.tensor([len(row.prompt_ids) - 1 for row in rows])
    lines_B = torch.tensor([line_of[key] for key in keys])
    return Texts(ids_US.to(device), ((lines_B * ids_US.shape[1] + ends_B)[rows_N] + t_N).to(device))


def shared_texts(rows: Sequence[Row], rows_N: Tensor, t_N: Tensor, device: torch.device) -> Texts:
    """Every distinct prompt, then what follows it."""
    prompt_of = _numbered(row.prompt_ids for row in rows)
    keys = [(prompt_of[row.prompt_ids], row.token_ids[:-1]) for row in rows]
    line_of = _numbered(key for key in keys if key[1])
    ids_US = _table([tokens for _, tokens in line_of])
    owner_B = torch.tensor([owner for owner, _ in keys])
    lines_B = torch.tensor([line_of.get(key, 0) for key in keys])
    later_B = len(prompt_of) + lines_B * ids_US.shape[1]
    states_N = torch.where(t_N == 0, owner_B[rows_N], later_B[rows_N] + t_N - 1)
    owner_U = torch.tensor([owner for owner, _ in line_of], dtype=torch.long)
    return Texts(ids_US.to(device), states_N.to(device), _prompts(list(prompt_of), owner_U, device))


def _prompts(prompts: Sequence[tuple[int, ...]], owner_U: Tensor, device: torch.device) -> Prompts:
    lengths_P = torch.tensor([len(prompt) for prompt in prompts])
    width = int(lengths_P.max())
    mask_PL = torch.arange(width) >= width - lengths_P[:, None]
    ids_PL = torch.tensor([[*[0] * (width - len(prompt)), *prompt] for prompt in prompts])
    padded = bool((lengths_P < width).any())
    return Prompts(ids_PL.to(device), mask_PL.to(device) if padded else None, owner_U.to(device))


def _numbered(keys: Iterable[Key]) -> dict[Key, int]:
    return {key: number for number, key in enumerate(dict.fromkeys(keys))}


def _table(lines: Sequence[tuple[int, ...]]) -> Tensor:
    width = max(map(len, lines), default=0)
    padded = [[*line, *[0] * (width - len(line))] for line in lines]
    return torch.tensor(padded, dtype=torch.long).view(len(lines), width)


@dataclass(frozen=True, slots=True)
class States:
    """Last hidden states: what the output embeddings read."""

    said_NH: Tensor
    """Those that predict the completion tokens: of token t, at the token before."""
    ends_B2H: Tensor | None = None
    """At each row's last prompt token and last completion token, of texts laid out with their ends."""


def states(model: Any, texts: Texts) -> States:
    """One forward pass; the model's head computes nothing."""
    if texts.prompts is None:
        flat_XH = _last(model, input_ids=texts.ids_US, use_cache=False).flatten(0, 1)
        return States(flat_XH[texts.states_N], None if texts.ends_B2 is None else flat_XH[texts.ends_B2])
    # Without a configuration a cache keeps all keys of all layers; sliding windows are left to the model's masks.
    prompts, cache = texts.prompts, DynamicCache()
    ends_PH = _last(model, input_ids=prompts.ids_PL, past_key_values=cache, use_cache=True, **_places(prompts))[:, -1]
    if not len(texts.ids_US):
        return States(ends_PH[texts.states_N])
    cache.batch_select_indices(prompts.owner_U)
    places = _places_after(prompts, texts.ids_US.shape[1])
    later_USH = _last(model, input_ids=texts.ids_US, past_key_values=cache, use_cache=True, **places)
    return States(torch.cat([ends_PH, later_USH.flatten(0, 1)])[texts.states_N])


def _last(model: Any, **inputs: Any) -> Tensor:
    """[..., H] caught before the model's head, which is given nothing to do."""
    caught: list[Tensor] = []

    def catch(_: Any, given: tuple[Tensor]) -> tuple[Tensor]:
        caught.append(given[0])
        return (given[0][:, :0],)

    with model.get_output_embeddings().register_forward_pre_hook(catch):
        model(**inputs)
    return caught[0]


def _places(prompts: Prompts) -> dict[str, Tensor]:
    """Mask and positions of the prompts, where the model would not guess them itself."""
    if prompts.mask_PL is None:
        return {}
    positions_PL = (prompts.mask_PL.cumsum(1) - 1).clamp(min=0)
    return {"attention_mask": prompts.mask_PL.long(), "position_ids": positions_PL}


def _places_after(prompts: Prompts, width: int) -> dict[str, Tensor]:
    """The same of what follows them."""
    if prompts.mask_PL is None:
        return {}
    mask_UL = prompts.mask_PL[prompts.owner_U].long()
    steps_S = torch.arange(width, device=mask_UL.device)
    mask = torch.cat([mask_UL, mask_UL.new_ones(len(mask_UL), width)], dim=1)
    return {"attention_mask": mask, "position_ids": mask_UL.sum(1, keepdim=True) + steps_S}


def can_share(model: Any) -> bool:
    """Whether a prompt may be read once for several rows: the model keeps all its keys and values and nothing else, and
    they do not depend on what follows."""
    takes = inspect.signature(model.forward).parameters.keys()
    recomputes = any(m.gradient_checkpointing for m in model.modules() if isinstance(m, GradientCheckpointingLayer))
    settings = _settings(model)
    kinds = f"{settings.get('layer_types')} {settings.get('rope_parameters')}"
    if model._is_stateful or recomputes or not takes >= _INPUTS or any(word in kinds for word in _UNLIKE):
        return False
    return {type(layer) for layer in DynamicCache(config=model.config).layers} <= _ORDINARY


def drops_out(model: Any) -> bool:
    """Whether training is random. A shared prompt would draw once what its rows ought to draw one by one."""
    modules = any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
    return modules or any("drop" in name and value for name, value in _settings(model).items())


def _settings(model: Any) -> dict[str, Any]:
    return model.config.get_text_config(decoder=True).to_dict()
