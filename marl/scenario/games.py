"""Settings of a run's games: evaluations, and the division of a step's groups among several games."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    NonNegativeFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema

from marl.core.config import Config
from marl.core.plugins import PluginField
from marl.protocols import GameConfig

MAX_EPISODES = 10**6
"""Maximum number of episodes of one training step or one evaluation, because all of them are held in memory."""
Episodes = Annotated[int, Field(gt=0, le=MAX_EPISODES)]
Steps = Annotated[int, Field(gt=0, le=10**9)]
HELD_OUT_SCOPES = ("held_out", "held_out_greedy")
"""Second components of the names of metrics on held-out starts, as in `eval/held_out/...`."""
SCOPES = (*HELD_OUT_SCOPES, "average", "search")
"""Second components of the names of evaluation metrics, as in `eval/average/...`. No game may have such a name."""
MIN_GAME_SHARE = 1e-4
"""Minimum share of a game in a run's groups."""


def with_default_roles(role_by_agent: dict[str, str], info: ValidationInfo) -> dict[str, str]:
    """Return `role_by_agent` (agent -> role) with the game's default role for each omitted agent."""
    game: GameConfig | None = info.data.get("game")
    return {**game.default_role_of_agent(), **role_by_agent} if game else role_by_agent


class AveragePolicySettings(Config):
    """Settings of a run's average policy, which draws one of the evaluated policies before every episode.

    The average policy may approach an equilibrium while the newest policy circles around the equilibrium.
    """

    last: float = Field(default=0.5, gt=0, le=1)
    """Share of the run's training steps, counted from the end, whose evaluated policies are averaged."""
    weights: Literal["uniform", "linear"] = "uniform"
    """Weights with which the average policy mixes the evaluated policies. `uniform`: equal weights; `linear`:
    proportional to 1 + the number of training steps before the evaluation (as in CFR+, Tammelin 2014, arXiv
    1407.5042)."""


class Forecast(Config):
    """Measure that forecasts another measure of the same episode, such as a critic's score of an answer."""

    example = "score: said, outcome: success"
    score: str
    """Measure that is the forecast, between 0 and 1."""
    outcome: str
    """Measure that is forecast, between 0 and 1."""


class EvaluationMeasurements(Config):
    """Measurements of one game in an evaluation."""

    nashconv: bool = False
    """Compute NashConv exactly from the policies' move probabilities. The game must export its start states."""
    average: AveragePolicySettings | None = None
    """Compute NashConv of the average policy, too, as `eval/average/nashconv`. The run's folder keeps the move
    probabilities of every evaluation. Null: no average policy."""
    population: bool = False
    """Compute NashConv of the mixtures of a league's pool, too: uniform, as `eval/pool/nashconv`, and by the
    meta-strategy, as `eval/meta/nashconv`. Each new member costs as much as an evaluation of the newest policy."""
    optimal: bool = False
    """Compute the mean probability of an optimal move, over all positions with one. The game must export the optimal
    moves."""
    against: dict[str, Episodes] = Field(default_factory=dict)
    """Opponent (`random`, or a reference player exported by the game) -> number of episodes against this opponent."""
    held_out: Episodes | None = None
    """Number of episodes on starts that training never uses, with the same seeds in every evaluation. Null: no such
    episodes."""
    greedy: bool = False
    """Play the held-out starts at temperature 0 as well."""
    forecasts: dict[str, Forecast] = Field(default_factory=dict)
    """Name -> two measures, of which one forecasts the other. On held-out starts, the forecast's Brier score, its skill
    against the best constant, its correlation and its calibration are measured."""

    @model_validator(mode="after")
    def _check_average_has_nashconv(self) -> Self:
        if self.average and not self.nashconv:
            raise ValueError("average: NashConv of the average policy needs the policies' own; set nashconv: true")
        if self.population and not self.nashconv:
            raise ValueError("population: NashConv of the pool's mixtures needs the policies' own; set nashconv: true")
        return self


