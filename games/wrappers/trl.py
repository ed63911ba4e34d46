"""Environments and reward functions that were written for TRL's GRPOTrainer.

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

from games.base import TextGame, TextGameConfig, finite
from games.global_random import GlobalRandom
from games.tasks.base import deal_problem
from games.wrappers.calls import conversation, manual, read_call, signature
from games.wrappers.imports import ImportPath, lacking, maker, named
from marl.parts import Part
from marl.protocols import TaskConfig, VerifierConfig
from marl.types import Case, Problem, Verdict

SEAT = "player_0"
_NO_TOOLS = ("reset", "get_reward")
_REFUSED_CALLS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
"""Errors of a tool that the player is told, as arguments cause them."""


class TrlConfig(TextGameConfig):
    """An environment of TRL, played by one seat, `player_0`: it calls tools, and what is no call ends the episode.

    Its methods and reward functions are part of the game: they ask no model, read no network, and depend on nothing but
    the row, the calls and seeded random numbers.
    """

    kind: str = "trl_environment"
    example = "env: my_package.my_module:GuessEnvironment"
    env: ImportPath
    """Import path of a class with a method `reset`, or of a function that makes one and is named `make_env`."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Arguments of its constructor."""
    prompt: str = ""
    """Text that every episode begins with."""
    task: Annotated[TaskConfig | None, Part("tasks", TaskConfig, optional=True)] = None
    """Source of the rows: a problem's question is the prompt; its answer and its facts are columns. Null: the
    environment makes up its problems in `reset`."""
    rewards: tuple[ImportPath, ...] = ()
    """Import paths of reward functions, beside the environment's own `get_reward`."""
    max_calls: PositiveInt = 8
    """Number of calls after which an episode ends."""
    examples: tuple[str, ...] = ()
    """Examples of answers, for random play and the warm-up of tiny models."""

    def make(self) -> Any:
        """Return a new environment; raise ValueError if it is none."""
        try:
            made = _maker(self.env)(**self.settings)
        except TypeError as error:
            raise ValueError(f"settings: {self.settings} are not taken: {error}") from error
        members = dict(inspect.getmembers(type(made), inspect.isfunction))
        if "reset" not in members:
            raise ValueError(f"env: {self.env!r} makes a {type(made).__name__} without `reset`")
        if "get_reward" not in members and not self.rewards:
            raise ValueError(f"rewards: none, and {self.env!r} has no `get_reward`; give import paths of functions")
        return made

    def held_out(self, n: int) -> Sequence[Mapping[str, Any]]:
        size = min(n, self.task.build().size("held_out")) if self.task else 0
        return [{"split": "held_out", "index": index} for index in range(size)]

    def missing(self) -> Iterable[str]:
        yield from lacking(lambda: _maker(self.env))
        for place in self.rewards:
            yield from lacking(lambda place=place: named(place, "rewards"))
        if self.task:
            yield from (f"task.{problem}" for problem in self.task.missing())

    def build(self) -> TrlGame:
        return TrlGame(self)


class TrlGame(TextGame):
    """An environment of TRL. Each episode has a new one."""

    choices = ("split", "index", "problem")

    def __init__(self, settings: TrlConfig) -> None:
        self._settings, self.name = settings, settings.env
        self._random = GlobalRandom()
        self._tasks = settings.task.build() if settings.task else None
        with self._random:
            settings.make()
        for place in settings.rewards:
            named(place, "rewards")
        super().__init__((SEAT,), settings.illegal)

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        problem = deal_problem(self.name, self._tasks, rng, options) if self._tasks else None
        seed = rng.getrandbits(31)
        self._problem = problem.key if problem else ""
        question = "\n\n".join(filter(None, [self._settings.prompt, problem.question if problem else ""]))
        self._columns = columns_of(problem) if problem else {}
        with self._random.seeded(seed):
            self._environment = self._settings.make()
            hint = settled(self._environment.reset(prompt=[{"role": "user", "content": question}], **self._columns))
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
        self._manual = manual({name: signature(name, tool) for name, tool in self._tools.items()})
        return SEAT

    def start_key(self) -> str:
        return self._key

    def problem(self) -> str:
        return self._problem

    def describe(self, agent: str) -> str:
        return "\n\n".join(filter(None, [conversation([("user", self._prompt), *self._turns]), self._manual]))

    def state_of(self, agent: str) -> str:
        return self.describe(agent)

    def examples(self, agent: str) -> tuple[str, ...]:
        return self._settings.examples

    def move(self, action: str) -> str | Mapping[str, float]:
        self._turns.append(("assistant", action))
        call = read_call(action, self._tools)
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
        """Return what a tool answers, or its complaint about the arguments."""
        try:
            return str(settled(self._tools[name](**arguments)))
        except _REFUSED_CALLS as error:
            return f"error: {error}"

    def _reward(self) -> None:
        """Pay what the environment and the reward functions give, each as a component of its name."""
        if "get_reward" in dict(inspect.getmembers(type(self._environment), inspect.isfunction)):
            self.pay({SEAT: settled(self._environment.get_reward())}, type(self._environment).__name__)
        completion = [{"role": speaker, "content": words} for speaker, words in self._turns]
        for place in self._settings.rewards:
            columns = {name: [value] for name, value in self._columns.items()} | {"environments": [self._environment]}
            reward = judged(named(place, "rewards"), self._prompt, completion, columns)
            if reward is not None:
                self.pay({SEAT: reward}, place.rpartition(":")[2])


class RewardFunctionVerifier(VerifierConfig):
    """Scores by a reward function of TRL, which gets `prompts`, `completions` and the row's columns, one value each."""

    kind: str = "reward_function"
    grades: ClassVar[bool] = False  # it may look at anything
    example = "function: my_package.my_module:reward_length"
    function: ImportPath
    """Import path of the function."""
    best: PositiveFloat = 1.0
    """Reward that is a score of 1; rewards lie between -best and best."""

    def missing(self) -> Iterable[str]:
        return lacking(lambda: named(self.function, "function"))

    def __call__(self, case: Case) -> Verdict:
        columns = {name: [value] for name, value in columns_of(case.problem).items()}
        completion = [{"role": "assistant", "content": case.text}]
        reward = judged(named(self.function, "function"), case.problem.question, completion, columns)
        if reward is None:
            return Verdict(0.0, "the reward function does not apply")
        return Verdict(reward / self.best)


def _maker(place: str) -> Callable[..., Any]:
    return maker(place, "env", lambda kind: "reset" in dict(inspect.getmembers(kind, inspect.isfunction)))


def columns_of(problem: Problem) -> dict[str, Any]:
    """Return the columns of a row of a data set, beside its prompt, as reward functions get them."""
    return {"answer": problem.answer, **problem.facts}


def judged(
    function: Callable[..., Any], prompt: str, completion: Sequence[Mapping[str, str]], columns: Mapping[str, Any]
) -> float | None:
    """Return what a reward function gives for one completion; None where it does not apply."""
    rewards = settled(function(prompts=[[{"role": "user", "content": prompt}]], completions=[completion], **columns))
    if len(rewards) != 1:
        raise ValueError(f"reward function gave {len(rewards)} rewards for one completion")
    return None if rewards[0] is None else finite(rewards[0], "reward")


def settled(value: Any) -> Any:
    """Return the value, or what it becomes if it is to be awaited."""
    return asyncio.run(value) if inspect.iscoroutine(value) else value
