"""A loss from outside."""

from torch import Tensor

from marl.protocols import LossConfig


class Leaky(LossConfig):
    """REINFORCE in which a negative advantage counts `leak` times."""

    kind: str = "leaky"
    leak: float = 0.5

    def __call__(self, logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
        return -advantages_BT.where(advantages_BT > 0, self.leak * advantages_BT) * logprobs_BT
