"""Suites: YAML files with several tasks and games on which policies are measured without training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from marl.core.config import Config
from marl.core.plugins import PluginField
from marl.protocols import GameConfig, RoleConfig, TaskConfig, VerifierConfig
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Episodes, PolicyConfig, Scenario

MEASURED_POLICY = "measured"
"""Policy name in a test's own roles that stands for the measured policy."""
_NO_LEARNER = {"learner": None, "update_every": 1, "alternate": None}


class SuiteSampling(Config):
    """Sampling settings that override the roles' settings; null keeps the role's setting."""

    temperature: float | None = Field(default=None, ge=0, le=100)
    """Divisor of logits."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Sample among the most likely tokens that together have this probability."""
    top_k: NonNegativeInt | None = None
    """Sample among this many of the most likely tokens; 0: among all."""
    max_tokens: PositiveInt | None = None
    """Maximum number of tokens of a completion."""
    thinking_tokens: NonNegativeInt | None = None
    """Maximum number of tokens of a thought."""

    def applied_to(self, role: RoleConfig) -> RoleConfig:
        """Return a copy of `role` with these sampling settings."""
        sampling = role.sampling.model_copy(update=self.model_dump(exclude_none=True))
        return role.model_copy(update={"sampling": sampling})


class SuiteTest(Config):
    """A task or game of a suite, the roles that play it, and the score of an episode.

    With `roles`, the measured policy plays all roles whose policy is `measured`. Without `roles`, a scenario or run is
    measured with its own workflow, seats and roles, and only its task or game is replaced. A bare model without `roles`
    solves the task, with a verifier grading its answers, or plays every seat of the game.
    """

    example = "task: arithmetic"
    task: Annotated[TaskConfig | None, PluginField("tasks", TaskConfig, optional=True)] = None
    """Source of problems; only held-out problems are used."""
    grader: Annotated[VerifierConfig, PluginField("verifiers", VerifierConfig)] = Field(
        default={"kind": "exact"}, validate_default=True
    )  # type: ignore[assignment]
    """Verifier of the answers to `task`, given by a bare model or by the test's own `roles`."""
    game: Annotated[GameConfig | None, PluginField("games", GameConfig, optional=True)] = None
    """A game instead of a task. With neither, the scenario's own game is played from held-out start states."""
    seats: dict[str, str] = Field(default_factory=dict)
    """Agent of the game -> name of one of `roles`."""
    roles: dict[str, Annotated[RoleConfig, PluginField("roles", RoleConfig)]] = Field(default_factory=dict)
    """Roles with which every policy takes this test, so that all get the same prompts. With a task, the role `solver`
    answers it."""
    policies: dict[str, PolicyConfig] = Field(default_factory=dict)
    """Policies of the test's roles other than the policy `measured`."""
    against: str | None = None
    """Opponent in all seats but one: `random`, or a player that the game exports. The measured policy plays each seat
    in turn. Null: the measured policy plays all seats."""
    problems: Episodes | None = None
    """Number of different start states. Null: the suite's number."""
    measure: str | None = None
    """Measure of the game used as an episode's score. Null: `success` if the game reports it, or else the mean return
    of the measured agents."""
    solved: float = 1.0
    """Minimum score of an episode that counts as solved, for pass@k."""
    rating: str | None = None
    """Measure by which best@k chooses an answer, such as a critic's score. Null: the score itself."""
    answer: tuple[str, ...] = ()
    """Candidate roles whose last move in an episode is the answer for maj@k; the first role that exists in the measured
    scenario counts. Empty: the role of the only measured seat; with several measured seats there is no maj@k."""

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
    """Tests, their numbers of problems and of answers per problem, and the figures computed from them."""

    example = "tests: {sums: {task: arithmetic}}, samples: 8, k: [1, 4, 8]"
    tests: dict[str, SuiteTest] = Field(min_length=1)
    """Test name -> test; the name is part of the metrics' names."""
    problems: Episodes = 100
    """Number of different start states per test. A task with fewer held-out problems is used completely."""
    samples: PositiveInt = 8
    """Number of episodes from each start state."""
    k: tuple[PositiveInt, ...] | None = Field(default=None, min_length=1)
    """Numbers of answers k for pass@k, maj@k and best@k, up to `samples`. Null: powers of two."""
    seed: int = 0
    """Seed of start states and sampling."""
    sampling: SuiteSampling = SuiteSampling()
    """Sampling settings of all roles of the measured policies."""

    @property
    def k_values(self) -> tuple[int, ...]:
        """Return every k of pass@k, in ascending order."""
        powers = (1 << power for power in range(self.samples.bit_length()))
        return tuple(sorted(set(powers if self.k is None else self.k)))

    @field_validator("tests")
    @classmethod
    def _names(cls, tests: dict[str, SuiteTest]) -> dict[str, SuiteTest]:
        for name in tests:
            if not name or not all(character.isalnum() or character in "_-" for character in name):
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


