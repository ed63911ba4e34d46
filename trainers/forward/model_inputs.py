"""Layouts of a model's inputs, and its last hidden states at completion tokens.

Here U = sequences, S = their width, P = distinct prompts, L = their width.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer

from marl.trainers.batching.packing import PackedBatch
from marl.trainers.batching.rows import Row
from marl.trainers.forward.attention import PrefixForest, attention_masks
from marl.trainers.optim.settings import GradientLearnerConfig


@dataclass(frozen=True, slots=True)
class PromptBatch:
    """Distinct prompts, read before their completions; padded on the left, so that all end in the last column."""

    ids_PL: Tensor
    mask_PL: Tensor | None
    """None if there is no padding."""
    prompt_index_U: Tensor
    """The prompt that each sequence continues."""


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Tokens of one forward pass. A completion's last token predicts nothing that is needed and is mostly left out."""

    ids_US: Tensor
    """Padded on the right."""
    state_index_N: Tensor
    """Index, in `ids_US` flattened, of the hidden state that predicts each completion token."""
    forest: PrefixForest | None = None
    """None: one text a sequence, with causal attention."""
    prompts: PromptBatch | None = None
    """Prompts that the sequences continue; their last states come before those of `ids_US`."""
    ends_B2: Tensor | None = None
    """Indices of each row's last prompt token and last completion token; None if the latter are not computed."""


def inputs_with_ends(rows: Sequence[Row], rows_N: Tensor, t_N: Tensor, device: torch.device) -> ModelInputs:
    """Return each row's prompt and full completion, so that the states at the row's end are computed, too."""
    lengths_B2 = torch.tensor([[len(row.prompt_ids), row.length] for row in rows])
    ids_BS = _right_padded([row.prompt_ids + row.token_ids for row in rows])
    ends_B2 = torch.arange(len(rows))[:, None] * ids_BS.shape[1] + lengths_B2 - 1
    return ModelInputs(ids_BS.to(device), (ends_B2[:, 0][rows_N] + t_N).to(device), ends_B2=ends_B2.to(device))


def padded_inputs(rows: Sequence[Row], rows_N: Tensor, t_N: Tensor, device: torch.device) -> ModelInputs:
    """Return the inputs of padded rows. Rows with the same tokens, such as rows of opposite signs, share a sequence."""
    keys = [row.prompt_ids + row.token_ids[:-1] for row in rows]
    number_of = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    ids_US = _right_padded(list(number_of))
    ends_B = torch.tensor([len(row.prompt_ids) - 1 for row in rows])
    numbers_B = torch.tensor([number_of[key] for key in keys])
    return ModelInputs(ids_US.to(device), ((numbers_B * ids_US.shape[1] + ends_B)[rows_N] + t_N).to(device))


def prompted_inputs(rows: Sequence[Row], rows_N: Tensor, t_N: Tensor, device: torch.device) -> ModelInputs:
    """Return the inputs of distinct prompts, and of the distinct continuations of each."""
    prompt_of = {prompt: number for number, prompt in enumerate(dict.fromkeys(row.prompt_ids for row in rows))}
    keys = [(prompt_of[row.prompt_ids], row.token_ids[:-1]) for row in rows]
    number_of = {key: number for number, key in enumerate(dict.fromkeys(key for key in keys if key[1]))}
    ids_US = _right_padded([tokens for _, tokens in number_of])
    owner_B = torch.tensor([owner for owner, _ in keys])
    later_B = len(prompt_of) + torch.tensor([number_of.get(key, 0) for key in keys]) * ids_US.shape[1]
    states_N = torch.where(t_N == 0, owner_B[rows_N], later_B[rows_N] + t_N - 1)
    owner_U = torch.tensor([owner for owner, _ in number_of], dtype=torch.long)
    lengths_P = torch.tensor([len(prompt) for prompt in prompt_of])
    width = int(lengths_P.max())
    ids_PL = torch.tensor([[*[0] * (width - len(prompt)), *prompt] for prompt in prompt_of]).to(device)
    mask_PL = (torch.arange(width) >= width - lengths_P[:, None]).to(device) if (lengths_P < width).any() else None
    prompts = PromptBatch(ids_PL, mask_PL, owner_U.to(device))
    return ModelInputs(ids_US.to(device), states_N.to(device), prompts=prompts)


