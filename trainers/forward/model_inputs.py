"""What a model reads, and its last hidden states at completion tokens: padded texts, or lines (`packing.py`).

Shape suffixes: B = rows, U = texts or lines, S = what is read of each of them, N = completion tokens of all rows in one
line, H = hidden.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.modeling_layers import GradientCheckpointingLayer

from trainers.batching.packing import Lines
from trainers.batching.rows import Row
from trainers.forward import flex_attention as flex

_ORDINARY = {DynamicLayer, DynamicSlidingWindowLayer}
_UNLIKE = ("chunked_attention", "dynamic", "longrope")
"""Layers that see less than a mask over all keys would show, and positions that depend on the text's length."""
_ELSEWHERE = ("summary_", "classifier_")
"""Settings of heads that a language model has not."""
_INPUTS = {"input_ids", "attention_mask", "position_ids", "use_cache"}
_MASKED = {"sdpa", "eager", flex.NAME}
"""Kinds of attention that a mask over pairs of tokens can be given to."""


@dataclass(frozen=True, slots=True)
class Forest:
    """What tokens of lines see: token i sees j if and only if j <= i < last[j]."""

    depths_US: Tensor
    """Each token's position in its text."""
    last_US: Tensor


@dataclass(frozen=True, slots=True)
class Prompts:
    """Distinct prompts, padded on the left, so that all end in the last column; read before what goes on from them."""

    ids_PL: Tensor
    mask_PL: Tensor | None
    """None if there is no padding."""
    owner_U: Tensor
    """The prompt that each text goes on from."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Tokens to read. A completion's last token predicts nothing that is asked for and is mostly left out."""

    ids_US: Tensor
    """Padded on the right."""
    states_N: Tensor
    """Where, in `ids_US` flattened, the hidden state is that predicts each completion token."""
    forest: Forest | None = None
    """None: one text in each line, whose tokens see all before them."""
    prompts: Prompts | None = None
    """What the texts go on from; its last states come before those of `ids_US`."""
    ends_B2: Tensor | None = None
    """Where each row's last prompt token and its last completion token are, flattened; None if the latter are not."""


def ended_texts(rows: Sequence[Row], rows_N: Tensor, t_N: Tensor, device: torch.device) -> Texts:
    """Every row with its prompt and all of its completion, so that the states at its end are computed, too."""
    lengths_B2 = torch.tensor([[len(row.prompt_ids), row.length] for row in rows])
    ids_BS = _table([row.prompt_ids + row.token_ids for row in rows])
    ends_B2 = torch.arange(len(rows))[:, None] * ids_BS.shape[1] + lengths_B2 - 1
    return Texts(ids_BS.to(device), (ends_B2[:, 0][rows_N] + t_N).to(device), ends_B2=ends_B2.to(device))


def whole_texts(rows: Sequence[Row], rows_N: Tensor, t_N: Tensor, device: torch.device) -> Texts:
    """Every row with its prompt. Rows that are read alike, such as those of either sign, share a line."""
    keys = [row.prompt_ids + row.token_ids[:-1] for row in rows]
    line_of = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    ids_US = _table(list(line_of))
    ends_B = torch.tensor([len(row.prompt_ids) - 1 for row in rows])
    lines_B = torch.tensor([line_of[key] for key in keys])
    return Texts(ids_US.to(device), ((lines_B * ids_US.shape[1] + ends_B)[rows_N] + t_N).to(device))


def prompted_texts(rows: Sequence[Row], rows_N: Tensor, t_N: Tensor, device: torch.device) -> Texts:
    """Every distinct prompt, then what follows it, once however many rows say it."""
    prompt_of = {prompt: number for number, prompt in enumerate(dict.fromkeys(row.prompt_ids for row in rows))}
    keys = [(prompt_of[row.prompt_ids], row.token_ids[:-1]) for row in rows]
    line_of = {key: number for number, key in enumerate(dict.fromkeys(key for key in keys if key[1]))}
    ids_US = _table([tokens for _, tokens in line_of])
    owner_B = torch.tensor([owner for owner, _ in keys])
    later_B = len(prompt_of) + torch.tensor([line_of.get(key, 0) for key in keys]) * ids_US.shape[1]
    states_N = torch.where(t_N == 0, owner_B[rows_N], later_B[rows_N] + t_N - 1)
    owner_U = torch.tensor([owner for owner, _ in line_of], dtype=torch.long)
    return Texts(ids_US.to(device), states_N.to(device), prompts=_prompts(list(prompt_of), owner_U, device))


