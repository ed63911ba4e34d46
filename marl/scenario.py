"""The root setting: one YAML file describes one run, in the order data flows through it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, ValidationInfo, field_validator, model_validator

from marl.checks import check
from marl.config import Config
from marl.parts import Part
from marl.protocols import (
    AssignConfig,
    BaselineConfig,
    EngineConfig,
    ExperienceConfig,
    GameConfig,
    LearnerConfig,
    ModelConfig,
    RoleConfig,
)


class PolicyConfig(Config):
    """One set of weights that speaks. Without a learner it stays as it is."""

    model: Annotated[ModelConfig | None, Part("models", ModelConfig, optional=True, path="pretrained")] = None
    """A folder, a name on the hub, or `kind: tiny`; none for scripted players."""
    engine: Annotated[EngineConfig, Part("engines", EngineConfig)] = Field(
        default={"kind": "transformers"}, validate_default=True
    )  # type: ignore[assignment]
    learner: Annotated[LearnerConfig | None, Part("trainers", LearnerConfig, optional=True)] = None


class CreditRule(Config):
    """Who earned it, against what."""

    assign: Annotated[AssignConfig, Part("credit", AssignConfig)] = Field(
        default={"kind": "outcome"}, validate_default=True
    )  # type: ignore[assignment]
    baseline: Annotated[BaselineConfig, Part("credit", BaselineConfig)] = Field(
        default={"kind": "group"}, validate_default=True
    )  # type: ignore[assignment]
    scale: float = Field(default=1.0, gt=0)
    """What rewards are multiplied with before they are judged; the rewards themselves do not change."""


class CreditConfig(CreditRule):
    """The rule for every role, and roles with a rule of their own."""

    roles: dict[str, CreditRule] = Field(default_factory=dict)


class Schedule(Config):
    """How much to play."""

    steps: PositiveInt
    groups: PositiveInt
    """Different starts a step."""
    group_size: PositiveInt
    """Episodes from each start."""
    rotate_seats: bool = False
    """Let the roles change seats from group to group, so that each role plays every seat."""
    seed: int = 0
    threads: PositiveInt | None = None
    """Of torch. Tiny models are fastest with 1; default: torch's own."""
    on_error: Literal["stop", "drop"] = "stop"
    """When a game raises: end the run after a checkpoint, or drop the episode ..."""
    max_drops: PositiveInt = 100
    """... until this many were dropped in a run."""
    deadline_s: float = Field(default=600.0, gt=0)
    """How long to wait for any policy to answer, in seconds."""


class Evaluate(Config):
    """What to measure every so many steps, before the first and after the last."""

    every: PositiveInt = 50
    nashconv: bool = False
    """Exact, from the policy's own move probabilities; the game must export its deals."""
    optimal: bool = False
    """Mean probability of an optimal move over all positions that have one; the game must know them."""
    against: dict[str, PositiveInt] = Field(default_factory=dict)
    """Opponent (`random`, or one that the game exports) -> episodes."""


class Checkpoint(Config):
    """What to keep on disk."""

    every: PositiveInt = 50
    keep: PositiveInt = 2
    trajectories: float = Field(default=1.0, ge=0, le=1)
    """Share of steps whose trajectories are written."""


class Scenario(Config):
    """Who plays what with which weights, and how those learn."""

    game: Annotated[GameConfig, Part("games", GameConfig)]
    seats: dict[str, str] = Field(default_factory=dict, validate_default=True)
    """Agent of the game -> role. What is left out, the game's own casting says, where it has one."""
    roles: dict[str, Annotated[RoleConfig, Part("roles", RoleConfig)]] = Field(min_length=1)
    policies: dict[str, PolicyConfig] = Field(min_length=1)
    credit: CreditConfig = Field(default_factory=lambda: CreditConfig())
    experience: Annotated[ExperienceConfig, Part("experience", ExperienceConfig)] = Field(
        default={"kind": "rollouts"}, validate_default=True
    )  # type: ignore[assignment]
    schedule: Schedule
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoint = Checkpoint()
    track: tuple[Literal["wandb", "mlflow", "trackio"], ...] = ()
    """Trackers to send metrics to, beside metrics.jsonl and TensorBoard's event files."""

    @field_validator("seats")
    @classmethod
    def _cast(cls, seats: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        game: GameConfig | None = info.data.get("game")
        return {**game.casting(), **seats} if game else seats

    @field_validator("roles", "policies")
    @classmethod
    def _named(cls, parts: dict[str, Any]) -> dict[str, Any]:
        for name in parts:
            if not name or not all(c.isalnum() or c in "_-" for c in name):
                raise ValueError(f"{name!r} is no name: use letters, digits, '_' and '-' (it becomes a folder)")
        return parts

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check(self)
        return self
