"""Schema of scenario files: the settings of a run, in the order in which data flows through the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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

from marl.core.config import Config, DistinctValues, shorten
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
from marl.scenario.alarms import AlarmSettings, Share
from marl.scenario.checks import check, check_game_or_games_given
from marl.scenario.cluster import ClusterConfig
from marl.scenario.games import (
    MAX_EPISODES,
    Episodes,
    EvaluationSettings,
    GameMixSettings,
    ScenarioGame,
    Steps,
    with_default_roles,
)
from marl.scenario.role_defaults import complete_engines_and_tools, role_with_defaults

HORIZON = 10_000
"""Default of `KlInReward.horizon`, in turns, as in verl."""
_MAX_NAME_LENGTH = 100


def _check_name_characters(names: Iterable[str], usage: str) -> None:
    """Check the characters and the length of each of `names`. `usage` says in error messages what the names become."""
    for name in names:
        if not name or not all(character.isalnum() or character in "_-" for character in name):
            raise ValueError(f"{shorten(repr(name))} is no name: use letters, digits, '_' and '-' ({usage})")
        if len(name) > _MAX_NAME_LENGTH:
            raise ValueError(f"{shorten(repr(name))} has {len(name)} characters; at most {_MAX_NAME_LENGTH} ({usage})")


class AlternatingUpdates(Config):
    """Training steps in which a policy learns. In all other steps its weights stay unchanged."""

    example = "period: 20, steps: 10"
    period: Steps
    """Number of steps after which the pattern of learning and pausing repeats."""
    start: int = Field(default=0, ge=0)
    """First step (from 0) of each period in which the policy learns."""
    steps: Steps
    """Number of steps of each period in which the policy learns, from `start` on."""

    @model_validator(mode="after")
    def _check_steps_fit_period(self) -> Self:
        if self.start + self.steps > self.period:
            raise ValueError(
                f"steps: {self.steps} from step {self.start} on are more than the period of {self.period} has"
            )
        return self


class PolicyConfig(Config):
    """Settings of a policy: its weights, the engine that samples from them, and the learner that trains them."""

    model: Annotated[ModelConfig | None, PluginField("models", ModelConfig, optional=True, path="pretrained")] = None
    """Weights of the policy: a folder, a name on the Hugging Face hub, or `kind: tiny`. None: a policy without weights,
    such as a scripted player."""
    engine: Annotated[EngineConfig, PluginField("engines", EngineConfig)] = Field(
        default={"kind": "transformers"}, validate_default=True
    )  # type: ignore[assignment]
    """Engine of the policy. It samples from the weights, asks an endpoint, or follows rules."""
    learner: Annotated[LearnerConfig | None, PluginField("trainers", LearnerConfig, optional=True)] = None
    """Learner that trains the weights on the policy's turns. None: the weights stay unchanged."""
    update_every: PositiveInt = 1
    """Number of training steps whose samples are gathered for one update of the policy."""
    alternate: AlternatingUpdates | None = None
    """Training steps in which the policy learns. None: all steps."""

    def learns_in_step(self, step: int) -> bool:
        """Return True if the policy learns from the turns of training step `step` (from 0)."""
        if self.learner is None or self.alternate is None:
            return self.learner is not None
        return 0 <= step % self.alternate.period - self.alternate.start < self.alternate.steps

    def count_updates(self, step_count: int) -> int:
        """Return the number of updates in a run of `step_count` steps. Samples left over at the end give no update."""
        if self.learner is None:
            return 0
        if self.alternate:
            periods, remaining_steps = divmod(step_count, self.alternate.period)
            step_count = periods * self.alternate.steps
            step_count += min(max(remaining_steps - self.alternate.start, 0), self.alternate.steps)
        return step_count // self.update_every


