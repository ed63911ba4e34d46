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

from marl.core.config import Config, shorten
from marl.core.plugins import PluginField
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
from marl.scenario.checks import check, check_games
from marl.scenario.cluster import ClusterConfig
from marl.scenario.games import MAX_EPISODES, Episodes, GameMixSettings, Measures, ScenarioGame, with_default_seats

HORIZON = 10_000
"""Default of `KlInReward.horizon`, in turns, as in verl."""
AlarmKind = Literal[
    "constant", "unreadable", "repeated", "distinct", "entropy", "length", "cut", "reward", "credit", "samples"
]
"""Kinds of alarms; all but `credit` and `samples` have a threshold of their own."""
Share = Annotated[float, Field(ge=0, le=1)]
Steps = Annotated[int, Field(gt=0, le=10**9)]
_LONGEST_NAME = 100


def _check_names(names: Iterable[str], why: str) -> None:
    for name in names:
        if not name or not all(c.isalnum() or c in "_-" for c in name):
            raise ValueError(f"{shorten(repr(name))} is no name: use letters, digits, '_' and '-' ({why})")
        if len(name) > _LONGEST_NAME:
            raise ValueError(f"{shorten(repr(name))} has {len(name)} characters; at most {_LONGEST_NAME} ({why})")


class Alternate(Config):
    """Steps in which a policy learns, so that policies can take turns; in the others it stays as it is."""

    example = "period: 20, steps: 10"
    period: Steps
    """Steps after which it begins again."""
    start: int = Field(default=0, ge=0)
    """First step (from 0) of each period in which the policy learns."""
    steps: Steps
    """Number of steps of each period in which it learns, from `start` on."""

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

    model: Annotated[ModelConfig | None, PluginField("models", ModelConfig, optional=True, path="pretrained")] = None
    """Weights: a folder, a name on the hub, or `kind: tiny`; none for scripted players."""
    engine: Annotated[EngineConfig, PluginField("engines", EngineConfig)] = Field(
        default={"kind": "transformers"}, validate_default=True
    )  # type: ignore[assignment]
    """Part that answers requests: samples from the weights, asks an endpoint, or follows rules."""
    learner: Annotated[LearnerConfig | None, PluginField("trainers", LearnerConfig, optional=True)] = None
    """Part that learns from what the policy said. None: it stays as it is."""
    update_every: PositiveInt = 1
    """Number of steps whose samples are gathered and learnt from at once."""
    alternate: Alternate | None = None
    """Steps in which it learns. None: all."""

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

    example = "coefficient: 0.01"
    needs: ClassVar[frozenset[str]] = frozenset({"logprobs", "reference"})
    """Fields of `Reading` that it is computed from."""
    coefficient: NonNegativeFloat
    """Factor of the estimates; with `target`, the one at the start."""
    estimator: Literal["k1", "k2", "k3", "abs"] = "k1"
    """Estimate of k_t, with d = log p_policy - log p_reference in nats: `k1` d (usual), `k2` d^2 / 2, `k3` exp(-d) - 1
    + d, `abs` |d|."""
    clamp: PositiveFloat | None = None
    """Greatest size of k_t, which is clipped to [-clamp, clamp] (OpenRLHF: 10). None: no limit."""
    target: PositiveFloat | None = None
    """Mean k_t (nats a token; verl: 0.1) that the coefficient is steered to. None: it is constant."""
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

    example = "limit: 256, buffer: 64"
    limit: PositiveInt
    """Length (tokens) from which the punishment is -1."""
    buffer: PositiveInt
    """Tokens before the limit over which it grows from 0."""
    factor: PositiveFloat = 1.0
    """Factor of the punishment."""
    capped: bool = True
    """With true it stays -1 beyond the limit (paper, OpenRLHF); with false it goes on falling (verl, ms-swift)."""

    @model_validator(mode="after")
    def _fits_limit(self) -> Self:
        if self.buffer > self.limit:
            raise ValueError(f"buffer: {self.buffer} tokens before the limit of {self.limit}; choices: 1 to the limit")
        return self


