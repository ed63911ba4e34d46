"""Environments of the package `verifiers` as games with one seat, with the rubric's score as the reward."""

from __future__ import annotations

import asyncio
import json
import random
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

from pydantic import Field

from marl.core.types import EpisodeMeasuresAndNewStarts
from marl.games.base import FinalRewards, NextAgent, TextGame, TextGameConfig
from marl.games.isolated_random import IsolatedGlobalRandom
from marl.games.wrappers.chat_text import format_conversation, tool_instructions
from marl.games.wrappers.import_env import (
    ImportPath,
    import_env_factory,
    import_optional_package,
    messages_of_import_errors,
)

SEAT = "player_0"
SPLITS = ("train", "held_out")


class VerifiersConfig(TextGameConfig):
    """Environment of the package `verifiers` (single-turn, multi-turn or with tools), played by one seat, `player_0`.

    Replies, tools and reward functions are part of the game: they must use no model and no network, and must depend
    only on the row, the conversation and seeded random numbers.
    """

    kind: str = "verifiers_environment"
    example = "env: my_package.my_module:load_environment"
    env: ImportPath
    """Import path of an environment class, or of a function `load_environment` that returns an environment, as in
    packages of environments."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the class or function `env`."""
    examples: tuple[str, ...] = ()
    """Example answers for random play and the warm-up of tiny models."""

    def unmet_requirements(self) -> Iterable[str]:
        return messages_of_import_errors(lambda: _environment_factory(self.env))

    @cached_property
    def environment(self) -> Any:
        """Environment of the package `verifiers`, whose reward functions score one episode at a time."""
        with IsolatedGlobalRandom():
            env = _environment_factory(self.env)(**self.settings)
        if not isinstance(env, import_optional_package("verifiers.legacy", "verifiers").Environment):
            _refuse_v1_class(self.env, type(env))
            raise ValueError(f"env: {self.env!r} makes a {type(env).__name__}; choices: an Environment of `verifiers`")
        rubrics = [env.rubric, *vars(env.rubric).get("rubrics", ())]
        if any(rubric.has_group_rewards for rubric in rubrics):
            raise ValueError(f"env: {self.env!r} has reward functions that compare episodes; a game pays for one")
        return env

    def dataset_rows(self, split: str) -> Any:
        """Return the rows of a split: the training rows, or the evaluation rows (empty if there are none)."""
        env = self.environment
        if split == "train":
            return env.get_dataset()
        dataset_rows = env.build_eval_dataset()
        return () if dataset_rows is None else dataset_rows

    def held_out_reset_options(self, max_count: int) -> Sequence[Mapping[str, Any]]:
        return [{"split": "held_out", "row": row} for row in range(min(max_count, len(self.dataset_rows("held_out"))))]

    def build(self) -> VerifiersGame:
        return VerifiersGame(self)


