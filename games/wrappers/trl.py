"""Environments and reward functions written for TRL's GRPOTrainer.

An environment is a class with `reset(**row)`, public methods that are tools, and perhaps `get_reward()`, as in its
`environment_factory`. A reward function takes `prompts`, `completions` and the columns of the rows, as in its
`reward_funcs`. Neither needs TRL itself.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveFloat, PositiveInt

from marl.core.plugins import PluginField
from marl.core.types import Problem, Verdict, VerifierCase
from marl.games.base import TextGame, TextGameConfig, finite
from marl.games.isolated_random import IsolatedGlobalRandom
from marl.games.tasks.base import deal_problem
from marl.games.wrappers.chat_text import format_conversation, parse_tool_call, signature, tool_instructions
from marl.games.wrappers.import_env import ImportPath, import_env_factory, import_errors, import_object
from marl.protocols import TaskConfig, VerifierConfig

SEAT = "player_0"
_NO_TOOLS = ("reset", "get_reward")
_REFUSED_CALLS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
"""Errors of a tool that the player reads as the tool's result, as wrong arguments cause them."""


class TrlConfig(TextGameConfig):
    """An environment of TRL, played by one seat, `player_0`; a text without a tool call ends the episode.

    Methods and reward functions are part of the game: they must use no model and no network, and must depend only on
    the row, the calls and seeded random numbers.
    """

    kind: str = "trl_environment"
    example = "env: my_package.my_module:GuessEnvironment"
    env: ImportPath
    """Import path of a class with a method `reset`, or of a function that makes one and is named `make_env`."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Arguments of its constructor."""
    prompt: str = ""
    """Text at the beginning of every episode."""
    task: Annotated[TaskConfig | None, PluginField("tasks", TaskConfig, optional=True)] = None
    """Source of the rows: a problem's question is the prompt; its answer and its facts are columns. Null: the
    environment makes up its problems in `reset`."""
    rewards: tuple[ImportPath, ...] = ()
    """Import paths of reward functions, beside the environment's own `get_reward`."""
    max_calls: PositiveInt = 8
    """Number of calls after which an episode ends."""
    examples: tuple[str, ...] = ()
    """Examples of answers, for random play and the warm-up of tiny models."""

    def make(self) -> Any:
        """Return a new environment.

        Raises:
            ValueError: if `env` creates no environment with a reward.
        """
        try:
            environment = _maker(self.env)(**self.settings)
        except TypeError as error:
            raise ValueError(f"settings: {self.settings} are not taken: {error}") from error
        members = dict(inspect.getmembers(type(environment), inspect.isfunction))
        if "reset" not in members:
            raise ValueError(f"env: {self.env!r} makes a {type(environment).__name__} without `reset`")
        if "get_reward" not in members and not self.rewards:
            raise ValueError(f"rewards: none, and {self.env!r} has no `get_reward`; give import paths of functions")
        return environment

    def held_out(self, n: int) -> Sequence[Mapping[str, Any]]:
        size = min(n, self.task.build().size("held_out")) if self.task else 0
        return [{"split": "held_out", "index": index} for index in range(size)]

    def unmet_requirements(self) -> Iterable[str]:
        yield from import_errors(lambda: _maker(self.env))
        for place in self.rewards:
            yield from import_errors(lambda place=place: import_object(place, "rewards"))
        if self.task:
            yield from (f"task.{problem}" for problem in self.task.unmet_requirements())

    def build(self) -> TrlGame:
        return TrlGame(self)