class KlInReward(Config):
    """KL penalty in the reward: `coefficient` times k_t is subtracted at token t, as a constant without a gradient.

    The learner of each penalised role must have a `reference`.
    """

    example = "coefficient: 0.01"
    needed_reading_fields: ClassVar[frozenset[str]] = frozenset({"logprobs", "reference"})
    """Fields of `Reading` from which the KL penalty is computed."""
    coefficient: NonNegativeFloat
    """Factor of the KL penalty k_t. With `target` it is the initial factor."""
    estimator: Literal["k1", "k2", "k3", "abs"] = "k1"
    """Estimate k_t of the KL penalty, with d = log p_policy - log p_reference in nats: `k1` d (usual), `k2` d^2 / 2,
    `k3` exp(-d) - 1 + d, `abs` |d|."""
    clamp: PositiveFloat | None = None
    """Maximum absolute value of k_t, which is clipped to [-clamp, clamp] (OpenRLHF: 10). None: no limit."""
    target: PositiveFloat | None = None
    """Target of the mean k_t (nats per token; verl: 0.1), to which the coefficient is adapted. None: the coefficient is
    constant."""
    horizon: PositiveInt = HORIZON
    """Number of turns within which the coefficient changes by at most a fifth while `target` is missed (Ziegler et al.
    2019, arXiv 1909.08593)."""

    @model_validator(mode="after")
    def _check_settings_have_effect(self) -> Self:
        if self.target is not None and not self.coefficient:
            raise ValueError(f"coefficient: 0 times anything is 0, so target: {self.target:g} has no effect; give more")
        # `horizon` is compared with its default, because a resolved scenario sets every field.
        if self.target is None and self.horizon != HORIZON:
            raise ValueError(f"horizon: {self.horizon} has no effect on a constant coefficient; give a target")
        return self


class OverlongPenalty(Config):
    """DAPO's soft overlong penalty (arXiv 2503.14476), a reward at the last token of a completion.

    It falls linearly from 0 at `limit` - `buffer` tokens to -1 at `limit` tokens, times `factor`. The length of a
    completion includes the end token.
    """

    example = "limit: 256, buffer: 64"
    limit: PositiveInt
    """Length of a completion (tokens) at which the overlong penalty reaches -1."""
    buffer: PositiveInt
    """Number of tokens before `limit` over which the overlong penalty falls from 0 to -1."""
    factor: PositiveFloat = 1.0
    """Factor of the overlong penalty."""
    capped: bool = True
    """True: the overlong penalty stays at -1 beyond the limit (paper, OpenRLHF). False: it continues to fall (verl,
    ms-swift)."""

    @model_validator(mode="after")
    def _check_buffer_fits_limit(self) -> Self:
        if self.buffer > self.limit:
            raise ValueError(f"buffer: {self.buffer} tokens before the limit of {self.limit}; choices: 1 to the limit")
        return self