def _prompts(prompts: Sequence[tuple[int, ...]], owner_U: Tensor, device: torch.device) -> Prompts:
    lengths_P = torch.tensor([len(prompt) for prompt in prompts])
    width = int(lengths_P.max())
    mask_PL = torch.arange(width) >= width - lengths_P[:, None]
    ids_PL = torch.tensor([[*[0] * (width - len(prompt)), *prompt] for prompt in prompts])
    padded = bool((lengths_P < width).any())
    return Prompts(ids_PL.to(device), mask_PL.to(device) if padded else None, owner_U.to(device))


def lined_texts(lines: Lines, rows: Sequence[Row], device: torch.device) -> Texts:
    """Rows as `lines` hold them: `places` are those of the rows, in their order."""
    places = list(lines.places.values())
    pairs = list(zip(rows, places, strict=True))
    states_N = np.concatenate([place[len(row.prompt_ids) - 1 : row.length - 1] for row, place in pairs])
    ends_B2 = None
    if all(len(place) == row.length for row, place in pairs):
        ends_B2 = torch.tensor([[place[len(row.prompt_ids) - 1], place[-1]] for row, place in pairs], device=device)
    depths_US, last_US = (torch.from_numpy(table).to(device) for table in (lines.depths_LW, lines.last_LW))
    ids_US, states_N = torch.from_numpy(lines.ids_LW).to(device), torch.from_numpy(states_N).to(device)
    return Texts(ids_US, states_N, Forest(depths_US, last_US), ends_B2=ends_B2)


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
    """One forward pass, or two where texts go on from prompts; the model's head computes nothing."""
    if texts.prompts is not None:
        return States(_after(model, texts, texts.prompts))
    seen = {} if texts.forest is None else {"attention_mask": masks(model, texts.forest)}
    placed = {} if texts.forest is None else {"position_ids": texts.forest.depths_US}
    flat_XH = _last(model, input_ids=texts.ids_US, use_cache=False, **seen, **placed).flatten(0, 1)
    return States(flat_XH[texts.states_N], None if texts.ends_B2 is None else flat_XH[texts.ends_B2])


def _after(model: Any, texts: Texts, prompts: Prompts) -> Tensor:
    """[N, H]: keys and values of each prompt are computed once for all texts that go on from it."""
    # Without a configuration a cache keeps all keys of all layers; sliding windows are left to the model's masks.
    cache, mask_PL = DynamicCache(), prompts.mask_PL
    places: dict[str, Tensor] = {}
    if mask_PL is not None:
        places = {"attention_mask": mask_PL.long(), "position_ids": (mask_PL.cumsum(1) - 1).clamp(min=0)}
    ends_PH = _last(model, input_ids=prompts.ids_PL, past_key_values=cache, use_cache=True, **places)[:, -1]
    if not len(texts.ids_US):
        return ends_PH[texts.states_N]
    cache.batch_select_indices(prompts.owner_U)
    if mask_PL is not None:
        mask_UL, width = mask_PL[prompts.owner_U].long(), texts.ids_US.shape[1]
        steps_S = torch.arange(width, device=mask_UL.device)
        seen_UX = torch.cat([mask_UL, mask_UL.new_ones(len(mask_UL), width)], dim=1)
        places = {"attention_mask": seen_UX, "position_ids": mask_UL.sum(1, keepdim=True) + steps_S}
    later_USH = _last(model, input_ids=texts.ids_US, past_key_values=cache, use_cache=True, **places)
    return torch.cat([ends_PH, later_USH.flatten(0, 1)])[texts.states_N]