class EvaluationSettings(EvaluationMeasurements):
    """Settings of evaluations during a run, and of the choice of the best checkpoint."""

    every: Steps = 50
    """Number of training steps between evaluations. The run also evaluates before its first and after its last step."""
    keep_best: str | None = None
    """Metric by which the best checkpoint is chosen and kept: a measure on held-out starts, or an `eval/...` metric.
    None: no checkpoint is kept as the best."""
    goal: Literal["max", "min"] = "max"
    """Direction in which the metric `keep_best` improves."""
    patience: PositiveInt | None = None
    """Number of evaluations without an improvement of `keep_best` after which the run ends. None: it never ends
    early."""

    @property
    def best_checkpoint_metric(self) -> str | None:
        """Return the full name of the metric by which the best checkpoint is chosen, or None if none is chosen."""
        name = self.keep_best
        return f"eval/held_out/{name}" if name and "/" not in name else name


class ScenarioGame(Config):
    """Settings of one game in a run with several games."""

    example = "game: {kind: nim}, weight: 2, seats: {player_0: player, player_1: player}"
    game: Annotated[GameConfig, PluginField("games", GameConfig)]
    """Game that is played, such as `kind: team` for a workflow on problems."""
    seats: dict[str, str] = Field(default_factory=dict, validate_default=True)
    """Agent of the game -> role. Omitted agents get the game's default role if the game has one."""
    weight: NonNegativeFloat = 1.0
    """Weight of the game in the division of a step's groups, relative to the weights of the other games. 0: training
    never plays the game. A warm-up imitates random play in it, and evaluations measure it."""
    evaluate: EvaluationMeasurements | None = None
    """Measurements of this game, as `eval/NAME/...`. None: the scenario's `evaluate`."""
    progress: str | None = Field(default=None, examples=["eval/random/mean"])
    """Metric whose change is the game's learning progress (`schedule.mix`): an evaluation metric such as
    `eval/random/mean`, or a metric of a step's episodes such as `episode/measure/success` or
    `episode/return/AGENT`."""

    _default_seats = field_validator("seats")(with_default_roles)


class GameMixSettings(Config):
    """Settings of the division of a step's groups among several games."""

    by: Literal["weights", "learning_progress"] = "weights"
    """Rule of the division. `weights`: each game gets the share of its weight, exactly over the run (rounded by largest
    remainders). `learning_progress`: a game's share is proportional to weight |q|, so it grows while the game's metric
    `progress` changes. At every new value x of the metric, q <- alpha (x - x_before) + (1 - alpha) q, as in
    teacher-student curriculum learning (Matiisen et al. 2017, arXiv 1707.00183, algorithm "Online")."""
    alpha: float = Field(default=0.1, gt=0, le=1)
    """Weight of the newest change of a game's metric in the moving average q of `learning_progress`."""
    floor: float = Field(default=0.2, gt=0, le=1)
    """Share of the groups that `learning_progress` divides by weights alone, so that every game is played."""

    @model_validator(mode="before")
    @classmethod
    def _expand_bare_word_to_mapping(cls, data: Any) -> Any:
        return {"by": data} if isinstance(data, str) else data

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        words = list(get_args(cls.model_fields["by"].annotation))
        return {"anyOf": [super().__get_pydantic_json_schema__(core_schema, handler), {"enum": words}]}

    @model_validator(mode="after")
    def _check_settings_have_effect(self) -> Self:
        if self.by == "weights" and (self.alpha, self.floor) != (0.1, 0.2):
            raise ValueError("alpha and floor have no effect on by: weights; use by: learning_progress, or leave them")
        return self


def game_shares(games: Mapping[str, ScenarioGame]) -> dict[str, float]:
    """Return name of a game -> its share of the total weight, which is above 0. The shares add up to 1."""
    total = sum([played.weight for played in games.values()])
    return {name: played.weight / total for name, played in games.items()}
