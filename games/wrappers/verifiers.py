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

from marl.core.types import Findings
from marl.games.base import TextGame, TextGameConfig
from marl.games.isolated_random import IsolatedGlobalRandom
from marl.games.wrappers.chat_text import format_conversation, tool_instructions
from marl.games.wrappers.import_env import ImportPath, import_env_factory, import_errors, import_optional

SEAT = "player_0"
SPLITS = ("train", "held_out")


class VerifiersConfig(TextGameConfig):
    """An environment of `verifiers` (single-turn, multi-turn, with tools), played by one seat, `player_0`.

    Replies, tools and reward functions are part of the game: they must use no model and no network, and must depend
    only on the row, the conversation and seeded random numbers.
    """

    kind: str = "verifiers_environment"
    example = "env: my_package.my_module:load_environment"
    env: ImportPath
    """Import path of a class of environments, or of a function that makes one and is named `load_environment`, as in
    packages of environments."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Arguments of that function."""
    examples: tuple[str, ...] = ()
    """Examples of answers, for random play and the warm-up of tiny models."""

    def unmet_requirements(self) -> Iterable[str]:
        return import_errors(lambda: _maker(self.env))

    @cached_property
    def environment(self) -> Any:
        """The environment; its reward functions score every episode by itself."""
        with IsolatedGlobalRandom():
            env = _maker(self.env)(**self.settings)
        if not isinstance(env, _library().Environment):
            raise ValueError(f"env: {self.env!r} makes a {type(env).__name__}; choices: an Environment of `verifiers`")
        rubrics = [env.rubric, *vars(env.rubric).get("rubrics", ())]
        if any(rubric.has_group_rewards for rubric in rubrics):
            raise ValueError(f"env: {self.env!r} has reward functions that compare episodes; a game pays for one")
        return env

    def rows(self, split: str) -> Any:
        """Return the rows of a split: the training rows, or the evaluation rows (empty if there are none)."""
        env = self.environment
        if split == "train":
            return env.get_dataset()
        rows = env.build_eval_dataset()
        return () if rows is None else rows

    def held_out(self, n: int) -> Sequence[Mapping[str, Any]]:
        return [{"split": "held_out", "row": row} for row in range(min(n, len(self.rows("held_out"))))]

    def build(self) -> VerifiersGame:
        return VerifiersGame(self)


class VerifiersGame(TextGame):
    """Runs one rollout of the environment at a time; the seat is to move whenever the environment calls its model."""

    reset_options = ("split", "row")
    _rollout: asyncio.Task[Any]

    def __init__(self, settings: VerifiersConfig) -> None:
        self._settings, self.name = settings, settings.env
        from marl.games.wrappers.verifiers_seat_client import SeatClient

        self._environment = settings.environment
        self._random, self._client = IsolatedGlobalRandom(), SeatClient()
        self._loop = asyncio.new_event_loop()
        weakref.finalize(self, _close, self._loop)
        super().__init__((SEAT,), settings.illegal)

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self._row = self._choose(rng, options)
        self._measures: dict[str, float] = {}
        _cancel(self._loop)
        self._client.drop_requests()
        env, row = self._environment, self._settings.rows(self._row[0])[self._row[1]]
        self._rollout = self._loop.create_task(env.rollout(row, self._client, "policy", {}))
        seed = rng.getrandbits(31)
        with self._random.seeded(seed):
            self._run()
        self._key = "/".join(map(str, (*self._row, *([seed] if self._random.used else []))))
        if self._rollout.done():
            self._rollout.result()  # raises the rollout's error, if an error ended it
            raise ValueError(f"{self.name}: row {self._row} ended before the first answer")
        return SEAT

    def _choose(self, rng: random.Random, options: Mapping[str, Any]) -> tuple[str, int]:
        split = options.get("split", "train")
        if split not in SPLITS:
            raise ValueError(f"{self.name}: option split: no split {split!r}; choices: {', '.join(SPLITS)}")
        size = len(self._settings.rows(split))
        row = options["row"] if "row" in options else rng.randrange(size)
        if type(row) is not int or not 0 <= row < size:
            raise ValueError(f"{self.name}: option row: no row {row!r}; choices: 0 to {size - 1}")
        return split, row

    def _run(self) -> None:
        """Run the event loop until the environment calls its model or ends."""
        question = self._loop.create_task(self._client.wait())
        self._loop.run_until_complete(asyncio.wait([question, self._rollout], return_when=asyncio.FIRST_COMPLETED))
        question.cancel()

    def start_key(self) -> str:
        """Return the row, with the seed if the environment has drawn random numbers."""
        return self._key

    def describe(self, agent: str) -> str:
        question = self._client.pending_request
        if question is None:
            return "The conversation is over."
        tools = {tool.name: f"{tool.name} {json.dumps(tool.parameters)}: {tool.description}" for tool in question.tools}
        return "\n\n".join(
            filter(None, [format_conversation(map(_plain, question.messages)), tool_instructions(tools)])
        )

    def information_state(self, agent: str) -> str:
        return self.describe(agent)

    def example_actions(self, agent: str) -> tuple[str, ...]:
        return self._settings.examples

    def apply_action(self, action: str) -> str | Mapping[str, float]:
        with self._random:
            self._client.answer(action)
            self._run()
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

    def findings(self) -> Findings:
        """Return the value of every reward function as a measure."""
        return Findings(self._measures)


def _library() -> Any:
    return import_optional("verifiers.legacy", "verifiers")


def _maker(place: str) -> Callable[..., Any]:
    library = _library()
    return import_env_factory(place, "env", lambda kind: issubclass(kind, library.Environment))


def _plain(message: Any) -> tuple[str, str]:
    """Return (speaker, text) of a chat message; a message without text has its tool calls as text."""
    data = message if isinstance(message, Mapping) else message.model_dump()
    content = data.get("content") or ""
    words = content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
    calls = [json.dumps({"name": c["name"], "arguments": c["arguments"]}) for c in data.get("tool_calls") or ()]
    return data["role"], words or "\n".join(calls)


def _cancel(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel all running tasks of `loop`, such as an abandoned rollout."""
    if tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks))


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel all tasks and close the event loop of a discarded game."""
    _cancel(loop)
    loop.close()
