"""Environments and reward functions written for TRL's GRPOTrainer.

An environment is a class with `reset(**row)`, public methods that are tools, and perhaps `get_reward()`, as for the
trainer's `environment_factory`. A reward function takes `prompts`, `completions` and the columns of the rows, as in
the trainer's `reward_funcs`. Neither needs the package TRL.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveFloat, PositiveInt

from marl.core.config import DistinctValues
from marl.core.plugins import PluginField
from marl.core.types import Problem, Verdict, VerifierCase
from marl.games.base import FinalRewards, NextAgent, TextGame, TextGameConfig
from marl.games.isolated_random import IsolatedGlobalRandom
from marl.games.reward_values import validate_reward
from marl.games.tasks.base import deal_problem
from marl.games.wrappers.chat_text import describe_tool, format_conversation, parse_tool_call, tool_instructions
from marl.games.wrappers.import_env import ImportPath, import_env_factory, import_object, messages_of_import_errors
from marl.protocols import TaskConfig, VerifierConfig

SEAT = "player_0"
_NO_TOOLS = ("reset", "get_reward")
_REFUSED_CALLS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
"""Errors that wrong arguments of a tool can cause: the player reads their message as the tool's result."""


class TrlConfig(TextGameConfig):
    """Environment of TRL, played by one seat, `player_0`; a text without a tool call ends the episode.

    Methods and reward functions are part of the game: they must use no model and no network, and must depend only on
    the row, the calls and seeded random numbers.
    """

    kind: str = "trl_environment"
    example = "env: my_package.my_module:GuessEnvironment"
    env: ImportPath
    """Import path of an environment class (with `reset`), or of a function `make_env` that returns an environment."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment's constructor."""
    prompt: str = ""
    """Text that the player reads at the beginning of every episode."""
    task: Annotated[TaskConfig | None, PluginField("tasks", TaskConfig, optional=True)] = None
    """Task that supplies the rows: a problem's question is the prompt; its answer and its facts are columns (default:
    the environment invents its problems in `reset`)."""
    rewards: DistinctValues[ImportPath] = ()
    """Import paths of reward functions. Their rewards are added to the reward of the environment's `get_reward`."""
    max_calls: PositiveInt = 8
    """Number of tool calls after which an episode ends."""
    examples: tuple[str, ...] = ()
    """Example answers for random play and the warm-up of tiny models."""

    def make_environment(self) -> Any:
        """Return a new instance of the environment.

        Raises:
            ValueError: if `env` creates no environment with a reward.
        """
        try:
            environment = _environment_factory(self.env)(**self.settings)
        except TypeError as error:
            raise ValueError(f"settings: {self.settings} are not taken: {error}") from error
        members = dict(inspect.getmembers(type(environment), inspect.isfunction))
        if "reset" not in members:
            raise ValueError(f"env: {self.env!r} makes a {type(environment).__name__} without `reset`")
        if "get_reward" not in members and not self.rewards:
            raise ValueError(f"rewards: none, and {self.env!r} has no `get_reward`; give import paths of functions")
        return environment

    def held_out_reset_options(self, max_count: int) -> Sequence[Mapping[str, Any]]:
        size = min(max_count, self.task.build().problem_count("held_out")) if self.task else 0
        return [{"split": "held_out", "index": index} for index in range(size)]

    def unmet_requirements(self) -> Iterable[str]:
        yield from messages_of_import_errors(lambda: _environment_factory(self.env))
        for path in self.rewards:
            yield from messages_of_import_errors(lambda path=path: import_object(path, "rewards"))
        if self.task:
            for problem in self.task.unmet_requirements():
                yield f"task.{problem}"

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
            settings.make_environment()
        for path in settings.rewards:
            import_object(path, "rewards")
        super().__init__((SEAT,), settings.illegal)

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        problem = deal_problem(self.name, self._tasks, rng, options) if self._tasks else None
        seed = rng.getrandbits(31)
        self._problem = problem.key if problem else ""
        question = "\n\n".join(filter(None, [self._settings.prompt, problem.question if problem else ""]))
        self._columns = columns_for_reward_function(problem) if problem else {}
        with self._random.reseed_on_entry(seed):
            self._environment = self._settings.make_environment()
            prompt = [{"role": "user", "content": question}]
            hint = run_if_coroutine(self._environment.reset(prompt=prompt, **self._columns))
        if not isinstance(hint, str | None):
            raise ValueError(
                f"{self.name}: `reset` returned {type(hint).__name__}; choices: text to read first, or None"
            )
        self._key = "/".join(
            filter(None, [self._problem, str(seed) if self._random.changed_since_seeding or not problem else ""])
        )
        self._prompt = question + (hint or "")
        self._turns: list[tuple[str, str]] = []
        self._calls = 0
        self._tools: dict[str, Callable[..., Any]] = {}
        descriptions: dict[str, str] = {}
        for name, _ in inspect.getmembers(type(self._environment), inspect.isfunction):
            if name not in _NO_TOOLS and not name.startswith("_"):
                self._tools[name] = getattr(self._environment, name)
                descriptions[name] = describe_tool(name, self._tools[name])
        self._tool_instructions = tool_instructions(descriptions)
        return SEAT

    def start_state_key(self) -> str:
        return self._key

    def problem_key(self) -> str:
        return self._problem

    def describe_observation(self, agent: str) -> str:
        conversation = format_conversation([("user", self._prompt), *self._turns])
        return "\n\n".join(filter(None, [conversation, self._tool_instructions]))

    def information_state(self, agent: str) -> str:
        return self.describe_observation(agent)

    def example_actions(self, agent: str) -> tuple[str, ...]:
        return self._settings.examples

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        self._turns.append(("assistant", action))
        call = parse_tool_call(action, self._tools)
        if call:
            self._calls += 1
            name, arguments = call
            with self._random:
                try:
                    result = str(run_if_coroutine(self._tools[name](**arguments)))
                except _REFUSED_CALLS as error:
                    result = f"error: {error}"
            self._turns.append(("tool", result))
        if call and self._calls < self._settings.max_calls:
            return SEAT
        environment, columns = self._environment, self._columns | {"environments": self._environment}
        completion = [{"role": speaker, "content": text} for speaker, text in self._turns]
        with self._random:
            if "get_reward" in dict(inspect.getmembers(type(environment), inspect.isfunction)):
                self.add_rewards({SEAT: run_if_coroutine(environment.get_reward())}, type(environment).__name__)
            for path in self._settings.rewards:
                reward = call_reward_function(import_object(path, "rewards"), self._prompt, completion, columns)
                if reward is not None:
                    self.add_rewards({SEAT: reward}, path.rpartition(":")[2])
        return {}


