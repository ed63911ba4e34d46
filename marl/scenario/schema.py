"""Settings of a whole run: one YAML file, in the order in which data flows through it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from marl.config import Config, cut
from marl.parts import Part
from marl.protocols import (
    AssignConfig,
    BaselineConfig,
    Engine,
    EngineConfig,
    ExperienceConfig,
    GameConfig,
    LearnerConfig,
    ModelConfig,
    RoleConfig,
)
from marl.scenario.checks import check

HORIZON = 10_000
"""Default of `KlInReward.horizon`, in turns, as in verl."""
AlarmKind = Literal["constant", "unreadable", "repeated", "distinct", "entropy", "length", "cut", "reward"]
Share = Annotated[float, Field(ge=0, le=1)]
Steps = Annotated[int, Field(gt=0, le=10**9)]
MAX_EPISODES = 10**6
"""Of one step or one evaluation, which are held in memory."""
Episodes = Annotated[int, Field(gt=0, le=MAX_EPISODES)]
_LONGEST_NAME = 100


def _check_names(names: Iterable[str], why: str) -> None:
    for name in names:
        if not name or not all(c.isalnum() or c in "_-" for c in name):
            raise ValueError(f"{cut(repr(name))} is no name: use letters, digits, '_' and '-' ({why})")
        if len(name) > _LONGEST_NAME:
            raise ValueError(f"{cut(repr(name))} has {len(name)} characters; at most {_LONGEST_NAME} ({why})")


class Alternate(Config):
    """Steps in which a policy learns, so that policies can take turns; in the others it stays as it is."""

    period: Steps
    start: int = Field(default=0, ge=0)
    """The first step (from 0) of each period ..."""
    steps: Steps
    """... and how many."""

    @model_validator(mode="after")
    def _fits_period(self) -> Self:
        if self.start + self.steps > self.period:
            raise ValueError(
                f"steps: {self.steps} from step {self.start} on are more than the period of {self.period} has"
            )
        return self

    def includes(self, step: int) -> bool:
        return self.start <= step % self.period < self.start + self.steps

    def count(self, steps: int) -> int:
        """Return the number of the first `steps` steps that it includes."""
        periods, rest = divmod(steps, self.period)
        return periods * self.steps + min(max(rest - self.start, 0), self.steps)


class PolicyConfig(Config):
    """One set of weights that samples for its roles. Without a learner it stays as it is."""

    model: Annotated[ModelConfig | None, Part("models", ModelConfig, optional=True, path="pretrained")] = None
    """A folder, a name on the hub, or `kind: tiny`; none for scripted players."""
    engine: Annotated[EngineConfig, Part("engines", EngineConfig)] = Field(
        default={"kind": "transformers"}, validate_default=True
    )  # type: ignore[assignment]
    learner: Annotated[LearnerConfig | None, Part("trainers", LearnerConfig, optional=True)] = None
    update_every: PositiveInt = 1
    """Number of steps whose samples are gathered and learnt from at once."""
    alternate: Alternate | None = None
    """Steps in which it learns; None: all."""

    def learns_in(self, step: int) -> bool:
        """Return True if the turns of `step` (from 0) are learnt from."""
        return self.learner is not None and (self.alternate is None or self.alternate.includes(step))

    def updates(self, steps: int) -> int:
        """Return the number of updates in a run of `steps`; samples still gathered at its end are not learnt from."""
        learnt_from = self.alternate.count(steps) if self.alternate else steps
        return learnt_from // self.update_every if self.learner else 0


class KlInReward(Config):
    """A KL penalty in the reward: token t is charged `coefficient` k_t, a constant that no gradient flows through.

    k_t is estimated from the sampled token, d = log p_policy - log p_reference in nats: `k1` d (usual), `k2` d^2 / 2,
    `k3` exp(-d) - 1 + d, `abs` |d|. The learner of each penalised role must have a `reference`.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"logprobs", "reference"})
    """Fields of `Reading` that it is computed from."""
    coefficient: NonNegativeFloat
    estimator: Literal["k1", "k2", "k3", "abs"] = "k1"
    clamp: PositiveFloat | None = None
    """k_t is clipped to [-clamp, clamp] (OpenRLHF: 10)."""
    target: PositiveFloat | None = None
    """The coefficient follows the mean k_t so that it comes to this (nats a token; verl: 0.1). None: it is constant."""
    horizon: PositiveInt = HORIZON
    """Turns after which the coefficient of a `target` that is missed has risen or fallen by up to a fifth (Ziegler et
    al. 2019, arXiv 1909.08593)."""

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        if self.target is not None and not self.coefficient:
            raise ValueError(f"coefficient: 0 times anything is 0, so target: {self.target:g} has no effect; give more")
        # Compared by value, since a resolved scenario that is read again sets every field.
        if self.target is None and self.horizon != HORIZON:
            raise ValueError(f"horizon: {self.horizon} has no effect on a constant coefficient; give a target")
        return self