def scenario_with_own_roles(name: str, test: SuiteTest, scenario: Scenario) -> dict[str, Any]:
    """Return the data of a scenario without learners, in which the roles and policies of `scenario` take a test.

    Raises:
        ScenarioError: if the test's task or game cannot replace a task or game of the scenario.
    """
    scenario = _select_game(name, test, scenario)
    data = scenario.model_dump(mode="json", include={"game", "seats", "roles", "policies", "schedule"})
    data["schedule"].pop("mix")  # applies to scenarios with several games only
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


def _select_game(name: str, test: SuiteTest, scenario: Scenario) -> Scenario:
    """Return `scenario` reduced to the game that the test plays or replaces.

    Among several games this is the game with the test's name, or else the only game that fits the test.
    """
    views = scenario.by_game()
    if not scenario.games or name in views:
        return views.get(name, scenario)
    fits = [view for view in views.values() if _fits(test, view.game)]
    if len(fits) == 1:
        return fits[0]
    raise ScenarioError(
        f"tests.{name}: what is measured plays several games ({', '.join(views)}), of which {len(fits) or 'none'} fit "
        "the test; give the test the name of one of them, or `roles` of its own"
    )


def _fits(test: SuiteTest, game: GameConfig) -> bool:
    """Return True if the test's game can replace `game`, or the test's task can replace the task of `game`."""
    return game.kind == test.game.kind if test.game else bool(test.task) and "task" in type(game).model_fields


def _seats_like(seats: Mapping[str, str], game: GameConfig) -> dict[str, str]:
    """Return `seats`; if they have a single role, give this role to every agent of `game` instead."""
    roles = set(seats.values())
    return dict(seats) if len(roles) > 1 else dict.fromkeys(game.build().possible_agents, *roles)


def scenario_with_test_roles(name: str, test: SuiteTest, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a scenario in which a policy with the settings `measured` takes a test in the test's roles.

    Raises:
        ScenarioError: if the test has neither a task nor a game.
    """
    # Unset fields stay unset: default prompts depend on whether the model knows language.
    roles = {role: settings.model_dump(mode="json", exclude_unset=True) for role, settings in test.roles.items()}
    partners = {policy: settings.model_dump(mode="json") | _NO_LEARNER for policy, settings in test.policies.items()}
    if test.task:
        data = _graded_solver(test.task, test.grader)
        roles = {**data["roles"], **roles}
        partners |= data["policies"]
    elif test.game:
        roles = roles or {"player": {"kind": "player", "policy": MEASURED_POLICY}}
        data = {
            "game": test.game.model_dump(mode="json"),
            "seats": test.seats or _seats_for(test.game, next(iter(roles))),
        }
    else:
        raise ScenarioError(f"tests.{name}: a bare model has no game of its own; give the test a task or a game")
    policies = {**partners, MEASURED_POLICY: dict(measured)}
    return data | {"roles": roles, "policies": policies, "schedule": {"steps": 1, "groups": 1, "group_size": 1}}


def _seats_for(game: GameConfig, role: str) -> dict[str, str]:
    """Return agent -> `role` for every agent, or nothing if the game has default seats."""
    return {} if game.default_seats() else dict.fromkeys(game.build().possible_agents, role)


def _graded_solver(task: TaskConfig, grader: VerifierConfig) -> dict[str, Any]:
    """Return game, roles and policies of a workflow in which a verifier grades the answers of one solver."""
    return {
        "game": {
            "kind": "team",
            "task": task.model_dump(mode="json"),
            "stages": [{"role": "solver"}, {"role": "grader", "verifies": "solver", "scores": ["correct"]}],
            "rewards": {"solver": {"correct": "own.correct"}},
            "measures": {"success": "solver.correct"},
        },
        "roles": {
            "solver": {"kind": "solver", "policy": MEASURED_POLICY},
            "grader": {"kind": "verifier", "policy": "grader"},
        },
        "policies": {
            "grader": {"engine": {"kind": "verifiers", "checks": {"correct": grader.model_dump(mode="json")}}}
        },
    }
