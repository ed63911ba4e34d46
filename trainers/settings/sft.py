"""Settings of imitation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marl.config import Sampling
from marl.protocols import Brief
from trainers.settings.optimisation import Optimisation
from trainers.settings.pairing import Keep

if TYPE_CHECKING:
    from trainers.learner import Learner


class Sft(Optimisation):
    """Imitation of all it is given, or of the best (`keep`: rejection sampling, RAFT 2304.06767).

    It raises the probability of every completion, whoever said it and however it was sampled.
    """

    kind: str = "sft"
    keep: Keep | None = None
    duplicates: bool = True
    """Whether what was said twice counts twice."""

    @property
    def judged(self) -> bool:
        """Imitation asks for credit only to choose by it."""
        return self.keep is not None and self.keep.by == "earned"

    def corrects(self, sampling: Sampling) -> bool:
        """Imitation does not ask how a token was chosen."""
        return True

    def build(self, brief: Brief) -> Learner:
        """A learner with its own copy of the weights."""
        from trainers.learner import Learner
        from trainers.objectives.imitation import Imitation

        return Learner(self, brief, brief.source.model(), Imitation(self))
