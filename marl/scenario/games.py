"""Settings of a run's games: evaluation of each game, and the division of a step's groups among several games."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, GetJsonSchemaHandler, PositiveFloat, ValidationInfo, field_validator, model_validator
from pydantic_core import CoreSchema

from marl.core.config import Config
from marl.core.plugins import PluginField
from marl.protocols import GameConfig

MAX_EPISODES = 10**6
"""Maximum number of episodes of one step or one evaluation, as they are held in memory."""
Episodes = Annotated[int, Field(gt=0, le=MAX_EPISODES)]
HELD_OUT_SCOPES = ("held_out", "held_out_greedy")
"""Parts of the names of metrics on held-out starts, `eval/held_out/...`."""
SCOPES = (*HELD_OUT_SCOPES, "average", "search")
"""Parts of metric names `eval/NAME/...` that no game may be called."""

MIN_GAME_SHARE = 1e-4
"""Minimum share of a game in a run's groups."""


def with_default_seats(seats: dict[str, str], info: ValidationInfo) -> dict[str, str]:
    """Return the seats of a scenario or of one of its games, with the game's default roles where it has some."""
    game: GameConfig | None = info.data.get("game")
    return {**game.default_seats(), **seats} if game else seats


class Averaging(Config):
    """Average policy of a run, which may approach an equilibrium while the newest policy circles around it.

    It plays as if one of the evaluated policies was drawn before every episode.
    """

    last: float = Field(default=0.5, gt=0, le=1)
    """Share of the run's steps, its last ones, whose evaluations are averaged."""
    weights: Literal["uniform", "linear"] = "uniform"
    """Weights of the evaluations: `uniform`, or `linear`, their step + 1 (as in CFR+, Tammelin 2014,
    arXiv 1407.5042)."""


class Measures(Config):
    """Measurements of one game in an evaluation."""

    nashconv: bool = False
    """Measure NashConv: exact, from the policy's own move probabilities; the game must export its deals."""
    average: Averaging | None = None
    """Measure NashConv of the average policy, too, as `eval/average/nashconv`; its move probabilities are kept in the
    run's folder."""
    optimal: bool = False
    """Measure the mean probability of an optimal move over all positions that have one; the game must know them."""
    against: dict[str, Episodes] = Field(default_factory=dict)
    """Opponent (`random`, or an opponent exported by the game) -> number of episodes against it."""
    held_out: Episodes | None = None
    """Number of episodes on starts that are never used in training, with the same seeds in every evaluation."""
    greedy: bool = False
    """Play the held-out starts at temperature 0, too."""

    @model_validator(mode="after")
    def _averages_what_is_measured(self) -> Self:
        if self.average and not self.nashconv:
            raise ValueError("average: NashConv of the average policy needs the policies' own; set nashconv: true")
        return self


class ScenarioGame(Config):
    """One of several games of a run."""

    example = "game: {kind: nim}, weight: 2, seats: {player_0: player, player_1: player}"
    game: Annotated[GameConfig, PluginField("games", GameConfig)]
    """The game that is played; a workflow on problems is `kind: team`."""
    seats: dict[str, str] = Field(default_factory=dict, validate_default=True)
    """Agent of the game -> role. Agents left out get the game's default role, where it has one."""
    weight: PositiveFloat = 1.0
    """Share of the steps' starts, relative to the weights of the other games."""
    evaluate: Measures | None = None
    """Measurements of this game, as `eval/NAME/...`. None: as in the scenario's `evaluate`."""
    progress: str | None = Field(default=None, examples=["eval/random/mean"])
    """Figure whose change is the game's learning progress (`schedule.mix`): a figure of its evaluations, such as
    `eval/random/mean`, or of every step's episodes, such as `episode/measure/success` or `episode/return/AGENT`."""

    _default_seats = field_validator("seats")(with_default_seats)


class GameMixSettings(Config):
    """Division of the starts of a step among several games."""

    by: Literal["weights", "learning_progress"] = "weights"
    """`weights`: each game gets its share, exactly over the run (rounded by largest remainders). `learning_progress`:
    more for games whose `progress` changes, up or down, as in teacher-student curriculum learning (Matiisen et al.
    2017, arXiv 1707.00183, algorithm "Online"): q <- alpha (x - x_before) + (1 - alpha) q at every new value x of a
    game's figure, and its share is proportional to weight |q|."""
    alpha: float = Field(default=0.1, gt=0, le=1)
    """Weight of the newest change in the moving average q."""
    floor: float = Field(default=0.2, gt=0, le=1)
    """Share of the starts that is divided by weights whatever the progress, so that no game is forgotten."""

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, data: Any) -> Any:
        return {"by": data} if isinstance(data, str) else data

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        words = list(get_args(cls.model_fields["by"].annotation))
        return {"anyOf": [super().__get_pydantic_json_schema__(core_schema, handler), {"enum": words}]}

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        if self.by == "weights" and (self.alpha, self.floor) != (0.1, 0.2):
            raise ValueError("alpha and floor have no effect on by: weights; use by: learning_progress, or leave them")
        return self


def game_shares(games: Mapping[str, ScenarioGame]) -> dict[str, float]:
    """Return the share of each game by its weight; shares add up to 1."""
    total = sum(played.weight for played in games.values())
    return {name: played.weight / total for name, played in games.items()}
