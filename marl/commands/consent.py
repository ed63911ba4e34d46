"""Consent of the user to accesses of a scenario outside its folder and the installed packages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import typer

from marl.core.config import shorten
from marl.core.plugins import import_check
from marl.host.outside import escape_for_terminal
from marl.scenario.trust import (
    ExternalAccess,
    ScenarioFolder,
    consent_check,
    external_accesses,
    import_reach,
    stored_consent,
)
from marl.scenario.yaml_text import ScenarioError

_MAX_CHARACTERS = 1000
"""Maximum length of the text of one access, in characters."""


class Consent:
    """External accesses of a command's scenarios, and the consent that the user has given."""

    def __init__(self, *, trusted: bool) -> None:
        self._trusted = trusted
        self.accesses: list[ExternalAccess] = []
        self._folders: list[ScenarioFolder] = []
        self._granted: set[tuple[str, str]] = set()

    def check(self, data: Mapping[str, Any], name: str, typed: Sequence[str]) -> None:
        """Ask for consent to the accesses of a scenario. Data that was read from no file `name` is trusted.

        Args:
            typed: dotted paths of the fields that the user typed on the command line, which need no consent.

        Raises:
            ScenarioError: if the user does not consent.
        """
        accesses = external_accesses(data, Path(name).parent)
        if not os.path.isfile(name):
            # The data was built from a scenario that was checked before, and from the user's own words.
            self._grant(accesses)
            return
        self._folders.append(ScenarioFolder(Path(name).parent))
        self._granted |= stored_consent(Path(name))
        for access in accesses:
            if access not in self.accesses:
                self.accesses.append(access)
            if any(f"{access.field}.".startswith(f"{field}.") for field in typed):
                self._grant([access])
        self._ask(name, [access for access in accesses if access.needs_consent])

    def check_import(self, import_path: str) -> None:
        """Ask for consent to an import that is found while plug-ins are resolved, not in the scenario's data.

        Raises:
            ScenarioError: if the user does not consent.
        """
        access = import_reach(import_path, "kind", self._folders)
        if access and access.needs_consent:
            self._ask(f"kind {import_path!r}", [access])

    def _grant(self, accesses: Sequence[ExternalAccess]) -> None:
        self._granted |= {(access.action, access.target) for access in accesses}

    def _ask(self, name: str, accesses: Sequence[ExternalAccess]) -> None:
        open_questions = [access for access in accesses if (access.action, access.target) not in self._granted]
        if open_questions and not self._trusted:
            text = f"{name} reaches outside its folder and the installed packages:\n{_lines(open_questions)}"
            # Without a terminal nobody can answer, so the answer is no.
            answerable = sys.stdin.isatty() and sys.stderr.isatty()
            question = f"{escape_for_terminal(text)}\nGo on?"
            if not (answerable and typer.confirm(question, default=False, err=True)):
                raise ScenarioError(f"{text}\nNothing of it has happened. Give --trust if you know what it is for")
        self._grant(open_questions)


def _lines(accesses: Sequence[ExternalAccess]) -> str:
    # Every access is listed: an omitted one could be the harmful one.
    return "\n".join(f"  {shorten(str(access), _MAX_CHARACTERS)}" for access in accesses)


_current: ContextVar[Consent] = ContextVar("consent")


@contextmanager
def require_consent(*, trusted: bool = False) -> Iterator[Consent]:
    """Context in which loading a scenario asks for consent to its external accesses; `trusted` agrees to all."""
    consent = Consent(trusted=trusted)
    with ExitStack() as stack:
        stack.callback(_current.reset, _current.set(consent))
        stack.callback(consent_check.reset, consent_check.set(consent.check))
        stack.callback(import_check.reset, import_check.set(consent.check_import))
        yield consent


def format_reaches() -> str:
    """Return the external accesses of this command's scenarios, one per line."""
    return _lines(_current.get().accesses)
