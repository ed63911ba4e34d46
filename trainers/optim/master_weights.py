"""Float32 twins of parameters that are held in half as many bits.

A bfloat16 number has 8 bits of mantissa: a step of a thousandth of it is rounded away. The steps are taken on the
twins, and the model, which computes with the sampler's own arithmetic, is given what they round to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

HALVES = frozenset({torch.bfloat16, torch.float16})


class Masters:
    """What an optimizer steps instead of parameters in half precision; wider ones are their own masters.

    Gradients of a twinned parameter move to its twin as soon as a backward pass is done with it, so those of several
    passes add up in float32 and are not held twice.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._twins = {p: nn.Parameter(p.detach().float()) for p in parameters if p.dtype in HALVES}
        for parameter in self._twins:
            parameter.register_post_accumulate_grad_hook(self._take)

    def of(self, parameter: nn.Parameter) -> nn.Parameter:
        """What is stepped in place of it."""
        return self._twins.get(parameter, parameter)

    @torch.no_grad()
    def hand_down(self) -> None:
        """Round the masters into the model."""
        for parameter, twin in self._twins.items():
            parameter.copy_(twin)

    @torch.no_grad()
    def restore(self, saved: Mapping[nn.Parameter, Tensor]) -> None:
        """Put back what was saved; of others, what the model holds."""
        for parameter, twin in self._twins.items():
            twin.copy_(saved.get(parameter, parameter))

    def held(self, parameter: nn.Parameter) -> bool:
        """Whether it has a twin."""
        return parameter in self._twins

    def _take(self, parameter: Tensor) -> None:
        twin = self._twins[parameter]  # type: ignore[index]  # hooks are typed for tensors of any kind
        assert parameter.grad is not None
        if twin.grad is None:
            twin.grad = parameter.grad.float()
        else:
            twin.grad += parameter.grad
        parameter.grad = None
