"""Settings of imitation."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from marl.config import Sampling
from marl.protocols import Brief
from trainers.settings.optimisation import Optimisation

if TYPE_CHECKING:
    from trainers.learner import Learner


class Sft(Optimisation):
    """Imitation: raises the probability of every completion it is given, whoever said it and however it was sampled."""

    kind: str = "sft"
    judged: ClassVar[bool] = False

    def corrects(self, sampling: Sampling) -> bool:
        """Imitation does not ask how a token was chosen."""
        return True

    def build(self, brief: Brief) -> Learner:
        """A learner with its own copy of the weights."""
        from trainers.learner import Learner
        from trainers.sft import Imitation

        return Learner(self, brief, brief.source.model(), Imitation(self))