class TrlGame(TextGame):
    """Game of an environment of TRL; every episode uses a new instance of the environment."""

    reset_options = ("split", "index", "problem")

    def __init__(self, settings: TrlConfig) -> None:
        self._settings, self.name = settings, settings.env
        self._random = IsolatedGlobalRandom()
        self._tasks = settings.task.build() if settings.task else None
        with self._random:
            settings.make()
        for place in settings.rewards:
            import_object(place, "rewards")
        super().__init__((SEAT,), settings.illegal)

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        problem = deal_problem(self.name, self._tasks, rng, options) if self._tasks else None
        seed = rng.getrandbits(31)
        self._problem = problem.key if problem else ""
        question = "\n\n".join(filter(None, [self._settings.prompt, problem.question if problem else ""]))
        self._columns = columns_of(problem) if problem else {}
        with self._random.seeded(seed):
            self._environment = self._settings.make()
            hint = run_if_coroutine(
                self._environment.reset(prompt=[{"role": "user", "content": question}], **self._columns)
            )
        if not isinstance(hint, str | None):
            raise ValueError(
                f"{self.name}: `reset` returned {type(hint).__name__}; choices: text to read first, or None"
            )
        self._key = "/".join(filter(None, [self._problem, str(seed) if self._random.used or not problem else ""]))
        self._prompt = question + (hint or "")
        self._turns: list[tuple[str, str]] = []
        self._calls = 0
        members = inspect.getmembers(type(self._environment), inspect.isfunction)
        names = [name for name, _ in members if name not in _NO_TOOLS and not name.startswith("_")]
        self._tools = {name: getattr(self._environment, name) for name in names}
        self._manual = tool_instructions({name: signature(name, tool) for name, tool in self._tools.items()})
        return SEAT

    def start_key(self) -> str:
        return self._key

    def problem_key(self) -> str:
        return self._problem

    def describe(self, agent: str) -> str:
        return "\n\n".join(filter(None, [format_conversation([("user", self._prompt), *self._turns]), self._manual]))

    def information_state(self, agent: str) -> str:
        return self.describe(agent)

    def example_actions(self, agent: str) -> tuple[str, ...]:
        return self._settings.examples

    def apply_action(self, action: str) -> str | Mapping[str, float]:
        self._turns.append(("assistant", action))
        call = parse_tool_call(action, self._tools)
        if call:
            self._calls += 1
            with self._random:
                self._turns.append(("tool", self._call(*call)))
        if call and self._calls < self._settings.max_calls:
            return SEAT
        with self._random:
            self._reward()
        return {}

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a tool's result as text, or its error message about the arguments."""
        try:
            return str(run_if_coroutine(self._tools[name](**arguments)))
        except _REFUSED_CALLS as error:
            return f"error: {error}"

    def _reward(self) -> None:
        """Add the rewards of the environment and of the reward functions, each as a reward component of its own."""
        if "get_reward" in dict(inspect.getmembers(type(self._environment), inspect.isfunction)):
            self.add_rewards({SEAT: run_if_coroutine(self._environment.get_reward())}, type(self._environment).__name__)
        completion = [{"role": speaker, "content": words} for speaker, words in self._turns]
        for place in self._settings.rewards:
            columns = {name: [value] for name, value in self._columns.items()} | {"environments": [self._environment]}
            reward = call_reward_function(import_object(place, "rewards"), self._prompt, completion, columns)
            if reward is not None:
                self.add_rewards({SEAT: reward}, place.rpartition(":")[2])


class RewardFunctionVerifier(VerifierConfig):
    """Scores by a reward function of TRL, called with `prompts`, `completions` and the row's columns for one answer."""

    kind: str = "reward_function"
    checks_correctness: ClassVar[bool] = False  # a reward function need not compare with the gold answer
    example = "function: my_package.my_module:reward_length"
    function: ImportPath
    """Import path of the function."""
    best: PositiveFloat = 1.0
    """Reward that corresponds to the score 1; rewards lie between -best and best."""

    def unmet_requirements(self) -> Iterable[str]:
        return import_errors(lambda: import_object(self.function, "function"))

    def __call__(self, case: VerifierCase) -> Verdict:
        columns = {name: [value] for name, value in columns_of(case.problem).items()}
        completion = [{"role": "assistant", "content": case.text}]
        reward = call_reward_function(
            import_object(self.function, "function"), case.problem.question, completion, columns
        )
        if reward is None:
            return Verdict(0.0, "the reward function does not apply")
        return Verdict(reward / self.best)


def _maker(place: str) -> Callable[..., Any]:
    return import_env_factory(place, "env", lambda kind: "reset" in dict(inspect.getmembers(kind, inspect.isfunction)))


def columns_of(problem: Problem) -> dict[str, Any]:
    """Return the columns of a problem's row for reward functions: the answer and the facts, without the prompt."""
    return {"answer": problem.answer, **problem.facts}


def call_reward_function(
    function: Callable[..., Any], prompt: str, completion: Sequence[Mapping[str, str]], columns: Mapping[str, Any]
) -> float | None:
    """Return the reward of one completion, or None if the reward function does not apply to it."""
    rewards = run_if_coroutine(
        function(prompts=[[{"role": "user", "content": prompt}]], completions=[completion], **columns)
    )
    if len(rewards) != 1:
        raise ValueError(f"reward function gave {len(rewards)} rewards for one completion")
    return None if rewards[0] is None else finite(rewards[0], "reward")


def run_if_coroutine(value: Any) -> Any:
    """Return `value`, or the result of running it if it is a coroutine."""
    return asyncio.run(value) if inspect.iscoroutine(value) else value
