"""Losses of preference pairs: tensors in, tensors out."""

from typing import Literal

from torch import Tensor
from torch.nn.functional import logsigmoid

from marl.trainers.batching.aggregation import to_float32


def dpo(
    h_U: Tensor, beta: float, kind: Literal["sigmoid", "ipo", "hinge", "robust"] = "sigmoid", smoothing: float = 0.0
) -> Tensor:
    """Return [U], the loss of pairs whose better answer gained h nats more than the worse answer; s is the sigmoid.

    The gain of an answer is Σ_t log π - log reference. With the mean over tokens for the sum, `sigmoid` is TRL's
    `sigmoid_norm`, and `ipo` the loss of TRL 1.16 and of its authors' code.

    sigmoid: -(1 - ε) log s(βh) - ε log s(-βh) (DPO, 2305.18290; with ε = `smoothing` > 0 conservative, cDPO)
    robust:  [-(1 - ε) log s(βh) + ε log s(-βh)] / (1 - 2ε) (2403.00409), unbiased if a share ε < ½ of pairs is flipped
    ipo:     (h - 1/(2β))² (2310.12036)
    hinge:   max(0, 1 - βh) (SLiC, 2305.10425)

    Raises:
        ValueError: for an unknown `kind`, or `smoothing` with a kind that ignores it.
    """
    if smoothing and kind not in ("sigmoid", "robust"):
        raise ValueError(f"smoothing={smoothing} has no meaning with kind={kind!r}; choose sigmoid or robust")
    h_U = to_float32(h_U)
    match kind:
        case "sigmoid":
            return -(1 - smoothing) * logsigmoid(beta * h_U) - smoothing * logsigmoid(-beta * h_U)
        case "robust":
            right_U, flipped_U = logsigmoid(beta * h_U), logsigmoid(-beta * h_U)
            return (-(1 - smoothing) * right_U + smoothing * flipped_U) / (1 - 2 * smoothing)
        case "ipo":
            return (h_U - 1 / (2 * beta)).square()
        case "hinge":
            return (1 - beta * h_U).relu()
    raise ValueError(f"kind={kind!r} is not known; choose sigmoid, ipo, hinge or robust")
