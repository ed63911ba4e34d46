"""Protocols of all replaceable parts: settings that a scenario names, and the working parts that they build.

Implementations live in the other packages and are found by name (`marl.parts`). Nothing here imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from marl.protocols.collective import Alone, Collective, DataParallel
from marl.protocols.credit import (
    Assign,
    AssignConfig,
    Baseline,
    BaselineConfig,
    CreditPart,
    Evidence,
    Likeness,
    Peers,
)
from marl.protocols.encoders import TextEncoder, TextEncoderConfig
from marl.protocols.engines import (
    Engine,
    EngineConfig,
    MeteredEngine,
    Service,
    SleepingEngine,
    WeightlessEngine,
    WorkerEngine,
)
from marl.protocols.games import Drawing, Game, GameConfig, GameStart, Refusal, Speaker
from marl.protocols.learning import CountsChanges, Learner, LearnerConfig, LearnerContext, LossConfig, ReportsTokens
from marl.protocols.models import ModelConfig, ModelContext, ModelSource, SharedWeights, WarmUp
from marl.protocols.play import (
    Archive,
    Cast,
    Critic,
    Deals,
    Experience,
    ExperienceConfig,
    FollowsLearning,
    Player,
    Rewards,
    SavedWeights,
    Simulator,
)
from marl.protocols.roles import RoleConfig, Tool, View
from marl.protocols.tasks import Split, TaskConfig, Tasks, ToolConfig, UnjudgedError, VerifierConfig
from marl.state import Stateful

if TYPE_CHECKING:
    from marl.protocols.models import Weights

__all__ = [
    "Alone",
    "Archive",
    "Assign",
    "AssignConfig",
    "Baseline",
    "BaselineConfig",
    "Cast",
    "Collective",
    "CountsChanges",
    "CreditPart",
    "Critic",
    "DataParallel",
    "Deals",
    "Drawing",
    "Engine",
    "EngineConfig",
    "Evidence",
    "Experience",
    "ExperienceConfig",
    "FollowsLearning",
    "Game",
    "GameConfig",
    "GameStart",
    "Learner",
    "LearnerConfig",
    "LearnerContext",
    "Likeness",
    "LossConfig",
    "MeteredEngine",
    "ModelConfig",
    "ModelContext",
    "ModelSource",
    "Peers",
    "Player",
    "Refusal",
    "ReportsTokens",
    "Rewards",
    "RoleConfig",
    "SavedWeights",
    "Service",
    "SharedWeights",
    "Simulator",
    "SleepingEngine",
    "Speaker",
    "Split",
    "Stateful",
    "TaskConfig",
    "Tasks",
    "TextEncoder",
    "TextEncoderConfig",
    "Tool",
    "ToolConfig",
    "UnjudgedError",
    "VerifierConfig",
    "View",
    "WarmUp",
    "WeightlessEngine",
    "Weights",
    "WorkerEngine",
]
