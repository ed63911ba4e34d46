"""Suites: several tasks and games on which policies are measured without training, as a YAML file of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from marl.config import Config
from marl.parts import Part
from marl.protocols import GameConfig, RoleConfig, TaskConfig, VerifierConfig
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Episodes, PolicyConfig, Scenario

MEASURED = "measured"
"""Policy, in a test's own roles, whose place the measured one takes."""
_NO_LEARNER = {"learner": None, "update_every": 1, "alternate": None}


class SuiteSampling(Config):
    """Settings of sampling that replace those of the roles. Null: the role's own."""

    temperature: float | None = Field(default=None, ge=0, le=100)
    """Divisor of logits."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Sample among the most likely tokens that together have this probability."""
    top_k: NonNegativeInt | None = None
    """Sample among this many of the most likely tokens; 0: among all."""
    max_tokens: PositiveInt | None = None
    """Most tokens of a completion."""
    thinking_tokens: NonNegativeInt | None = None
    """Most tokens of a thought."""

    def applied_to(self, role: RoleConfig) -> RoleConfig:
        """Return the role with these settings of sampling."""
        changed = role.sampling.model_copy(update=self.model_dump(exclude_none=True))
        return role.model_copy(update={"sampling": changed})


class SuiteTest(Config):
    """A task or a game of a suite, who speaks in it, and how its episodes are scored.

    With `roles`, the measured policy speaks for those whose policy is `measured`. Without, a scenario or run is
    measured with its own workflow, seats and roles, in which only the task or the game is replaced; a bare model is a
    solver of the task, whose answers are graded, or a player in every seat of the game.
    """

    example = "task: arithmetic"
    task: Annotated[TaskConfig | None, Part("tasks", TaskConfig, optional=True)] = None
    """Source of problems; those are asked that are held out of training."""
    grader: Annotated[VerifierConfig, Part("verifiers", VerifierConfig)] = Field(
        default={"kind": "exact"}, validate_default=True
    )  # type: ignore[assignment]
    """Verifier of a bare model's answers to `task`, or of those of `roles`."""
    game: Annotated[GameConfig | None, Part("games", GameConfig, optional=True)] = None
    """A game, in place of a task. Neither: the scenario's own game, on starts that its training never deals."""
    seats: dict[str, str] = Field(default_factory=dict)
    """Agent of the game -> one of `roles`."""
    roles: dict[str, Annotated[RoleConfig, Part("roles", RoleConfig)]] = Field(default_factory=dict)
    """Roles, for all whom this test is to ask in the same words. With a task, `solver` is the one that answers it."""
    policies: dict[str, PolicyConfig] = Field(default_factory=dict)
    """Policies of roles that are not the `measured` one."""
    against: str | None = None
    """Opponent (`random`, or one that the game exports) in all seats but one, which the measured ones take in turn.
    Null: they play all seats."""
    problems: Episodes | None = None
    """Number of different starts. Null: the suite's."""
    measure: str | None = None
    """Measure of the game that is an episode's score. Null: `success` where the game reports it; else what the measured
    agents are paid, on average."""
    solved: float = 1.0
    """Least score of an episode that counts as solved, for pass@k."""
    rating: str | None = None
    """Measure by which best@k chooses an answer, such as a critic's score. Null: the score itself."""
    answer: tuple[str, ...] = ()
    """Roles, of which the first that the measured scenario has gives the answers that maj@k counts, by its last move in
    an episode. Empty: the role of the only seat that is measured; where there are several, there is no maj@k."""

    @model_validator(mode="after")
    def _check_effects(self) -> Self:
        if self.task and self.game:
            raise ValueError(f"task: {self.task.kind!r} beside game: {self.game.kind!r}; give one of them")
        if self.seats and not (self.game and self.roles):
            raise ValueError("seats: have no effect without a game and roles; remove them")
        if self.policies and not self.roles:
            raise ValueError("policies: have no effect without roles; remove them")
        if self.roles and not (self.task or self.game):
            raise ValueError("roles: have no effect without a task or a game; give one")
        return self


class Suite(Config):
    """Tests, the number of problems and answers in each, and the figures that are worked out of them."""

    example = "tests: {sums: {task: arithmetic}}, samples: 8, k: [1, 4, 8]"
    tests: dict[str, SuiteTest] = Field(min_length=1)
    """Name -> a task or game; the name becomes a part of the figures' names."""
    problems: Episodes = 100
    """Number of different starts of each test; of a task with fewer held-out problems, all of them."""
    samples: PositiveInt = 8
    """Episodes from each start."""
    k: tuple[PositiveInt, ...] | None = Field(default=None, min_length=1)
    """Numbers of answers for pass@k, maj@k and best@k, up to `samples`. Null: powers of two."""
    seed: int = 0
    """Seed of the starts and of what is sampled."""
    sampling: SuiteSampling = SuiteSampling()
    """Settings of sampling for all whom the measured policies speak for."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the numbers k, in rising order."""
        powers = (1 << power for power in range(self.samples.bit_length()))
        return tuple(sorted(set(powers if self.k is None else self.k)))

    @field_validator("tests")
    @classmethod
    def _names(cls, tests: dict[str, SuiteTest]) -> dict[str, SuiteTest]:
        for name in tests:
            if not name or not all(sign.isalnum() or sign in "_-" for sign in name):
                raise ValueError(f"{name!r} is no name of a test: use letters, digits, '_' and '-'")
        return tests

    @model_validator(mode="after")
    def _check_samples(self) -> Self:
        if self.k and max(self.k) > self.samples:
            raise ValueError(
                f"k: {max(self.k)} of samples: {self.samples}; choices: 1 to {self.samples}, or more samples"
            )
        if self.sampling.temperature == 0 and self.samples > 1:
            raise ValueError(
                f"samples: {self.samples} at sampling.temperature: 0 are all the same; choices: samples: 1, or a "
                "higher temperature"
            )
        return self


