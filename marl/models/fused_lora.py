"""LoRA on a frozen layer as one operation that saves only its input and A x for the backward pass.

PEFT adds the adapter's output and its input gradient in separate passes. On a half-precision base, PEFT also copies
the input to float32, and computing the adapter takes longer than the layer itself.
Shape suffixes: N = tokens, I = inputs of the layer, O = outputs of the layer, R = rank.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import Linear
from torch import Tensor, nn


class FusedLora(Linear):
    """LoRA layer that computes W x + s B A x in the dtype of W. Other variants of adapters use PEFT's forward."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the output `[..., O]`, in the dtype of the layer, for the input `x` `[..., I]`."""
        layer: Any = self.base_layer
        drops_inputs = self.training and not isinstance(self.lora_dropout["default"], nn.Identity)
        is_variant = self.disable_adapters or self.merged or drops_inputs or "default" in self.lora_variant
        if is_variant or type(layer) is not nn.Linear or layer.weight.requires_grad:
            return super().forward(x, *args, **kwargs)
        a_RI, b_OR = self.lora_A["default"].weight, self.lora_B["default"].weight
        # Autocast is disabled, because the operation casts the factors itself.
        with torch.autocast(x.device.type, enabled=False):
            output_NO: Any = _FusedLoraFunction.apply(
                x.flatten(0, -2), layer.weight, a_RI, b_OR, self.scaling["default"]
            )
            output = output_NO.unflatten(0, x.shape[:-1])
            return output if layer.bias is None else output + layer.bias


class _FusedLoraFunction(torch.autograd.Function):
    """Operation W x + s B A x for a frozen W, with gradients for x, A and B."""

    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_OI: Tensor, a_RI: Tensor, b_OR: Tensor, scale: float) -> Tensor:
        dtype = weight_OI.dtype
        input_NI = x_NI.to(dtype)
        low_NR = (input_NI @ a_RI.to(dtype).T).mul_(scale)
        ctx.save_for_backward(x_NI, weight_OI, a_RI, b_OR, low_NR)
        ctx.scale = scale
        return (input_NI @ weight_OI.T).addmm_(low_NR, b_OR.to(dtype).T)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_NI, weight_OI, a_RI, b_OR, low_NR = ctx.saved_tensors
        dtype = weight_OI.dtype
        grad_NO = grads[0].to(dtype)
        grad_low_NR = (grad_NO @ b_OR.to(dtype)).mul_(ctx.scale)
        grad_x_NI = None
        if ctx.needs_input_grad[0]:
            grad_x_NI = (grad_NO @ weight_OI).addmm_(grad_low_NR, a_RI.to(dtype)).to(x_NI.dtype)
        grad_a_RI, grad_b_OR = grad_low_NR.T @ x_NI.to(dtype), grad_NO.T @ low_NR
        return grad_x_NI, None, grad_a_RI.to(a_RI.dtype), grad_b_OR.to(b_OR.dtype), None
