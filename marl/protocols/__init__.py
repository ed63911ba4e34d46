"""What each replaceable part must do: settings that a scenario names, and the working parts they build.

Implementations live in the other packages and are found by name (`marl.parts`). Nothing here imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from marl.protocols.learning import (
    Assign,
    AssignConfig,
    Baseline,
    BaselineConfig,
    Brief,
    CreditPart,
    Evidence,
    Experience,
    ExperienceConfig,
    Learner,
    LearnerConfig,
    Likeness,
    Peers,
    Simulator,
    Stateful,
)
from marl.protocols.play import (
    Game,
    GameConfig,
    Refusal,
    RoleConfig,
    Start,
    Tool,
    View,
)
from marl.protocols.speech import (
    Engine,
    EngineConfig,
    ModelConfig,
    Service,
    Source,
)
from marl.protocols.tasks import Split, TaskConfig, Tasks, ToolConfig, VerifierConfig

if TYPE_CHECKING:
    from marl.protocols.speech import Weights

__all__ = [
    "Assign",
    "AssignConfig",
    "Baseline",
    "BaselineConfig",
    "Brief",
    "CreditPart",
    "Engine",
    "EngineConfig",
    "Evidence",
    "Experience",
    "ExperienceConfig",
    "Game",
    "GameConfig",
    "Learner",
    "LearnerConfig",
    "Likeness",
    "ModelConfig",
    "Peers",
    "Refusal",
    "RoleConfig",
    "Service",
    "Simulator",
    "Source",
    "Split",
    "Start",
    "Stateful",
    "TaskConfig",
    "Tasks",
    "Tool",
    "ToolConfig",
    "VerifierConfig",
    "View",
    "Weights",
]