def packed_inputs(packed: PackedBatch, rows: Sequence[Row], _: Tensor, __: Tensor, device: torch.device) -> ModelInputs:
    """Return the inputs of packed sequences; `packed.token_indices` are in the order of `rows`."""
    pairs = list(zip(rows, packed.token_indices.values(), strict=True))
    states_N = np.concatenate([indices[len(row.prompt_ids) - 1 : row.length - 1] for row, indices in pairs])
    ends_B2 = None
    # Without `ends`, texts are packed without their last token.
    if all(len(indices) == row.length for row, indices in pairs):
        ends = [[indices[len(row.prompt_ids) - 1], indices[-1]] for row, indices in pairs]
        ends_B2 = torch.tensor(ends, device=device)
    tables = (packed.ids_LW, states_N, packed.depths_LW, packed.last_LW)
    ids_US, states_N, depths_US, last_US = (torch.from_numpy(table).to(device) for table in tables)
    return ModelInputs(ids_US, states_N, PrefixForest(depths_US, last_US), ends_B2=ends_B2)


def _right_padded(texts: Sequence[tuple[int, ...]]) -> Tensor:
    width = max(map(len, texts), default=0)
    padded = [[*text, *[0] * (width - len(text))] for text in texts]
    return torch.tensor(padded, dtype=torch.long).view(len(texts), width)


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """Last hidden states: the inputs of the output embeddings."""

    tokens_NH: Tensor
    """The states that predict the completion tokens: for token t, the one at the token before."""
    ends_B2H: Tensor | None = None
    """The states at each row's last prompt token and last completion token, where the inputs have `ends_B2`."""


def hidden_states(model: Any, inputs: ModelInputs) -> HiddenStates:
    """Return the last hidden states of a forward pass, or of two passes if there are prompts; the head is skipped."""
    if inputs.prompts is not None:
        return HiddenStates(_continued(model, inputs, inputs.prompts))
    packed: dict[str, Any] = {}
    if (forest := inputs.forest) is not None:
        packed = {"attention_mask": attention_masks(model, forest), "position_ids": forest.depths_US}
    flat_XH = _last_states(model, input_ids=inputs.ids_US, use_cache=False, **packed).flatten(0, 1)
    return HiddenStates(flat_XH[inputs.state_index_N], None if inputs.ends_B2 is None else flat_XH[inputs.ends_B2])


def _continued(model: Any, inputs: ModelInputs, prompts: PromptBatch) -> Tensor:
    """Return [N, H]; keys and values of each prompt are computed once for all of its continuations."""
    # Without a configuration a cache keeps all keys of all layers; sliding windows are left to the model's masks.
    cache, mask_PL = DynamicCache(), prompts.mask_PL
    padding: dict[str, Tensor] = {}
    if mask_PL is not None:
        padding = {"attention_mask": mask_PL.long(), "position_ids": (mask_PL.cumsum(1) - 1).clamp(min=0)}
    ends_PH = _last_states(model, input_ids=prompts.ids_PL, past_key_values=cache, use_cache=True, **padding)[:, -1]
    if not len(inputs.ids_US):
        return ends_PH[inputs.state_index_N]
    cache.batch_select_indices(prompts.prompt_index_U)
    if mask_PL is not None:
        mask_UL, width = mask_PL[prompts.prompt_index_U].long(), inputs.ids_US.shape[1]
        steps_S = torch.arange(width, device=mask_UL.device)
        seen_UX = torch.cat([mask_UL, mask_UL.new_ones(len(mask_UL), width)], dim=1)
        padding = {"attention_mask": seen_UX, "position_ids": mask_UL.sum(1, keepdim=True) + steps_S}
    later_USH = _last_states(model, input_ids=inputs.ids_US, past_key_values=cache, use_cache=True, **padding)
    return torch.cat([ends_PH, later_USH.flatten(0, 1)])[inputs.state_index_N]


def _last_states(model: Any, **inputs: Any) -> Tensor:
    """Return [..., H], captured before the model's head, which gets empty input."""
    captured: list[Tensor] = []

    def capture(_: Any, args: tuple[Tensor]) -> tuple[Tensor]:
        captured.append(args[0])
        return (args[0][:, :0],)

    with model.get_output_embeddings().register_forward_pre_hook(capture):
        model(**inputs)
    return captured[0]


def enable_checkpointing_and_compile(model: Any, settings: GradientLearnerConfig) -> None:
    """Switch on gradient checkpointing and compilation as in `settings`. Names of weights stay the same.

    Raises:
        ValueError: if the model has no layers that can be recomputed or compiled one by one.
    """
    switches = {"gradient_checkpointing": settings.gradient_checkpointing, "compile": settings.compile}
    enabled = [name for name, is_on in switches.items() if is_on]
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if enabled and not layers:
        raise ValueError(
            f"{', '.join(enabled)}: {type(model).__name__} has no layers to which this could be done; use false"
        )
    if settings.gradient_checkpointing:
        # Late versions 5 of Transformers warn that the method has another name, which early versions lack.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            model.gradient_checkpointing_enable({"use_reentrant": False})
    if settings.compile:
        for layer in layers:
            layer.compile(dynamic=True)
