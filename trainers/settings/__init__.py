"""Settings of the learners. Light: torch is imported in `build`."""

from trainers.settings.grpo import Grpo
from trainers.settings.optimisation import Anchor, Optimisation
from trainers.settings.sft import Sft

__all__ = ["Anchor", "Grpo", "Optimisation", "Sft"]
