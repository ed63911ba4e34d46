"""Consent of the user to accesses of a scenario beyond data in its folder and packages with plug-ins of marl."""

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
from marl.core.plugins import add_import_folder, import_check
from marl.host.untrusted_text import escape_for_terminal
from marl.scenario.trust import (
    ExternalAccess,
    ScenarioFolder,
    consent_check,
    external_accesses,
    import_access,
    store_consent_to_code_in_folder,
    stored_consent,
)
from marl.scenario.yaml_text import ScenarioError

_MAX_CHARACTERS = 1000
"""Maximum length [characters] of the line that describes one external access in the question for consent."""


class ExternalAccessConsent:
    """External accesses of the scenarios of one command, and the consent that the user has given to them."""

    def __init__(self, *, trusted: bool) -> None:
        self._trusted = trusted
        self.accesses: list[ExternalAccess] = []
        self._folders: list[ScenarioFolder] = []
        self._granted: set[tuple[str, str]] = set()
        """(action, target) of every access to which the user has consented."""

    def require_consent_to_settings(
        self, settings: Mapping[str, Any], file_name: str, command_line_fields: Sequence[str]
    ) -> None:
        """Ask for consent to the external accesses of a scenario.

        Args:
            settings: the scenario's settings.
            file_name: the scenario's file. If the file does not exist, the settings are trusted.
            command_line_fields: dotted paths of the fields typed on the command line, which need no consent.

        Raises:
            ScenarioError: if the user does not consent.
        """
        with _searchable_working_folder():
            accesses = external_accesses(settings, Path(file_name).parent)
        if not os.path.isfile(file_name):
            # Settings without a file were built in this process, from a scenario that the user has consented to.
            self._granted |= {(access.action, access.target) for access in accesses}
            _make_agreed_code_importable(accesses)
            return
        self._folders.append(ScenarioFolder(Path(file_name).parent))
        self._granted |= stored_consent(Path(file_name))
        for access in accesses:
            if access not in self.accesses:
                self.accesses.append(access)
            if any(f"{access.field}.".startswith(f"{field}.") for field in command_line_fields):
                self._granted.add((access.action, access.target))
        needing_consent = [access for access in accesses if access.needs_consent]
        self._ask_user_for_consent(file_name, needing_consent)
        store_consent_to_code_in_folder(Path(file_name).parent, needing_consent)

    def require_consent_to_import(self, import_path: str) -> None:
        """Ask for consent to import `import_path`, which a plug-in needs but no setting of the scenario names.

        Raises:
            ScenarioError: if the user does not consent.
        """
        with _searchable_working_folder():
            access = import_access(import_path, "kind", self._folders)
        if access and access.needs_consent:
            self._ask_user_for_consent(f"kind {import_path!r}", [access])

    def _ask_user_for_consent(self, requester: str, accesses: Sequence[ExternalAccess]) -> None:
        unanswered = [access for access in accesses if (access.action, access.target) not in self._granted]
        if unanswered and not self._trusted:
            reach = "reaches outside the data in its folder and the packages with plug-ins of marl"
            text = f"{requester} {reach}:\n{_format_access_lines(unanswered)}"
            # Without a terminal nobody can answer the question, so consent counts as refused.
            answerable = sys.stdin.isatty() and sys.stderr.isatty()
            question = f"{escape_for_terminal(text)}\nGo on?"
            if not (answerable and typer.confirm(question, default=False, err=True)):
                remembered = any(access.is_code_in_folder for access in unanswered)
                note = " (asked once for code in the scenario's folder)" if remembered else ""
                raise ScenarioError(
                    f"{text}\nNothing of it has happened. Give --trust if you know what it is for{note}"
                )
        self._granted |= {(access.action, access.target) for access in unanswered}
        _make_agreed_code_importable(accesses)


@contextmanager
def _searchable_working_folder() -> Iterator[None]:
    """Return a context in which modules in the working folder are found, so that they can be listed. It imports none.

    Elsewhere the working folder is not on the import path: libraries import optional packages if they find them, and a
    file with such a name in a stranger's folder would run.
    """
    folder = str(Path.cwd())
    if folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _make_agreed_code_importable(accesses: Sequence[ExternalAccess]) -> None:
    """Put the working folder on the import path if one of `accesses` imports its code; the user has agreed to them."""
    folder = Path.cwd()
    files = [access.module_file for access in accesses if access.module_file]
    # A virtual environment may lie in the working folder.
    if any(file.is_relative_to(folder) and "site-packages" not in file.parts for file in files):
        add_import_folder(folder)


def _format_access_lines(accesses: Sequence[ExternalAccess]) -> str:
    # Every access is listed, because an access left out of the question could be the harmful one.
    # An access that several scenarios share is listed once.
    return "\n".join(dict.fromkeys(f"  {shorten(str(access), _MAX_CHARACTERS)}" for access in accesses))


_current: ContextVar[ExternalAccessConsent] = ContextVar("consent")


@contextmanager
def require_consent_to_external_accesses(*, trusted: bool = False) -> Iterator[ExternalAccessConsent]:
    """Return a context in which loading a scenario asks for consent to its external accesses.

    With `trusted`, consent is given to all accesses without a question.
    """
    consent = ExternalAccessConsent(trusted=trusted)
    with ExitStack() as stack:
        stack.callback(_current.reset, _current.set(consent))
        stack.callback(consent_check.reset, consent_check.set(consent.require_consent_to_settings))
        stack.callback(import_check.reset, import_check.set(consent.require_consent_to_import))
        yield consent


def format_external_accesses() -> str:
    """Return the external accesses of all scenarios that this command has loaded, one per line."""
    return _format_access_lines(_current.get().accesses)
