"""Losses of reward models: pairs of scores, and scores with labels. Tensors in, tensors out."""

from torch import Tensor
from torch.nn.functional import logsigmoid

from marl.trainers.batching.aggregation import to_float32_or_wider


def bradley_terry(
    better_scores_U: Tensor, worse_scores_U: Tensor, margin_U: Tensor | float = 0.0, centre: float = 0.0
) -> Tensor:
    """Return [U], -log s(better - worse - margin) + centre · (better + worse)², s the sigmoid (Bradley & Terry 1952).

    The margin is that of Llama 2 (2307.09288), the centring that of TRL (2312.09244 suggests .01).
    """
    better_scores_U, worse_scores_U = to_float32_or_wider(better_scores_U), to_float32_or_wider(worse_scores_U)
    return centre * (better_scores_U + worse_scores_U).square() - logsigmoid(
        better_scores_U - worse_scores_U - margin_U
    )


def orm(logits_B: Tensor, labels_B: Tensor) -> Tensor:
    """Return [B], -y log s(z) - (1 - y) log s(-z), s the sigmoid: the loss of an outcome reward model (2110.14168)."""
    logits_B = to_float32_or_wider(logits_B)
    return -labels_B * logsigmoid(logits_B) - (1 - labels_B) * logsigmoid(-logits_B)
