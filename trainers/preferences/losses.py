"""Losses of preference pairs: tensors in, tensors out."""

from typing import Literal

from torch import Tensor
from torch.nn.functional import logsigmoid

from marl.trainers.batching.aggregation import to_float32_or_wider


def dpo(
    log_ratio_gap_U: Tensor,
    beta: float,
    kind: Literal["sigmoid", "ipo", "hinge", "robust"] = "sigmoid",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return [U], the losses of preference pairs from h = `log_ratio_gap_U`, log-ratio of better minus worse answer.

    The log-ratio of an answer is Σ_t log π - log reference (nats); s is the sigmoid. With the mean over tokens instead
    of the sum, `sigmoid` is TRL's `sigmoid_norm`, and `ipo` the loss of TRL 1.16 and of its authors' code.

    sigmoid: -(1 - ε) log s(βh) - ε log s(-βh) (DPO, 2305.18290; with ε = `label_smoothing` > 0 conservative, cDPO)
    robust:  [-(1 - ε) log s(βh) + ε log s(-βh)] / (1 - 2ε) (2403.00409), unbiased if a share ε < ½ of pairs is flipped
    ipo:     (h - 1/(2β))² (2310.12036)
    hinge:   max(0, 1 - βh) (SLiC, 2305.10425)

    Raises:
        ValueError: for an unknown `kind`, or `label_smoothing` with a kind that ignores it.
    """
    if label_smoothing and kind not in ("sigmoid", "robust"):
        raise ValueError(f"smoothing={label_smoothing} has no meaning with kind={kind!r}; choose sigmoid or robust")
    h_U = to_float32_or_wider(log_ratio_gap_U)
    match kind:
        case "sigmoid":
            return -(1 - label_smoothing) * logsigmoid(beta * h_U) - label_smoothing * logsigmoid(-beta * h_U)
        case "robust":
            right_U, flipped_U = logsigmoid(beta * h_U), logsigmoid(-beta * h_U)
            return (-(1 - label_smoothing) * right_U + label_smoothing * flipped_U) / (1 - 2 * label_smoothing)
        case "ipo":
            return (h_U - 1 / (2 * beta)).square()
        case "hinge":
            return (1 - beta * h_U).relu()
    raise ValueError(f"kind={kind!r} is not known; choose sigmoid, ipo, hinge or robust")