class VerifiersGame(TextGame):
    """Game that runs one rollout of the environment at a time; the seat moves when the environment calls a model."""

    reset_options = ("split", "row")
    _rollout: asyncio.Task[Any]

    def __init__(self, settings: VerifiersConfig) -> None:
        self._settings, self.name = settings, settings.env
        from marl.games.wrappers.verifiers_seat_client import QueueingSeatClient

        self._environment = settings.environment
        self._random, self._client = IsolatedGlobalRandom(), QueueingSeatClient()
        self._loop = asyncio.new_event_loop()
        weakref.finalize(self, _close_loop, self._loop)
        super().__init__((SEAT,), settings.illegal)

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        split = options.get("split", "train")
        if split not in SPLITS:
            raise ValueError(f"{self.name}: option split: no split {split!r}; choices: {', '.join(SPLITS)}")
        dataset_rows = self._settings.dataset_rows(split)
        row = options["row"] if "row" in options else rng.randrange(len(dataset_rows))
        if type(row) is not int or not 0 <= row < len(dataset_rows):
            raise ValueError(f"{self.name}: option row: no row {row!r}; choices: 0 to {len(dataset_rows) - 1}")
        self._row = split, row
        self._measures: dict[str, float] = {}
        _cancel_tasks(self._loop)
        self._client.drop_unanswered_requests()
        self._rollout = self._loop.create_task(self._environment.rollout(dataset_rows[row], self._client, "policy", {}))
        seed = rng.getrandbits(31)
        with self._random.reseed_on_entry(seed):
            self._run_until_model_request()
        self._key = "/".join(map(str, (*self._row, *([seed] if self._random.changed_since_seeding else []))))
        if self._rollout.done():
            self._rollout.result()  # `result` raises the error that ended the rollout, if any
            raise ValueError(f"{self.name}: row {self._row} ended before the first answer")
        return SEAT

    def _run_until_model_request(self) -> None:
        """Run the event loop until the environment calls its model, or the rollout ends."""
        request = self._loop.create_task(self._client.has_request.wait())
        self._loop.run_until_complete(asyncio.wait([request, self._rollout], return_when=asyncio.FIRST_COMPLETED))
        request.cancel()

    def start_state_key(self) -> str:
        """Return the row, with the seed if the environment has drawn random numbers."""
        return self._key

    def describe_observation(self, agent: str) -> str:
        if not self._client.requests:
            return "The conversation is over."
        request = self._client.requests[0]
        tools = {tool.name: f"{tool.name} {json.dumps(tool.parameters)}: {tool.description}" for tool in request.tools}
        turns: list[tuple[str, str]] = []
        for message in request.messages:
            data = message if isinstance(message, Mapping) else message.model_dump()
            content = data.get("content") or ""
            text = content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
            calls: list[str] = []
            for call in data.get("tool_calls") or ():
                calls.append(json.dumps({"name": call["name"], "arguments": call["arguments"]}))
            turns.append((data["role"], text or "\n".join(calls)))
        return "\n\n".join(filter(None, [format_conversation(turns), tool_instructions(tools)]))

    def information_state(self, agent: str) -> str:
        return self.describe_observation(agent)

    def example_actions(self, agent: str) -> tuple[str, ...]:
        return self._settings.examples

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        with self._random:
            self._client.answer_request(action)
            self._run_until_model_request()
            if not self._rollout.done():
                return SEAT
            state = self._rollout.result()
            if state["error"] is not None:
                raise RuntimeError(f"{self.name}: row {self._row}: {state['error']!r}") from state["error"]
            self._loop.run_until_complete(self._environment.rubric.score_rollout(state))
        self._measures = {name: float(value) for name, value in state["metrics"].items()}
        return {SEAT: state["reward"]}

    def copy(self, seed: int | None = None) -> Self:
        """Raise ValueError: a suspended coroutine cannot be copied, only replayed."""
        raise ValueError(f"{self.name}: an environment of verifiers cannot be copied, which search needs")

    def episode_measures(self) -> EpisodeMeasuresAndNewStarts:
        """Return the value of every reward function as a measure of the episode."""
        return EpisodeMeasuresAndNewStarts(self._measures)


def _environment_factory(import_path: str) -> Callable[..., Any]:
    """Return the class or function that creates the environment; raise ValueError if there is none."""
    library = import_optional_package("verifiers.legacy", "verifiers")

    def is_environment(candidate: type) -> bool:
        _refuse_v1_class(import_path, candidate)
        return issubclass(candidate, library.Environment)

    return import_env_factory(import_path, "env", is_environment)


def _refuse_v1_class(import_path: str, candidate: type) -> None:
    """Raise ValueError if `candidate`, to which `import_path` leads, is a class of `verifiers.v1`."""
    if any(base.__module__.startswith("verifiers.v1.") for base in candidate.__mro__):
        raise ValueError(
            f"env: {import_path!r} belongs to verifiers.v1, whose environments are no games: they are trained as "
            "programs, by scenarios such as scenarios/programs/verifiers_v1.yaml"
        )


def _cancel_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel all running tasks of `loop`, such as an abandoned rollout, and wait until they have ended."""
    if tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks))


def _close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel all tasks of a discarded game's event loop, and close the loop."""
    _cancel_tasks(loop)
    loop.close()