def _last(model: Any, **inputs: Any) -> Tensor:
    """[..., H] caught before the model's head, which is given nothing to do."""
    caught: list[Tensor] = []

    def catch(_: Any, given: tuple[Tensor]) -> tuple[Tensor]:
        caught.append(given[0])
        return (given[0][:, :0],)

    with model.get_output_embeddings().register_forward_pre_hook(catch):
        model(**inputs)
    return caught[0]


def masks(model: Any, forest: Forest) -> Any:
    """What the model is to be given as its attention mask: one, or one for each type of layer that it has."""
    settings = _settings(model)
    window = settings.get("sliding_window")
    kinds = set(settings.get("layer_types") or (["full_attention"] if window is None else ["sliding_attention"]))
    make = _additive
    if in_blocks(model):
        make = _in_blocks
        if model.config._attn_implementation != flex.NAME:
            model.set_attn_implementation(flex.NAME)
    made = {kind: make(model, forest, window if kind == "sliding_attention" else None) for kind in sorted(kinds)}
    return made if len(made) > 1 else made.popitem()[1]


def _in_blocks(_: Any, forest: Forest, window: int | None) -> Any:
    return flex.block_mask(forest.depths_US, forest.last_US, window)


def _additive(model: Any, forest: Forest, window: int | None) -> Tensor:
    """[U, 1, S, S] in the model's type: 0 where a token sees another. Boolean ones are made over in every layer."""
    here_S = torch.arange(forest.last_US.shape[1], device=forest.last_US.device)
    hidden_USS = (here_S[:, None] < here_S) | (here_S[:, None] >= forest.last_US[:, None])
    if window is not None:
        hidden_USS |= forest.depths_US[:, :, None] - forest.depths_US[:, None] >= window
    mask_USS = torch.zeros(hidden_USS.shape, dtype=model.dtype, device=hidden_USS.device)
    return mask_USS.masked_fill_(hidden_USS, torch.finfo(model.dtype).min)[:, None]


def in_blocks(model: Any) -> bool:
    """Whether attention may skip what is hidden: FlexAttention, which has no dropout, in place of SDPA on a GPU."""
    kind = model.config._attn_implementation
    return kind == flex.NAME or (
        kind == "sdpa" and next(model.parameters()).is_cuda and model._supports_flex_attn and not drops_out(model)
    )


def obstacle(model: Any) -> str:
    """Why the model cannot read lines; empty if it can: it keeps keys and values of all tokens and nothing else, and
    they do not depend on what follows or on how long a text is."""
    absent = _INPUTS - inspect.signature(model.forward).parameters.keys()
    settings = _settings(model)
    kinds = f"{settings.get('layer_types')} {settings.get('rope_parameters')}"
    odd = [word for word in _UNLIKE if word in kinds]
    layers = {type(layer) for layer in DynamicCache(config=model.config).layers} - _ORDINARY
    if absent:
        return f"its forward takes no {', '.join(sorted(absent))}"
    if odd or layers or model._is_stateful:
        return f"it remembers in a way of its own ({', '.join([*odd, *(t.__name__ for t in layers)]) or 'a state'})"
    kind = model.config._attn_implementation
    return "" if kind in _MASKED else f"its attention is {kind!r}, known are {sorted(_MASKED)}"


def keeps_cache(model: Any) -> bool:
    """Whether keys and values can be kept from one pass to the next: layers that are recomputed do not keep them."""
    layers = (module for module in model.modules() if isinstance(module, GradientCheckpointingLayer))
    return "past_key_values" in inspect.signature(model.forward).parameters and not (
        model.training and any(layer.gradient_checkpointing for layer in layers)
    )


def drops_out(model: Any) -> bool:
    """Whether training is random. A shared prompt would draw once what its rows ought to draw one by one."""
    modules = any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
    named = {name: value for name, value in _settings(model).items() if not name.startswith(_ELSEWHERE)}
    return modules or any("drop" in name and value for name, value in named.items())


def _settings(model: Any) -> dict[str, Any]:
    return model.config.get_text_config(decoder=True).to_dict()
