"""The root setting: one YAML file describes one run, in the order data flows through it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, ValidationInfo, field_validator, model_validator

from marl.config import Config
from marl.judging.token_penalties import KlInReward, Overlong
from marl.metrics.alarms import Alarms
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
from marl.scenario.checks import check


def _check_names(names: Iterable[str], why: str) -> None:
    for name in names:
        if not name or not all(c.isalnum() or c in "_-" for c in name):
            raise ValueError(f"{name!r} is no name: use letters, digits, '_' and '-' ({why})")


class Alternate(Config):
    """Steps in which a policy learns, so that policies can take turns; in the others it stays as it is."""

    period: PositiveInt
    start: int = Field(default=0, ge=0)
    """The first step (from 0) of each period ..."""
    steps: PositiveInt
    """... and how many."""

    @model_validator(mode="after")
    def _within(self) -> Self:
        if self.start + self.steps > self.period:
            raise ValueError(
                f"steps: {self.steps} from step {self.start} on are more than the period of {self.period} has"
            )
        return self

    def includes(self, step: int) -> bool:
        return self.start <= step % self.period < self.start + self.steps


class PolicyConfig(Config):
    """One set of weights that speaks. Without a learner it stays as it is."""

    model: Annotated[ModelConfig | None, Part("models", ModelConfig, optional=True, path="pretrained")] = None
    """A folder, a name on the hub, or `kind: tiny`; none for scripted players."""
    engine: Annotated[EngineConfig, Part("engines", EngineConfig)] = Field(
        default={"kind": "transformers"}, validate_default=True
    )  # type: ignore[assignment]
    learner: Annotated[LearnerConfig | None, Part("trainers", LearnerConfig, optional=True)] = None
    update_every: PositiveInt = 1
    """The samples of so many steps are gathered and learnt from at once."""
    alternate: Alternate | None = None
    """Steps in which it learns; None: all."""

    def learns_in(self, step: int) -> bool:
        """Whether what is said in `step` (from 0) is learnt from."""
        return self.learner is not None and (self.alternate is None or self.alternate.includes(step))

    def updates(self, steps: int) -> int:
        """How often it learns in a run of so many steps; samples that the end finds waiting are not learnt from."""
        return sum(map(self.learns_in, range(steps))) // self.update_every


class CreditRule(Config):
    """Who earned it, against what."""

    assign: Annotated[AssignConfig, Part("credit", AssignConfig)] = Field(
        default={"kind": "outcome"}, validate_default=True
    )  # type: ignore[assignment]
    baseline: Annotated[BaselineConfig, Part("baselines", BaselineConfig)] = Field(
        default={"kind": "group"}, validate_default=True
    )  # type: ignore[assignment]
    scale: float = Field(default=1.0, gt=0)
    """What rewards are multiplied with before they are judged; the rewards themselves do not change."""
    kl: KlInReward | None = None
    """A KL penalty in the reward. `gae` and `chain_gae` take it token by token; what any other rule assigns to a turn
    falls by the sum over its tokens."""
    overlong: Overlong | None = None
    """A punishment of long answers, charged likewise."""

    @property
    def needs(self) -> frozenset[str]:
        """What must be read of turns: fields of `Reading`."""
        return self.assign.needs | self.baseline.needs | (self.kl.needs if self.kl else frozenset())


class CreditConfig(CreditRule):
    """The rule for every role, and roles with a rule of their own."""

    roles: dict[str, CreditRule] = Field(default_factory=dict)
    compare: dict[str, CreditRule] = Field(default_factory=dict)
    """Name -> a rule that judges every step as well and is never learnt from: metrics tell how far it agrees with the
    one that is. What it plays is counted in `credit/tokens`."""

    @field_validator("compare")
    @classmethod
    def _named(cls, compare: dict[str, CreditRule]) -> dict[str, CreditRule]:
        _check_names(compare, "it becomes a part of a metric's name")
        return compare


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
    """What to measure every so many steps, before the first and after the last; which checkpoint is best by it."""

    every: PositiveInt = 50
    nashconv: bool = False
    """Exact, from the policy's own move probabilities; the game must export its deals."""
    optimal: bool = False
    """Mean probability of an optimal move over all positions that have one; the game must know them."""
    against: dict[str, PositiveInt] = Field(default_factory=dict)
    """Opponent (`random`, or one that the game exports) -> episodes."""
    held_out: PositiveInt | None = None
    """Episodes on starts that training never deals: the same ones with the same seeds every time."""
    greedy: bool = False
    """Play those at temperature 0, too."""
    keep_best: str | None = None
    """Keep the checkpoint at which this was best: a measure on held-out starts, or an `eval/...` metric."""
    goal: Literal["max", "min"] = "max"
    """Which is better."""
    patience: PositiveInt | None = None
    """End the run when so many evaluations have brought nothing better."""

    @property
    def best_by(self) -> str | None:
        """Full name of the metric of `keep_best`."""
        name = self.keep_best
        return f"eval/held_out/{name}" if name and "/" not in name else name


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
    alarms: Alarms | None = Alarms()
    """When to warn that a role is collapsing. Null: never."""
    track: tuple[Literal["wandb", "mlflow", "trackio"], ...] = ()
    """Trackers to send metrics to, beside metrics.jsonl and TensorBoard's event files."""

    def taught(self) -> Iterator[tuple[str, RoleConfig, LearnerConfig]]:
        """(name, role, who learns from what it says)"""
        for name, role in self.roles.items():
            policy = self.policies.get(role.policy)
            if role.trainable and policy and policy.learner:
                yield name, role, policy.learner

    @field_validator("seats")
    @classmethod
    def _cast(cls, seats: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        game: GameConfig | None = info.data.get("game")
        return {**game.casting(), **seats} if game else seats

    @field_validator("roles", "policies")
    @classmethod
    def _named(cls, parts: dict[str, Any]) -> dict[str, Any]:
        _check_names(parts, "it becomes a folder")
        return parts

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check(self)
        return self
