"""What a round's value is fitted to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from credit.mixing.networks import Batch, Mixture, Networks

if TYPE_CHECKING:
    from credit.mixing.record import Record

Targets = Callable[[Tensor], Tensor]
"""Places of rounds [B] -> their targets [B]."""


class Returns:
    """TD(lambda): G_t = r_t + gamma [(1 - lam) Q_target(t + 1) + lam G_(t + 1)], and r_t in an episode's last round."""

    def __init__(self, gamma: float, lam: float) -> None:
        self._gamma, self._lam = gamma, lam

    def __call__(self, record: Record, online: Networks, target: Networks) -> Targets:
        """As the target network is now."""
        with torch.no_grad():
            values = target.total(Batch(record)).tolist() if self._lam < 1 else [0.0] * len(record.reward)
        rewards, more = record.reward.tolist(), record.more.tolist()
        for t in reversed(range(len(rewards))):
            if more[t]:
                rewards[t] += self._gamma * ((1 - self._lam) * values[t + 1] + self._lam * rewards[t + 1])
        returns = torch.tensor(rewards)
        return lambda rounds: returns[rounds]


class DoubleQ:
    """r + gamma Q_target(t + 1) at the moves that the online utilities prefer, each agent by itself; r in an episode's
    last round. A monotonic mixer makes those moves the joint best."""

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma

    def __call__(self, record: Record, online: Mixture, target: Mixture) -> Targets:
        """As the networks are when it is asked."""
        return lambda rounds: self._targets(record, rounds, online, target)

    @torch.no_grad()
    def _targets(self, record: Record, rounds: Tensor, online: Mixture, target: Mixture) -> Tensor:
        targets, more = record.reward[rounds].float(), record.more[rounds]
        if bool(more.any()):
            following = Batch(record, rounds[more] + 1)
            moves = online.possible(following).argmax(2, keepdim=True)
            q = target.possible(following).gather(2, moves)[..., 0]
            targets[more] += self._gamma * target.mixer(q, following.state)
        return targets
