"""Settings of learners from recorded play, whoever played it."""

from typing import ClassVar

from marl.config import Sampling
from trainers.settings.losses import AdvantageWeightedLoss
from trainers.settings.policy_gradient import CriticSettings, Loss, Ppo


class Awr(Ppo):
    """Advantage-weighted regression (1910.00177): imitates what went better than expected more than what went worse.

    Expectations are the values that a head on the policy's own states learns from the same play: offline learning with
    the policy's own values, as in MARL-GPT (2604.05943). Nothing is needed of whoever played: no log-probabilities, no
    ratio. Meant for `experience: recorded` and `credit: {assign: {kind: gae, lam: 0.95}, baseline: none}`.
    """

    kind: str = "awr"
    off_policy: ClassVar[bool] = True
    loss: Loss = AdvantageWeightedLoss()
    critic: CriticSettings = CriticSettings(where="trunk", coefficient=0.5, clip=None)

    def supports(self, sampling: Sampling) -> bool:
        """Return True: imitation does not depend on how tokens were sampled."""
        return True
