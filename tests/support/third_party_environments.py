"""Small chat environments as others write them: for the package `verifiers`, and for TRL's GRPOTrainer."""

from __future__ import annotations

import random
from typing import Any

TOP = 9


def load_environment(name: str, **settings: Any) -> Any:
    """An environment of `verifiers` by its name."""
    return {"sums": sums, "guessing": guessing, "doubling": doubling}[name](**settings)


def sums(rows: int = 4, held_out: int = 2) -> Any:
    """A single-turn environment of `verifiers`: sums of a number with itself, two reward functions."""
    from datasets import Dataset
    from verifiers.legacy import Rubric, SingleTurnEnv

    def right(completion: Any, answer: str) -> float:
        return float(completion[-1]["content"].strip() == answer)

    def short(completion: Any) -> float:
        return -len(completion[-1]["content"])

    data = [{"question": f"{n}+{n}?", "answer": str(2 * n)} for n in range(rows + held_out)]
    return SingleTurnEnv(
        dataset=Dataset.from_list(data[:rows]),
        eval_dataset=Dataset.from_list(data[rows:]),
        rubric=Rubric(funcs=[right, short], weights=[1.0, 0.1]),
        system_prompt="Add.",
    )


def guessing() -> Any:
    """A multi-turn environment of `verifiers`: a number that Python's global generator draws, at most four guesses."""
    from datasets import Dataset
    from verifiers.legacy import MultiTurnEnv, Rubric

    class GuessingEnv(MultiTurnEnv):
        async def setup_state(self, state: Any) -> Any:
            state["secret"] = random.randint(1, TOP)
            return state

        async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
            answer = hint(messages[-1]["content"], state["secret"])
            response = [{"role": "user", "content": answer}]
            if answer == "right":
                state["final_env_response"] = response
            return response

    def won(state: Any) -> float:
        return float(state["final_env_response"] is not None)

    rows = Dataset.from_list([{"question": f"Guess 1 to {TOP}.", "answer": ""}])
    return GuessingEnv(dataset=rows, rubric=Rubric(funcs=[won]), max_turns=4)


def doubling() -> Any:
    """An environment of `verifiers` with a tool."""
    from datasets import Dataset
    from verifiers.legacy import Rubric, ToolEnv

    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    def right(completion: Any, answer: str) -> float:
        return float(completion[-1]["content"].strip() == answer)

    rows = Dataset.from_list([{"question": "Double 21.", "answer": "42"}])
    return ToolEnv(tools=[double], max_turns=3, dataset=rows, rubric=Rubric(funcs=[right]))


class GuessEnvironment:
    """An environment of TRL: a number that Python's global generator draws, and a tool to guess it."""

    def __init__(self, top: int = TOP) -> None:
        self.top = top

    def reset(self, **row: Any) -> str:
        self.secret, self.won = random.randint(1, self.top), False
        return f"Guess 1 to {self.top}."

    def guess(self, number: int) -> str:
        """Say whether the number is right, or which way to go."""
        answer = hint(str(int(number)), self.secret)
        self.won = answer == "right"
        return answer

    def get_reward(self) -> float:
        return float(self.won)


class EchoEnvironment:
    """An environment of TRL without chance, whose `reset` is awaited."""

    def __init__(self, words: Any = "Now.") -> None:
        self.words = words

    async def reset(self, **row: Any) -> Any:
        return self.words

    def get_reward(self) -> float:
        return 1.0


def brevity(completions: Any, **_: Any) -> list[float]:
    """A reward function of TRL: less for each message."""
    return [-0.1 * len(completion) for completion in completions]


def exact(completions: Any, answer: Any, **_: Any) -> list[float | None]:
    """A reward function of TRL: 2 for the right answer; it does not apply to rows without one."""
    words = [completion[-1]["content"] for completion in completions]
    return [2.0 * (said == right) if right else None for said, right in zip(words, answer, strict=True)]


def hint(guess: str, secret: int) -> str:
    """Return `right`, `higher` or `lower`."""
    if guess == str(secret):
        return "right"
    return "higher" if guess.isdigit() and int(guess) < secret else "lower"