class Overlong(Config):
    """DAPO's soft punishment of long answers (arXiv 2503.14476): from 0 at `limit` - `buffer` tokens to -1 at `limit`,
    times `factor`, charged at the last token. Lengths are of completions, the end token included."""

    limit: PositiveInt
    buffer: PositiveInt
    factor: PositiveFloat = 1.0
    capped: bool = True
    """True: it stays -1 beyond the limit (paper, OpenRLHF). False: it goes on falling (verl, ms-swift)."""

    @model_validator(mode="after")
    def _fits_limit(self) -> Self:
        if self.buffer > self.limit:
            raise ValueError(f"buffer: {self.buffer} tokens before the limit of {self.limit}; choices: 1 to the limit")
        return self


class CreditRule(Config):
    """Credit of turns: `assign` computes what each earned, `baseline` what that is compared with."""

    assign: Annotated[AssignConfig, Part("credit", AssignConfig)] = Field(
        default={"kind": "outcome"}, validate_default=True
    )  # type: ignore[assignment]
    baseline: Annotated[BaselineConfig, Part("baselines", BaselineConfig)] = Field(
        default={"kind": "group"}, validate_default=True
    )  # type: ignore[assignment]
    scale: float = Field(default=1.0, gt=0)
    """Factor of rewards before they are judged; the rewards themselves do not change."""
    kl: KlInReward | None = None
    """A KL penalty in the reward. `gae` and `chain_gae` take it token by token; what any other rule assigns to a turn
    falls by the sum over its tokens."""
    overlong: Overlong | None = None
    """A punishment of long answers, charged likewise."""

    @property
    def needs(self) -> frozenset[str]:
        """Fields of `Reading` that must be read of turns."""
        return self.assign.needs | self.baseline.needs | (self.kl.needs if self.kl else frozenset())


class CreditConfig(CreditRule):
    """The rule for every role, and roles with a rule of their own."""

    roles: dict[str, CreditRule] = Field(default_factory=dict)
    compare: dict[str, CreditRule] = Field(default_factory=dict)
    """Name -> a rule that judges every step as well and is never learnt from: metrics tell how far it agrees with the
    one that is. What it plays is counted in `credit/tokens`."""

    @field_validator("compare")
    @classmethod
    def _valid_names(cls, compare: dict[str, CreditRule]) -> dict[str, CreditRule]:
        _check_names(compare, "it becomes a part of a metric's name")
        return compare


class Schedule(Config):
    """Amount of play."""

    steps: Steps
    groups: Episodes
    """Different starts a step."""
    group_size: Episodes
    """Episodes from each start; in all groups together at most a million."""
    rotate_seats: bool = False
    """Let the roles change seats from group to group, so that each role plays every seat."""
    seed: int = 0
    threads: int | None = Field(default=None, ge=1, le=4096)
    """Of torch. Tiny models are fastest with 1; default: torch's own."""
    on_error: Literal["stop", "drop"] = "stop"
    """If a game raises: end the run after a checkpoint, or drop the episode ..."""
    max_drops: PositiveInt = 100
    """... until this many were dropped in a run."""
    deadline_s: float = Field(default=600.0, gt=0)
    """Longest wait for an answer of any policy, in seconds."""
    worker_delay: Annotated[int, Field(gt=0, le=1000)] | None = 4
    """Rounds of sampling after which the answer of a verifier or tool is taken, neither earlier nor later, so that the
    same seed gives the same bits. None: as soon as it has come, which may be faster and is not reproducible."""

    @model_validator(mode="after")
    def _fits_memory(self) -> Self:
        if self.groups * self.group_size > MAX_EPISODES:
            raise ValueError(
                f"group_size: {self.group_size} in each of {self.groups} groups are "
                f"{self.groups * self.group_size} episodes a step; at most {MAX_EPISODES}"
            )
        return self


class Evaluate(Config):
    """Measurements every so many steps, before the first and after the last; which checkpoint is best by them."""

    every: Steps = 50
    nashconv: bool = False
    """Exact, from the policy's own move probabilities; the game must export its deals."""
    optimal: bool = False
    """Mean probability of an optimal move over all positions that have one; the game must know them."""
    against: dict[str, Episodes] = Field(default_factory=dict)
    """Opponent (`random`, or one that the game exports) -> episodes."""
    held_out: Episodes | None = None
    """Episodes on starts that training never deals: the same ones with the same seeds every time."""
    greedy: bool = False
    """Play those at temperature 0, too."""
    keep_best: str | None = None
    """Keep the checkpoint at which this was best: a measure on held-out starts, or an `eval/...` metric."""
    goal: Literal["max", "min"] = "max"
    """Direction of improvement."""
    patience: PositiveInt | None = None
    """End the run when so many evaluations have brought nothing better."""

    @property
    def best_by(self) -> str | None:
        """Full name of the metric of `keep_best`."""
        name = self.keep_best
        return f"eval/held_out/{name}" if name and "/" not in name else name


class CheckpointSettings(Config):
    """Files that a run keeps on disk."""

    every: PositiveInt = 50
    keep: PositiveInt = 2
    trajectories: Share = 1.0
    """Share of steps whose trajectories are written."""


