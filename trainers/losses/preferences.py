"""Losses that compare answers: preferences, reward models, implicit rewards. Tensors in, tensors out."""

from typing import Literal

from torch import Tensor
from torch.nn.functional import logsigmoid

from trainers.losses.aggregation import difference, widened


def implicit_rewards(logprobs_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor, beta: float) -> Tensor:
    """Return [B, T], β (log π - log reference): the token rewards implied by a model that was trained on outcomes.

    Such a model is trained with `orm` of their sum over a row (PRIME, 2502.01456).
    """
    return beta * difference(logprobs_BT, reference_BT, mask_BT)


def dpo(
    h_U: Tensor, beta: float, kind: Literal["sigmoid", "ipo", "hinge", "robust"] = "sigmoid", smoothing: float = 0.0
) -> Tensor:
    """Return [U], the loss of pairs whose better answer gained h nats more than the worse one; s is the sigmoid.

    An answer's gain is Σ_t log π - log reference; or its mean over tokens, which makes `sigmoid` TRL's
    `sigmoid_norm`, and `ipo` that of TRL 1.16 and its authors' code.

    sigmoid: -(1 - ε) log s(βh) - ε log s(-βh) (DPO, 2305.18290; with ε = `smoothing` > 0 conservative, cDPO)
    robust:  [-(1 - ε) log s(βh) + ε log s(-βh)] / (1 - 2ε) (2403.00409), unbiased if a share ε < ½ of pairs is flipped
    ipo:     (h - 1/(2β))² (2310.12036)
    hinge:   max(0, 1 - βh) (SLiC, 2305.10425)

    Raises:
        ValueError: for an unknown kind, or smoothing that the kind does not have.
    """
    if smoothing and kind not in ("sigmoid", "robust"):
        raise ValueError(f"smoothing={smoothing} has no meaning with kind={kind!r}; choose sigmoid or robust")
    h_U = widened(h_U)
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


def bradley_terry(better_U: Tensor, worse_U: Tensor, margin_U: Tensor | float = 0.0, centre: float = 0.0) -> Tensor:
    """Return [U], -log s(better - worse - margin) + centre · (better + worse)², s the sigmoid (Bradley & Terry 1952).

    The margin is Llama 2's (2307.09288), the centring TRL's (2312.09244 suggests .01).
    """
    better_U, worse_U = widened(better_U), widened(worse_U)
    return centre * (better_U + worse_U).square() - logsigmoid(better_U - worse_U - margin_U)


def orm(logits_B: Tensor, labels_B: Tensor) -> Tensor:
    """Return [B], -y log s(z) - (1 - y) log s(-z), s the sigmoid: the loss of an outcome reward model (2110.14168)."""
    logits_B = widened(logits_B)
    return -labels_B * logsigmoid(logits_B) - (1 - labels_B) * logsigmoid(-logits_B)