class CreditRule(Config):
    """Settings of a credit rule: `assign` computes the earnings of each turn, and `baseline` turns them into
    advantages."""

    assign: Annotated[AssignConfig, PluginField("credit", AssignConfig)] = Field(
        default={"kind": "outcome"}, validate_default=True
    )  # type: ignore[assignment]
    """First half of the credit rule, which computes the earnings of each turn."""
    baseline: Annotated[BaselineConfig, PluginField("baselines", BaselineConfig)] = Field(
        default={"kind": "group"}, validate_default=True
    )  # type: ignore[assignment]
    """Second half of the credit rule, which compares earnings with a baseline and returns advantages."""
    scale: float = Field(default=1.0, gt=0)
    """Factor by which rewards are multiplied before credit is computed. Recorded rewards stay unchanged."""
    kl: KlInReward | None = None
    """KL penalty in the reward. `gae` and `chain_gae` apply the penalty of each token at the token. For any other rule,
    the sum over a turn's tokens is subtracted from the turn's earnings. None: no KL penalty."""
    overlong: OverlongPenalty | None = None
    """Penalty of long completions, applied in the same way as `kl`. None: no such penalty."""
    token_cost: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Reward that each sampled token costs, the end token included, applied in the same way as `kl`: the price of
    talk in tokens, where a game can only count words."""

    @property
    def needed_reading_fields(self) -> frozenset[str]:
        """Return the fields of `Reading` that the learner must compute for each turn before this rule is applied."""
        kl_fields = self.kl.needed_reading_fields if self.kl else frozenset[str]()
        return self.assign.needed_reading_fields | self.baseline.needed_reading_fields | kl_fields


class CreditConfig(CreditRule):
    """Settings of credit: the default rule, rules of single roles, and rules that are only compared."""

    roles: dict[str, CreditRule] = Field(default_factory=dict)
    """Role -> credit rule of this role, instead of the default rule."""
    compare: dict[str, CreditRule] = Field(default_factory=dict)
    """Name -> credit rule that is applied in every step but never trained on. Metrics report its agreement with the
    rule in use. Tokens that it plays are counted in `credit/tokens`."""

    @field_validator("compare")
    @classmethod
    def _check_section_names(cls, compare: dict[str, CreditRule]) -> dict[str, CreditRule]:
        _check_name_characters(compare, "it becomes a part of a metric's name")
        return compare


class TrainingSchedule(Config):
    """Settings of the run's amount of play, its seed, and its limits of time and errors."""

    steps: Steps
    """Number of training steps of the run. Each step plays episodes, computes credit and updates the learners."""
    groups: Episodes
    """Number of groups in a training step. The episodes of a group start from the same state."""
    group_size: Episodes
    """Number of episodes in each group. All groups of a step have at most a million episodes together."""
    mix: GameMixSettings = GameMixSettings()
    """Division of a step's groups among several `games`. A bare word stands for the setting `by`."""
    rotate_seats: bool = False
    """Rotate the roles among the seats from group to group, so that each role plays every seat."""
    seed: int = 0
    """Seed of all random numbers in the run."""
    threads: int | None = Field(default=None, ge=1, le=4096)
    """Number of torch's threads (default: torch's choice). Tiny models are fastest with 1."""
    on_error: Literal["stop", "drop"] = "stop"
    """Reaction to an error of a game: end the run after a checkpoint (`stop`), or leave the episode out (`drop`)."""
    max_drops: PositiveInt = 100
    """Maximum number of episodes that `on_error: drop` leaves out. The next error ends the run."""
    deadline_s: float = Field(default=600.0, gt=0)
    """Maximum time in seconds without any answer of a policy, and of one call of a game, role or credit rule. If it is
    exceeded, the run writes a checkpoint and ends with an error that names the policy or the call."""
    max_turns: PositiveInt = 10_000
    """Maximum number of turns of an episode. Exceeding it is an error of the game (`on_error`). The model calls of a
    program do not count; each program may make as many calls, and further calls are refused."""
    worker_delay: Annotated[int, Field(gt=0, le=1000)] | None = 4
    """Number of sampling rounds between a request to a verifier or tool and the use of its answer, so that runs with
    equal seeds are bit-identical. Models also wait until every running program has called a model or ended. None: each
    answer is used on arrival, which may be faster but is not reproducible."""

    @model_validator(mode="after")
    def _check_episode_count(self) -> Self:
        if self.groups * self.group_size > MAX_EPISODES:
            raise ValueError(
                f"group_size: {self.group_size} in each of {self.groups} groups are "
                f"{self.groups * self.group_size} episodes a step; at most {MAX_EPISODES}"
            )
        return self


