"""Suites: YAML files with several tasks and games on which policies are measured without training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from marl.core.config import Config, DistinctValues
from marl.core.plugins import PluginField
from marl.protocols import GameConfig, RoleConfig, TaskConfig, VerifierConfig
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Episodes, PolicyConfig, Scenario

MEASURED_POLICY = "measured"
"""Policy name in a test's own roles that stands for the measured policy."""
_NO_LEARNING_SETTINGS = {"learner": None, "update_every": 1, "alternate": None}


class SuiteSampling(Config):
    """Sampling settings that override the roles' settings; null keeps the role's setting."""

    temperature: float | None = Field(default=None, ge=0, le=100)
    """Temperature by which logits are divided."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Sample among the most likely tokens that together have this probability."""
    top_k: NonNegativeInt | None = None
    """Sample among this many of the most likely tokens; 0: among all."""
    max_tokens: PositiveInt | None = None
    """Maximum number of tokens of a completion."""
    thinking_tokens: NonNegativeInt | None = None
    """Maximum number of tokens of a thought."""


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
    """Roles that the test gives to every measured policy, so that all get the same prompts. With a task, the role
    `solver` answers it."""
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
    answer: DistinctValues[str] = ()
    """Candidate roles whose last move in an episode is the answer for maj@k; the first role that exists in the measured
    scenario counts. Empty: the role of the only measured seat; with several measured seats there is no maj@k."""

    @model_validator(mode="after")
    def _reject_settings_without_effect(self) -> Self:
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
    """Tests on which policies are measured, with the numbers of problems, of samples per problem, and of k."""

    example = "tests: {sums: {task: arithmetic}}, samples: 8, k: [1, 4, 8]"
    tests: dict[str, SuiteTest] = Field(min_length=1)
    """Test name -> test; the name is part of the metrics' names."""
    problems: Episodes = 100
    """Number of different start states per test. A task with fewer held-out problems is used completely."""
    samples: PositiveInt = 8
    """Number of episodes from each start state."""
    k: DistinctValues[PositiveInt] | None = Field(default=None, min_length=1)
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
    def _check_test_names(cls, tests: dict[str, SuiteTest]) -> dict[str, SuiteTest]:
        for name in tests:
            if not name or not all(character.isalnum() or character in "_-" for character in name):
                raise ValueError(f"{name!r} is no name of a test: use letters, digits, '_' and '-'")
        return tests

    @model_validator(mode="after")
    def _reject_useless_sample_counts(self) -> Self:
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


def scenario_settings_with_own_roles(test_name: str, test: SuiteTest, scenario: Scenario) -> dict[str, Any]:
    """Return the data of a scenario without learners, in which `scenario` plays a test with its own roles and policies.

    Raises:
        ScenarioError: if the test's task or game cannot replace a task or game of the scenario.
    """
    # In a scenario with several games, the test uses the game of its own name, or else the only game that fits.
    views = scenario.scenario_by_game()
    if scenario.games and test_name not in views:
        fitting: list[Scenario] = []
        for view in views.values():
            replaces_task = test.task is not None and "task" in type(view.game).model_fields
            if view.game.kind == test.game.kind if test.game else replaces_task:
                fitting.append(view)
        if len(fitting) != 1:
            raise ScenarioError(
                f"tests.{test_name}: what is measured plays several games ({', '.join(views)}), of which "
                f"{len(fitting) or 'none'} fit the test; give the test the name of one of them, or `roles` of its own"
            )
        scenario = fitting[0]
    else:
        scenario = views.get(test_name, scenario)
    data = scenario.model_dump(mode="json", include={"game", "seats", "roles", "policies", "schedule"})
    data["schedule"].pop("mix")  # `mix` needs several games, but a suite's test plays one
    # Policies of other games' roles, and teachers, play no part in the test.
    speaking = {role["policy"] for role in data["roles"].values()}
    data["policies"] = {name: policy for name, policy in data["policies"].items() if name in speaking}
    for policy in data["policies"].values():
        policy |= _NO_LEARNING_SETTINGS
    if test.task:
        if "task" not in data["game"]:
            raise ScenarioError(
                f"tests.{test_name}.task: game {scenario.game.kind!r} of what is measured has no task that could be "
                "replaced; give the test `roles` of its own, or a `game`"
            )
        data["game"]["task"] = test.task.model_dump(mode="json")
    elif test.game:
        data["game"] = test.game.model_dump(mode="json")
        # A scenario with a single role can play any game: this role gets all seats.
        if len(roles := set(scenario.seats.values())) == 1:
            data["seats"] = dict.fromkeys(test.game.build().possible_agents, *roles)
    return data


def scenario_settings_with_test_roles(test_name: str, test: SuiteTest, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a scenario in which a policy with the settings `measured` plays roles given by the test.

    Raises:
        ScenarioError: if the test has neither a task nor a game.
    """
    # Unset fields stay unset, because a role's default prompt depends on the model (`understands_instructions`).
    roles = {role: settings.model_dump(mode="json", exclude_unset=True) for role, settings in test.roles.items()}
    partners = {
        policy: settings.model_dump(mode="json") | _NO_LEARNING_SETTINGS for policy, settings in test.policies.items()
    }
    data: dict[str, Any] = {}
    if test.task:
        # One solver answers, and a verifier grades the answer.
        data["game"] = {
            "kind": "team",
            "task": test.task.model_dump(mode="json"),
            "stages": [{"role": "solver"}, {"role": "grader", "verifies": "solver", "scores": ["correct"]}],
            "rewards": {"solver": {"correct": "own.correct"}},
            "measures": {"success": "solver.correct"},
        }
        solver = {"kind": "solver", "policy": MEASURED_POLICY}
        roles = {"solver": solver, "grader": {"kind": "verifier", "policy": "grader"}, **roles}
        checks = {"correct": test.grader.model_dump(mode="json")}
        partners["grader"] = {"engine": {"kind": "verifiers", "checks": checks}}
    elif test.game:
        roles = roles or {"player": {"kind": "player", "policy": MEASURED_POLICY}}
        data = {"game": test.game.model_dump(mode="json"), "seats": test.seats}
        if not test.seats and not test.game.default_role_of_agent():
            data["seats"] = dict.fromkeys(test.game.build().possible_agents, next(iter(roles)))
    else:
        raise ScenarioError(f"tests.{test_name}: a bare model has no game of its own; give the test a task or a game")
    policies = {**partners, MEASURED_POLICY: dict(measured)}
    return data | {"roles": roles, "policies": policies, "schedule": {"steps": 1, "groups": 1, "group_size": 1}}
