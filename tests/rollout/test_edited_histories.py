"""A history that a program has edited begins a new prompt, and a metric counts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from marl.metrics.trajectory_metrics import edited_history_metrics
from tests.support.addition_task import team_deal
from tests.support.calling_programs import CREW, GeneratorEngine, crew_game, crew_simulator
from tests.support.small_games import FunctionEngine

Chat = list[tuple[str, str]]


def begin_and_continue(second_chat: Callable[[str], Chat]) -> Any:
    """Return a program that asks the solver to begin, and then asks with `second_chat(answer)`."""

    def program(task: dict[str, Any]) -> Any:
        [answer] = yield [("solver", "begin")]
        [last] = yield [("solver", second_chat(answer))]
        return last

    return program


@pytest.mark.parametrize("history", ["append", "fresh"])
@pytest.mark.parametrize(
    ("second_chat", "is_edited"),
    [
        (lambda answer: [("user", "begin"), ("assistant", answer), ("user", "go on")], False),
        (lambda answer: [("user", "begin"), ("assistant", f"{answer}!"), ("user", "go on")], True),
        (lambda answer: [("user", "another begin"), ("assistant", answer), ("user", "go on")], True),
        (lambda answer: [("user", "begin"), ("assistant", "instead"), ("user", "go on")], True),
        (lambda answer: [("user", "1 + 1"), ("assistant", "2"), ("user", f"another call {answer}")], False),
        (lambda answer: [("user", f"a new call after {answer}")], False),
    ],
    ids=["same", "answer", "question", "replaced_answer", "examples", "new"],
)
def test_an_edited_history_is_a_new_prompt_and_counted(
    history: str, second_chat: Callable[[str], Chat], is_edited: bool
) -> None:
    voice = FunctionEngine(lambda request: f"the answer to {request.messages[-1].content}")
    game = crew_game(CREW)
    simulator = crew_simulator(game, GeneratorEngine(begin_and_continue(second_chat)), voice, history=history)
    [episode] = simulator.play([team_deal(game)])
    metrics = edited_history_metrics([episode], simulator.casting.roles)
    first, second = episode.turns[:2]
    if history == "fresh":
        assert metrics == {}
        return
    assert metrics == {"role/solver/edited": 0.5 * is_edited}
    tokens = (*first.completion.prompt_ids, *first.completion.token_ids)
    is_same_history = second.request.messages[-1].content == "go on" and not is_edited
    assert second.request.continues == (tokens if is_same_history else ())
