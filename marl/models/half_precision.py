"""Models in bfloat16 or float16: half-precision factors of matrix products, and float32 for everything else.

Cached decoding, packed batches and other engines' kernels add numbers in different orders, and each rounding to 8 bits
enlarges the difference. Only the inputs of matrix products are rounded, because rounding saves time there. Hidden
states between layers, norms, softmax and logits are float32, in the sampler and in the learner.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

HALF_PRECISION_TYPES = frozenset({torch.bfloat16, torch.float16})
_ROWS_AT_ONCE = 1024
"""Rows of a weight converted to float32 at once: some MiB, which fit a processor's cache (a third faster)."""


def in_mixed_precision(model: Any) -> Any:
    """Return `model`, changed in place to mixed precision if its weights are in half precision."""
    if model.dtype not in HALF_PRECISION_TYPES:
        return model
    output = model.get_output_embeddings()
    if type(output) is nn.Linear:
        model.set_output_embeddings(WideLinear(output))
    model.get_input_embeddings().register_forward_hook(_to_float32)
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            for child in layer.children():
                if "Norm" in type(child).__name__:
                    child.register_forward_hook(_to_weight_dtype)
    model.__class__ = _autocast_class(type(model))
    return model


def _to_float32(_: nn.Module, __: Any, output: Tensor) -> Tensor:
    return output.float()


def _to_weight_dtype(norm: nn.Module, _: Any, output: Tensor) -> Tensor:
    # Without this hook, each product after the norm would round its output again, and save its own copy of it.
    weight = next(norm.parameters(), None)
    return output if weight is None else output.to(weight.dtype)


def _autocast_class(kind: type[Any]) -> type[Any]:
    """Return a subclass of `kind` whose forward rounds the inputs of products to the dtype of the weights."""

    @wraps(kind.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self.device.type, self.dtype):
            return kind.forward(self, *args, **kwargs)

    # Saved settings and messages name the class, so the subclass keeps its name.
    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__, "__doc__": kind.__doc__})


class WideLinear(nn.Linear):
    """Linear layer with half-precision weights and a float32 output, used for logits.

    Between 16 and 32, neighbouring bfloat16 numbers are 1/8 apart. Rounded logits alone moved log-probabilities by .03
    nats on average.
    """

    def __init__(self, layer: nn.Linear) -> None:
        """Share the weight and bias tensors of `layer`."""
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        self.weight, self.bias = layer.weight, layer.bias  # type: ignore[assignment]  # it may be None

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # torch's name
        """Return the float32 output `[..., O]` for `input` `[..., I]`."""
        with torch.autocast(input.device.type, enabled=False):
            product_NO = _WideProduct.apply(input.flatten(0, -2), self.weight)
            output = product_NO.unflatten(0, input.shape[:-1])  # type: ignore[union-attr]
            return output if self.bias is None else output + self.bias


class _WideProduct(torch.autograd.Function):
    """x W^T in float32. Only the two arguments are saved for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_OI: Tensor) -> Tensor:
        ctx.save_for_backward(x_NI, weight_OI)
        if weight_OI.is_cuda:
            return torch.mm(x_NI.to(weight_OI.dtype), weight_OI.T, out_dtype=torch.float32)
        product_NO = x_NI.new_empty(len(x_NI), len(weight_OI), dtype=torch.float32)
        with _matmul_precision(weight_OI.dtype):
            for rows in _row_slices(weight_OI):
                torch.mm(x_NI.float(), weight_OI[rows].float().T, out=product_NO[:, rows])
        return product_NO

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (grad_NO,), (x_NI, weight_OI) = grads, ctx.saved_tensors
        wants_x, wants_weight = ctx.needs_input_grad
        if weight_OI.is_cuda:
            grad_NO = grad_NO.to(weight_OI.dtype)
            x = torch.mm(grad_NO, weight_OI, out_dtype=torch.float32).to(x_NI.dtype) if wants_x else None
            return x, grad_NO.T @ x_NI.to(weight_OI.dtype) if wants_weight else None
        grad_x_NI = torch.zeros_like(x_NI, dtype=torch.float32)
        grad_weight_OI = torch.empty_like(weight_OI) if wants_weight else None
        with _matmul_precision(weight_OI.dtype):
            for rows in _row_slices(weight_OI):
                grad_x_NI.addmm_(grad_NO[:, rows], weight_OI[rows].float())
                if grad_weight_OI is not None:
                    grad_weight_OI[rows] = (grad_NO[:, rows].T @ x_NI.float()).to(weight_OI.dtype)
        return grad_x_NI.to(x_NI.dtype), grad_weight_OI


def _row_slices(weight_OI: Tensor) -> Iterator[slice]:
    for start in range(0, len(weight_OI), _ROWS_AT_ONCE):
        yield slice(start, start + _ROWS_AT_ONCE)


@contextmanager
def _matmul_precision(dtype: torch.dtype) -> Iterator[None]:
    """Allow the processor to round factors of products to bfloat16 in this context; sums stay float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium" if dtype == torch.bfloat16 else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
