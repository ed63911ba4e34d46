"""What task sources and verifiers must do."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol

from pydantic import PositiveFloat

from marl.config import Component
from marl.types import Case, Problem, Verdict

Split = Literal["train", "held_out"]


class Tasks(Protocol):
    """Problems by number, the easiest first; the two splits share none."""

    def size(self, split: Split) -> int: ...
    def problem(self, split: Split, index: int) -> Problem:
        """The problem number `index`, always the same."""
        ...

    def posed(self, text: str) -> Problem | None:
        """The problem that a challenger's `text` poses, worked out; None if it poses none, or one that is held out."""
        ...


class TaskConfig(Component):
    """Settings of a source of problems."""

    group: ClassVar[str] = "tasks"

    @abstractmethod
    def build(self) -> Tasks: ...


class VerifierConfig(Component):
    """Says how good an answer is. Pure: it runs in a process of its own, which is killed when `timeout_s` is over.

    What it raises, and being late, is a failure of the answer, never a neutral score.
    """

    group: ClassVar[str] = "verifiers"
    grades: ClassVar[bool] = True
    """Whether it tells right from wrong; False for those that look at form or length alone."""
    imports: ClassVar[tuple[str, ...]] = ()
    """Modules that take long to import: loaded once, before any clock starts."""
    timeout_s: PositiveFloat = 10.0

    @abstractmethod
    def __call__(self, case: Case) -> Verdict: ...

    def phrase(self, answer: str) -> str:
        """A text that says `answer` where this verifier looks for it."""
        return answer


class ToolConfig(Component):
    """Something that a speaker may call. Pure, and run like a verifier: in a process that can be killed."""

    group: ClassVar[str] = "tools"
    imports: ClassVar[tuple[str, ...]] = ()
    """Modules that take long to import: loaded once, before any clock starts."""
    timeout_s: PositiveFloat = 10.0

    @abstractmethod
    def __call__(self, arguments: Mapping[str, Any]) -> str:
        """What the call returns.

        Raises:
            ValueError: saying what is wrong with the arguments; the speaker is told.
        """