def own_table(name: str, test: SuiteTest, scenario: Scenario) -> dict[str, Any]:
    """Return the data of a scenario in which the roles and policies of `scenario` take a test, and nothing learns.

    Raises:
        ScenarioError: if the scenario has no place for the test's task or game.
    """
    scenario = _table_of(name, test, scenario)
    data = scenario.model_dump(mode="json", include={"game", "seats", "roles", "policies", "schedule"})
    data["schedule"].pop("mix")  # of several games
    for policy in data["policies"].values():
        policy |= _NO_LEARNER
    if test.task:
        if "task" not in data["game"]:
            raise ScenarioError(
                f"tests.{name}.task: game {scenario.game.kind!r} of what is measured has no task that could be "
                "replaced; give the test `roles` of its own, or a `game`"
            )
        data["game"]["task"] = test.task.model_dump(mode="json")
    elif test.game:
        data["game"] = test.game.model_dump(mode="json")
        data["seats"] = _seats_like(scenario.seats, test.game)
    return data


def _table_of(name: str, test: SuiteTest, scenario: Scenario) -> Scenario:
    """Return the scenario with the game that a test replaces or plays.

    Of several games it is the one of the test's name, or else the only one that the test's game or task fits.
    """
    tables = scenario.by_game()
    if not scenario.games or name in tables:
        return tables.get(name, scenario)
    fits = [table for table in tables.values() if _fits(test, table.game)]
    if len(fits) == 1:
        return fits[0]
    raise ScenarioError(
        f"tests.{name}: what is measured plays several games ({', '.join(tables)}), of which {len(fits) or 'none'} fit "
        "the test; give the test the name of one of them, or `roles` of its own"
    )


def _fits(test: SuiteTest, game: GameConfig) -> bool:
    """Return whether a test's game or task can stand in a game's place."""
    return game.kind == test.game.kind if test.game else bool(test.task) and "task" in type(game).model_fields


def _seats_like(seats: Mapping[str, str], game: GameConfig) -> dict[str, str]:
    """Return the seats as they are; where all have one role, that role at every agent of the game."""
    roles = set(seats.values())
    return dict(seats) if len(roles) > 1 else dict.fromkeys(game.build().possible_agents, *roles)


def plain_table(name: str, test: SuiteTest, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a scenario in which a policy with the settings `measured` takes a test in its own roles.

    Raises:
        ScenarioError: if the test has neither a task nor a game.
    """
    # What was not given stays so: a model that knows language then gets other prompts than a tiny one.
    roles = {role: settings.model_dump(mode="json", exclude_unset=True) for role, settings in test.roles.items()}
    partners = {policy: settings.model_dump(mode="json") | _NO_LEARNER for policy, settings in test.policies.items()}
    if test.task:
        data = _graded_solver(test.task, test.grader)
        roles = {**data["roles"], **roles}
        partners |= data["policies"]
    elif test.game:
        roles = roles or {"player": {"kind": "player", "policy": MEASURED}}
        data = {
            "game": test.game.model_dump(mode="json"),
            "seats": test.seats or _seats_for(test.game, next(iter(roles))),
        }
    else:
        raise ScenarioError(f"tests.{name}: a bare model has no game of its own; give the test a task or a game")
    policies = {**partners, MEASURED: dict(measured)}
    return data | {"roles": roles, "policies": policies, "schedule": {"steps": 1, "groups": 1, "group_size": 1}}


def _seats_for(game: GameConfig, role: str) -> dict[str, str]:
    """Return the role at every agent, unless the game has roles for them."""
    return {} if game.default_seats() else dict.fromkeys(game.build().possible_agents, role)


def _graded_solver(task: TaskConfig, grader: VerifierConfig) -> dict[str, Any]:
    """Return game, roles and policies of a workflow of one solver, whose answers a verifier grades."""
    return {
        "game": {
            "kind": "team",
            "task": task.model_dump(mode="json"),
            "stages": [{"role": "solver"}, {"role": "grader", "verifies": "solver", "scores": ["correct"]}],
            "rewards": {"solver": {"correct": "own.correct"}},
            "measures": {"success": "solver.correct"},
        },
        "roles": {
            "solver": {"kind": "solver", "policy": MEASURED},
            "grader": {"kind": "verifier", "policy": "grader"},
        },
        "policies": {
            "grader": {"engine": {"kind": "verifiers", "checks": {"correct": grader.model_dump(mode="json")}}}
        },
    }
