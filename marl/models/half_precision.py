"""Models in bfloat16 or float16: half-precision factors of matrix products, and float32 for everything else.

Cached decoding, packed batches and other engines' kernels add numbers in different orders. Each rounding to 8 bits
enlarges the difference. Therefore only the inputs of matrix products are rounded, where rounding saves time. Hidden
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
"""Number of rows of a weight that are converted to float32 at once: so few fit a CPU's cache (a third faster)."""


def convert_to_mixed_precision(model: Any) -> Any:
    """Change `model` in place to mixed precision if its weights are in half precision, and return it."""
    if model.dtype not in HALF_PRECISION_TYPES:
        return model
    output = model.get_output_embeddings()
    if type(output) is nn.Linear:
        model.set_output_embeddings(Float32OutputLinear(output))
    model.get_input_embeddings().register_forward_hook(_output_to_float32_hook)
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            for child in layer.children():
                if "Norm" in type(child).__name__:
                    child.register_forward_hook(_output_to_weight_dtype_hook)
    model.__class__ = _autocast_subclass(type(model))
    return model


def _output_to_float32_hook(_: nn.Module, __: Any, output: Tensor) -> Tensor:
    return output.float()


def _output_to_weight_dtype_hook(norm: nn.Module, _: Any, output: Tensor) -> Tensor:
    # Otherwise autocast would round the norm's output for each product that reads it, each time with a copy.
    weight = next(norm.parameters(), None)
    return output if weight is None else output.to(weight.dtype)


def _autocast_subclass(model_class: type[Any]) -> type[Any]:
    """Return a subclass of `model_class` whose `forward` runs under autocast to the dtype of the weights."""

    @wraps(model_class.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self.device.type, self.dtype):
            return model_class.forward(self, *args, **kwargs)

    # The subclass keeps its parent's name, because saved settings and messages contain the class's name.
    return type(
        model_class.__name__,
        (model_class,),
        {"forward": forward, "__module__": model_class.__module__, "__doc__": model_class.__doc__},
    )


class Float32OutputLinear(nn.Linear):
    """Linear layer with half-precision weights and a float32 output, which is used for logits.

    Between 16 and 32, neighbouring bfloat16 numbers are 1/8 apart. Rounding the logits changed log-probabilities by .03
    nats on average.
    """

    def __init__(self, layer: nn.Linear) -> None:
        """Share the weight and bias tensors of `layer`."""
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        self.weight, self.bias = layer.weight, layer.bias  # type: ignore[assignment]  # it may be None

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # torch's name
        """Return the float32 output `[..., O]` for `input` `[..., I]`."""
        with torch.autocast(input.device.type, enabled=False):
            product_NO = _Float32OutputProduct.apply(input.flatten(0, -2), self.weight)
            output = product_NO.unflatten(0, input.shape[:-1])  # type: ignore[union-attr]
            return output if self.bias is None else output + self.bias


class _Float32OutputProduct(torch.autograd.Function):
    """Operation x W^T with a float32 output, which saves only x and W for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_OI: Tensor) -> Tensor:
        ctx.save_for_backward(x_NI, weight_OI)
        if weight_OI.is_cuda:
            return torch.mm(x_NI.to(weight_OI.dtype), weight_OI.T, out_dtype=torch.float32)
        product_NO = x_NI.new_empty(len(x_NI), len(weight_OI), dtype=torch.float32)
        with _allow_bfloat16_matmul(weight_OI.dtype):
            for start in range(0, len(weight_OI), _ROWS_AT_ONCE):
                rows = slice(start, start + _ROWS_AT_ONCE)
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
        with _allow_bfloat16_matmul(weight_OI.dtype):
            for start in range(0, len(weight_OI), _ROWS_AT_ONCE):
                rows = slice(start, start + _ROWS_AT_ONCE)
                grad_x_NI.addmm_(grad_NO[:, rows], weight_OI[rows].float())
                if grad_weight_OI is not None:
                    grad_weight_OI[rows] = (grad_NO[:, rows].T @ x_NI.float()).to(weight_OI.dtype)
        return grad_x_NI.to(x_NI.dtype), grad_weight_OI


@contextmanager
def _allow_bfloat16_matmul(dtype: torch.dtype) -> Iterator[None]:
    """Allow the CPU to round factors of products to bfloat16 in the body if `dtype` is bfloat16; sums stay float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium" if dtype == torch.bfloat16 else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