class CreditRule(Config):
    """Credit of turns: `assign` computes what each earned, `baseline` what that is compared with."""

    assign: Annotated[AssignConfig, PluginField("credit", AssignConfig)] = Field(
        default={"kind": "outcome"}, validate_default=True
    )  # type: ignore[assignment]
    """Rule that computes what each turn earned."""
    baseline: Annotated[BaselineConfig, PluginField("baselines", BaselineConfig)] = Field(
        default={"kind": "group"}, validate_default=True
    )  # type: ignore[assignment]
    """Rule that computes what that is compared with, which gives advantages."""
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
    """Role -> a rule of its own."""
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
    """Steps of the run; in each, episodes are played, judged and learnt from."""
    groups: Episodes
    """Different starts a step."""
    group_size: Episodes
    """Episodes from each start; in all groups together at most a million."""
    mix: GameMixSettings = GameMixSettings()
    """With `games`: how the groups of a step are divided among them; a bare word stands for `by`."""
    rotate_seats: bool = False
    """Let the roles change seats from group to group, so that each role plays every seat."""
    seed: int = 0
    """Seed of everything random in the run."""
    threads: int | None = Field(default=None, ge=1, le=4096)
    """Threads of torch. Tiny models are fastest with 1; default: torch's own number."""
    on_error: Literal["stop", "drop"] = "stop"
    """If a game raises an error: end the run after a checkpoint (`stop`), or leave the episode out (`drop`)."""
    max_drops: PositiveInt = 100
    """Episodes left out, with `on_error: drop`, after which the run ends."""
    deadline_s: float = Field(default=600.0, gt=0)
    """Longest wait for an answer of any policy, and for a call of a game's, role's or credit rule's own code, in
    seconds; then the run ends, after a checkpoint, and says what did not come back."""
    max_turns: PositiveInt = 10_000
    """Turns after which an episode that is not over counts as one whose game raised an error."""
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


class EvaluationSettings(Measures):
    """Measurements every so many steps, before the first and after the last; which checkpoint is best by them."""

    every: Steps = 50
    """Steps between evaluations; there is one before the first step and one after the last, too."""
    keep_best: str | None = None
    """Keep the checkpoint at which this was best: a measure on held-out starts, or an `eval/...` metric."""
    goal: Literal["max", "min"] = "max"
    """Direction in which `keep_best` improves."""
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
    """Steps between checkpoints."""
    keep: PositiveInt = 2
    """Newest checkpoints that stay on disk; the best one by `evaluate.keep_best` stays as well."""
    trajectories: Share = 1.0
    """Share of steps whose trajectories are written."""