class CheckpointSettings(Config):
    """Settings of a run's checkpoints and recorded episodes on disk."""

    every: PositiveInt = 50
    """Number of training steps between checkpoints."""
    keep: PositiveInt = 2
    """Number of newest checkpoints that stay on disk, in addition to the best checkpoint (`evaluate.keep_best`)."""
    trajectories: Share = 1.0
    """Share of training steps whose trajectories are written to disk."""


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
    """Game that is played, such as `kind: team` for a workflow on problems. None in a scenario with several `games`;
    code that needs a game uses `scenario_by_game`."""
    games: dict[str, ScenarioGame] = Field(default_factory=dict)
    """Name -> game, for a run with several games. They replace `game` and `seats`."""
    seats: dict[str, str] = Field(default_factory=dict, validate_default=True)
    """Agent of the game -> role. Omitted agents get the game's default role if the game has one."""
    roles: dict[str, Annotated[RoleConfig, PluginField("roles", RoleConfig)]] = Field(min_length=1)
    """Name of a role -> its prompts, its parser of answers, and the policy that generates its completions."""
    policies: dict[str, PolicyConfig] = Field(min_length=1)
    """Name of a policy -> its model, engine and learner. Several roles may share a policy."""
    credit: CreditConfig = Field(default_factory=lambda: CreditConfig())
    """Credit rules, which compute the advantages of turns from rewards."""
    experience: Annotated[ExperienceConfig, PluginField("experience", ExperienceConfig)] = Field(
        default={"kind": "rollouts"}, validate_default=True
    )  # type: ignore[assignment]
    """Source of the episodes on which the run trains."""
    schedule: TrainingSchedule
    """Amount of play: number of steps, of groups in a step, and of episodes in a group."""
    evaluate: EvaluationSettings = EvaluationSettings()
    """Evaluations during the run, and the metric by which the best checkpoint is kept."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    """Checkpoints and recorded episodes of the run on disk."""
    alarms: AlarmSettings | None = AlarmSettings()
    """Alarms that warn of collapsing answers. Null: no alarms."""
    cluster: ClusterConfig | None = None
    """Processes and machines that share the run's work. Null: all work is done in one process."""
    track: DistinctValues[Literal["wandb", "mlflow", "trackio"]] = ()
    """Trackers that receive the metrics, in addition to metrics.jsonl and TensorBoard's event files."""

    @property
    def sampling_policies(self) -> frozenset[str]:
        """Return the policies that answer in episodes, or a learner's own requests. All others teach, and need no
        engine."""
        asked: set[str] = set()
        for policy in self.policies.values():
            asked |= {*policy.learner.policies_without_role()} if policy.learner else set()
        speaking = {role.policy for role in self.roles.values()}
        return frozenset(speaking | {*self.experience.policies_without_role()} | asked)

    def learning_roles(self) -> Iterator[tuple[str, RoleConfig, LearnerConfig]]:
        """Yield (name, role, learner) for each trained role: a role whose turns a learner trains on."""
        for name, role in self.roles.items():
            policy = self.policies.get(role.policy)
            if role.trainable and policy and policy.learner:
                yield name, role, policy.learner

    def credited_roles(self) -> dict[str, LearnerConfig]:
        """Return role -> learner, for each trained role whose learner uses credit. Imitation uses none."""
        return {name: learner for name, _, learner in self.learning_roles() if learner.trains_on_advantages}

    def build_rule_based_engines(self) -> dict[str, Engine]:
        """Return policy -> new engine, for each policy with rule-based answers, such as a verifier's.

        Random play and evaluations of other policies replace all engines but these.
        """
        return {name: p.engine.build(None) for name, p in self.policies.items() if p.engine.is_rule_based}

    @property
    def runs_programs(self) -> bool:
        """True if an engine runs programs that call models."""
        return any(policy.engine.runs_programs for policy in self.policies.values())

    @property
    def rule_based_roles(self) -> frozenset[str]:
        """Return the roles with rule-based answers, such as verifiers. Their turns earn nothing."""
        rule_policies = {name for name, policy in self.policies.items() if policy.engine.is_rule_based}
        return frozenset([name for name, role in self.roles.items() if role.policy in rule_policies])

    def scenario_by_game(self) -> dict[str, Scenario]:
        """Return name of a game -> the scenario with this game, its seats and its roles alone.

        A scenario with a single game is returned under the name "".
        """
        views: dict[str, Scenario] = {}
        for name, played in self.games.items():
            measures = dict(played.evaluate or ()) | {"keep_best": None, "patience": None}
            update = {
                "game": played.game,
                "games": {},
                "seats": played.seats,
                "roles": {role: self.roles[role] for role in self.roles if role in played.seats.values()},
                "evaluate": self.evaluate.model_copy(update=measures),
            }
            views[name] = self.model_copy(update=update)
        return views or {"": self}

    def plain_data_for_random_play(self) -> dict[str, Any]:
        """Return the settings on which random play depends (games, seats and roles) as plain data."""
        if not self.games:
            return self.model_dump(mode="json", include={"game", "seats", "roles"})
        return self.model_dump(mode="json", include={"games": {"__all__": {"game", "seats"}}, "roles": True})

    _default_seats = field_validator("seats")(with_default_roles)

    @field_validator("roles", "policies", "games")
    @classmethod
    def _check_section_names(cls, sections: dict[str, Any]) -> dict[str, Any]:
        _check_name_characters(sections, "it becomes a folder")
        return sections

    @model_validator(mode="after")
    def _check_sections_and_fill_in_role_defaults(self, info: ValidationInfo) -> Self:
        check_game_or_games_given(self)
        # The mappings are changed in place, also if settings are validated anew with another task (`marl eval suite`).
        complete_engines_and_tools(self)
        # The roles mapping is changed in place: settings are frozen, and a resolved scenario must state its prompts.
        for name, role in self.roles.items():
            self.roles[name] = role_with_defaults(self, name, role)
        check(self, to_train=(info.context or {}).get("to_train", True))
        return self
