"""Parts that want more memory than there is, once a run is under way."""

from itertools import count

import torch

from marl.core.graph import Trajectory
from marl.experience.rollouts import StatelessExperience
from marl.protocols import DealsOfStep, Experience, ExperienceConfig, LossConfig, Simulator

TOO_MUCH = 2**55
"""Bytes."""
_calls = count(1)


class HungryLoss(LossConfig):
    """Minus the log-probability times the advantage; after so many batches it wants a large table, too."""

    kind: str = "tests.support.out_of_memory_plugins:HungryLoss"
    after: int

    def __call__(self, logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT):
        if next(_calls) > self.after:
            logprobs_BT = logprobs_BT + torch.zeros(TOO_MUCH, dtype=torch.uint8)[0]
        return -logprobs_BT * advantages_BT


class HungryPlay(ExperienceConfig):
    """Fresh play; in the fourth step it keeps notes of everything, in torch's memory or in Python's."""

    kind: str = "tests.support.out_of_memory_plugins:HungryPlay"
    torch: bool

    def build(self) -> Experience:
        return HungryPlayer(self.torch)


class HungryPlayer(StatelessExperience):
    def __init__(self, in_torch: bool) -> None:
        self.in_torch = in_torch

    def gather(self, step: int, deals: DealsOfStep, simulator: Simulator) -> list[Trajectory]:
        played = simulator.play(deals(step))
        if step == 3:
            notes = torch.zeros(TOO_MUCH, dtype=torch.uint8) if self.in_torch else bytearray(TOO_MUCH)
            assert len(notes)
        return played