class Thresholds(Config):
    """Limits beyond which a role's answers are taken to be collapsing. Null: no such alarm."""

    patience: PositiveInt = 5
    """Steps in a row before an alarm is raised."""
    turns: PositiveInt = 16
    """Steps in which the role had fewer turns are ignored."""
    constant: Share | None = 0.98
    """One move takes this share of the role's choices, or more, whatever it is asked: a critic that always says yes."""
    unreadable: Share | None = 0.5
    """No legal move can be read from this share of its turns, or more."""
    repeated: Share | None = 0.9
    """Two answers to different questions are the same text with this probability, or a higher one."""
    distinct: Share | None = 0.2
    """distinct-2 has fallen to this share of what it was at the start, or less."""
    entropy: tuple[float, float] | None = (0.001, 4.0)
    """Nats a sampled token, at or below the first or at or above the second."""
    length: tuple[float, float] | None = (0.2, 5.0)
    """Tokens a turn, at or below the first multiple of what they were at the start or at or above the second."""
    cut: Share | None = 0.5
    """This share of its turns, or more, is cut off by max_tokens."""
    reward: float | None = Field(default=1e-6, ge=0)
    """The returns of a role that learns from them have this standard deviation, or less: nothing to learn."""

    def limit(self, kind: AlarmKind) -> Any:
        """Return the threshold of one kind of alarm; None: off."""
        return dict(self)[kind]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for name, limits in (("entropy", self.entropy), ("length", self.length)):
            if limits and not limits[0] < limits[1]:
                raise ValueError(f"{name}: {list(limits)} is no range; give [low, high] with low < high")
        return self


class Alarms(Thresholds):
    """Thresholds for every role, roles with thresholds of their own, and which alarms end the run."""

    roles: dict[str, Thresholds | None] = Field(default_factory=dict)
    """Role -> its thresholds; what is left out is as for every role. Null: no alarms for this role."""
    stop: tuple[AlarmKind, ...] = ()
    """Alarms that end the run, after a checkpoint."""

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, data: Any) -> Any:
        """Give roles the general thresholds that they leave out, so that the resolved scenario says all of them."""
        if not isinstance(data, Mapping) or not isinstance(roles := data.get("roles"), Mapping):
            return data
        general = {name: data[name] for name in Thresholds.model_fields if name in data}
        merged = {role: {**general, **its} if isinstance(its, Mapping) else its for role, its in roles.items()}
        return {**data, "roles": merged}

    def of_role(self, role: str) -> Thresholds | None:
        return self.roles.get(role, self)


class Scenario(Config):
    """A run: game, seats, roles, policies with their learners, credit, experience, and what is measured and kept."""

    game: Annotated[GameConfig, Part("games", GameConfig)]
    seats: dict[str, str] = Field(default_factory=dict, validate_default=True)
    """Agent of the game -> role. Agents left out get the game's default role, where it has one."""
    roles: dict[str, Annotated[RoleConfig, Part("roles", RoleConfig)]] = Field(min_length=1)
    policies: dict[str, PolicyConfig] = Field(min_length=1)
    credit: CreditConfig = Field(default_factory=lambda: CreditConfig())
    experience: Annotated[ExperienceConfig, Part("experience", ExperienceConfig)] = Field(
        default={"kind": "rollouts"}, validate_default=True
    )  # type: ignore[assignment]
    schedule: Schedule
    evaluate: Evaluate = Evaluate()
    checkpoint: CheckpointSettings = CheckpointSettings()
    alarms: Alarms | None = Alarms()
    """Thresholds of collapse alarms. Null: no alarms."""
    track: tuple[Literal["wandb", "mlflow", "trackio"], ...] = ()
    """Trackers to send metrics to, beside metrics.jsonl and TensorBoard's event files."""

    def learning_roles(self) -> Iterator[tuple[str, RoleConfig, LearnerConfig]]:
        """Yield (name, role, learner) for each role whose turns a learner learns from."""
        for name, role in self.roles.items():
            policy = self.policies.get(role.policy)
            if role.trainable and policy and policy.learner:
                yield name, role, policy.learner

    def credited_roles(self) -> dict[str, LearnerConfig]:
        """Return role -> its learner, for each role whose learner learns from credit; imitation does not."""
        return {name: learner for name, _, learner in self.learning_roles() if learner.uses_credit}

    def rule_engines(self) -> dict[str, Engine]:
        """Build an engine for each policy whose answers follow from the question alone, such as a verifier.

        No other player takes its seats, random or trained elsewhere.
        """
        return {name: p.engine.build(None) for name, p in self.policies.items() if p.engine.rule_bound}

    @field_validator("seats")
    @classmethod
    def _default_seats(cls, seats: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        game: GameConfig | None = info.data.get("game")
        return {**game.default_seats(), **seats} if game else seats

    @field_validator("roles", "policies")
    @classmethod
    def _valid_names(cls, parts: dict[str, Any]) -> dict[str, Any]:
        _check_names(parts, "it becomes a folder")
        return parts

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check(self)
        return self
