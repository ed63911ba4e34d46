"""Settings of PRIME."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import PositiveFloat

from marl.config import Config
from marl.protocols import Brief
from trainers.settings.grpo import Grpo

if TYPE_CHECKING:
    from trainers.learner import Learner


class Implicit(Config):
    """A process reward model that outcomes teach: a second copy of the initial policy, beside one that stays."""

    beta: PositiveFloat = 0.05
    """What log-ratios to the frozen copy are multiplied with to be rewards."""
    lr: PositiveFloat | None = None
    """Of it, at the height of the schedule, which is the policy's. None: the policy's (PRIME's script: twice that)."""
    threshold: float = 0.5
    """What an agent must be paid in an episode for its turns to be correct."""


class Prime(Grpo):
    """PRIME (2502.01456): a policy gradient, and an implicit process reward model that learns from outcomes beside it.

    Each turn is a response: the model's rewards for its tokens add up to the log-odds that its episode was correct.
    They are read before the update in which the model learns from the same turns: PRIME's `update: after`. Meant for
    `credit: {assign: {kind: process, learner: true, combine: prime_paper}, baseline: none}`, and to leave out prompts
    that are too easy or too hard for `experience: {kind: dynamic}`.
    """

    kind: str = "prime"
    reads: ClassVar[frozenset[str]] = Grpo.reads | {"rewards"}
    prm: Implicit = Implicit()

    def build(self, brief: Brief) -> Learner:
        """A learner with its own copies of the weights."""
        from trainers.learner import Learner
        from trainers.objectives.prime import ImplicitRewards

        model = brief.source.model()
        return Learner(self, brief, model, ImplicitRewards(self, model, brief.steps))
