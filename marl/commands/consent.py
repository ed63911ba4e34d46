"""Consent of the user to what a scenario reaches outside its folder and the installed packages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import typer

from marl.commands.plug_ins import WithPlugIns
from marl.config import cut
from marl.parts import import_gate
from marl.scenario.trust import Folder, Reach, gate, import_reach, reaches, remembered
from marl.scenario.yaml_text import ScenarioError
from marl.text import for_terminal

_LONGEST = 1000
"""Characters that are shown of one thing that is reached."""


class Consent:
    """Records what the scenarios of a command reach, and what of it the user has agreed to."""

    def __init__(self, *, trusted: bool) -> None:
        self._trusted = trusted
        self.reaches: list[Reach] = []
        self._folders: list[Folder] = []
        self._granted: set[tuple[str, str]] = set()

    def check(self, data: Mapping[str, Any], name: str, typed: Sequence[str]) -> None:
        """Ask for consent to what a scenario reaches, unless it comes from fields that were typed, or from no file.

        Raises:
            ScenarioError: if there is none.
        """
        reached = reaches(data, Path(name).parent)
        if not os.path.isfile(name):  # made of a scenario that was checked, and of what the user typed
            self._grant(reached)
            return
        self._folders.append(Folder(Path(name).parent))
        self._granted |= remembered(Path(name))
        self.reaches += [reach for reach in reached if reach not in self.reaches]
        self._grant([reach for reach in reached if any(f"{reach.field}.".startswith(f"{field}.") for field in typed)])
        self._ask(name, [reach for reach in reached if reach.needs_consent])

    def check_import(self, place: str) -> None:
        """Ask for consent to an import that no rule has seen in the data.

        Raises:
            ScenarioError: if there is none.
        """
        reach = import_reach(place, "kind", self._folders)
        if reach and reach.needs_consent:
            self._ask(f"kind {place!r}", [reach])

    def _grant(self, granted: Sequence[Reach]) -> None:
        self._granted |= {(reach.action, reach.target) for reach in granted}

    def _ask(self, name: str, needed: Sequence[Reach]) -> None:
        open_questions = [reach for reach in needed if (reach.action, reach.target) not in self._granted]
        if open_questions and not self._trusted:
            text = f"{name} reaches outside its folder and the installed packages:\n{_lines(open_questions)}"
            if not _agrees(for_terminal(text)):
                raise ScenarioError(f"{text}\nNothing of it has happened. Give --trust if you know what it is for")
        self._grant(open_questions)


def _lines(reached: Sequence[Reach]) -> str:
    # All of them: what is left out could be what matters.
    return "\n".join(f"  {cut(str(reach), _LONGEST)}" for reach in reached)


def _agrees(text: str) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return typer.confirm(f"{text}\nGo on?", default=False, err=True)


_current: ContextVar[Consent] = ContextVar("consent")


@contextmanager
def consent_needed(*, trusted: bool = False) -> Iterator[Consent]:
    """Context in which no scenario is loaded whose reach the user has not agreed to; by `trusted`, to all."""
    consent = Consent(trusted=trusted)
    with ExitStack() as stack:
        stack.callback(_current.reset, _current.set(consent))
        stack.callback(gate.reset, gate.set(consent.check))
        stack.callback(import_gate.reset, import_gate.set(consent.check_import))
        yield consent


def reach_lines() -> str:
    """Return what the scenarios of this command reach, a line each."""
    return _lines(_current.get().reaches)


class TrustAnywhere(WithPlugIns):
    """Commands that take `--trust`, which belongs to all of them, wherever it is typed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, sorted(args, key=lambda word: word != "--trust"))
