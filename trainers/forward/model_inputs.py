"""Layouts of a model's input tensors, and the model's last hidden states at completion tokens.

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

from marl.trainers.batching.packing import Ints, PackedBatch
from marl.trainers.batching.rows import BatchRow
from marl.trainers.forward.attention import PrefixForest, attention_masks
from marl.trainers.optim.settings import GradientLearnerConfig


@dataclass(frozen=True, slots=True)
class PromptBatch:
    """Distinct prompts of a first pass, before their completions; padded on the left, so all end in the last column."""

    ids_PL: Tensor
    mask_PL: Tensor | None
    """False at padding. None: there is no padding."""
    prompt_index_U: Tensor
    """Index of the prompt that each sequence continues."""


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Input tensors of one forward pass. A completion's last token is mostly left out, because it predicts no token
    that is needed."""

    ids_US: Tensor
    """Token ids, padded on the right."""
    state_index_N: Tensor
    """Index, in the flattened `ids_US`, of the hidden state that predicts each completion token."""
    forest: PrefixForest | None = None
    """Visibility in packed sequences. None: each token of a sequence sees all earlier ones, by causal attention."""
    prompts: PromptBatch | None = None
    """Prompts of a first pass that the sequences continue. `state_index_N` counts their last states first."""
    ends_B2: Tensor | None = None
    """Index of each row's last prompt token and last completion token. None: last completion tokens are left out."""


def inputs_with_end_states(
    rows: Sequence[BatchRow], row_index_N: Tensor, token_index_N: Tensor, device: torch.device
) -> ModelInputs:
    """Return padded inputs of each row's prompt and whole completion, so that its last state is computed, too."""
    lengths_B2 = torch.tensor([[len(row.prompt_ids), row.length] for row in rows])
    ids_BS = _right_padded_ids([row.prompt_ids + row.token_ids for row in rows])
    ends_B2 = torch.arange(len(rows))[:, None] * ids_BS.shape[1] + lengths_B2 - 1
    return ModelInputs(
        ids_BS.to(device), (ends_B2[:, 0][row_index_N] + token_index_N).to(device), ends_B2=ends_B2.to(device)
    )


def padded_inputs(
    rows: Sequence[BatchRow], row_index_N: Tensor, token_index_N: Tensor, device: torch.device
) -> ModelInputs:
    """Return padded inputs. Rows with the same tokens, such as rows of opposite advantage signs, share a sequence."""
    index_of: dict[tuple[int, ...], int] = {}
    sequences: list[int] = []
    prompt_ends: list[int] = []
    for row in rows:
        sequences.append(index_of.setdefault(row.prompt_ids + row.token_ids[:-1], len(index_of)))
        prompt_ends.append(len(row.prompt_ids) - 1)
    ids_US = _right_padded_ids(list(index_of))
    first_state_B = torch.tensor(sequences) * ids_US.shape[1] + torch.tensor(prompt_ends)
    return ModelInputs(ids_US.to(device), (first_state_B[row_index_N] + token_index_N).to(device))


def prompt_and_completion_pass_inputs(
    rows: Sequence[BatchRow], row_index_N: Tensor, token_index_N: Tensor, device: torch.device
) -> ModelInputs:
    """Return inputs of two passes: distinct prompts, and distinct completions that continue them."""
    prompt_index: dict[tuple[int, ...], int] = {}
    sequence_index: dict[tuple[int, tuple[int, ...]], int] = {}
    prompts_of_rows: list[int] = []
    sequences_of_rows: list[int] = []
    for row in rows:
        prompt, tokens = prompt_index.setdefault(row.prompt_ids, len(prompt_index)), row.token_ids[:-1]
        prompts_of_rows.append(prompt)
        # A completion of one token needs no sequence, so its index is never used.
        sequences_of_rows.append(sequence_index.setdefault((prompt, tokens), len(sequence_index)) if tokens else 0)
    ids_US = _right_padded_ids([tokens for _, tokens in sequence_index])
    # A row's first token is predicted by the last state of its prompt, and each later one by its sequence.
    prompt_B = torch.tensor(prompts_of_rows)
    later_B = len(prompt_index) + torch.tensor(sequences_of_rows) * ids_US.shape[1]
    states_N = torch.where(token_index_N == 0, prompt_B[row_index_N], later_B[row_index_N] + token_index_N - 1)
    prompt_U = torch.tensor([prompt for prompt, _ in sequence_index], dtype=torch.long)
    lengths_P = torch.tensor(list(map(len, prompt_index)))
    width = int(lengths_P.max())
    ids_PL = torch.tensor([[*[0] * (width - len(prompt)), *prompt] for prompt in prompt_index]).to(device)
    mask_PL = (torch.arange(width) >= width - lengths_P[:, None]).to(device) if (lengths_P < width).any() else None
    prompts = PromptBatch(ids_PL, mask_PL, prompt_U.to(device))
    return ModelInputs(ids_US.to(device), states_N.to(device), prompts=prompts)