class Thresholds(Config):
    """Limits beyond which a role's answers are taken to be collapsing. Null: no such alarm."""

    patience: PositiveInt = 5
    """Steps in a row before an alarm is raised."""
    turns: PositiveInt = 16
    """Steps in which the role had fewer turns are ignored."""
    constant: Share | None = 0.98
    """One move takes this share of the role's choices, or more, whatever it is asked: a critic that always says yes. Of
    a policy that explores, it is this share of the choices that exploration leaves."""
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
        """Return the threshold of one kind of alarm; None: off. `credit` is off where `reward` is."""
        if kind == "credit" and self.reward is None:
            return None
        return 0.0 if kind in ("credit", "samples") else dict(self)[kind]

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

    example = """
game: {kind: nim}
seats: {player_0: player, player_1: player}
roles: {player: {kind: player, policy: actor, sampling: {max_tokens: 6}}}
policies: {actor: {model: {kind: tiny}, learner: {kind: grpo, lr: 1.0e-3}}}
credit: {assign: {kind: outcome}, baseline: {kind: group}}
experience: {kind: rollouts}
schedule: {steps: 100, groups: 8, group_size: 8}
evaluate: {every: 20, against: {random: 100}}
checkpoint: {every: 20}
alarms: {stop: [unreadable]}
track: [trackio]
cluster: {kind: local, simulators: 2}
"""
    game: Annotated[GameConfig, PluginField("games", GameConfig, optional=True)] = None  # type: ignore[assignment]
    """The game that is played; a workflow on problems is `kind: team`. None only where `games` has several: what looks
    at a game goes through `by_game`."""
    games: dict[str, ScenarioGame] = Field(default_factory=dict)
    """In place of `game` and `seats`: name -> one of several games of one run."""
    seats: dict[str, str] = Field(default_factory=dict, validate_default=True)
    """Agent of the game -> role. Agents left out get the game's default role, where it has one."""
    roles: dict[str, Annotated[RoleConfig, PluginField("roles", RoleConfig)]] = Field(min_length=1)
    """Name of a role -> its prompts, its way of reading answers, and the policy that speaks for it."""
    policies: dict[str, PolicyConfig] = Field(min_length=1)
    """Name of a policy -> its model, engine and learner. Several roles may share one."""
    credit: CreditConfig = Field(default_factory=lambda: CreditConfig())
    """Rules by which turns are judged, from rewards to advantages."""
    experience: Annotated[ExperienceConfig, PluginField("experience", ExperienceConfig)] = Field(
        default={"kind": "rollouts"}, validate_default=True
    )  # type: ignore[assignment]
    """Source of the episodes that are learnt from."""
    schedule: Schedule
    """Amount of play: steps, groups, and episodes in each."""
    evaluate: EvaluationSettings = EvaluationSettings()
    """Measurements on the way, and the checkpoint that is kept as the best."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    """Files that a run keeps on disk."""
    alarms: Alarms | None = Alarms()
    """Thresholds of collapse alarms. Null: no alarms."""
    cluster: ClusterConfig | None = None
    """Processes and machines among which the run is divided. Null: all in one process."""
    track: tuple[Literal["wandb", "mlflow", "trackio"], ...] = ()
    """Trackers to send metrics to, in addition to metrics.jsonl and TensorBoard's event files."""

    def learning_roles(self) -> Iterator[tuple[str, RoleConfig, LearnerConfig]]:
        """Yield (name, role, learner) for each role whose turns a learner learns from."""
        for name, role in self.roles.items():
            policy = self.policies.get(role.policy)
            if role.trainable and policy and policy.learner:
                yield name, role, policy.learner

    def _knows_language(self, name: str) -> bool:
        """Return True if the policy follows instructions: it is neither a tiny model nor a scripted player."""
        policy = self.policies.get(name)
        if policy is None or policy.model is None:
            return policy is not None and not policy.engine.token_level
        return policy.model.knows_language

    def credited_roles(self) -> dict[str, LearnerConfig]:
        """Return role -> its learner, for each role whose learner learns from credit; imitation does not."""
        return {name: learner for name, _, learner in self.learning_roles() if learner.uses_credit}

    def rule_engines(self) -> dict[str, Engine]:
        """Build an engine for each policy whose answers follow from the question alone, such as a verifier.

        No other player takes its seats, random or trained elsewhere.
        """
        return {name: p.engine.build(None) for name, p in self.policies.items() if p.engine.is_rule_based}

    @property
    def rule_roles(self) -> frozenset[str]:
        """Roles whose answers follow from the question alone, such as those of verifiers: they earn nothing."""
        by_rule = {name for name, policy in self.policies.items() if policy.engine.is_rule_based}
        return frozenset(name for name, role in self.roles.items() if role.policy in by_rule)

    def by_game(self) -> dict[str, Scenario]:
        """Return name -> the scenario with this game alone, its seats and their roles; "" -> itself if it has one."""
        return {name: self._of(played) for name, played in self.games.items()} or {"": self}

    def _of(self, played: ScenarioGame) -> Scenario:
        measures = dict(played.evaluate or ()) | {"keep_best": None, "patience": None}
        return self.model_copy(
            update={
                "game": played.game,
                "games": {},
                "seats": played.seats,
                "roles": {name: role for name, role in self.roles.items() if name in played.seats.values()},
                "evaluate": self.evaluate.model_copy(update=measures),
            }
        )

    def play_data(self) -> dict[str, Any]:
        """Return the part of the scenario, as plain data, that random play depends on: games, seats and roles."""
        if not self.games:
            return self.model_dump(mode="json", include={"game", "seats", "roles"})
        return self.model_dump(mode="json", include={"games": {"__all__": {"game", "seats"}}, "roles": True})

    _default_seats = field_validator("seats")(with_default_seats)

    @field_validator("roles", "policies", "games")
    @classmethod
    def _valid_names(cls, parts: dict[str, Any]) -> dict[str, Any]:
        _check_names(parts, "it becomes a folder")
        return parts

    @model_validator(mode="after")
    def _consistent(self, info: ValidationInfo) -> Self:
        check_games(self)
        # In place: the settings are frozen, and a resolved scenario holds the templates that were chosen.
        for name, role in self.roles.items():
            self.roles[name] = role.with_default_prompts(self._knows_language(role.policy))
        check(self, to_train=(info.context or {}).get("to_train", True))
        return self
