"""Settings of the learners. Light: torch is imported in `build`."""

from trainers.settings.anchors import Anchor
from trainers.settings.dpo import Dpo
from trainers.settings.fidelity import Fidelity
from trainers.settings.grpo import EntropyControl, Grpo
from trainers.settings.mismatch import Mismatch
from trainers.settings.optimisation import Optimisation
from trainers.settings.pairing import Keep, Pairing
from trainers.settings.ppo import Critic, Ppo, Pspo
from trainers.settings.presets import (
    Cispo,
    Dapo,
    DrGrpo,
    Gmpo,
    Gspo,
    Reinforce,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    Rloo,
    Sapo,
)
from trainers.settings.prime import Implicit, Prime
from trainers.settings.reward_model import RewardModel
from trainers.settings.sft import Sft

__all__ = [
    "Anchor",
    "Cispo",
    "Critic",
    "Dapo",
    "Dpo",
    "DrGrpo",
    "EntropyControl",
    "Fidelity",
    "Gmpo",
    "Grpo",
    "Gspo",
    "Implicit",
    "Keep",
    "Mismatch",
    "Optimisation",
    "Pairing",
    "Ppo",
    "Prime",
    "Pspo",
    "Reinforce",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusBaseline",
    "RewardModel",
    "Rloo",
    "Sapo",
    "Sft",
]