def packed_inputs(
    packed: PackedBatch, rows: Sequence[BatchRow], _row_index_N: Tensor, _token_index_N: Tensor, device: torch.device
) -> ModelInputs:
    """Return the inputs of packed sequences, whose `packed.token_indices` are in the order of `rows`."""
    states: list[Ints] = []
    ends: list[list[int]] = []
    for row, indices in zip(rows, packed.token_indices.values(), strict=True):
        states.append(indices[len(row.prompt_ids) - 1 : row.length - 1])
        # A text whose last token was left out has no state at its end.
        if len(indices) == row.length:
            ends.append([int(indices[len(row.prompt_ids) - 1]), int(indices[-1])])
    ends_B2 = torch.tensor(ends, device=device) if len(ends) == len(rows) else None
    tables = (packed.ids_LW, np.concatenate(states), packed.depths_LW, packed.ends_LW)
    ids_US, states_N, depths_US, last_US = (torch.from_numpy(table).to(device) for table in tables)
    forest = None if packed.is_causal else PrefixForest(depths_US, last_US)
    return ModelInputs(ids_US, states_N, forest, ends_B2=ends_B2)


def _right_padded_ids(texts: Sequence[tuple[int, ...]]) -> Tensor:
    """Return the token ids of `texts` as one tensor, with zeros behind shorter texts."""
    width = max(map(len, texts), default=0)
    padded = [[*text, *[0] * (width - len(text))] for text in texts]
    return torch.tensor(padded, dtype=torch.long).view(len(texts), width)


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """Last hidden states of a model, which its output embeddings turn into logits."""

    tokens_NH: Tensor
    """The state that predicts each completion token: the state at the token before it."""
    ends_B2H: Tensor | None = None
    """The states at each row's last prompt token and last completion token, if the inputs have `ends_B2`."""


def hidden_states(model: Any, inputs: ModelInputs) -> HiddenStates:
    """Return the model's last hidden states for `inputs`, without computing logits."""
    if inputs.prompts is not None:
        return HiddenStates(_two_pass_hidden_states(model, inputs, inputs.prompts))
    packed: dict[str, Any] = {}
    if (forest := inputs.forest) is not None:
        packed = {"attention_mask": attention_masks(model, forest), "position_ids": forest.depths_US}
    flat_XH = _last_hidden_states(model, input_ids=inputs.ids_US, use_cache=False, **packed).flatten(0, 1)
    return HiddenStates(flat_XH[inputs.state_index_N], None if inputs.ends_B2 is None else flat_XH[inputs.ends_B2])


def _two_pass_hidden_states(model: Any, inputs: ModelInputs, prompts: PromptBatch) -> Tensor:
    """Return [N, H], the states of a pass over `prompts` and a pass over the completions that continue them."""
    # A DynamicCache without a configuration keeps all keys; sliding windows are applied by the masks.
    cache, mask_PL = DynamicCache(), prompts.mask_PL
    padding: dict[str, Tensor] = {}
    if mask_PL is not None:
        padding = {"attention_mask": mask_PL.long(), "position_ids": (mask_PL.cumsum(1) - 1).clamp(min=0)}
    ends_PH = _last_hidden_states(model, input_ids=prompts.ids_PL, past_key_values=cache, use_cache=True, **padding)[
        :, -1
    ]
    if not len(inputs.ids_US):
        return ends_PH[inputs.state_index_N]
    cache.batch_select_indices(prompts.prompt_index_U)
    if mask_PL is not None:
        mask_UL, width = mask_PL[prompts.prompt_index_U].long(), inputs.ids_US.shape[1]
        steps_S = torch.arange(width, device=mask_UL.device)
        seen_UX = torch.cat([mask_UL, mask_UL.new_ones(len(mask_UL), width)], dim=1)
        padding = {"attention_mask": seen_UX, "position_ids": mask_UL.sum(1, keepdim=True) + steps_S}
    later_USH = _last_hidden_states(model, input_ids=inputs.ids_US, past_key_values=cache, use_cache=True, **padding)
    return torch.cat([ends_PH, later_USH.flatten(0, 1)])[inputs.state_index_N]


def _last_hidden_states(model: Any, **inputs: Any) -> Tensor:
    """Return [..., H], the last hidden states of a forward pass. The output embeddings get no tokens, so that no logits
    are computed."""
    captured: list[Tensor] = []

    def capture_hidden_states(_: Any, args: tuple[Tensor]) -> tuple[Tensor]:
        captured.append(args[0])
        return (args[0][:, :0],)

    with model.get_output_embeddings().register_forward_pre_hook(capture_hidden_states):
        model(**inputs)
    return captured[0]


def enable_checkpointing_and_compile(model: Any, settings: GradientLearnerConfig) -> None:
    """Switch on gradient checkpointing and compilation of the model's layers, if set. Names of weights stay the same.

    Raises:
        ValueError: if the model has no layers that can be recomputed or compiled one by one.
    """
    enabled = ["gradient_checkpointing"] * settings.gradient_checkpointing + ["compile"] * settings.compile
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if enabled and not layers:
        raise ValueError(
            f"{', '.join(enabled)}: {type(model).__name__} has no layers to which this could be done; use false"
        )
    if settings.gradient_checkpointing:
        # Transformers 5 renamed the method, and late releases warn of the old name, which early ones need.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            model.gradient_checkpointing_enable({"use_reentrant": False})
    if settings.compile:
        for layer in layers:
            layer.compile(dynamic=True)