class RewardFunctionVerifier(VerifierConfig):
    """Verifier that scores an answer by a reward function of TRL, called with prompt, answer and columns."""

    kind: str = "reward_function"
    # A reward function need not compare the answer with the right one.
    checks_correctness: ClassVar[bool] = False
    example = "function: my_package.my_module:reward_length"
    function: ImportPath
    """Import path of the reward function."""
    best: PositiveFloat = 1.0
    """Reward that counts as the score 1; rewards lie between -`best` and `best`."""

    def unmet_requirements(self) -> Iterable[str]:
        return messages_of_import_errors(lambda: import_object(self.function, "function"))

    def __call__(self, case: VerifierCase) -> Verdict:
        completion = [{"role": "assistant", "content": case.text}]
        function = import_object(self.function, "function")
        reward = call_reward_function(
            function, case.problem.question, completion, columns_for_reward_function(case.problem)
        )
        if reward is None:
            return Verdict(0.0, "the reward function does not apply")
        return Verdict(reward / self.best)


def _environment_factory(import_path: str) -> Callable[..., Any]:
    """Return the class or function that creates the environment; raise ValueError if there is none."""
    return import_env_factory(
        import_path, "env", lambda kind: "reset" in dict(inspect.getmembers(kind, inspect.isfunction))
    )


def columns_for_reward_function(problem: Problem) -> dict[str, Any]:
    """Return the columns of a problem's row except the prompt: the answer and the problem's facts, by column name."""
    return {"answer": problem.answer, **problem.facts}


def call_reward_function(
    function: Callable[..., Any], prompt: str, completion: Sequence[Mapping[str, str]], column_values: Mapping[str, Any]
) -> float | None:
    """Return the reward of one completion, or None if the reward function does not apply to it.

    `column_values` maps the name of a column to its value.
    """
    # TRL calls a reward function with a batch: every argument is a list with one item per completion.
    columns = {name: [value] for name, value in column_values.items()}
    rewards = run_if_coroutine(
        function(prompts=[[{"role": "user", "content": prompt}]], completions=[completion], **columns)
    )
    if len(rewards) != 1:
        raise ValueError(f"reward function gave {len(rewards)} rewards for one completion")
    return None if rewards[0] is None else validate_reward(rewards[0], "reward")


def run_if_coroutine(result_or_coroutine: Any) -> Any:
    """Return the result of a function call; if the function was async, run its coroutine to the end first."""
    return asyncio.run(result_or_coroutine) if inspect.iscoroutine(result_or_coroutine) else result_or_coroutine
